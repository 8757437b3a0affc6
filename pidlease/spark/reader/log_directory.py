"""Reads a data directory, even while a server uses it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pidlease.coordination.file.file_names import parse_line
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.records.record_batch import HEADER_BYTES, read_header
from pidlease.log.segments import sparse_index
from pidlease.log.segments.batch_search import Broken, walk
from pidlease.log.segments.data_directory import names_file, read_identity
from pidlease.log.segments.durable_mark import DurableMark
from pidlease.log.segments.log_start import read_log_start
from pidlease.log.segments.scan import BrokenBatchError, is_torn, scan_headers
from pidlease.log.segments.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SegmentFiles,
    base_offset_of,
    segment_stem,
)
from pidlease.log.segments.sparse_index import OFFSET_ENTRY
from pidlease.spark.errors import ReadError
from pidlease.spark.partition_offsets import OffsetRange
from pidlease.spark.reader.log_parts import LogDamage, Part, SegmentPart, StoredBatch
from pidlease.storage.checked_lines import check_header, split_torn
from pidlease.storage.errors import DamagedLogError, DataFolderError
from pidlease.storage.files import OpenFile, RealFiles, read_file
from pidlease.storage.topics.topic_store import TopicStore
from pidlease.verify.read_only_files import ReadOnlyFiles

FILES: Final = ReadOnlyFiles(RealFiles())
#: A file may be replaced while it is read.
_TRIES: Final = 5


def folder_of(data_dir: str | Path, topic: str, partition: int) -> Path:
    """Return the folder of a partition's segments."""
    return Path(data_dir) / "logs" / f"{topic}-{partition}"


