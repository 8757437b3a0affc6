"""Reads segments batch by batch, and distinguishes a torn tail from damage.

A crash may leave part of an append on the disk. Such a torn tail was never acknowledged, and is
cut. But a batch that is broken for another reason was acknowledged, and a cut there would lose the
batches after it. So a tail is cut only if it looks like a torn write: the file ends inside the
batch, or a sector of the batch is zero because it never reached the disk.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from pidlease.kafka.records.record_batch import (
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    BatchHeader,
    CorruptBatchError,
    check_intact,
    read_header,
)
from pidlease.storage.errors import is_unreadable
from pidlease.storage.files import OpenFile

#: The smallest unit that a disk writes atomically.
SECTOR_BYTES: Final = 512

_CHUNK_BYTES: Final = 1 << 20
#: How many bytes are collected before they are written again.
_REWRITE_BYTES: Final = 1 << 20
#: How many bytes after a broken batch to search for intact ones.
_LOOK_AHEAD_BYTES: Final = 64 << 20


class ScannedBatch(NamedTuple):
    """A batch in a segment, with its position in the file and its bytes."""

    position: int
    header: BatchHeader
    data: memoryview


class BrokenBatchError(Exception):
    """There is no intact batch at a position where one should be."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position


class Rewrite:
    """Writes batches of a segment again, where they are, so that an fsync makes them durable.

    An fsync alone would not. After a failed one, or after a failed write of its own, Linux takes
    the pages for clean: reads return them, and the next fsync succeeds without writing them. The
    bytes stay the same, so nothing is lost if this is interrupted.

    Parameters:
        file: the segment's .log.
    """

    def __init__(self, file: OpenFile) -> None:
        self._file: Final = file
        self._parts: list[memoryview] = []
        self._position = 0
        self._size = 0

    def add(self, batch: ScannedBatch) -> None:
        """Write a batch, now or with the following ones."""
        if not self._parts:
            self._position = batch.position
        self._parts.append(batch.data)
        self._size += len(batch.data)
        if self._size >= _REWRITE_BYTES:
            self.finish()

    def finish(self) -> None:
        """Write the rest. The fsync is the caller's."""
        if self._parts:
            self._file.write_at(self._parts, self._position)
            self._parts, self._size = [], 0


def scan(
    file: OpenFile, position: int, end: int, expected_offset: int | None = None
) -> Iterator[ScannedBatch]:
    """Read a segment from one batch to the next, and check each batch.

    Parameters:
        file: the segment's .log.
        position: where a batch begins, in bytes.
        end: where to stop, in bytes.
        expected_offset: the base offset of the first batch; None: any. The later batches must
            follow without a gap in any case.

    Raises:
        BrokenBatchError: a batch is cut short, changed, or does not follow the previous one; or the
            disk cannot read it.
    """
    chunk, chunk_at, ahead = memoryview(b""), position, _CHUNK_BYTES

    def read(needed: int) -> memoryview:
        nonlocal ahead
        try:
            return _read(file, position, max(needed, ahead), end)
        except OSError as error:
            if not is_unreadable(error):
                raise
            if needed >= ahead:
                raise BrokenBatchError(position, f"cannot be read: {error.strerror}") from error
            ahead = 0  # the bad sector may be further on; each try may take seconds
        return read(needed)

    while position < end:
        at = position - chunk_at
        if len(chunk) - at < HEADER_BYTES:
            chunk, chunk_at, at = read(HEADER_BYTES), position, 0
        size = _batch_size(chunk, at, position)
        if len(chunk) - at < size:
            chunk, chunk_at, at = read(size), position, 0
        data = chunk[at : at + size]
        header = _check(data, position, expected_offset)
        yield ScannedBatch(position, header, data)
        expected_offset = header.last_offset + 1
        position += size


