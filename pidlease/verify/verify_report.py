"""Findings of a verification: kinds, counts, and totals."""

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

#: Findings that are kept; those beyond are counted. It bounds the memory of a hopeless case.
KEPT_MAX: Final = 10_000


class CannotLookError(Exception):
    """The directory cannot be looked at; the message says why and what to do."""


@enum.unique
class Kind(enum.Enum):
    """What sort of thing is wrong."""

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


#: What only judging keeps out of a log.
UNJUDGED: Final = frozenset((Kind.DUPLICATE, Kind.GAP, Kind.OVERLAP, Kind.FENCING))


class Finding(NamedTuple):
    """Something that is wrong.

    Attributes:
        kind: what sort of thing.
        file: where, below the data directory.
        position: at which byte of the file (a text file: which line); -1 where it has none.
        offset: of the record; -1 where it is about none.
        message: what.
    """

    kind: Kind
    file: str
    position: int
    offset: int
    message: str


class Note(NamedTuple):
    """Something that is as it may be, and worth knowing."""

    file: str
    message: str


@dataclass(slots=True)
class Totals:
    """How much was looked at."""

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
    """The outcome, filled while looking.

    Attributes:
        root: the data directory.
        clean: whether the last process closed everything.
        totals: how much was looked at.
        findings: what is wrong, at most `KEPT_MAX`.
        notes: what is worth knowing.
        pids: all the producer ids that were seen.
        unjudged: where validation was off, how many of `UNJUDGED` were found; -1: they are
            findings.
    """

    root: Path
    clean: bool = False
    totals: Totals = field(default_factory=Totals)
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
        """Accept what only validation keeps out of a log: add a note of how much there is."""
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
        """Whether nothing is wrong."""
        return not self.totals.findings

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.root))
