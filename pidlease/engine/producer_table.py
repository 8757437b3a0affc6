"""A partition's producers: their states, made by applying the log's batches in order."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from pidlease.core.packed import Packed, fold_packed, offset_of, unpack
from pidlease.core.producer_names import ProducerNames
from pidlease.core.rules import rules_of
from pidlease.core.state import ProducerState
from pidlease.engine.batch_identity import identity_of
from pidlease.kafka.records.writer_batch import LoggedBatch
from pidlease.storage.snapshots import PartitionOffset, PartitionRows, TopicPartition
from pidlease.storage.topics.topic_store import Topic


class ProducerTable:
    """The states of a partition's producers, as far as the log is applied.

    Parameters:
        next_offset: the first offset that is not applied.
    """

    def __init__(
        self, name: TopicPartition, topic: Topic, names: ProducerNames, next_offset: int
    ) -> None:
        self.name: Final = name
        self.topic_id: Final = topic.topic_id
        self.names: Final = names
        self.states: dict[int, Packed] = {}
        #: The first offset that is not applied.
        self.next_offset = next_offset
        #: When earlier history was found missing, in ms since 1970; -1: it is complete.
        self.hole_ms = topic.made_again_ms
        #: The offset after the last part of the log that was removed before it was applied.
        self.removed_end = 0
        #: The producers that have changed, for the servers that follow them; None: none does.
        self.changed: set[int] | None = None

    # ------------------------------------------------------------------ snapshot and replay

    def restore(
        self, states: dict[int, Packed], next_offset: int, hole_ms: int, removed_end: int = 0
    ) -> None:
        """Begin with the states of a snapshot; `replay` continues from there."""
        self.states = states
        self.next_offset = next_offset
        self.hole_ms = hole_ms
        self.removed_end = removed_end

    def replay(self, batches: Iterable[LoggedBatch], now_ms: int) -> None:
        """Apply batches of the log: at the start in a thread, in a catch-up on the event loop."""
        for logged in batches:
            header = logged.header
            identified = identity_of(logged, self.names)
            rules = rules_of(identified.pid) if identified is not None else None
            if identified is not None and rules is not None:
                pid, batch = identified
                state, offset = self.states.get(pid), header.base_offset
                # Batches that are read again may be applied already.
                if state is None or offset_of(rules, state) < offset:
                    self.states[pid] = fold_packed(rules, state, batch, offset, now_ms)
                    if self.changed is not None:
                        self.changed.add(pid)
            self.next_offset = max(self.next_offset, header.last_offset + 1)

    def position(self, next_offset: int, leader_epoch: int) -> PartitionOffset:
        """Return the partition's entry in the offset vector of a snapshot.

        Parameters:
            next_offset: the first offset that is not applied for certain.
            leader_epoch: the leader epoch that was confirmed for what is applied; -1: the log has
                none.
        """
        return PartitionOffset(
            self.topic_id,
            next_offset,
            self.hole_ms,
            leader_epoch,
            self.next_offset,
            self.removed_end,
        )

    def rows(self) -> PartitionRows:
        """Return the partition's rows for a snapshot of a log without leader epochs."""
        return self.position(self.next_offset, -1).rows(self.name, dict(self.states))

    # ------------------------------------------------------------------ reports

    def described_producers(self) -> Iterator[tuple[int, ProducerState]]:
        """Yield the producers and their states, for a report.

        The states may change while the caller iterates.
        """
        for pid, packed in list(self.states.items()):
            rules = rules_of(pid)
            if rules is not None:
                yield pid, unpack(rules, packed)

    def producer(self, pid: int) -> ProducerState | None:
        """Return a producer's state, for a report; None: it has none."""
        packed, rules = self.states.get(pid), rules_of(pid)
        return None if packed is None or rules is None else unpack(rules, packed)

    def some_producers(self, limit: int) -> list[tuple[int, ProducerState]]:
        """Return some producers and their states, at most `limit`."""
        states = ((pid, self.producer(pid)) for pid in islice(self.states, limit))
        return [(pid, state) for pid, state in states if state is not None]
