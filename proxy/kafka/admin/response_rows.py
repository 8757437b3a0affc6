"""An answer that grows row by row: paced, in encoded form, and counted in the memory of all."""

import asyncio
from typing import Any, Final

from pidlease.kafka.codec.messages import Response
from pidlease.kafka.codec.primitives import RequestHeader
from proxy.kafka.client_connection import Slot

#: Rows, and bytes of them, that are made before others get their turn.
_ROWS_AT_ONCE: Final = 50
_BYTES_AT_ONCE: Final = 16 << 10
#: Memory is asked for by this many bytes; a smaller answer asks for none.
_STEP_BYTES: Final = 64 << 10
#: How long an answer waits for memory before it is given without its large rows.
_HOLD_SECONDS: Final = 10.0


class Rows:
    """The rows of an answer that is a throttle time and one array.

    Parameters:
        slot: the place of the answer.
        header: of the request.
    """

    def __init__(self, slot: Slot, header: RequestHeader) -> None:
        self.version: Final = header.version
        self.response: Final = Response(header.api_key, header.version)
        self._slot = slot
        self._correlation_id = header.correlation_id
        #: What is not put together yet, and what is: many small pieces are slow to send.
        self._pieces: list[bytes] = []
        self._chunks: list[bytes] = []
        self._pieces_size = 0
        self._count = 0
        #: Rows that others waited for, and the answer's size when they last had their turn.
        self._since = 0
        self._size_then = 0
        self._size = 0
        self._limit = slot.connection.budget.limit // 4
        self._unheld = 0
        self._refused = False

    @property
    def full(self) -> bool:
        """Whether no large row should be put to it any more; what is left out gets an error."""
        return self._refused or self._size >= self._limit

    async def add(self, name: str, /, **values: Any) -> None:
        """Add a row, by the schema's name for it (see `messages.Response.part`)."""
        row = self.response.row(name, **values)
        await self.grow(len(row))
        self.write(row)
        await self.end_row()

    async def grow(self, size: int) -> None:
        """Take note of bytes that are part of the answer, and hold memory for them.

        Parameters:
            size: how many bytes.
        """
        self._size += size
        self._unheld += size
        if self._unheld < _STEP_BYTES or self._refused:
            return
        self._refused = not await self._slot.hold(self._unheld, _HOLD_SECONDS)
        self._unheld = 0

    def write(self, data: bytes) -> None:
        """Put bytes to the row that is being made; they are counted by `grow`."""
        self._pieces.append(data)
        self._pieces_size += len(data)
        if self._pieces_size >= _STEP_BYTES:
            self._chunks.append(b"".join(self._pieces))
            self._pieces.clear()
            self._pieces_size = 0

    async def end_row(self) -> None:
        """The row is complete."""
        self._count += 1
        self._since += 1
        if self._since >= _ROWS_AT_ONCE or self._size - self._size_then >= _BYTES_AT_ONCE:
            self._since, self._size_then = 0, self._size
            await asyncio.sleep(0)

    def send(self) -> None:
        """Give the answer."""
        rows = [*self._chunks, b"".join(self._pieces)]
        self._slot.fill(*self.response.encode_rows(self._correlation_id, rows, self._count))
