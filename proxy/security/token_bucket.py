"""What a client may use at a rate: a bucket of tokens, which may owe some.

A full bucket has the tokens of Kafka's quota window, `quota.window.num` - 1 samples of
`quota.window.size.seconds`. So a client that was idle is throttled after the same use, and for the
same time, as by Kafka's Rate: use / rate - window. Kafka forgets use that is older than its window;
here a debt stays, so that to disconnect, and to come again, changes nothing.
"""

import asyncio
from time import monotonic
from typing import Final, Protocol

#: The shortest time until waiting connections are looked at again.
_WAKE_SECONDS_MIN: Final = 0.001


class Waiter(Protocol):
    """A connection that waits for a bucket."""

    def quota_freed(self) -> None:
        """Handle requests again."""


class TokenBucket:
    """The use of one client, or of all clients that share a quota.

    Parameters:
        rate: tokens a second.
        window_seconds: how many seconds' tokens a full bucket has.
    """

    __slots__ = ("_paid_at", "_timer", "_window", "rate", "waiting")

    def __init__(self, rate: float, window_seconds: float) -> None:
        self.rate = rate
        self._window: Final = window_seconds
        #: When all that was taken is paid at the rate; a bucket is full a window after that.
        self._paid_at = monotonic() - window_seconds
        self._timer: asyncio.TimerHandle | None = None
        #: Connections with a request that waits, in their order.
        self.waiting: Final[dict[Waiter, None]] = {}

    @property
    def size(self) -> float:
        """The tokens of a full bucket."""
        return self.rate * self._window

    def change_rate(self, rate: float) -> None:
        """Count at another rate from now on; what is owed stays owed."""
        now = monotonic()
        seconds = (self._paid_at - now) * self.rate / rate
        self._paid_at = now + max(seconds, -self._window)
        self.rate = rate

    def take(self, tokens: float, now: float) -> float:
        """Take tokens; return in how many seconds nothing is owed.

        Parameters:
            now: by the monotonic clock.
        """
        paid_at, full_at = self._paid_at, now - self._window
        if paid_at < full_at:  # noqa: PLR1730 - half the time of max
            paid_at = full_at  # a bucket holds no more than a window's tokens
        paid_at += tokens / self.rate
        self._paid_at = paid_at
        return paid_at - now if paid_at > now else 0.0

    def debt_seconds(self, now: float) -> float:
        """Return in how many seconds nothing is owed."""
        return max(self._paid_at - now, 0.0)

    def is_overdrawn(self, now: float) -> bool:
        """Whether more is owed than a full bucket has."""
        return self._paid_at - now > self._window

    def would_overdraw(self, tokens: float, now: float) -> bool:
        """Whether the bucket is overdrawn after so many tokens are taken."""
        paid_at = max(self._paid_at, now - self._window) + tokens / self.rate
        return paid_at - now > self._window

    def is_full(self, now: float) -> bool:
        """Whether the bucket is as a new one."""
        return self._paid_at <= now - self._window and not self.waiting

    # ------------------------------------------------------------------ waiting

    def wait(self, waiter: Waiter) -> None:
        """Call a connection when the bucket is not overdrawn any more, after earlier ones."""
        self.waiting[waiter] = None
        if self._timer is None:
            self._wake_later()

    def leave(self, waiter: Waiter) -> None:
        """Call a connection no more."""
        self.waiting.pop(waiter, None)

    def release(self) -> None:
        """Call all connections now: the quotas have changed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting = list(self.waiting)
        self.waiting.clear()
        for each in waiting:
            each.quota_freed()

    def _wake_later(self) -> None:
        seconds = max(self.debt_seconds(monotonic()) - self._window, _WAKE_SECONDS_MIN)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._wake)

    def _wake(self) -> None:
        self._timer = None
        while self.waiting and not self.is_overdrawn(monotonic()):
            waiter = next(iter(self.waiting))
            del self.waiting[waiter]
            waiter.quota_freed()
        if self.waiting:
            self._wake_later()
