"""The engine as the listeners see it: topics, partitions, leases; start and stop."""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from pidlease.coordination.pid_sequence import Coordination
from pidlease.core.log_config import LogConfig
from pidlease.engine.appenders.group_appender import AppenderFactory, GroupAppender
from pidlease.engine.leases.leases import Leases
from pidlease.engine.maintenance import Maintenance, MaintenanceConfig
from pidlease.engine.named_leases import NamedLeases
from pidlease.engine.partition import Partition
from pidlease.engine.partition_context import PartitionContext
from pidlease.engine.recovery import Recovery
from pidlease.engine.replay_progress import ReplayProgress
from pidlease.engine.topic_counts import Counts
from pidlease.engine.topics.topic_sync import TopicSync
from pidlease.engine.topics.topic_table import (
    PartitionCountError,
    TooManyPartitionsError,
    TopicExistsError,
    TopicTable,
    UnknownTopicError,
)
from pidlease.log.ports import LogStore
from pidlease.storage.errors import LogError
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshots import SnapshotStore, TopicPartition
from pidlease.storage.topics.topic_settings import SettingsChange
from pidlease.storage.topics.topic_store import Topic

__all__ = [
    "Engine",
    "EngineConfig",
    "PartitionCountError",
    "TooManyPartitionsError",
    "TopicExistsError",
    "UnknownTopicError",
    "wall_clock_ms",
]

#: Returns the partitions that the log certainly does not have, by a request after the call.
AskLog = Callable[[Collection[TopicPartition]], Coroutine[Any, Any, Set[TopicPartition]]]

