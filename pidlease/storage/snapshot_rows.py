"""The content of a snapshot as the server keeps it: rows of leases and of partitions' producers.

Without pyarrow: a server imports it with its first snapshot, and not before.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from pidlease.core.packed import Packed
from pidlease.core.topic_partition import TopicPartition


class SnapshotError(Exception):
    """A snapshot cannot be used: it is damaged, incomplete, or of a newer format."""


class LeaseRow(NamedTuple):
    """A lease, as the lease table and a snapshot keep it. Times in ms since 1970.

    Attributes:
        granted_ms: when the lease was granted; -1: unknown (only the log or an old client has the
            PID), so its state may have expired.
        first_ms: when the PID's first message came; -1: none yet.
    """

    pid: int
    granted_ms: int
    first_ms: int


class LeaseRows:
    """Many leases as columns: a million objects would keep the garbage collector busy."""

    def __init__(self, rows: Iterable[LeaseRow] = ()) -> None:
        self.columns: Final = tuple(array("q") for _ in LeaseRow._fields)
        for row in rows:
            self.append(*row)

    def append(self, pid: int, granted_ms: int, first_ms: int) -> None:
        """Add a row."""
        pids, granted, first = self.columns
        pids.append(pid)
        granted.append(granted_ms)
        first.append(first_ms)

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[LeaseRow]:
        return map(LeaseRow, *self.columns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeaseRows) and self.columns == other.columns

    __hash__ = None  # type: ignore[assignment]


class PartitionRows(NamedTuple):
    """One partition's part of a snapshot.

    Attributes:
        partition: its name.
        topic_id: the topic's id; a later topic of the same name has another.
        next_offset: its entry in the offset vector: the first offset that is not applied.
        hole_ms: when earlier history was found missing, in ms since 1970; -1: the history is
            complete. A PID from an older block may have had state here, even if the PID is young.
        producers: PID -> packed state.
        leader_epoch: with Kafka as the log, a leader epoch: what is applied was in the log when it
            was current. If a leader's log is as it was then up to `end_offset`, it still is; -1:
            the log has no leader epochs.
        end_offset: the offset after all batches that the states may have; while outcomes are
            unknown, it is far above `next_offset`.
        removed_end: the offset after the last part of the log that was removed before it was
            applied. A producer with its last known batch before it may have appended more there.
    """

    partition: TopicPartition
    topic_id: str
    next_offset: int
    hole_ms: int
    producers: Mapping[int, Packed]
    leader_epoch: int = -1
    end_offset: int = -1
    removed_end: int = 0

    @property
    def entry(self) -> "PartitionOffset":
        """The entry in the offset vector."""
        return PartitionOffset(
            self.topic_id, self.next_offset, self.hole_ms, self.leader_epoch, self.end_offset,
            self.removed_end,
        )  # fmt: skip


class PartitionOffset(NamedTuple):
    """A partition's entry in the offset vector of a snapshot; the fields of `PartitionRows`."""

    topic_id: str
    next_offset: int
    hole_ms: int
    leader_epoch: int = -1
    end_offset: int = -1
    removed_end: int = 0

    @property
    def needed_end(self) -> int:
        """The offset up to which a log must be as it was when the states were made."""
        return max(self.next_offset, self.end_offset)

    def rows(self, partition: TopicPartition, producers: Mapping[int, Packed]) -> PartitionRows:
        """Return the rows of a partition with this entry."""
        return PartitionRows(
            partition, self.topic_id, self.next_offset, self.hole_ms, producers,
            self.leader_epoch, self.end_offset, self.removed_end,
        )  # fmt: skip
