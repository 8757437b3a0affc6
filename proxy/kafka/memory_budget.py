"""Memory for requests and answers, bounded over all connections together."""

import asyncio
from collections import deque
from typing import Protocol

from typing_extensions import override

from pidlease.core.byte_budget import ByteBudget


class Waiter(Protocol):
    """Waits for memory."""

    def budget_freed(self) -> None:
        """Try again."""


class _Freed:
    """Waits for memory (see `Waiter`)."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def budget_freed(self) -> None:
        """Wake the waiting task."""
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

        Such requests may hold half of the memory together, so a client that only announces large
        ones cannot keep others from being read.
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
        self._wake()

    def wait(self, waiter: Waiter) -> None:
        """Wake a waiter once when there is memory again."""
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
        self.used -= size  # not by `super`: this runs for every request
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        # The present waiters, once each: one that finds too little goes to the end of the queue.
        for _ in range(len(self._waiting)):
            if self.exhausted or not self._waiting:
                break
            # Not from here: a waiter may free others, and so on.
            asyncio.get_running_loop().call_soon(self._waiting.popleft().budget_freed)
