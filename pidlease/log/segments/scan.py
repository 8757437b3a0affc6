"""Reads segments batch by batch, and distinguishes a torn tail from damage.

A crash may leave an append half on the disk. That tail was never acknowledged, and is cut. But
a batch that is broken for another reason was acknowledged, and cutting there would lose what
comes after it; so a tail is only cut where it bears the marks of a torn write: the file ends
inside the batch, or a sector's share of it reads as zeros because it never reached the disk.
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
from pidlease.storage.files import OpenFile

#: The smallest unit that a disk writes as a whole.
SECTOR_BYTES: Final = 512

_CHUNK_BYTES: Final = 1 << 20
#: How far to look for intact batches after a broken one.
_LOOK_AHEAD_BYTES: Final = 64 << 20


class ScannedBatch(NamedTuple):
    """A batch in a segment, with its place in the file and its bytes."""

    position: int
    header: BatchHeader
    data: memoryview


class BrokenBatchError(Exception):
    """No intact batch stands where one should."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position


def scan(
    file: OpenFile, position: int, end: int, expected_offset: int | None = None
) -> Iterator[ScannedBatch]:
    """Go through a segment from one batch to the next, checking each.

    Parameters:
        file: the segment's .log.
        position: where a batch begins, in bytes.
        end: where to stop, in bytes.
        expected_offset: the base offset of the first batch; the next ones must follow without a
            gap. None: whatever the first one says.

    Raises:
        BrokenBatchError: a batch is cut short, changed, or does not follow the one before.
    """
    chunk, chunk_at = memoryview(b""), position
    while position < end:
        at = position - chunk_at
        if len(chunk) - at < HEADER_BYTES:
            chunk, chunk_at, at = _read(file, position, _CHUNK_BYTES, end), position, 0
        size = _batch_size(chunk, at, position)
        if len(chunk) - at < size:
            chunk, chunk_at, at = _read(file, position, max(size, _CHUNK_BYTES), end), position, 0
        data = chunk[at : at + size]
        header = _check(data, position, expected_offset)
        yield ScannedBatch(position, header, data)
        expected_offset = header.last_offset + 1
        position += size


def scan_headers(file: OpenFile, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Go through a segment reading only headers, for batches that are known to be intact.

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
    """Whether the broken batch at `position` is what a crash leaves of an unfinished append.

    Parameters:
        file: the segment's .log.
        position: where the broken batch begins, in bytes.
        size: the length of the file, in bytes.
        expected_offset: the offset that the batch should have.
    """
    rest = _read(file, position, _LOOK_AHEAD_BYTES, size)
    if len(rest) < HEADER_BYTES:
        return True
    header = read_header(rest)
    sane = header.magic == MAGIC and header.size >= HEADER_BYTES
    if sane and header.size > size - position:
        # The length is not under the CRC: it may be all that is wrong.
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
    """Whether a sector that the batch has a share of never reached the disk.

    Such a sector is zero from the batch's first byte, or its own, to its end or the end of the
    file. So are the first few bytes of a batch that begins at a sector's end (the high bytes of
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
    """Whether an intact batch of a near offset is anywhere after the broken one."""
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
                    pass  # chance bytes that look like a header: look on
                else:
                    return True
        at = data.find(near, at + 1)
    return False
