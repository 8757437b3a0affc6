"""Reading a partition's segments, read only, whether or not a server is at work in them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pidlease.kafka.records.record_batch import HEADER_BYTES, read_header
from pidlease.log.segments.batch_search import Broken, walk
from pidlease.log.segments.scan import BrokenBatchError
from pidlease.log.segments.segment import LOG_SUFFIX, SegmentFiles, segment_stem
from pidlease.spark.reader.read_parts import SegmentPart
from pidlease.spark.reader.stored_batch import Damage, Stored
from pidlease.storage.files import OpenFile, RealFiles
from pidlease.verify.read_only_files import ReadOnlyFiles

FILES: Final = ReadOnlyFiles(RealFiles())


def folder_of(data_dir: str | Path, topic: str, partition: int) -> Path:
    """Where a partition's segments are."""
    return Path(data_dir) / "logs" / f"{topic}-{partition}"


def batches(part: SegmentPart) -> Iterator[Stored | Damage]:
    """The batches of a part that hold any of its offsets, in their order; and what is damaged.

    The first and the last may go beyond it.
    """
    if part.start >= part.end:
        return
    folder = folder_of(part.data_dir, part.topic, part.partition)
    ends = (*part.segments[1:], part.end)
    if part.start < part.segments[0]:
        text = f"offsets before {part.segments[0]} are gone: retention took them away"
        yield Damage(f"{segment_stem(part.start)}{LOG_SUFFIX}", 0, part.start, text)
    for base, end in zip(part.segments, ends, strict=True):
        segment = SegmentFiles(FILES, folder, base)
        try:
            yield from _batches(segment, max(part.start, base), min(end, part.end))
        except FileNotFoundError:
            name = segment.path(LOG_SUFFIX).name
            text = "the file is gone: retention or deletion took it away before it was read"
            yield Damage(name, 0, max(part.start, base), text)


def _batches(segment: SegmentFiles, start: int, end: int) -> Iterator[Stored | Damage]:
    name = segment.path(LOG_SUFFIX).name
    #: Damage before what is to be read, which may go on to there.
    before: Damage | None = None
    for found in _walk(segment, name, start, end):
        if isinstance(found, Damage):
            before = found if found.offset < start else None
            if before is None:
                yield found
            continue
        if before is not None and found.header.base_offset > start:
            yield before
        before = None
        if found.header.last_offset >= start and found.header.base_offset < end:
            yield found
    if before is not None:
        yield before


def _walk(segment: SegmentFiles, name: str, start: int, end: int) -> Iterator[Stored | Damage]:
    """From the batch that holds an offset on, or from before; what comes behind is not told."""
    expected, broken = start, False
    with segment.reading(LOG_SUFFIX) as log:
        size = log.size()
        for found in walk(log, *_begin(segment, log, size, start)):
            broken = isinstance(found, Broken)
            if isinstance(found, Broken):
                if found.expected >= end:
                    return  # behind what is to be read: it is being written, perhaps
                yield Damage(name, found.position, found.expected, found.reason)
            else:
                yield Stored(name, *found)
                expected = found.header.last_offset + 1
                if expected >= end:
                    return
    if not broken:
        text = f"it ends at offset {expected}, and should go up to {end}"
        yield Damage(name, size, expected, text)


def _begin(segment: SegmentFiles, log: OpenFile, size: int, start: int) -> tuple[int, int, int]:
    """Where to begin so that an offset is met, where to stop, and the offset that stands there."""
    if start > segment.base_offset:
        try:
            position = segment.position_of(start, log, size)
            if position == size:
                return size, size, start
            header = read_header(log.read_at(HEADER_BYTES, position))
            return position, size, min(header.base_offset, start)
        except BrokenBatchError:
            pass  # damage on the way: that is met again, and told, from the beginning on
    return 0, size, segment.base_offset
