"""The buffer memory of a producer, and the callers that wait for room."""

import asyncio
from collections import deque

from typing_extensions import override

from pidlease.core.byte_budget import ByteBudget


class Memory(ByteBudget):
    """Bytes of pending records.

    Parameters:
        limit: when so many bytes are used, `send` waits.
    """

    __slots__ = ("_released", "_turn", "_waiting")

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._waiting: deque[asyncio.Future[None]] = deque()
        #: Of the caller that was woken and has not used its part yet: no other caller overtakes it.
        self._turn: asyncio.Future[None] | None = None
        self._released: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """Whether the next record has to wait; those that wait already go first."""
        return self.exhausted or bool(self._waiting) or self._turn is not None

    async def room(self) -> None:
        """Wait for room, in the order of calls. The caller must use it before it yields."""
        if not self.full:
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            if turn is self._turn:
                self._end_turn()
            raise
        # The next caller continues after this one has used its part.
        asyncio.get_running_loop().call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._turn = None
        self.wake()

    @override
    def release(self, size: int) -> None:
        super().release(size)
        self.wake()
        if self._released is not None:
            self._released.set_result(None)
            self._released = None

    async def released(self) -> None:
        """Wait until a batch gives back its bytes: it is in the log, or has failed."""
        if self._released is None:
            self._released = asyncio.get_running_loop().create_future()
        # Several tasks may wait for it; `wait` does not cancel it with one of them.
        await asyncio.wait((self._released,))

    def wake(self) -> None:
        """Let the next caller continue, if there is room."""
        while self._waiting and self._turn is None and not self.exhausted:
            turn = self._waiting.popleft()
            if not turn.done():
                self._turn = turn
                turn.set_result(None)
