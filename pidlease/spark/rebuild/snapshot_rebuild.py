"""A snapshot made of a log: by the fold of all its sends, and the places they go up to."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import DataFrame

from pidlease.core.pid import number_of
from pidlease.core.producer_names import ProducerNames, is_stand_in
from pidlease.spark.rebuild.errors import RebuildError
from pidlease.spark.rebuild.log_fold import fold_sends
from pidlease.storage.snapshots import (
    LeaseRows,
    Manifest,
    PartitionOffset,
    PartitionRows,
    SnapshotStore,
    TopicPartition,
)

#: Damaged places that are named when nothing is rebuilt for them.
_NAMED_MAX: Final = 5

Told = Callable[[str], None]


class PlacedPartition(NamedTuple):
    """A partition, and its place in the offset vector."""

    name: TopicPartition
    place: PartitionOffset


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was written.

    Attributes:
        manifest: of the snapshot.
        leases: how many PIDs have a lease in it.
    """

    manifest: Manifest
    leases: int


def rebuild(
    sends: DataFrame,
    partitions: Sequence[PlacedPartition],
    store: SnapshotStore,
    folder: Path,
    now_ms: int,
    told: Told = lambda _: None,
) -> Rebuilt:
    """Write a snapshot of what a server would know after it has replayed a whole log.

    Parameters:
        sends: all sends of the log up to the places, from its first segments on.
        partitions: in the order in which a server opens them.
        store: where the snapshot goes.
        folder: where the states wait until they are written; all of Spark's workers see it.
        now_ms: when all of it counts as arrived, and the leases as begun, in ms since 1970.
        told: called with what is being done, for a person.

    Raises:
        RebuildError: something in the log is damaged. A server would stop there; a snapshot would
            say that all is well behind.
        OSError: the snapshot is not on the disk; those before it are untouched.
    """
    scratch = Path(tempfile.mkdtemp(prefix=".aside-states-", dir=folder))
    try:
        told("folding the log")
        states = fold_sends(sends, now_ms).sortWithinPartitions("topic", "partition")
        states.write.mode("overwrite").parquet(str(scratch / "states"))
        folded = ds.dataset(scratch / "states", format="parquet")
        _check_intact(folded)
        told("writing the snapshot")
        leases = LeaseRows()
        rows = _rows(folded, partitions, store.names, _Leases(leases, now_ms))
        manifest = store.write(now_ms, rows, leases)
        return Rebuilt(manifest, len(leases))
    finally:
        shutil.rmtree(scratch)


def _check_intact(folded: ds.Dataset) -> None:
    damaged = folded.to_table(
        columns=["topic", "partition", "first_offset", "damage"],
        filter=ds.field("damage").is_valid(),
    ).slice(0, _NAMED_MAX)
    places = [
        f"{row['topic']}-{row['partition']} at offset {row['first_offset']} ({row['damage']})"
        for row in damaged.to_pylist()
    ]
    if places:
        raise RebuildError(
            f"the log is damaged: {'; '.join(places)}. A snapshot would hide it; `pidlease spark"
            " audit` and `pidlease verify` tell all of it"
        )


def _rows(
    folded: ds.Dataset,
    partitions: Sequence[PlacedPartition],
    names: ProducerNames,
    leases: "_Leases",
) -> Iterator[PartitionRows]:
    """A partition at a time, each producer where its first send stands, as a replay has them."""
    for name, place in partitions:
        mine = (ds.field("topic") == name.topic) & (ds.field("partition") == name.partition)
        table = folded.to_table(filter=mine).sort_by("first_offset")
        pids = _pids(table, names)
        leases.take(pids)
        yield PartitionRows(name, *place, dict(zip(pids, _states(table), strict=True)))


def _pids(table: pa.Table, names: ProducerNames) -> list[int]:
    ids = table.column("producer_id").to_pylist()
    pids = table.column("pid").to_pylist()
    return [names.take(name) if name else pid for pid, name in zip(pids, ids, strict=True)]


def _states(table: pa.Table) -> list[bytes]:
    states: list[bytes] = table.column("state").to_pylist()
    return states


class _Leases:
    """The leases that a replay gives: one to each number, in the order in which they are met.

    Parameters:
        rows: gets them.
        now_ms: when they begin.
    """

    def __init__(self, rows: LeaseRows, now_ms: int) -> None:
        self._rows: Final = rows
        self._now_ms: Final = now_ms
        self._numbers: set[int] = set()

    def take(self, pids: list[int]) -> None:
        """The next partition's producers. Those with a producer id have a lease without a row."""
        for pid in pids:
            number = number_of(pid)
            if number not in self._numbers:
                self._numbers.add(number)
                if not is_stand_in(pid):
                    self._rows.append(pid, -1, self._now_ms)