class LogDirectory:
    """A data directory, opened for reading; a server may use it at the same time.

    Parameters:
        durable: leave out batches that are not durable yet. Otherwise all intact batches are read;
            those that were not acknowledged may be lost by a crash of the server.

    Raises:
        ReadError: the path is no data directory, or cannot be read.
    """

    def __init__(self, path: str, *, durable: bool = False) -> None:
        self.path: Final = path
        self._folder: Final = Path(path)
        self._durable: Final = durable
        try:
            self._check_identity()
        except OSError as error:
            raise ReadError(f"{path} cannot be read: {error}") from None

    def _check_identity(self) -> None:
        meta = self._folder / "meta.json"
        if not FILES.is_folder(self._folder):
            raise ReadError(f"{self.path} does not exist, or is no directory; give the data"
                            " directory of a pidlease server")  # fmt: skip
        if not FILES.exists(meta):
            raise ReadError(f"{self.path} is no data directory: it has no meta.json")
        try:
            read_identity(FILES, self._folder)
        except DataFolderError as error:
            raise ReadError(str(error)) from None

    def topics(self) -> dict[str, int]:
        """Return all topics, with their number of partitions.

        Raises:
            ReadError: a definition is damaged, or cannot be read.
        """
        error: Exception | None = None
        for _ in range(_TRIES):
            try:
                store = TopicStore(FILES, self._folder / "topics")
                return {topic.name: topic.partitions for topic in store.load()}
            except FileNotFoundError as gone:  # deleted since they were listed
                error = gone
            except (DataFolderError, OSError) as other:
                raise ReadError(str(other)) from None
        raise ReadError(f"{self.path}: its topics cannot be read: {error}")

    def names(self) -> dict[int, str]:
        """Return the names of producers by PID, as far as the directory has their bindings.

        Raises:
            ReadError: the bindings are damaged, or cannot be read.
        """
        path = names_file(self._folder)
        try:
            if not FILES.exists(path):
                return {}  # in front of Kafka, names are bound elsewhere
            content = read_file(FILES, path)
            lines, _ = split_torn(content[check_header(path, content) :])
        except OSError as error:
            raise ReadError(f"{path} cannot be read: {error}") from None
        found: dict[int, str] = {}
        for number, line in enumerate(lines, 2):
            changes = parse_line(line)
            if changes is None:
                raise ReadError(f"{path}: line {number} is damaged; `pidlease verify` says more")
            for name, binding in changes.items():
                if binding is not None:
                    found |= dict.fromkeys(binding.all_pids(), name)
        return found

    def ranges(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        """Return the offsets that partitions have.

        Raises:
            ReadError: a partition cannot be read.
        """
        return {each: self.offset_range(*each) for each in partitions}

    def offset_range(self, topic: str, partition: int) -> OffsetRange:
        """Return the offsets that a partition has; (0, 0) if nothing was ever written.

        Raises:
            ReadError: the partition cannot be read.
        """
        folder = folder_of(self.path, topic, partition)
        error: Exception | None = None
        for _ in range(_TRIES):
            bases = self.segments(topic, partition)
            try:
                if not bases:
                    # If there were records, all are lost: a reader of the range finds the damage.
                    mark = DurableMark(FILES, folder).read()
                    return OffsetRange(0, max(mark, read_log_start(FILES, folder)))
                end = self._end(folder, bases[-1])
                start = min(max(bases[0], read_log_start(FILES, folder)), end)
            except FileNotFoundError as gone:  # retention took it away in between
                error = gone
            except (DamagedLogError, OSError) as other:
                raise ReadError(str(other)) from None
            else:
                return OffsetRange(start, end)
        raise ReadError(f"{folder} cannot be read: {error}")

    def segments(self, topic: str, partition: int) -> list[int]:
        """Return the base offsets of a partition's segments, oldest first."""
        names = FILES.list(folder_of(self.path, topic, partition))
        return [base for name in names if (base := base_offset_of(name)) is not None]

    def part(self, partition: TopicPartition, start: int, end: int) -> SegmentPart:
        """Return the part of a partition between two offsets."""
        bases = tuple(self.segments(*partition)) or (start,)
        return SegmentPart(self.path, *partition, bases, start, end).within(start, end)

    def split(self, part: Part) -> Sequence[Part]:
        """Split a part into one for each segment."""
        if not isinstance(part, SegmentPart):
            return [part]
        starts = (part.start, *part.segments[1:])
        ends = (*part.segments[1:], part.end)
        return [part.within(*each) for each in zip(starts, ends, strict=True)]

    def close(self) -> None:
        """Do nothing: no file is kept open."""

    def _end(self, folder: Path, base: int) -> int:
        """Return the first offset after the last segment, as far as `durable` allows."""
        mark = DurableMark(FILES, folder).read()
        clean = FILES.exists(self._folder / "clean-stop")
        if self._durable and mark and not clean:
            return max(mark, base)  # the segments before were fsynced before this one was begun
        segment = SegmentFiles(FILES, folder, base)
        with segment.reading(LOG_SUFFIX) as log:
            return _wremoved_end(segment, log, mark, clean=clean)


def _wremoved_end(segment: SegmentFiles, log: OpenFile, mark: int, *, clean: bool) -> int:
    """Return the end of the last segment; damage is a part of it, a torn tail is not."""
    size = log.size()
    position, offset = _near_end(segment, log, size)
    broken: Broken | None = None
    for batch in walk(log, position, size, offset):
        if isinstance(batch, Broken):
            broken = batch
        else:
            broken, offset = None, batch.header.last_offset + 1
    if broken is None:
        return max(offset, mark)
    durable = clean or offset < mark
    if not durable and is_torn(log, broken.position, size, offset):
        return offset
    return max(offset + 1, mark)


def _near_end(segment: SegmentFiles, log: OpenFile, size: int) -> tuple[int, int]:
    """Return position and offset of a batch near the end of a segment, by the index if it fits."""
    try:
        with segment.reading(INDEX_SUFFIX) as index:
            entry = sparse_index.last_entry(index, OFFSET_ENTRY)
        if entry is not None and 0 <= entry[1] < size:
            _, header = next(scan_headers(log, entry[1], size))
            if header.last_offset == segment.base_offset + entry[0]:
                return entry[1], header.base_offset
    except (FileNotFoundError, BrokenBatchError):
        pass  # an index is a cache of the log
    return 0, segment.base_offset


def segment_batches(part: SegmentPart) -> Iterator[StoredBatch | LogDamage]:
    """Read the batches and the damage of a part, in order.

    The first and the last batch may exceed the part.
    """
    if part.start >= part.end:
        return
    folder = folder_of(part.data_dir, part.topic, part.partition)
    ends = (*part.segments[1:], part.end)
    if part.start < part.segments[0]:
        text = f"offsets before {part.segments[0]} are gone: retention took them away"
        yield LogDamage(f"{segment_stem(part.start)}{LOG_SUFFIX}", 0, part.start, text)
    for base, end in zip(part.segments, ends, strict=True):
        segment = SegmentFiles(FILES, folder, base)
        try:
            yield from _batches_of(segment, max(part.start, base), min(end, part.end))
        except FileNotFoundError:
            name = segment.path(LOG_SUFFIX).name
            text = "the file is gone: retention or deletion took it away before it was read"
            yield LogDamage(name, 0, max(part.start, base), text)


def _batches_of(segment: SegmentFiles, start: int, end: int) -> Iterator[StoredBatch | LogDamage]:
    name = segment.path(LOG_SUFFIX).name
    #: Damage before the start; it may extend beyond it.
    before: LogDamage | None = None
    for batch in _walk_from(segment, name, start, end):
        if isinstance(batch, LogDamage):
            before = batch if batch.offset < start else None
            if before is None:
                yield batch
            continue
        if before is not None and batch.header.base_offset > start:
            yield before
        before = None
        if batch.header.last_offset >= start and batch.header.base_offset < end:
            yield batch
    if before is not None:
        yield before


def _walk_from(
    segment: SegmentFiles, name: str, start: int, end: int
) -> Iterator[StoredBatch | LogDamage]:
    """Read from the batch that has an offset, or from an earlier one, up to the end."""
    expected, broken = start, False
    with segment.reading(LOG_SUFFIX) as log:
        size = log.size()
        for batch in walk(log, *_start_of(segment, log, size, start)):
            broken = isinstance(batch, Broken)
            if isinstance(batch, Broken):
                if batch.expected >= end:
                    return  # after the end: it may be being written
                yield LogDamage(name, batch.position, batch.expected, batch.reason)
            else:
                yield StoredBatch(name, *batch)
                expected = batch.header.last_offset + 1
                if expected >= end:
                    return
    if not broken:
        text = f"it ends at offset {expected}, and should go up to {end}"
        yield LogDamage(name, size, expected, text)


def _start_of(segment: SegmentFiles, log: OpenFile, size: int, start: int) -> tuple[int, int, int]:
    """Return where to begin to find an offset, where to stop, and the offset at the beginning."""
    if start > segment.base_offset:
        try:
            position = segment.position_of(start, log, size)
            if position == size:
                return size, size, start
            header = read_header(log.read_at(HEADER_BYTES, position))
            return position, size, min(header.base_offset, start)
        except BrokenBatchError:
            pass  # damage before the offset: found again, and reported, from the beginning on
    return 0, size, segment.base_offset
