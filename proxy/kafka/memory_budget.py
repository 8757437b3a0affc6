"""The memory for requests and responses, with one bound for all connections."""

import asyncio
from collections import deque
from typing import Protocol

from typing_extensions import override

from pidlease.core.byte_budget import ByteBudget


class Waiter(Protocol):
    """Waits for memory."""

    def budget_freed(self) -> None:
        """Try again, because memory was released."""


class _Freed:
    """A waiter that sets an event."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def budget_freed(self) -> None:
        """Set the event."""
        self.event.set()


class MemoryBudget(ByteBudget):
    """Limits the bytes that requests in flight, and responses being made, may hold.

    Parameters:
        limit: how many bytes they may hold.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        #: The part of `used` that is held for requests that are still arriving.
        self.arriving = 0
        self._waiting: deque[Waiter] = deque()

    def begin(self, size: int) -> bool:
        """Reserve bytes for a request that has begun to arrive; False: there are not enough.

        Such requests may hold half of the memory together. So a client that only announces large
        requests does not keep the server from reading those of other clients.
        """
        if self.arriving and self.arriving + size > self.limit // 2:
            return False
        if not self.reserve(size):
            return False
        self.arriving += size
        return True

    def arrived(self, size: int) -> None:
        """Note that a request is complete, or never will be; its bytes stay held until released."""
        self.arriving -= size
        self._wake()

    def wait(self, waiter: Waiter) -> None:
        """Call a waiter once when there is memory again."""
        self._waiting.append(waiter)

    async def freed(self, seconds: float) -> None:
        """Wait until there is memory again.

        Parameters:
            seconds: how long to wait.

        Raises:
            TimeoutError: the time is up.
        """
        waiter = _Freed()
        self.wait(waiter)
        try:
            await asyncio.wait_for(waiter.event.wait(), seconds)
        finally:
            if waiter in self._waiting:  # or each wait that ends in vain would hold memory
                self._waiting.remove(waiter)

    @override
    def release(self, size: int) -> None:
        self.used -= size  # not by `super`: this runs for every request
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        # Each present waiter once: one that finds too little memory rejoins at the end of the
        # queue.
        for _ in range(len(self._waiting)):
            if self.exhausted or not self._waiting:
                break
            # Not called from here: a waiter may release memory itself, which would recurse.
            asyncio.get_running_loop().call_soon(self._waiting.popleft().budget_freed)
