"""The sink's state between micro-batches, and over a restart.

Each run has a folder of its own, with one file that each commit replaces as a whole. So a driver
that was replaced without notice writes to a file that is no longer read. Deduplication relies on
the destination's log alone; the state says what must be in it, and where to search it after the
lease has ended.
"""

import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.errors import SinkError, SinkFencedError
from pidlease.storage.checked_lines import CheckedFile
from pidlease.storage.files import RealFiles, make_durable_folder, remove_tree

_FORMAT: Final = 1
_RUN: Final = re.compile(r"run-\d{6}")
_FILE: Final = "state"
#: The number of runs to keep.
_KEEP: Final = 5


class TableRange(NamedTuple):
    """The offsets that a table had of a source partition.

    Attributes:
        end: the first offset after them.
        whole: whether the table was written to its end.
    """

    start: int
    end: int
    whole: bool


class Chain(NamedTuple):
    """What one source partition has sent to one destination partition.

    Attributes:
        first: the first sequence number of the next send's range.
        stored: all sequence numbers below are stored. Higher than `first` only after the name got
            a new PID, until something is written under it.
    """

    first: int
    stored: int


@dataclass(frozen=True, slots=True)
class SourceProducer:
    """One source partition as a producer.

    Attributes:
        generation: of this run's lease.
        granted_ms: when the lease began, in ms since 1970.
        expire_ms: when it ends; -1: not known.
        chains: by destination partition; a partition that is missing was never written to.
        sent: rows since the checkpoint was begun.
        duplicates: those of them that were stored before.
        tables: for tables, the ranges written so far, in order.
    """

    pid: int
    generation: int
    granted_ms: int
    expire_ms: int
    chains: Mapping[TopicPartition, Chain] = field(default_factory=dict)
    sent: int = 0
    duplicates: int = 0
    tables: tuple[TableRange, ...] = ()

    @property
    def high_sequence(self) -> int:
        """The highest sequence number that is stored (H); -1: none."""
        return max((chain.stored for chain in self.chains.values()), default=0) - 1


