"""How much may wait in a producer, and who waits for room."""

import asyncio
from collections import deque

from typing_extensions import override

from pidlease.core.byte_budget import ByteBudget


class Memory(ByteBudget):
    """Bytes of records that are not acknowledged yet.

    Parameters:
        limit: from here on, `send` waits.
    """

    __slots__ = ("_released", "_waiting")

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._released: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """Whether the next record has to wait; those before it go first."""
        return self.exhausted or bool(self._waiting)

    async def room(self) -> None:
        """Wait for room, in the order of asking. The caller takes it before anybody else runs."""
        while self.full:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                self.wake()  # the turn was given to somebody who left
                raise
            if not self.exhausted:
                # Who is next goes on when this one has taken its part.
                asyncio.get_running_loop().call_soon(self.wake)
                return

    @override
    def release(self, size: int) -> None:
        super().release(size)
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
        while self._waiting and not self.exhausted:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
