"""Reads one segment from end to end, past broken batches."""

from collections.abc import Iterator
from contextlib import ExitStack, suppress

from pidlease.kafka.records.record_batch import HEADER_BYTES, MAGIC, read_header
from pidlease.log.segments.scan import BrokenBatchError, ScannedBatch, scan
from pidlease.log.segments.segment import INDEX_SUFFIX, TIME_SUFFIX, SegmentFiles
from pidlease.storage.files import OpenFile
from pidlease.verify.index_check import OffsetIndexCheck, Problem, TimeIndexCheck


def batches(log: OpenFile, position: int, size: int) -> Iterator[ScannedBatch | BrokenBatchError]:
    """Yield the batches from a position on that have an intact CRC, whatever their offsets.

    Parameters:
        log: the segment's .log.
        position: where a batch begins, in bytes.
        size: the length of the file, in bytes.

    Yields:
        Batches, and the error of each broken one. After a broken batch, only batches that can be
        found by its length.
    """
    while position < size:
        try:
            for batch in scan(log, position, size):
                yield batch
                position = batch.position + batch.header.size
        except BrokenBatchError as error:
            # Also raised for an intact batch that does not follow; then continue with that batch.
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
    """Return the position after a broken batch, if its length leads to a batch or to the end."""
    data = log.read_at(HEADER_BYTES, position)
    if len(data) < HEADER_BYTES:
        return None
    header = read_header(data)
    following = position + header.size
    if header.magic != MAGIC or header.size < HEADER_BYTES or following > size:
        return None
    return following if following == size or _is_intact(log, following, size) else None


class IndexChecks:
    """Checks both indexes of a segment while its log is read.

    Parameters:
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
        """Compare the indexes with the next batch of the log."""
        header = batch.header
        last = header.last_offset - self._segment.base_offset
        for suffix, check in self._checks.items():
            found = check.batch(batch.position, last, header.max_timestamp)
            if found:
                self.problems += [(suffix, problem) for problem in found]

    def give_up(self) -> None:
        """Stop comparing, because the log is broken: further differences mean nothing."""
        self._checks.clear()

    def finish(self) -> None:
        """Compare the indexes with the log's end."""
        for suffix, check in self._checks.items():
            self.problems += [(suffix, problem) for problem in check.finish()]