@dataclass(frozen=True, slots=True)
class RunState:
    """The state of a run.

    Attributes:
        name: the prefix of the producers' names, unique to the checkpoint.
        batch: the last micro-batch that was committed; -1: none.
        prepared: the last micro-batch for which leases were checked; -1: none in this run.
        query_id: Spark's id of the query; empty: not known yet.
        query: what the query does; a checkpoint is never used for another query.
        spread: whether rows name their destination partition.
        ends: by destination partition, the offset from which its log is searched if a lease ends.
        sources: by source partition.
    """

    name: str
    batch: int
    prepared: int
    query_id: str
    query: Mapping[str, Any]
    spread: bool
    ends: Mapping[TopicPartition, int]
    sources: Mapping[TopicPartition, SourceProducer]

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the lines of a file."""
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
        ends = [{"end": destination, "offset": offset} for destination, offset in self.ends.items()]
        sources = [
            {
                "source": partition, "pid": source.pid, "generation": source.generation,
                "granted_ms": source.granted_ms, "expire_ms": source.expire_ms,
                "sent": source.sent, "duplicates": source.duplicates, "spans": source.tables,
                "chains": [[*destination, *chain] for destination, chain in source.chains.items()],
            }
            for partition, source in self.sources.items()
        ]  # fmt: skip
        return [head, *ends, *sources]

    @classmethod
    def from_rows(cls, rows: list[dict[str, Any]]) -> Self:
        """Return the state that the lines of a file describe.

        Raises:
            ValueError, KeyError, TypeError: the format is newer, or invalid.
        """
        head, *rest = rows
        if head["format"] > _FORMAT:
            raise ValueError(f"format {head['format']} is newer than {_FORMAT}")
        ends = {TopicPartition(*row["end"]): row["offset"] for row in rest if "end" in row}
        sources = {
            TopicPartition(*row["source"]): SourceProducer(
                row["pid"], row["generation"], row["granted_ms"], row["expire_ms"],
                {TopicPartition(t, p): Chain(*chain) for t, p, *chain in row["chains"]},
                row["sent"], row["duplicates"], tuple(TableRange(*each) for each in row["spans"]),
            )
            for row in rest
            if "source" in row
        }  # fmt: skip
        return cls(
            head["name"], head["batch"], head["prepared"], head["query_id"], head["query"],
            head["spread"], ends, sources,
        )  # fmt: skip

    def with_source(self, partition: TopicPartition, source: SourceProducer) -> Self:
        """Return the state with one source partition changed."""
        return replace(self, sources={**self.sources, partition: source})


class RunStore:
    """The folders of all runs, on the driver's file system. The methods block."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._files: Final = RealFiles()

    def reserve(self) -> str:
        """Reserve the name of the next run, exclusively.

        A run reads the earlier runs after it has reserved its name, and checks that it is still
        the newest after it has written its state. So if two begin at once, one sees the other.

        Raises:
            SinkError: the folder cannot be written.
        """
        with _as_sink_errors(self._folder):
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

    def newest(self) -> str | None:
        """Return the name of the last run that has begun; None: there is none.

        Raises:
            SinkError: the folder cannot be read.
        """
        with _as_sink_errors(self._folder):
            return next((n for n in self._names() if self._files.exists(self._path(n))), None)

    def before(self, name: str | None = None) -> list[RunState]:
        """Read the states of the runs before one, or of all runs; the newest first.

        Raises:
            SinkError: a state cannot be read.
        """
        with _as_sink_errors(self._folder):
            names = [each for each in self._names() if name is None or each < name]
            return [self.read(each) for each in names if self._files.exists(self._path(each))]

    def read(self, name: str) -> RunState:
        """Read the state of a run.

        Raises:
            SinkError: the file is missing or damaged.
        """
        path = self._path(name)
        try:
            rows = CheckedFile(self._files, path).rows()
            if not rows:
                raise SinkError(f"{path} is not there, or empty; prepare the query again")
            return RunState.from_rows(rows)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SinkError(
                f"{path} cannot be read: {error}; take it from a backup, or begin with a new"
                " checkpoint and a new topic"
            ) from None

    def write(self, name: str, state: RunState) -> None:
        """Replace the state of a run, durably.

        Raises:
            SinkError: the write failed; the old or the new state is on the disk.
        """
        with _as_sink_errors(self._folder):
            CheckedFile(self._files, self._path(name)).replace(state.to_rows())

    def check_alone(self, name: str) -> None:
        """Check that no other run has reserved a name since; call it after the first `write`.

        Raises:
            SinkFencedError: another run has.
        """
        with _as_sink_errors(self._folder):
            newest = self._names()[0]
        if newest > name:
            raise SinkFencedError(f"another run of this query begins: {newest} after {name}")

    def check_newest(self, name: str) -> None:
        """Check that no later run has begun.

        Raises:
            SinkFencedError: one has.
        """
        with _as_sink_errors(self._folder):
            begun = [each for each in self._names() if self._files.exists(self._path(each))]
        if begun and begun[0] > name:
            raise SinkFencedError(f"another run of this query has taken over: {begun[0]}")

    def release(self, name: str) -> None:
        """Give up a reserved name under which no run has begun.

        Raises:
            SinkError: its folder cannot be removed.
        """
        with _as_sink_errors(self._folder):
            remove_tree(self._files, self._folder / name)

    def forget_old(self) -> None:
        """Remove all but the newest runs.

        Raises:
            SinkError: a folder cannot be removed.
        """
        with _as_sink_errors(self._folder):
            names = self._names()
            begun = [each for each in names if self._files.exists(self._path(each))]
            for name in names:
                if len(begun) >= _KEEP and name < begun[_KEEP - 1]:
                    remove_tree(self._files, self._folder / name)

    def _path(self, name: str) -> Path:
        return self._folder / name / _FILE

    def _names(self) -> list[str]:
        """Return the names of the runs, newest first."""
        names = self._files.list(self._folder)
        return sorted((each for each in names if _RUN.fullmatch(each)), reverse=True)


@contextmanager
def _as_sink_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the file system into errors of the sink.

    Raises:
        SinkError: the block has raised an OSError.
    """
    try:
        yield
    except OSError as error:
        raise SinkError(f"the sink's state in {folder} cannot be kept: {error}") from None
