"""Counts the HTTP requests of a client for its quotas, as those of its Kafka connections.

HTTP has no field for a throttle time, and no order in which a connection could wait: a client that
owes something gets 429 with Retry-After. Server-sent events wait instead.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from proxy.http.access.route_rights import Traffic
from proxy.http.current_caller import QuotaExceededError
from proxy.http.errors import too_much_used
from proxy.security.quota_rules import FETCHED_BYTES, PRODUCED_BYTES, REQUESTS
from proxy.security.quotas import Buckets, Quotas

_LISTENER: Final = "http"
#: How often a response that waits looks whether it may go on.
_LOOK_SECONDS: Final = 1.0
_EVENTS: Final = b"text/event-stream"


class RequestMeter:
    """Counts one request.

    Parameters:
        quotas: those in force.
        user: the client's.
        traffic: what the request's or the response's bytes count for.
        sent_on: whether another active server has sent the request on. That one counts the request
            and all bytes but those by which a batch is larger than its body, since it makes none.
    """

    def __init__(
        self, quotas: Quotas, user: str, traffic: Traffic, *, sent_on: bool = False
    ) -> None:
        self._quotas: Final = quotas
        self._user: Final = user
        self._traffic: Final = traffic
        self._sent_on: Final = sent_on
        self._refused = False
        self._streams = False

    def buckets(self) -> Buckets | None:
        """Return what the client's use is counted in; None: it has no quota."""
        return self._quotas.buckets(self._user, "") if self._quotas.active else None

    def begin(self) -> None:
        """Count the request.

        Raises:
            QuotaExceededError: the client owes something.
        """
        buckets = None if self._sent_on else self.buckets()
        if buckets is None:
            return
        now = monotonic()
        debt = self._debt(buckets, now)
        if debt is not None:
            self._exceeded(*debt)
        if buckets.requests is not None:
            buckets.requests.take(1, now)

    def _debt(self, buckets: Buckets, now: float) -> tuple[str, float] | None:
        """Return the quota of which the client owes something, and for how many seconds."""
        traffic = self._traffic
        for quota, bucket in (
            (REQUESTS, buckets.requests),
            (PRODUCED_BYTES, buckets.produced if traffic == "produced" else None),
            (FETCHED_BYTES, buckets.fetched if traffic == "fetched" else None),
        ):
            if bucket is not None and (seconds := bucket.debt_seconds(now)) > 0:
                return quota, seconds
        return None

    def fits(self, size: int) -> bool:
        """Whether neither `begin` nor `count_produced` would raise an error; counts nothing.

        Parameters:
            size: the bytes that the request appends.
        """
        buckets = self.buckets()
        if buckets is None:
            return True
        now = monotonic()
        if self._debt(buckets, now) is not None:
            return False
        return buckets.produced is None or not buckets.produced.would_overdraw(size, now)

    def count_whole(self, size: int) -> None:
        """Count a request that `fits`, with all bytes that it appends."""
        buckets = self.buckets()
        if buckets is None:
            return
        now = monotonic()
        if buckets.requests is not None:
            buckets.requests.take(1, now)
        if buckets.produced is not None:
            buckets.produced.take(size, now)

    def count_produced(self, size: int) -> None:
        """Count bytes that the client appends.

        Raises:
            QuotaExceededError: it owes more than a window has.
        """
        buckets = self.buckets()
        if buckets is None or buckets.produced is None:
            return
        now = monotonic()
        seconds = buckets.produced.take(size, now)
        if buckets.produced.is_overdrawn(now):
            self._exceeded(PRODUCED_BYTES, seconds)

    def receive(self, receive: Receive) -> Receive:
        """Return a function that counts what it receives."""
        if self._traffic != "produced" or self._sent_on:
            return receive

        async def counted() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                self.count_produced(len(message.get("body", b"")))
            return message

        return counted

    def send(self, scope: Scope, receive: Receive, send: Send, check: Callable[[], None]) -> Send:
        """Return a function that counts what it sends.

        Parameters:
            check: raises an error if a response that waits must end.
        """
        if self._traffic != "fetched" or self._sent_on:
            return send

        async def counted(message: Message) -> None:
            if self._refused:
                return  # the rest of the response that the refusal has replaced
            if message["type"] == "http.response.start":
                self._streams = any(
                    name.lower() == b"content-type" and value.startswith(_EVENTS)
                    for name, value in message["headers"]
                )
                seconds = self._fetched_debt()
                if seconds > 0 and not self._streams:
                    # Another request of the client was read meanwhile.
                    self._refused = True
                    self._quotas.count(FETCHED_BYTES, _LISTENER, seconds)
                    refused = too_much_used(QuotaExceededError(FETCHED_BYTES, seconds))
                    await refused(scope, receive, send)
                    return
            elif message["type"] == "http.response.body":
                if self._streams:
                    await self._wait(check)
                self._take_fetched(len(message.get("body", b"")))
            await send(message)

        return counted

    async def _wait(self, check: Callable[[], None]) -> None:
        """Wait until the client owes nothing."""
        while (seconds := self._fetched_debt()) > 0:
            check()
            part = min(seconds, _LOOK_SECONDS)
            self._quotas.count(FETCHED_BYTES, _LISTENER, part)
            await asyncio.sleep(part)
        check()

    def _fetched_debt(self) -> float:
        return self._take_fetched(0)

    def _take_fetched(self, size: int) -> float:
        buckets = self.buckets()
        if buckets is None or buckets.fetched is None:
            return 0.0
        return buckets.fetched.take(size, monotonic())

    def _exceeded(self, quota: str, seconds: float) -> None:
        self._quotas.count(quota, _LISTENER, seconds)
        raise QuotaExceededError(quota, seconds)
