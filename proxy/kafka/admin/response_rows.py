"""A response that is one array, encoded row by row."""

import asyncio
from typing import Any, Final

from pidlease.kafka.codec.messages import Response
from pidlease.kafka.codec.primitives import RequestHeader
from proxy.kafka.client_connection import Slot
from proxy.kafka.growing_response import GrowingResponse

#: Rows that are encoded before other tasks run.
_ROWS_AT_ONCE: Final = 50
#: Rows are joined to chunks of this size: many small pieces are slow to send.
_CHUNK_BYTES: Final = 64 << 10


class Rows:
    """The rows of a response that is a throttle time and one array."""

    def __init__(self, slot: Slot, header: RequestHeader) -> None:
        self.version: Final = header.version
        self.response: Final = Response(header.api_key, header.version)
        self._slot = slot
        self._correlation_id = header.correlation_id
        self._pieces: list[bytes] = []
        self._chunks: list[bytes] = []
        self._pieces_size = 0
        self._count = 0
        self._growing = GrowingResponse(slot)

    @property
    def full(self) -> bool:
        """Whether to add no more large rows; those left out get an error instead."""
        return self._growing.full

    async def add(self, name: str, /, **values: Any) -> None:
        """Add a row, by the schema's name for it, as in `Response.part`."""
        row = self.response.row(name, **values)
        await self.grow(len(row))
        self.write(row)
        await self.end_row()

    async def grow(self, size: int) -> None:
        """Count bytes of the response, and reserve memory for them."""
        await self._growing.grow(size)

    def write(self, data: bytes) -> None:
        """Append bytes to the present row; `grow` must count them."""
        self._pieces.append(data)
        self._pieces_size += len(data)
        if self._pieces_size >= _CHUNK_BYTES:
            self._chunks.append(b"".join(self._pieces))
            self._pieces.clear()
            self._pieces_size = 0

    async def end_row(self) -> None:
        """End the present row."""
        self._count += 1
        if self._count % _ROWS_AT_ONCE == 0:
            await asyncio.sleep(0)

    def send(self) -> None:
        """Send the response."""
        rows = [*self._chunks, b"".join(self._pieces)]
        self._slot.fill(*self.response.encode_rows(self._correlation_id, rows, self._count))
