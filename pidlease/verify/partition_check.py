"""Checks one partition's log: bytes, offsets, sequence numbers, indexes, snapshots."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from pidlease.core.producer_names import ProducerNames
from pidlease.core.state import ProducerState
from pidlease.kafka.records.record_batch import BatchHeader, InvalidBatchError, check_from_client
from pidlease.kafka.records.writer_batch import logged
from pidlease.log.segments.durable_mark import MARK_NAME, DurableMark
from pidlease.log.segments.log_start import LOG_START_NAME, read_log_start
from pidlease.log.segments.log_topics import COPY_NAME
from pidlease.log.segments.offset_file import decode_offset
from pidlease.log.segments.scan import BrokenBatchError, ScannedBatch, is_torn
from pidlease.log.segments.segment import LOG_SUFFIX, SUFFIXES, SegmentFiles, base_offset_of
from pidlease.storage.checked_lines import check_header
from pidlease.storage.errors import DamagedLogError, UnidentifiedBatchError
from pidlease.storage.files import Files, OpenFile, read_file
from pidlease.storage.snapshots import LeaseRow
from pidlease.verify.segment_reader import IndexChecks, batches
from pidlease.verify.sequence_history import History
from pidlease.verify.verify_report import Kind, Report

#: Progress is reported after this many bytes.
_REPORTED_BYTES: Final = 1 << 20
#: The files of a log beside its segments.
_OTHER_NAMES: Final = (MARK_NAME, LOG_START_NAME, COPY_NAME)


class Checkpoint(NamedTuple):
    """A snapshot's content about a partition.

    Attributes:
        path: the file with the snapshot's rows.
        next_offset: the first offset that is not applied.
        rows: the producers' states.
        leases: all leases of the snapshot.
    """

    path: Path
    next_offset: int
    rows: Mapping[int, ProducerState]
    leases: Mapping[int, LeaseRow]


@dataclass(frozen=True, slots=True)
class CheckContext:
    """The parts that all checks share.

    Attributes:
        files: the file system, read-only.
        report: gets the findings.
        advance: called with the number of further bytes read.
    """

    files: Files
    report: Report
    advance: Callable[[int], None]
    names: ProducerNames = field(default_factory=ProducerNames)


def header_end(context: CheckContext, path: Path, begin: bytes, kind: Kind) -> int | None:
    """Return where the lines of a file begin; None: its header is not there, which is reported."""
    try:
        return check_header(path, begin)
    except OSError as error:
        context.report.wrong(kind, path, str(error), position=1)
        return None


class PartitionCheck:
    """Checks one partition.

    Parameters:
        checkpoints: the snapshots' content about it.
        recovery_offset: from the newest snapshot; the log before it cannot be torn.
    """

    def __init__(
        self,
        context: CheckContext,
        folder: Path,
        checkpoints: list[Checkpoint],
        recovery_offset: int,
    ) -> None:
        self._files = context.files
        self._report = context.report
        self._advance = context.advance
        self._folder = folder
        self._checkpoints = sorted(checkpoints, key=lambda each: each.next_offset)
        self._recovery_offset = recovery_offset
        self._expected = 0
        self._names = context.names
        self._history = History(0, self._names)
        self._damaged = False
        self._unreported = 0

    def run(self) -> None:
        """Check the whole partition."""
        names = self._files.list(self._folder)
        bases = [base for name in names if (base := base_offset_of(name)) is not None]
        self._check_names(names, bases)
        self._report.totals.partitions += 1
        durable = self._durable_mark()
        self._recovery_offset = max(self._recovery_offset, durable)
        if bases:
            self._expected = bases[0]
            self._history = History(bases[0], self._names)
            self._check_start()
        for base in bases:
            self._segment(SegmentFiles(self._files, self._folder, base), is_last=base == bases[-1])
        self._check_log_start()
        if self._expected < durable:
            text = f"the log ends at offset {self._expected}, and was durable up to {durable}"
            self._report.wrong(Kind.MISSING, self._folder, text, offset=self._expected)
        self._compare()
        for checkpoint in self._checkpoints:
            text = f"it lies at offset {checkpoint.next_offset} of {self._folder.name}"
            self._report.wrong(Kind.SNAPSHOT, checkpoint.path,
                               f"{text}, beyond the log's end at {self._expected}",
                               offset=self._expected)  # fmt: skip
        self._report.pids.update(self._history.producers)

    def _check_names(self, names: list[str], bases: list[int]) -> None:
        stems = {f"{base:020d}" for base in bases}
        for name in names:
            stem, dot, suffix = name.partition(".")
            path = self._folder / name
            if dot + suffix in SUFFIXES and stem not in stems:
                text = "left by an interrupted removal; the next start removes it"
                self._report.note(path, text)
            elif dot + suffix not in SUFFIXES and name not in _OTHER_NAMES:
                self._report.wrong(Kind.STRAY, path, "is no file of a log")
        if not bases:
            self._report.wrong(Kind.MISSING, self._folder, "there is no segment", offset=0)

    def _durable_mark(self) -> int:
        """Return the offset up to which the log is known to be durable; 0: unknown."""
        path = self._folder / MARK_NAME
        durable = DurableMark(self._files, self._folder).read()
        if not durable and self._files.exists(path):
            content = read_file(self._files, path)
            if any(content) and decode_offset(content) is None:
                self._report.wrong(Kind.DAMAGED, path, "the mark is damaged", position=0)
            elif not any(content):
                self._report.note(path, "the mark is empty; a power cut may leave it so")
        return durable

    def _check_log_start(self) -> None:
        path = self._folder / LOG_START_NAME
        try:
            start = read_log_start(self._files, self._folder)
        except DamagedLogError as error:
            self._report.wrong(Kind.DAMAGED, path, str(error), position=error.position)
            return
        if start > self._expected:
            text = f"the log starts at offset {start}, and ends at {self._expected}"
            self._report.wrong(Kind.MISSING, path, text, offset=self._expected)

    def _check_start(self) -> None:
        """Check that no snapshot needs removed segments: retention never removes those."""
        start = self._expected
        while self._checkpoints and self._checkpoints[0].next_offset < start:
            checkpoint = self._checkpoints.pop(0)
            self._report.wrong(
                Kind.MISSING,
                self._folder,
                f"the log begins at offset {start}; {checkpoint.path.parent.name} needs it from"
                f" {checkpoint.next_offset} on",
                offset=checkpoint.next_offset,
            )

    # ------------------------------------------------------------------ segments

    def _segment(self, segment: SegmentFiles, *, is_last: bool) -> None:
        path = segment.path(LOG_SUFFIX)
        if segment.base_offset != self._expected:
            self._out_of_line(path, 0, segment.base_offset, "the segment begins")
            self._expected = segment.base_offset
        sealed = not is_last or self._report.clean
        with segment.reading(LOG_SUFFIX) as log, IndexChecks(segment, sealed=sealed) as indexes:
            size = log.size()
            self._report.totals.segments += 1
            self._report.totals.bytes += size
            for found in batches(log, 0, size):
                if isinstance(found, ScannedBatch):
                    indexes.batch(found)
                    self._batch(path, found)
                    continue
                indexes.give_up()
                if is_last and self._is_torn(log, found, size):
                    torn = size - found.position
                    self._report.totals.torn_bytes += torn
                    self._report.note(path, f"torn tail of {torn} bytes after offset"
                                      f" {self._expected}, never acknowledged; the next start"
                                      " cuts it off")  # fmt: skip
                    break
                self._damaged = True
                self._report.wrong(Kind.DAMAGED, path, str(found), position=found.position,
                                   offset=self._expected)  # fmt: skip
            indexes.finish()
        self._report_progress()
        self._report_indexes(segment, indexes, sealed=sealed)

    def _is_torn(self, log: OpenFile, error: BrokenBatchError, size: int) -> bool:
        """Whether the next start will take it for a torn tail, as `ActiveSegment.recover` does."""
        durable = self._report.clean or self._expected < self._recovery_offset
        return not durable and is_torn(log, error.position, size, self._expected)

    def _report_indexes(self, segment: SegmentFiles, indexes: IndexChecks, *, sealed: bool) -> None:
        for suffix, (position, message) in indexes.problems:
            path = segment.path(suffix)
            if sealed:
                offset = segment.base_offset
                self._report.wrong(Kind.INDEX, path, message, position=position, offset=offset)
            else:
                self._report.note(path, f"{message}; the next start builds it again")

    def _report_progress(self) -> None:
        self._advance(self._unreported)
        self._unreported = 0

    # ------------------------------------------------------------------ batches

    def _batch(self, path: Path, batch: ScannedBatch) -> None:
        position, header, data = batch
        if header.base_offset != self._expected:
            self._out_of_line(path, position, header.base_offset, "a batch stands")
        self._compare()
        self._form(path, position, header)
        wrong = self._apply(header, data)
        if wrong is not None:
            kind, message = wrong
            self._report.wrong(kind, path, message, position=position, offset=header.base_offset)
        self._expected = header.last_offset + 1
        totals = self._report.totals
        totals.batches += 1
        totals.records += header.records
        self._unreported += header.size
        if self._unreported >= _REPORTED_BYTES:
            self._report_progress()

    def _apply(self, header: BatchHeader, data: memoryview) -> tuple[Kind, str] | None:
        try:
            return self._history.apply(logged(header, data))
        except UnidentifiedBatchError as error:
            return Kind.MALFORMED, str(error)

    def _out_of_line(self, path: Path, position: int, found: int, what: str) -> None:
        """Report missing or repeated offsets. After missing ones, a new history begins."""
        expected = self._expected
        kind = Kind.HOLE if found > expected else Kind.REPEATED
        if not self._damaged or kind is Kind.REPEATED:
            text = f"{what} at offset {found} where {expected} should follow"
            self._report.wrong(kind, path, text, position=position, offset=expected)
        if found > expected:
            self._begin_anew(found)

    def _begin_anew(self, offset: int) -> None:
        self._compare()
        self._report.pids.update(self._history.producers)
        self._history = History(offset, self._names)
        self._expected = offset
        self._damaged = False

    def _form(self, path: Path, position: int, header: BatchHeader) -> None:
        """Check what the CRC does not cover, and what no batch in a log may contain."""
        message = ""
        try:
            check_from_client(header)
        except InvalidBatchError as error:
            message = str(error)
        if header.leader_epoch:
            message = f"leader epoch {header.leader_epoch}, where the log always writes 0"
        if message:
            self._report.wrong(Kind.MALFORMED, path, message, position=position,
                               offset=header.base_offset)  # fmt: skip

    # ------------------------------------------------------------------ snapshots

    def _compare(self) -> None:
        """Compare the snapshots taken up to here with the log."""
        while self._checkpoints and self._checkpoints[0].next_offset <= self._expected:
            checkpoint = self._checkpoints.pop(0)
            path, at, rows, leases = checkpoint
            where = f"{self._folder.name} at offset {at}"
            if at < self._history.start:
                self._report.note(path, f"{where}: not compared, the log is damaged before it")
                continue
            if at < self._expected:
                text = f"{where}: that is inside a batch"
                self._report.wrong(Kind.SNAPSHOT, path, text, offset=at)
                continue
            for difference in self._history.differences(rows, leases):
                text = f"{where}: {difference}"
                self._report.wrong(Kind.SNAPSHOT, path, text, offset=at)
            self._history.begin_with(rows)
