"""Memory for requests and answers, bounded over all connections together."""

import asyncio
from collections import deque
from typing import Protocol

from typing_extensions import override

from pidlease.core.byte_budget import ByteBudget


class Waiter(Protocol):
    """Who can be told that there is memory again."""

    def budget_freed(self) -> None:
        """Try again."""


class _Freed:
    """Waits for memory (see `Waiter`)."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def budget_freed(self) -> None:
        """See `Waiter`."""
        self.event.set()


class MemoryBudget(ByteBudget):
    """Bytes that requests in flight, and responses being made, may hold.

    Parameters:
        limit: in bytes.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        #: Of it, what is held for requests that are still arriving.
        self.arriving = 0
        self._waiting: deque[Waiter] = deque()

    def begin(self, size: int) -> bool:
        """Take `size` bytes for a request that has begun to arrive, if they are there.

        Such requests may hold half of the memory together: who only announces large ones cannot
        keep others from being read.
        """
        if self.arriving and self.arriving + size > self.limit // 2:
            return False
        if not self.reserve(size):
            return False
        self.arriving += size
        return True

    def arrived(self, size: int) -> None:
        """The request is complete, or will never be; its bytes stay taken until released."""
        self.arriving -= size
        self._tell()

    def wait(self, waiter: Waiter) -> None:
        """Have somebody told when there is memory again; each call tells once."""
        self._waiting.append(waiter)

    async def freed(self, seconds: float) -> None:
        """Return when there is memory again.

        Parameters:
            seconds: how long to wait.

        Raises:
            TimeoutError: the time is up.
        """
        waiter = _Freed()
        self.wait(waiter)
        await asyncio.wait_for(waiter.event.wait(), seconds)

    @override
    def release(self, size: int) -> None:
        super().release(size)
        self._tell()

    def _tell(self) -> None:
        # Those who wait now, once each: who finds too little goes to the end of the queue.
        for _ in range(len(self._waiting)):
            if self.exhausted or not self._waiting:
                break
            # Not from here: one who is freed may free others, and so on.
            asyncio.get_running_loop().call_soon(self._waiting.popleft().budget_freed)
