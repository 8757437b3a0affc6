"""A response of unknown size: paced, and counted in the memory of all."""

import asyncio
from typing import Final

from proxy.kafka.client_connection import Slot

#: Bytes that are made before others get their turn.
_BYTES_AT_ONCE: Final = 16 << 10
#: Memory is asked for by this many bytes; a smaller answer asks for none.
_STEP_BYTES: Final = 64 << 10
#: How long an answer waits for memory before it is given without what is large.
_HOLD_SECONDS: Final = 10.0


class GrowingResponse:
    """Counts the bytes of one answer.

    Parameters:
        slot: the place of the answer.
    """

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._limit = slot.connection.budget.limit // 4
        self._size = 0
        self._unheld = 0
        self._since = 0
        self._refused = False

    async def grow(self, size: int) -> bool:
        """Note that the answer became longer; others get their turn.

        Parameters:
            size: by how many bytes.

        Returns:
            False: it is too long, or there is no memory; nothing large is to come any more.
        """
        self._size += size
        self._unheld += size
        self._since += size
        if self._unheld >= _STEP_BYTES and not self._refused:
            self._refused = not await self._slot.hold(self._unheld, _HOLD_SECONDS)
            self._unheld = 0
        if self._since >= _BYTES_AT_ONCE:
            self._since = 0
            await asyncio.sleep(0)
        return not self._refused and self._size <= self._limit