#: How long a stop waits for what is in flight.
_DRAIN_SECONDS: Final = 10.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine works.

    Attributes:
        lease_ms: how long a lease is.
        ring_capacity: slots of the lease ring.
        judging: off lets every batch through as if it had no PID.
        partitions_max: partitions of all topics together.
        maintenance: how often background work is done.
    """

    lease_ms: int = 24 * 3600 * 1000
    ring_capacity: int = 1_000_000
    judging: bool = True
    partitions_max: int = 20_000
    maintenance: MaintenanceConfig = field(default_factory=MaintenanceConfig)


def wall_clock_ms() -> int:
    """The time, in ms since 1970."""
    return time.time_ns() // 1_000_000


class Engine:
    """Everything between the listeners and the log.

    Parameters:
        store: the logs.
        snapshots: the snapshots.
        coordination: the PID sequence, and the bindings of names.
        pool: the threads for blocking work; those for the coordination are its own, where it has
            some: whoever shares one with others may wait for them, and the log must not.
        config: how it works.
        clock_ms: the time, in ms since 1970.
        appends: how admitted batches come into the log.
    """

    def __init__(  # noqa: PLR0913 - built in one place
        self,
        store: LogStore,
        snapshots: SnapshotStore,
        coordination: Coordination,
        pool: IoPool,
        config: EngineConfig,
        clock_ms: Callable[[], int] = wall_clock_ms,
        *,
        appends: AppenderFactory = GroupAppender,
    ) -> None:
        self.config: Final = config
        self.counts: Final = Counts()
        #: The producer ids of policy epoch that are known.
        self.names: Final = snapshots.names
        coordination_pool = coordination.pool or pool
        self.leases: Final = Leases(
            coordination.sequence,
            coordination_pool,
            clock_ms,
            lease_ms=config.lease_ms,
            capacity=config.ring_capacity,
            names=self.names,
        )
        self.naming: Final = NamedLeases(coordination.names, coordination_pool, self.leases)
        self._store = store
        self._snapshots = snapshots
        #: The threads for blocking work.
        self.pool: Final = pool
        self._context = PartitionContext(
            self.leases, self.counts, clock_ms, config.judging, self.names, appends
        )
        self._table = TopicTable(store, pool, self._context, self.leases, config.partitions_max)
        self.maintenance: Final = Maintenance(
            self._table, self.leases, snapshots, self._context, pool, config.maintenance
        )
        self._following = TopicSync(self._table, self.leases, pool)
        self.topics: Final = self._table.topics
        self._partitions: Final = self._table.partitions
        #: Whether requests are accepted; set when a listener opens, and reset before it closes.
        self.ready = False
        #: Whether a stop has been announced: requests are still taken, and better sent elsewhere.
        self.leaving = False
        #: Set where others make topics; None: there are none but those that are known.
        self.ask_log: AskLog | None = None
        #: How far the start is.
        self.replay: Final = ReplayProgress()

    # ------------------------------------------------------------------ life cycle

    async def start(self) -> None:
        """Recover. `ready` is for the opener of the listeners.

        Raises:
            SequenceError: the PID sequence cannot be read, or gives no block.
            NamesError: the bindings of names cannot be read.
            DataFolderError: a topic's definition, or what is set for all of them, is damaged.
        """
        recovery = Recovery(
            self._store, self._snapshots, self.leases, self._context, self.pool, self.replay
        )
        await self._table.policies.load()
        recovered = await recovery.run()
        await self.naming.load()
        self._table.begin_with(
            recovered.topics, recovered.partitions, recovered.awaited, recovered.held
        )
        self.maintenance.newest = recovered.snapshot
        self.maintenance.start()
        _log.info("recovered", topics=len(self.topics), partitions=len(recovered.partitions),
                  producers=sum(len(p.producers) for p in recovered.partitions),
                  leases=len(self.leases))  # fmt: skip

    async def stop(self) -> None:
        """Wait for what is in flight, take a snapshot, close the log.

        The listeners accept nothing new when this is called.
        """
        self.ready = False
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self._table.settle()
        deadline = time.monotonic() + _DRAIN_SECONDS
        while (  # noqa: ASYNC110 - a bounded wait, over all partitions
            any(p.in_flight for p in self._table.kept_partitions()) and time.monotonic() < deadline
        ):
            await asyncio.sleep(0.01)
        await self.maintenance.stop()
        try:
            if self.config.judging:
                await self.maintenance.snapshot()
        except (OSError, LogError) as error:
            _log.error("no snapshot at the stop; the next start replays more", error=str(error))
        await self.pool.run(self._store.close)

    # ------------------------------------------------------------------ topics

    @property
    def topics_version(self) -> int:
        """Goes up with every change of topics, their partitions or settings."""
        return self._table.version

    @property
    def on_topic_deleted(self) -> list[Callable[[Topic], Coroutine[Any, Any, None]]]:
        """Callbacks for a deleted topic, called before its name can be used again."""
        return self._table.on_deleted

    @property
    def welcoming(self) -> bool:
        """Whether requests are to be sent here: they are taken, and no stop is announced."""
        return self.ready and not self.leaving

    @property
    def awaited(self) -> Mapping[str, Topic]:
        """Topics that there are in the log, and that cannot be read yet, by name."""
        return self._table.awaited

    def awaits(self, topic: str, number: int) -> bool:
        """Whether there is such a partition, of a topic that cannot be read yet."""
        found = self._table.awaited.get(topic)
        return found is not None and 0 <= number < found.partitions

    @property
    def unseen(self) -> Collection[str]:
        """Topics that were there and are not seen any more; what is known of them is kept."""
        return self._table.unseen.keys()

    @property
    def waits_for_topics(self) -> bool:
        """Whether something is known of topics that cannot be read, or are not seen, for now."""
        return bool(self._table.unseen) or len(self._table.held) > 0

    def expect(self, topics: Mapping[str, Topic]) -> None:
        """Know of all topics there are in the log, before `follow` has read them.

        Parameters:
            topics: by name.
        """
        self._table.expect(topics)

    def partitions(self) -> list[Partition]:
        """All partitions there are now."""
        return self._table.all_partitions()

    @property
    def partitions_left(self) -> int:
        """How many more may be made."""
        return self._table.partitions_left

    def partition(self, topic: str, number: int) -> Partition | None:
        """A partition; None where there is none."""
        partitions = self._partitions.get(topic)
        if partitions is None or not 0 <= number < len(partitions):
            return None
        return partitions[number]

    def partitions_of(self, topic: str) -> Iterable[Partition]:
        """The partitions of a topic, in order; none where there is no such topic."""
        return self._partitions.get(topic, ())

    async def missing(self, places: Collection[TopicPartition]) -> Set[TopicPartition]:
        """Which of some partitions there are not, for certain: only of these it may be said.

        Where others make topics the log is asked, each time: one of them may just have been made,
        and written to by another server. What there is, is known or awaited when this returns.

        Parameters:
            places: partitions that are not known here; of a topic as a whole, its first.
        """
        if self.ask_log is None or not places:
            return set(places)
        return await self.ask_log(places)

    async def create_topic(self, topic: Topic) -> None:
        """Create a topic, durably, even when the caller goes away meanwhile.

        Raises:
            TopicExistsError: there is one of that name.
            TooManyPartitionsError: there would be more than the server is set to hold.
            OSError: it could not be made durable.
        """
        await self._table.change(self._table.create(topic))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, durably, with its records and all that is known of its producers.

        What is in flight to it is answered first.

        Raises:
            UnknownTopicError: there is none of that name.
            OSError: it could not be made durable; the topic is still there.
        """
        await self._table.change(self._table.delete(name))

    async def add_partitions(self, name: str, total: int) -> None:
        """Give a topic more partitions, durably.

        Parameters:
            name: the topic's.
            total: how many it is to have.

        Raises:
            UnknownTopicError: there is none of that name.
            PartitionCountError: it has as many, or more.
            TooManyPartitionsError: there would be more than the server is set to hold.
            OSError: it could not be made durable.
        """
        await self._table.change(self._table.add_partitions(name, total))

    async def alter_topic(self, name: str, overrides: dict[str, str]) -> None:
        """Give a topic other settings of its own, durably and at once.

        Parameters:
            name: the topic's.
            overrides: all of its own settings, by Kafka's names; checked before.

        Raises:
            UnknownTopicError: there is none of that name.
            ValueError: a setting is invalid.
            OSError: they could not be made durable.
        """
        await self.change_topic(name, lambda _: dict(overrides))

    async def change_topic(self, name: str, change: SettingsChange) -> None:
        """Change a topic's own settings, durably and at once.

        Parameters:
            name: the topic's.
            change: makes all of its new settings of all of its old ones, and checks them; no other
                change runs meanwhile. What it raises is raised, and nothing has changed.

        Raises:
            UnknownTopicError: there is none of that name.
            ValueError: a setting is invalid.
            OSError: they could not be made durable.
        """
        await self._table.change(self._table.alter(name, change))

    @property
    def all_topics_settings(self) -> Mapping[str, str]:
        """What is set for all topics that have none of their own, by Kafka's names."""
        return self._table.policies.shared

    async def change_all_topics(self, change: SettingsChange) -> None:
        """Change what is set for all topics, durably and at once.

        Parameters:
            change: see `change_topic`.

        Raises:
            OSError: it could not be made durable.
        """
        await self._table.change(self._table.alter_all(change))

    async def follow(self, topics: Mapping[str, Topic]) -> None:
        """Make the topics that are known those that there are in the log, where others make them.

        Parameters:
            topics: by name.

        Raises:
            OSError: a partition cannot be opened; the rest is done the next time.
        """
        await self._table.change(self._following.follow(topics))

    @property
    def log_settings(self) -> LogConfig:
        """What the server was started with, for topics that have no settings of their own."""
        return self._store.defaults
