"""Translates batches fetched from the source into batches for the destination."""

import struct
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from pidlease.copier.cluster_reader import FetchedChunk
from pidlease.copier.copied_batch import (
    CopiedBatch,
    CopiedRecords,
    RecordWriter,
    unpacked,
    with_identity,
)
from pidlease.copier.errors import CopyError
from pidlease.core.buffer import Buffer
from pidlease.kafka.records.aborted_batches import AbortedBatches
from pidlease.kafka.records.batch_records import UndecodableError, decoded
from pidlease.kafka.records.record_batch import (
    ATTRIBUTES_AT,
    CODEC_BITS,
    CODECS,
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    CorruptBatchError,
    check_intact,
)

#: Batches of at least so many bytes are copied one by one; smaller ones are joined.
_WHOLE_BYTES: Final = 8 << 10
#: The most bytes of joined batches, decompressed.
_JOINED_BYTES: Final = 128 << 10
#: The attributes that a batch may have to be copied as a whole: a codec, and the membership of a
#: transaction (which has been committed).
_PLAIN_BITS: Final = CODEC_BITS | 0x10
_INT16: Final = struct.Struct(">h")


class _FoundBatch(NamedTuple):
    """A batch of the source.

    Attributes:
        batch: as it was fetched.
        content: the batch to read the records of; of a small one, not compressed.
    """

    header: BatchHeader
    batch: memoryview
    content: Buffer


class BatchTranslator:
    """Translates the batches of one partition.

    Parameters:
        place: the source's topic and partition, for messages.
        position: the first offset to copy.

    Attributes:
        position: all records below it were returned, or are not copied.
    """

    def __init__(self, place: str, position: int) -> None:
        self._place: Final = place
        self.position = position
        self._small: list[_FoundBatch] = []
        self._small_bytes = 0
        self._seen = position

    def batches(self, chunk: FetchedChunk) -> Iterator[CopiedBatch]:
        """Yield batches of a fetch's records; at the end, `position` is the offset after them.

        Raises:
            CopyError: a batch cannot be read.
        """
        for header, batch in self.committed(chunk):
            if header.last_offset < self.position or not header.records:
                continue
            found = _FoundBatch(header, batch, batch)
            if len(batch) < _WHOLE_BYTES and header.is_compressed:
                found = found._replace(content=self._decompressed(header, batch))
            size = len(found.content)
            whole = len(batch) >= _WHOLE_BYTES or size > _JOINED_BYTES
            if self._small and (
                whole
                or self._small_bytes + size > _JOINED_BYTES
                or header.codec != self._small[0].header.codec
            ):
                yield from self._joined()
            if whole:
                yield from self._one(found)
            else:
                self._small.append(found)
                self._small_bytes += size
        yield from self._joined()
        self.position = max(self.position, self._seen)

    def skip_to(self, position: int) -> None:
        """Skip the records below an offset: the source has deleted them."""
        self.position = self._seen = position

    # ------------------------------------------------------------------ reading

    def committed(self, chunk: FetchedChunk) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield the batches without control batches and without aborted transactions."""
        aborted = AbortedBatches(chunk.aborted)
        for header, batch in self._intact(chunk):
            if not aborted.has(header) and not header.is_control:
                yield header, batch

    def _intact(self, chunk: FetchedChunk) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield the whole batches, validated.

        Raises:
            CopyError: one is not intact.
        """
        for header, batch in chunk.batches():
            if header.magic != MAGIC:
                raise CopyError(
                    f"{self._place}, offset {header.base_offset}: record format {header.magic}"
                    f" is not known; up to {MAGIC} can be copied"
                )
            try:
                check_intact(header, batch)
            except CorruptBatchError as error:
                where = f"{self._place}, offset {header.base_offset}"
                raise CopyError(f"{where}: {error}; look at the source") from None
            if header.attributes & CODEC_BITS >= len(CODECS):
                raise self._unreadable(header, ValueError("unknown codec"))
            self._seen = header.last_offset + 1
            yield header, batch

    # ------------------------------------------------------------------ writing

    def _one(self, found: _FoundBatch) -> Iterator[CopiedBatch]:
        """Copy one batch as a whole, or encode it again."""
        header, batch, content = found
        records: CopiedRecords | None = None
        if (
            not header.attributes & ~_PLAIN_BITS
            and header.records == header.last_offset_delta + 1
            and header.base_offset >= self.position
        ):
            if content is batch:
                payload = self._unpacked(header, batch)
            else:
                payload = memoryview(content)[HEADER_BYTES:]
            try:
                records = with_identity(header, payload)
            except ValueError as error:
                raise self._unreadable(header, error) from None
        if records is None:
            yield from self._rewritten([found])
            return
        offsets = range(header.base_offset, header.last_offset + 1)
        yield CopiedBatch(records, offsets, _codec(header), len(batch), time.monotonic())

    def _joined(self) -> Iterator[CopiedBatch]:
        small, self._small, self._small_bytes = self._small, [], 0
        if len(small) == 1:
            yield from self._one(small[0])
        elif small:
            yield from self._rewritten(small)

    def _rewritten(self, found: list[_FoundBatch]) -> Iterator[CopiedBatch]:
        """Encode batches again as one, record by record, with the timestamps that consumers see."""
        writer = RecordWriter()
        offsets: list[int] = []
        for header, _, content in found:
            try:
                for record in decoded(header, content):
                    if record.offset >= self.position:
                        offsets.append(record.offset)
                        writer.add(record.timestamp, record.key, record.value, record.headers)
            except (UndecodableError, ValueError, RuntimeError) as error:
                raise self._unreadable(header, error) from None
        if offsets:
            size = sum(len(each.batch) for each in found)
            codec = _codec(found[0].header)
            yield CopiedBatch(writer.records(), offsets, codec, size, time.monotonic())

    def _decompressed(self, header: BatchHeader, batch: memoryview) -> bytes:
        """Return a batch without compression, for `_rewritten`; its length and CRC do not fit.

        Raises:
            CopyError: its records cannot be decompressed.
        """
        front = bytearray(batch[:HEADER_BYTES])
        _INT16.pack_into(front, ATTRIBUTES_AT, header.attributes & ~CODEC_BITS)
        return bytes(front) + self._unpacked(header, batch)

    def _unpacked(self, header: BatchHeader, batch: memoryview) -> Buffer:
        """Return a batch's records, decompressed.

        Raises:
            CopyError: they cannot be decompressed.
        """
        try:
            return unpacked(header, batch)
        except ValueError as error:
            raise self._unreadable(header, error) from None

    def _unreadable(self, header: BatchHeader, error: Exception) -> CopyError:
        return CopyError(
            f"{self._place}, offset {header.base_offset}: its records cannot be read: {error!r};"
            " look at the source"
        )


def _codec(header: BatchHeader) -> str | None:
    return header.codec if header.is_compressed else None
