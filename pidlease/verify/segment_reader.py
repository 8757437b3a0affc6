"""Reads one segment from end to end, and goes on after broken batches."""

from collections.abc import Iterator
from contextlib import ExitStack, suppress

from pidlease.kafka.records.record_batch import HEADER_BYTES, MAGIC, read_header
from pidlease.log.segments.scan import BrokenBatchError, ScannedBatch, scan
from pidlease.log.segments.segment import INDEX_SUFFIX, TIME_SUFFIX, SegmentFiles
from pidlease.storage.files import OpenFile
from pidlease.verify.index_check import OffsetIndexCheck, Problem, TimeIndexCheck


def batches(log: OpenFile, position: int, size: int) -> Iterator[ScannedBatch | BrokenBatchError]:
    """The batches from a position on, each with an intact CRC, whatever their offsets.

    Parameters:
        log: the segment's .log.
        position: where a batch begins, in bytes.
        size: the length of the file, in bytes.

    Yields:
        Batches, and for one that is not intact, the error; batches after it only where the next one
        can be found by the length that the broken one gives.
    """
    while position < size:
        try:
            for batch in scan(log, position, size):
                yield batch
                position = batch.position + batch.header.size
        except BrokenBatchError as error:
            # Also raised for one that is intact and does not follow; then it is the next.
            position = error.position
            if _is_intact(log, position, size):
                continue
            yield error
            following = _position_after(log, position, size)
            if following is None:
                return
            position = following


def _is_intact(log: OpenFile, position: int, size: int) -> bool:
    with suppress(BrokenBatchError):
        next(scan(log, position, size))
        return True
    return False


def _position_after(log: OpenFile, position: int, size: int) -> int | None:
    """Where an intact batch, or the end, follows a broken batch by the length that it gives."""
    data = log.read_at(HEADER_BYTES, position)
    if len(data) < HEADER_BYTES:
        return None
    header = read_header(data)
    following = position + header.size
    if header.magic != MAGIC or header.size < HEADER_BYTES or following > size:
        return None
    return following if following == size or _is_intact(log, following, size) else None


class IndexChecks:
    """Both indexes of a segment, open while its log goes by.

    Parameters:
        segment: the segment.
        sealed: whether the indexes must be complete.
    """

    def __init__(self, segment: SegmentFiles, *, sealed: bool) -> None:
        self._segment = segment
        self._sealed = sealed
        self._open = ExitStack()
        self._checks: dict[str, OffsetIndexCheck | TimeIndexCheck] = {}
        self.problems: list[tuple[str, Problem]] = []

    def __enter__(self) -> "IndexChecks":
        for suffix in (INDEX_SUFFIX, TIME_SUFFIX):
            try:
                file = self._open.enter_context(self._segment.reading(suffix))
            except FileNotFoundError:
                self.problems.append((suffix, Problem(-1, "is missing")))
                continue
            self._checks[suffix] = (
                OffsetIndexCheck(file)
                if suffix == INDEX_SUFFIX
                else TimeIndexCheck(file, sealed=self._sealed)
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def batch(self, batch: ScannedBatch) -> None:
        """Take note of the next batch of the log."""
        header = batch.header
        last = header.last_offset - self._segment.base_offset
        for suffix, check in self._checks.items():
            found = check.batch(batch.position, last, header.max_timestamp)
            if found:
                self.problems += [(suffix, problem) for problem in found]

    def give_up(self) -> None:
        """Say no more: the log is broken, and what would be said is of its making."""
        self._checks.clear()

    def finish(self) -> None:
        """Take note of the log's end."""
        for suffix, check in self._checks.items():
            self.problems += [(suffix, problem) for problem in check.finish()]
