"""Reserves memory for a response of unknown size while it grows, and lets other tasks run."""

import asyncio
from typing import Final

from proxy.kafka.client_connection import Slot

#: Bytes that are encoded before other tasks run.
_BYTES_AT_ONCE: Final = 16 << 10
#: Memory is reserved in steps of this size; a smaller response reserves none.
_STEP_BYTES: Final = 64 << 10
#: How long a response waits for memory; after that it gets no more large parts.
_HOLD_SECONDS: Final = 10.0


class GrowingResponse:
    """Counts the bytes of one response."""

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._limit = slot.connection.budget.limit // 4
        self._size = 0
        self._unheld = 0
        self._since = 0
        self._refused = False

    @property
    def full(self) -> bool:
        """Whether the response is too large, or there is no memory: add nothing large any more."""
        return self._refused or self._size >= self._limit

    async def grow(self, size: int) -> bool:
        """Count bytes added to the response; return False if it is full."""
        self._size += size
        self._unheld += size
        self._since += size
        if self._unheld >= _STEP_BYTES and not self._refused:
            self._refused = not await self._slot.hold(self._unheld, _HOLD_SECONDS)
            self._unheld = 0
        if self._since >= _BYTES_AT_ONCE:
            self._since = 0
            await asyncio.sleep(0)
        return not self.full
