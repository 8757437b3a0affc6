"""Reads a segment past damage: searches for the next intact batch."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from pidlease.kafka.records.record_batch import (
    HEADER_BYTES,
    MAGIC,
    CorruptBatchError,
    check_intact,
    read_header,
)
from pidlease.log.segments.scan import BrokenBatchError, ScannedBatch, scan
from pidlease.storage.files import OpenFile

_WINDOW_BYTES: Final = 1 << 20
#: The bytes between the high half of the base offset and the magic byte: the low half, the length,
#: and the leader epoch, which is always 0 in our logs.
_MIDDLE: Final = rb"[\s\S]{8}\0\0\0\0"


class Broken(NamedTuple):
    """Bytes that are not an intact batch, where one should be.

    Attributes:
        position: where they begin, in bytes.
        expected: the offset that the batch should have.
        reason: what is wrong.
    """

    position: int
    expected: int
    reason: str


def walk(file: OpenFile, position: int, end: int, expected: int) -> Iterator[ScannedBatch | Broken]:
    """Scan a segment; after damage, continue at the next intact batch.

    Parameters:
        file: the segment's .log.
        position: where a batch begins, in bytes.
        end: where to stop, in bytes.
        expected: the base offset of the first batch.
    """
    at: int | None = position
    while at is not None and at < end:
        try:
            for batch in scan(file, at, end, expected):
                yield batch
                at = batch.position + batch.header.size
                expected = batch.header.last_offset + 1
            at = None
        except BrokenBatchError as error:
            yield Broken(error.position, expected, str(error))
            at = find_intact(file, error.position, end, expected)
            if at is not None:
                expected = read_header(file.read_at(HEADER_BYTES, at)).base_offset


def find_intact(file: OpenFile, position: int, end: int, expected: int) -> int | None:
    """Find the next intact batch, wherever it begins.

    Parameters:
        file: the segment's .log.
        position: where to begin, in bytes.
        end: where the log ends, in bytes.
        expected: the batch's lowest possible offset. Only offsets near it are searched for: a
            segment contains fewer than 2^31.

    Returns:
        The batch's position in bytes; None: there is none.
    """
    marks = {(expected + more).to_bytes(8, "big")[:4] for more in (0, 1 << 31)}
    near = b"|".join(map(re.escape, sorted(marks)))
    # A lookahead, because the next header may begin within bytes that only look like one.
    pattern = re.compile(b"(?=(?:" + near + b")" + _MIDDLE + bytes((MAGIC,)) + b")")
    while position < end:
        window = file.read_at(min(_WINDOW_BYTES, end - position), position)
        for match in pattern.finditer(window):
            if _is_intact(file, position + match.start(), end, expected):
                return position + match.start()
        if len(window) < _WINDOW_BYTES:
            return None
        position += len(window) - HEADER_BYTES
    return None


def _is_intact(file: OpenFile, position: int, end: int, expected: int) -> bool:
    try:
        header = read_header(file.read_at(HEADER_BYTES, position))
        if header.base_offset < expected or not HEADER_BYTES <= header.size <= end - position:
            return False
        check_intact(header, file.read_at(header.size, position))
    except CorruptBatchError:
        return False  # these bytes only look like a header
    return True
