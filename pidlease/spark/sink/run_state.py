"""What the sink knows between micro-batches, and over a restart.

Each run has a file of its own, replaced as a whole by each commit: a driver that was replaced and
does not know it writes where nobody looks any more. What counts for deduplication is the
destination's log; this says what must be there, and where to look if its lease is over.
"""

import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from pidlease.spark.errors import SinkError
from pidlease.storage.checked_file import CheckedFile
from pidlease.storage.files import RealFiles

_FORMAT: Final = 1
_RUN: Final = re.compile(r"run-(\d{6})-[0-9a-f]{8}")
#: Runs whose files are kept.
_KEEP: Final = 5


class Place(NamedTuple):
    """A topic's partition, of the source or of the destination."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


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
    """

    pid: int
    generation: int
    granted_ms: int
    expire_ms: int
    chains: Mapping[Place, Chain] = field(default_factory=dict)
    sent: int = 0
    duplicates: int = 0


@dataclass(frozen=True, slots=True)
class RunState:
    """A run's.

    Attributes:
        number: counts runs.
        name: what producers' names begin with; of this checkpoint only.
        batch: the last micro-batch that was committed; -1: none.
        query: what it does: a checkpoint is never used for another one.
        spread: whether rows say which partition they go to.
        places: the destination's partitions.
        ends: from where each of them is searched, should a lease end.
        sources: by the source's partition.
    """

    number: int
    name: str
    batch: int
    query: Mapping[str, Any]
    spread: bool
    places: tuple[Place, ...]
    ends: Mapping[Place, int]
    sources: Mapping[Place, Source]

    def rows(self) -> list[dict[str, Any]]:
        """As lines of a file."""
        head = {
            "format": _FORMAT, "number": self.number, "name": self.name, "batch": self.batch,
            "query": dict(self.query), "spread": self.spread, "places": list(self.places),
            "who": f"{socket.gethostname()}/{os.getpid()}",
        }  # fmt: skip
        ends = [{"end": place, "offset": offset} for place, offset in self.ends.items()]
        sources = [
            {
                "source": place, "pid": source.pid, "generation": source.generation,
                "granted_ms": source.granted_ms, "expire_ms": source.expire_ms,
                "sent": source.sent, "duplicates": source.duplicates,
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
                row["sent"], row["duplicates"],
            )
            for row in rest
            if "source" in row
        }  # fmt: skip
        places = tuple(Place(*each) for each in head["places"])
        return cls(
            head["number"], head["name"], head["batch"], head["query"], head["spread"], places,
            ends, sources,
        )  # fmt: skip

    def with_source(self, place: Place, source: Source) -> Self:
        """The same with one source partition changed."""
        return replace(self, sources={**self.sources, place: source})


class RunStore:
    """The files of runs, in a folder of the driver's file system. Its methods block.

    Parameters:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._files: Final = RealFiles()

    def newest(self) -> tuple[str, RunState] | None:
        """The newest run's file and what it says; None: there was no run.

        Raises:
            SinkError: it cannot be read.
        """
        found = self._names()
        return (found[0], self.read(found[0])) if found else None

    def begin(self, state: RunState) -> str:
        """Write a new run's first state, durably; its file's name.

        Raises:
            SinkError: it may be there, or not.
        """
        name = f"run-{state.number:06d}-{secrets.token_hex(4)}"
        self.write(name, state)
        for old in self._names()[_KEEP:]:
            self._files.remove(self._folder / old)
        return name

    def read(self, name: str) -> RunState:
        """What a run's file says.

        Raises:
            SinkError: it is not there, or damaged.
        """
        path = self._folder / name
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
        try:
            CheckedFile(self._files, self._folder / name).replace(state.rows())
        except OSError as error:
            raise SinkError(f"the sink's state cannot be written: {error}") from None

    def _names(self) -> list[str]:
        """The files, newest first; of one number the one that was written last."""
        names = [each for each in self._files.list(self._folder) if _RUN.fullmatch(each)]
        times = {each: (self._folder / each).stat().st_mtime_ns for each in names}
        return sorted(names, key=lambda each: (each[:10], times[each]), reverse=True)
