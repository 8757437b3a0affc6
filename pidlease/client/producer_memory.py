"""How much may wait in a producer, and who waits for room."""

import asyncio
from collections import deque
from typing import Final


class Memory:
    """Bytes of records that were not answered yet.

    Parameters:
        limit: from here on, `send` waits.

    Attributes:
        used: now.
    """

    __slots__ = ("_released", "_waiting", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit: Final = limit
        self.used = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._released: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """Whether the next record has to wait; those before it go first."""
        return self.used >= self.limit or bool(self._waiting)

    async def room(self) -> None:
        """Wait for room, in the order of asking. The caller takes it before anybody else runs."""
        while self.used >= self.limit or self._waiting:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                self.wake()  # the turn was given to somebody who left
                raise
            if self.used < self.limit:
                # Who is next goes on when this one has taken its part.
                asyncio.get_running_loop().call_soon(self.wake)
                return

    def release(self, count: int) -> None:
        """Give back what a batch took."""
        self.used -= count
        self.wake()
        if self._released is not None:
            self._released.set_result(None)
            self._released = None

    async def released(self) -> None:
        """Wait until a batch gives back what it took: it stands in the log, or has failed."""
        if self._released is None:
            self._released = asyncio.get_running_loop().create_future()
        # Several may wait for it, and `wait` does not cancel it where one of them is.
        await asyncio.wait((self._released,))

    def wake(self) -> None:
        """Let the next one go on, if there is room."""
        while self._waiting and self.used < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
