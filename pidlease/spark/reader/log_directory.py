"""A data directory: which topics it has, and up to where they go."""

import json
from pathlib import Path
from typing import Final, NamedTuple

from pidlease.log.segments import sparse_index
from pidlease.log.segments.batch_search import Broken, walk
from pidlease.log.segments.data_directory import FORMAT_VERSION
from pidlease.log.segments.durable_mark import DurableMark
from pidlease.log.segments.log_start import read_log_start
from pidlease.log.segments.scan import BrokenBatchError, is_torn, scan_headers
from pidlease.log.segments.segment import INDEX_SUFFIX, LOG_SUFFIX, SegmentFiles, base_offset_of
from pidlease.log.segments.sparse_index import OFFSET_ENTRY
from pidlease.spark.reader.errors import ReadError
from pidlease.spark.reader.read_parts import SegmentPart
from pidlease.spark.reader.segment_batches import FILES, folder_of
from pidlease.storage.errors import DamagedLogError, DataFolderError
from pidlease.storage.files import OpenFile, read_file
from pidlease.storage.topics.topic_store import TopicStore

#: A file may be replaced while it is looked for.
_TRIES: Final = 5


class Span(NamedTuple):
    """Where a partition's log starts, and the first offset behind it."""

    start: int
    end: int


class LogDirectory:
    """A data directory, read only; a server may be at work in it.

    Parameters:
        path: the directory.
        durable: of a log that a server may be writing, only what is durable is told. Otherwise all
            that is whole: of that a crash may still take away what was not acknowledged.

    Raises:
        ReadError: it is none, or may not be read.
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
            raise ReadError(f"{self.path} is not there, or no directory; say the data directory of"
                            " a pidlease server")  # fmt: skip
        if not FILES.exists(meta):
            raise ReadError(f"{self.path} is no data directory: it has no meta.json")
        try:
            version = int(json.loads(read_file(FILES, meta))["format"])
        except (ValueError, KeyError, TypeError) as error:
            raise ReadError(f"{meta} is damaged ({error}); take it from a backup") from None
        if version > FORMAT_VERSION:
            raise ReadError(
                f"{self.path} has format {version}, written by a newer version; this one reads up"
                f" to {FORMAT_VERSION}: install the newer one"
            )

    def topics(self) -> dict[str, int]:
        """All topics, and how many partitions each has.

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

    def span(self, topic: str, partition: int) -> Span:
        """From where to where a partition goes; nothing where nothing was ever written.

        Raises:
            ReadError: that cannot be told.
        """
        folder = folder_of(self.path, topic, partition)
        error: Exception | None = None
        for _ in range(_TRIES):
            bases = self.segments(topic, partition)
            if not bases:
                return Span(0, 0)
            try:
                end = self._end(folder, bases[-1])
                start = min(max(bases[0], read_log_start(FILES, folder)), end)
            except FileNotFoundError as gone:  # retention took it away in between
                error = gone
            except (DamagedLogError, OSError) as other:
                raise ReadError(str(other)) from None
            else:
                return Span(start, end)
        raise ReadError(f"{folder} cannot be read: {error}")

    def segments(self, topic: str, partition: int) -> list[int]:
        """The base offsets of a partition's segments, oldest first."""
        names = FILES.list(folder_of(self.path, topic, partition))
        return [base for name in names if (base := base_offset_of(name)) is not None]

    def part(self, topic: str, partition: int, start: int, end: int) -> SegmentPart:
        """What lies between two offsets, as one part."""
        bases = tuple(self.segments(topic, partition)) or (start,)
        whole = SegmentPart(self.path, topic, partition, bases, start, end)
        return whole.within(start, end)

    def _end(self, folder: Path, base: int) -> int:
        """The first offset behind the last segment; see `__init__`."""
        mark = DurableMark(FILES, folder).read()
        clean = FILES.exists(self._folder / "clean-stop")
        if self._durable and mark and not clean:
            return max(mark, base)  # the segments before were fsynced before this one was begun
        segment = SegmentFiles(FILES, folder, base)
        with segment.reading(LOG_SUFFIX) as log:
            return _whole_end(segment, log, mark, clean=clean)


def _whole_end(segment: SegmentFiles, log: OpenFile, mark: int, *, clean: bool) -> int:
    """Up to where a last segment is whole. What is damaged, and no torn tail, belongs to it."""
    size = log.size()
    position, offset = _near_end(segment, log, size)
    broken: Broken | None = None
    for found in walk(log, position, size, offset):
        if isinstance(found, Broken):
            broken = found
        else:
            broken, offset = None, found.header.last_offset + 1
    if broken is None:
        return max(offset, mark)
    durable = clean or offset < mark
    if not durable and is_torn(log, broken.position, size, offset):
        return offset
    return max(offset + 1, mark)


def _near_end(segment: SegmentFiles, log: OpenFile, size: int) -> tuple[int, int]:
    """Where a batch begins near the end of a segment, and its offset; by the index, if it fits."""
    try:
        with segment.reading(INDEX_SUFFIX) as index:
            entry = sparse_index.last_entry(index, OFFSET_ENTRY)
        if entry is not None and 0 <= entry[1] < size:
            _, header = next(scan_headers(log, entry[1], size))
            if header.last_offset == segment.base_offset + entry[0]:
                return entry[1], header.base_offset
    except (FileNotFoundError, BrokenBatchError):
        pass  # an index is a cache: the log tells it, too
    return 0, segment.base_offset