def scan_headers(file: OpenFile, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Read only the batch headers of a segment that is known to be intact.

    Raises:
        BrokenBatchError: a header is invalid.
    """
    chunk, chunk_at = memoryview(b""), position
    while position < end:
        at = position - chunk_at
        if len(chunk) - at < HEADER_BYTES:
            chunk, chunk_at, at = _read(file, position, 8 << 10, end), position, 0
        size = _batch_size(chunk, at, position)
        yield position, read_header(chunk, at)
        position += size


def is_torn(file: OpenFile, position: int, size: int, expected_offset: int) -> bool:
    """Return whether the broken batch at `position` is the torn part of an unfinished append.

    Parameters:
        file: the segment's .log.
        position: where the broken batch begins, in bytes.
        size: the length of the file, in bytes.
        expected_offset: the offset that the batch should have.
    """
    try:
        rest = _read(file, position, _LOOK_AHEAD_BYTES, size)
    except OSError as error:
        if not is_unreadable(error):
            raise
        return False  # it may have been acknowledged
    if len(rest) < HEADER_BYTES:
        return True
    header = read_header(rest)
    sane = header.magic == MAGIC and header.size >= HEADER_BYTES
    if sane and header.size > size - position:
        # The CRC does not cover the length: it may be the only thing that is wrong.
        alone = crc32c(rest[CRC_FROM:]) == header.crc
        return not alone and not _intact_follows(rest, expected_offset)
    to_sector_end = SECTOR_BYTES - position % SECTOR_BYTES
    extent = header.size if sane else max(HEADER_BYTES, to_sector_end)
    return _has_lost_sector(rest, extent, position, expected_offset)


def _read(file: OpenFile, position: int, size: int, end: int) -> memoryview:
    return memoryview(file.read_at(min(size, end - position), position))


def _batch_size(chunk: memoryview, at: int, position: int) -> int:
    if len(chunk) - at < HEADER_BYTES:
        raise BrokenBatchError(position, f"ends {len(chunk) - at} bytes into a batch header")
    size = int.from_bytes(chunk[at + 8 : at + LENGTH_PREFIX_BYTES], "big", signed=True)
    size += LENGTH_PREFIX_BYTES
    if size < HEADER_BYTES:
        raise BrokenBatchError(position, f"a batch of {size} bytes")
    return size


def _check(data: memoryview, position: int, expected_offset: int | None) -> BatchHeader:
    try:
        header = read_header(data)
        check_intact(header, data)
    except CorruptBatchError as error:
        raise BrokenBatchError(position, str(error)) from None
    if expected_offset is not None and header.base_offset != expected_offset:
        raise BrokenBatchError(
            position, f"batch at offset {header.base_offset} where {expected_offset} should follow"
        )
    return header


def _has_lost_sector(rest: memoryview, extent: int, position: int, expected_offset: int) -> bool:
    """Return whether a sector that contains a part of the batch never reached the disk.

    The batch's part of such a sector is zero, up to the sector's end or the end of the file. But if
    the batch begins just before a sector's end, its first bytes are zero anyway (the high bytes of
    its offset): they prove nothing.
    """
    at = 0
    while at < min(extent, len(rest)):
        share = SECTOR_BYTES - (position + at) % SECTOR_BYTES
        part = bytes(rest[at : at + share])
        natural = at == 0 and expected_offset.to_bytes(8, "big").startswith(part)
        if not any(part) and not natural:
            return True
        at += share
    return False


def _intact_follows(rest: memoryview, expected_offset: int) -> bool:
    """Whether an intact batch with a slightly higher offset is anywhere after the broken one."""
    data = bytes(rest)
    near = expected_offset.to_bytes(8, "big")[:4]
    at = data.find(near, 1)
    while at != -1 and len(data) - at >= HEADER_BYTES:
        if data[at + 16] == MAGIC:
            header = read_header(data, at)
            if expected_offset < header.base_offset and header.size >= HEADER_BYTES:
                try:
                    check_intact(header, rest[at : at + header.size])
                except CorruptBatchError:
                    pass  # these bytes only look like a header: search on
                else:
                    return True
        at = data.find(near, at + 1)
    return False
