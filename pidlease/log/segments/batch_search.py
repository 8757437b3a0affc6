"""Going through a segment past damage: by whole batches, searched for where needed."""

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
#: Between the high half of the base offset and the magic byte: the low half, the length, and the
#: leader epoch, which our logs always have as 0.
_MIDDLE: Final = rb"[\s\S]{8}\0\0\0\0"


class Broken(NamedTuple):
    """Something that is no intact batch, in the place of one.

    Attributes:
        position: where it begins, in bytes.
        expected: the offset that should stand there.
        reason: in words.
    """

    position: int
    expected: int
    reason: str


def walk(file: OpenFile, position: int, end: int, expected: int) -> Iterator[ScannedBatch | Broken]:
    """Scan a segment as `scan` does; after damage, go on from the next intact batch.

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
        position: where to look from, in bytes.
        end: where the log ends, in bytes.
        expected: the offset that it has at least. It is looked for among those near it, as a
            segment holds fewer than 2^31.

    Returns:
        Its position in bytes; None: there is none.
    """
    marks = {(expected + more).to_bytes(8, "big")[:4] for more in (0, 1 << 31)}
    near = b"|".join(map(re.escape, sorted(marks)))
    # Looked ahead for, as the next one may begin within what only looks like one.
    pattern = re.compile(b"(?=(?:" + near + b")" + _MIDDLE + bytes((MAGIC,)) + b")")
    while position < end:
        window = file.read_at(min(_WINDOW_BYTES, end - position), position)
        for found in pattern.finditer(window):
            if _is_intact(file, position + found.start(), end, expected):
                return position + found.start()
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
        return False  # chance bytes that look like a header
    return True
