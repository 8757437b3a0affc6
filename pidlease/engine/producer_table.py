"""What is known of the producers of a partition: a fold over its log."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from pidlease.core.packed import Packed, fold_packed, offset_of, unpack
from pidlease.core.producer_names import ProducerNames
from pidlease.core.rules import rules_of
from pidlease.core.state import ProducerState
from pidlease.engine.batch_identity import identity_of
from pidlease.kafka.records.writer_batch import LoggedBatch
from pidlease.storage.snapshots import PartitionRows, TopicPartition
from pidlease.storage.topics.topic_store import Topic


class ProducerTable:
    """A partition's producers, as far as its log is applied.

    Parameters:
        name: topic and number.
        topic: its topic's definition.
        names: the producer ids of policy epoch.
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
        #: When it was found that earlier history is missing (see `PartitionRows`).
        self.hole_ms = topic.made_again_ms

    # ------------------------------------------------------------------ from a snapshot, and on

    def restore(self, states: dict[int, Packed], next_offset: int, hole_ms: int) -> None:
        """Begin with what a snapshot says; `replay` goes on from there."""
        self.states = states
        self.next_offset = next_offset
        self.hole_ms = hole_ms

    def replay(self, batches: Iterable[LoggedBatch], now_ms: int) -> None:
        """Fold batches of the log into the state. In a thread, before anything is judged."""
        for logged in batches:
            header = logged.header
            found = identity_of(logged, self.names)
            rules = rules_of(found.pid) if found is not None else None
            if found is not None and rules is not None:
                pid, batch = found
                state, offset = self.states.get(pid), header.base_offset
                # What is read again may be applied already.
                if state is None or offset_of(rules, state) < offset:
                    self.states[pid] = fold_packed(rules, state, batch, offset, now_ms)
            self.next_offset = max(self.next_offset, header.last_offset + 1)

    def rows(self) -> PartitionRows:
        """What a snapshot holds of this partition, as of now."""
        return PartitionRows(
            self.name, self.topic_id, self.next_offset, self.hole_ms, dict(self.states)
        )

    # ------------------------------------------------------------------ to look at

    def described_producers(self) -> Iterator[tuple[int, ProducerState]]:
        """The producers that are known now, with their states, for a person to look at.

        They may change while the caller takes its time.
        """
        for pid, packed in list(self.states.items()):
            rules = rules_of(pid)
            if rules is not None:
                yield pid, unpack(rules, packed)

    def producer(self, pid: int) -> ProducerState | None:
        """What is known of a producer, for a person to look at."""
        packed, rules = self.states.get(pid), rules_of(pid)
        return None if packed is None or rules is None else unpack(rules, packed)

    def some_producers(self, limit: int) -> list[tuple[int, ProducerState]]:
        """Some of the producers that are known, as many as are asked for."""
        states = ((pid, self.producer(pid)) for pid in islice(self.states, limit))
        return [(pid, state) for pid, state in states if state is not None]
