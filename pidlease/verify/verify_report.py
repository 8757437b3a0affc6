"""The report of a verification: findings, notes and totals."""

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

#: The most findings in a report; more are only counted, to bound the memory.
KEPT_MAX: Final = 10_000


class UnusableDirectoryError(Exception):
    """The data directory cannot be verified or repaired; the message says why and what to do."""


@enum.unique
class Kind(enum.Enum):
    """The kind of a finding."""

    DAMAGED = "damaged"
    UNREADABLE = "unreadable"
    MISSING = "missing"
    STRAY = "stray"
    HOLE = "hole"
    REPEATED = "repeated"
    DUPLICATE = "duplicate"
    GAP = "gap"
    OVERLAP = "overlap"
    FENCING = "fencing"
    MALFORMED = "malformed"
    INDEX = "index"
    SNAPSHOT = "snapshot"
    SEQUENCE = "sequence"


#: Findings that are allowed while deduplication is off.
UNJUDGED: Final = frozenset((Kind.DUPLICATE, Kind.GAP, Kind.OVERLAP, Kind.FENCING))


class Finding(NamedTuple):
    """A fault of the data directory.

    Attributes:
        kind: the kind of fault.
        file: its path below the data directory.
        position: in bytes, or the line of a text file; -1: none.
        offset: the record's offset; -1: none.
    """

    kind: Kind
    file: str
    position: int
    offset: int
    message: str


class Note(NamedTuple):
    """A fact that is not a fault, but may interest the operator."""

    file: str
    message: str


@dataclass(slots=True)
class VerifyTotals:
    """How much was verified."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    bytes: int = 0
    producers: int = 0
    snapshots: int = 0
    findings: int = 0
    torn_bytes: int = 0


@dataclass(slots=True)
class Report:
    """The result of a verification, filled by the checks.

    Attributes:
        clean: whether the last process stopped cleanly.
        totals: how much was verified.
        findings: the faults, at most `KEPT_MAX`.
        notes: other facts.
        pids: all PIDs in logs and snapshots.
        unjudged: while deduplication was off, the number of `UNJUDGED` faults; -1: they count as
            findings.
    """

    root: Path
    clean: bool = False
    totals: VerifyTotals = field(default_factory=VerifyTotals)
    findings: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    pids: set[int] = field(default_factory=set)
    unjudged: int = -1

    def wrong(
        self, kind: Kind, path: Path, message: str, *, position: int = -1, offset: int = -1
    ) -> None:
        """Add a finding."""
        if self.unjudged >= 0 and kind in UNJUDGED:
            self.unjudged += 1
            return
        self.totals.findings += 1
        if len(self.findings) < KEPT_MAX:
            self.findings.append(Finding(kind, self._name(path), position, offset, message))

    def note(self, path: Path, message: str) -> None:
        """Add a note."""
        if len(self.notes) < KEPT_MAX:
            self.notes.append(Note(self._name(path), message))

    @contextmanager
    def not_judged(self, path: Path) -> Iterator[None]:
        """Within this context, add one note with the number of `UNJUDGED` faults, not findings."""
        self.unjudged = 0
        try:
            yield
        finally:
            count, self.unjudged = self.unjudged, -1
        if count:
            text = f"{count} batches that are repeated, or out of line; deduplication is off"
            self.note(path, text)

    @property
    def sound(self) -> bool:
        """Whether there are no findings."""
        return not self.totals.findings

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.root))
