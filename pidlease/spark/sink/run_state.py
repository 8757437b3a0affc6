"""What the sink knows between micro-batches, and over a restart.

Each run has a folder of its own, whose file is replaced as a whole by each commit: a driver that
was replaced and does not know it writes where nobody looks any more. What counts for deduplication
is the destination's log; this says what must be there, and where to look if its lease is over.
"""

import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from pidlease.spark.errors import SinkError, SinkFencedError
from pidlease.storage.checked_file import CheckedFile
from pidlease.storage.files import RealFiles, make_durable_folder, remove_tree

_FORMAT: Final = 1
_RUN: Final = re.compile(r"run-\d{6}")
_FILE: Final = "state"
#: Runs that are kept.
_KEEP: Final = 5


class Place(NamedTuple):
    """A topic's partition, of the source or of the destination."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Span(NamedTuple):
    """What a table had of a source partition.

    Attributes:
        first: its first offset,
        end: and the first behind it.
        whole: whether it was written to its end.
    """

    first: int
    end: int
    whole: bool


class Chain(NamedTuple):
    """What one source partition has sent to one partition of the destination.

    Attributes:
        first: where the range of the next send begins.
        stored: numbers below this are there. Beyond `first` only where the name has got a new PID
            since, under which nothing was written yet.
    """

    first: int
    stored: int


@dataclass(frozen=True, slots=True)
class Source:
    """One partition of the source, as a producer.

    Attributes:
        pid: its name's,
        generation: and what this run was granted.
        granted_ms: when, in ms since 1970,
        expire_ms: and when it ends; -1: not known.
        chains: by the destination's partition. One that is not there was never written to.
        sent: rows since the checkpoint was begun,
        duplicates: and those of them that had been there before.
        spans: of tables, which were written one behind the other.
    """

    pid: int
    generation: int
    granted_ms: int
    expire_ms: int
    chains: Mapping[Place, Chain] = field(default_factory=dict)
    sent: int = 0
    duplicates: int = 0
    spans: tuple[Span, ...] = ()

    @property
    def high(self) -> int:
        """H: the last number of it that is there; -1: none."""
        return max((chain.stored for chain in self.chains.values()), default=0) - 1


@dataclass(frozen=True, slots=True)
class RunState:
    """A run's.

    Attributes:
        name: what producers' names begin with; of this checkpoint only.
        batch: the last micro-batch that was committed; -1: none.
        prepared: the last one whose leases were looked at; -1: none of this run.
        query_id: Spark's, of the checkpoint; empty: not known yet.
        query: what it does: a checkpoint is never used for another one.
        spread: whether rows say which partition they go to.
        ends: the destination's partitions, and from where each is searched should a lease end.
        sources: by the source's partition.
    """

    name: str
    batch: int
    prepared: int
    query_id: str
    query: Mapping[str, Any]
    spread: bool
    ends: Mapping[Place, int]
    sources: Mapping[Place, Source]

    def rows(self) -> list[dict[str, Any]]:
        """As lines of a file."""
        head = {
            "format": _FORMAT,
            "name": self.name,
            "batch": self.batch,
            "prepared": self.prepared,
            "query_id": self.query_id,
            "query": dict(self.query),
            "spread": self.spread,
            "who": f"{socket.gethostname()}/{os.getpid()}",
        }
        ends = [{"end": place, "offset": offset} for place, offset in self.ends.items()]
        sources = [
            {
                "source": place, "pid": source.pid, "generation": source.generation,
                "granted_ms": source.granted_ms, "expire_ms": source.expire_ms,
                "sent": source.sent, "duplicates": source.duplicates, "spans": source.spans,
                "chains": [[*there, *chain] for there, chain in source.chains.items()],
            }
            for place, source in self.sources.items()
        ]  # fmt: skip
        return [head, *ends, *sources]

    @classmethod
    def of_rows(cls, rows: list[dict[str, Any]]) -> Self:
        """What a file says.

        Raises:
            ValueError, KeyError, TypeError: it is of a newer format, or none.
        """
        head, *rest = rows
        if head["format"] > _FORMAT:
            raise ValueError(f"format {head['format']} is newer than {_FORMAT}")
        ends = {Place(*row["end"]): row["offset"] for row in rest if "end" in row}
        sources = {
            Place(*row["source"]): Source(
                row["pid"], row["generation"], row["granted_ms"], row["expire_ms"],
                {Place(t, p): Chain(first, stored) for t, p, first, stored in row["chains"]},
                row["sent"], row["duplicates"], tuple(Span(*each) for each in row["spans"]),
            )
            for row in rest
            if "source" in row
        }  # fmt: skip
        return cls(
            head["name"], head["batch"], head["prepared"], head["query_id"], head["query"],
            head["spread"], ends, sources,
        )  # fmt: skip

    def with_source(self, place: Place, source: Source) -> Self:
        """The same with one source partition changed."""
        return replace(self, sources={**self.sources, place: source})


class RunStore:
    """The runs' folders, on the driver's file system. Its methods block.

    Parameters:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._files: Final = RealFiles()

    def reserve(self) -> str:
        """Take the next run's number; nobody else gets it.

        Who takes one looks at the runs before it from then on, and looks whether it is still the
        newest when it has written its state. So of two that begin at once, one sees the other.

        Raises:
            SinkError: it cannot be taken.
        """
        with _told(self._folder):
            make_durable_folder(self._files, self._folder)
            number = int(names[0][-6:]) + 1 if (names := self._names()) else 1
            while True:
                name = f"run-{number:06d}"
                try:
                    (self._folder / name).mkdir()
                except FileExistsError:
                    number += 1
                    continue
                self._files.fsync_folder(self._folder)
                return name

    def before(self, name: str | None = None) -> list[RunState]:
        """What the runs before one say, the newest first; None: all of them.

        Raises:
            SinkError: one cannot be read.
        """
        with _told(self._folder):
            names = [each for each in self._names() if name is None or each < name]
            return [self.read(each) for each in names if self._files.exists(self._path(each))]

    def read(self, name: str) -> RunState:
        """What a run's file says.

        Raises:
            SinkError: it is not there, or damaged.
        """
        path = self._path(name)
        try:
            rows = CheckedFile(self._files, path).rows()
            if not rows:
                raise SinkError(f"{path} is not there, or empty; prepare the query again")
            return RunState.of_rows(rows)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SinkError(
                f"{path} cannot be read: {error}; take it from a backup, or begin with a new"
                " checkpoint and a new topic"
            ) from None

    def write(self, name: str, state: RunState) -> None:
        """Put a state in the place of the one before, durably.

        Raises:
            SinkError: it may be there, or not.
        """
        with _told(self._folder):
            CheckedFile(self._files, self._path(name)).replace(state.rows())

    def check_alone(self, name: str) -> None:
        """See that nobody else has begun to begin a run since; when one's own state is written.

        Raises:
            SinkFencedError: somebody has.
        """
        with _told(self._folder):
            newest = self._names()[0]
        if newest > name:
            raise SinkFencedError(f"another run of this query begins: {newest} after {name}")

    def check_newest(self, name: str) -> None:
        """See that no run has begun after one.

        Raises:
            SinkFencedError: there was.
        """
        with _told(self._folder):
            begun = [each for each in self._names() if self._files.exists(self._path(each))]
        if begun and begun[0] > name:
            raise SinkFencedError(f"another run of this query has taken over: {begun[0]}")

    def release(self, name: str) -> None:
        """Give up a number under which no run has begun.

        Raises:
            SinkError: it cannot be removed.
        """
        with _told(self._folder):
            remove_tree(self._files, self._folder / name)

    def forget_old(self) -> None:
        """Remove all runs but the last few.

        Raises:
            SinkError: one cannot be removed.
        """
        with _told(self._folder):
            names = self._names()
            told = [each for each in names if self._files.exists(self._path(each))]
            for name in names:
                if len(told) >= _KEEP and name < told[_KEEP - 1]:
                    remove_tree(self._files, self._folder / name)

    def _path(self, name: str) -> Path:
        return self._folder / name / _FILE

    def _names(self) -> list[str]:
        """The runs, newest first."""
        found = self._files.list(self._folder)
        return sorted((each for each in found if _RUN.fullmatch(each)), reverse=True)


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    """Tell what the file system says as the sink's.

    Raises:
        SinkError: it says something.
    """
    try:
        yield
    except OSError as error:
        raise SinkError(f"the sink's state in {folder} cannot be kept: {error}") from None
