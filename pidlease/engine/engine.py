"""The engine: its topics, partitions and leases for the listeners, and its start and stop."""

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
from pidlease.engine.fence_reader import FenceReader
from pidlease.engine.leases.leases import Leases
from pidlease.engine.maintenance import Maintenance, MaintenanceConfig
from pidlease.engine.named_leases import NamedLeases
from pidlease.engine.partition import Partition
from pidlease.engine.partition_context import PartitionContext
from pidlease.engine.recovery import Recovery
from pidlease.engine.replay_progress import ReplayProgress
from pidlease.engine.shared_cluster import SharedCluster
from pidlease.engine.state_feeds import StateFeeds
from pidlease.engine.state_follower import StateFollower, StateRequests
from pidlease.engine.topic_counts import Counts
from pidlease.engine.topics.partition_moves import PartitionMoves
from pidlease.engine.topics.settings_follower import SettingsFollower
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

#: How long a stop waits for topic changes, and then for batches in flight.
_DRAIN_SECONDS: Final = 10.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The settings of the engine.

    Attributes:
        lease_ms: the length of a lease.
        ring_capacity: the number of slots of the lease table.
        keys_max: the most idempotency keys at once.
        judging: whether batches are validated; if not, every batch counts as one without a PID.
        partitions_max: the most partitions of all topics together.
        maintenance: how often maintenance runs.
    """

    lease_ms: int = 24 * 3600 * 1000
    ring_capacity: int = 1_000_000
    keys_max: int = 100_000
    judging: bool = True
    partitions_max: int = 20_000
    maintenance: MaintenanceConfig = field(default_factory=MaintenanceConfig)


def wall_clock_ms() -> int:
    """Return the time, in ms since 1970."""
    return time.time_ns() // 1_000_000


class Engine:
    """Connects the listeners with the log: topics, partitions, leases and maintenance.

    Parameters:
        store: the logs.
        snapshots: the snapshots.
        coordination: the PID sequence, and the bindings of names.
        pool: the threads for blocking work. A coordination with threads of its own uses those: a
            coordinator that several servers share may be slow, and the log must not wait for it.
        config: the settings.
        clock_ms: returns the time, in ms since 1970.
        appends: makes the appender of a partition.
        shared: the other active servers of a Kafka cluster; None: this server is the only one.
        states: asks them for the states of their producers; None: they are not asked.
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
        shared: SharedCluster | None = None,
        states: StateRequests | None = None,
    ) -> None:
        self.config: Final = config
        self.counts: Final = Counts()
        #: The producer names of policy epoch that are known.
        self.names: Final = snapshots.names
        coordination_pool = coordination.pool or pool
        self.leases: Final = Leases(
            coordination.sequence,
            coordination_pool,
            clock_ms,
            lease_ms=config.lease_ms,
            capacity=config.ring_capacity,
            keys_capacity=config.keys_max,
            names=self.names,
            recent=self.counts.recent,
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
        self._following = TopicSync(self._table, self.leases, pool, snapshots)
        #: The other active servers; None: there are none.
        self.shared_cluster: Final = shared
        #: Moves partitions between active servers, and
        self.moves: PartitionMoves | None = None
        #: follows the grants of others, and
        self.fences: FenceReader | None = None
        #: the settings of topics that they change.
        self.settings: SettingsFollower | None = None
        #: The states of this server's producers for others, and
        self.feeds: StateFeeds | None = None
        #: those of others here.
        self.follower: StateFollower | None = None
        if shared is not None:
            self._share(shared, coordination, states)
        self.topics: Final = self._table.topics
        self._partitions: Final = self._table.partitions
        #: Whether requests are accepted; set when a listener opens, and reset before it closes.
        self.ready = False
        #: Whether a stop is announced: requests are still accepted, but better sent elsewhere.
        self.leaving = False
        #: Set if topics are also created outside this server; None: every existing topic is known.
        self.ask_log: AskLog | None = None
        #: The progress of the start.
        self.replay: Final = ReplayProgress()

    def _share(
        self, shared: SharedCluster, coordination: Coordination, states: StateRequests | None
    ) -> None:
        if coordination.fences is None:
            raise AssertionError("several active servers need a fence log")
        pool = coordination.pool or self.pool
        self.settings = SettingsFollower(self._store, self._table, pool)
        self.moves = PartitionMoves(
            shared, self._table, self._following, self.leases, self._snapshots, self.pool,
            settings=self.settings,
        )  # fmt: skip
        self.fences = FenceReader(coordination.fences, pool, self.naming, self.leases)
        self.leases.keeps_fences = True
        self.leases.read_fences = self.fences.read
        self.maintenance.verified = self.moves.verified
        shared.topics = lambda: {name: each.partitions for name, each in self.topics.items()}
        shared.on_read.append(self.fences.read)
        shared.on_read.append(self.settings.look)
        self.feeds = StateFeeds(shared, self._table)
        shared.on_read.append(self.feeds.expire)
        if states is not None:
            self.follower = StateFollower(shared, self._table, self.pool, states)
            self.moves.fetch = self.follower.fetch

    # ------------------------------------------------------------------ life cycle

    async def start(self) -> None:
        """Recover the state. Does not set `ready`: the opener of the listeners does.

        Raises:
            SequenceError: the PID sequence cannot be read, or gives no block.
            NamesError: the bindings of names cannot be read.
            DataFolderError: a topic's definition, or the settings of all topics, are damaged.
        """
        recovery = Recovery(
            self._store, self._snapshots, self.leases, self._context, self.pool, self.replay,
            self.follower.fetch_at_start if self.follower is not None else None,
        )  # fmt: skip
        await self._table.policies.load()
        recovered = await recovery.run()
        await (self.fences.begin(self.naming.load) if self.fences else self.naming.load())
        self._table.begin_with(
            recovered.topics, recovered.partitions, recovered.awaited, recovered.held
        )
        if self.moves is not None:
            await self.moves.begin()
        self.maintenance.newest = recovered.snapshot
        # Without a snapshot, the next start would read what this one did not.
        self.maintenance.start(at_once=recovered.at_ends)
        _log.info("recovered", topics=len(self.topics), partitions=len(recovered.partitions),
                  producers=sum(len(p.producers) for p in recovered.partitions),
                  leases=len(self.leases), offsets_read=self.replay.offsets)  # fmt: skip

    async def stop(self) -> None:
        """Wait for topic changes and batches in flight, take a snapshot, and close the log.

        Call this when the listeners accept no more requests.
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
        if self.moves is not None:
            await self.moves.stop()
        if self.settings is not None:
            await self.settings.stop()
        await self.maintenance.stop()
        try:
            if self.config.judging and await self.maintenance.worth_a_snapshot():
                await self.maintenance.snapshot()
        except (OSError, LogError) as error:
            _log.error("no snapshot at the stop; the next start replays more", error=str(error))
        await self.pool.run(self._store.close)

    # ------------------------------------------------------------------ topics

    @property
    def topics_version(self) -> int:
        """A number that increases with every change of topics, their partitions or settings."""
        return self._table.version

    @property
    def on_topic_deleted(self) -> list[Callable[[Topic], Coroutine[Any, Any, None]]]:
        """The callbacks for a deleted topic, called before its name can be used again."""
        return self._table.on_deleted

    @property
    def welcoming(self) -> bool:
        """Whether to send requests here: they are accepted, and no stop is announced."""
        return self.ready and not self.leaving and not self.lost

    @property
    def lost(self) -> str:
        """Why no partition accepts appends, although nothing is wrong with its log; else empty."""
        return self._store.lost

    @property
    def awaited(self) -> Mapping[str, Topic]:
        """The topics in the log that cannot be read yet, by name."""
        return self._table.awaited

    def awaits(self, topic: str, number: int) -> bool:
        """Whether a partition exists, of a topic that cannot be read yet."""
        awaited = self._table.awaited.get(topic)
        return awaited is not None and 0 <= number < awaited.partitions

    @property
    def unseen(self) -> Collection[str]:
        """The topics that are no longer seen in the log; the state of their producers is kept."""
        return self._table.unseen.keys()

    @property
    def waits_for_topics(self) -> bool:
        """Whether there is state of topics that cannot be read, or are not seen, for now."""
        return bool(self._table.unseen) or len(self._table.held) > 0

    def expect(self, topics: Mapping[str, Topic]) -> None:
        """Note all topics that exist in the log, before `follow` reads them.

        Parameters:
            topics: the topics, by name.
        """
        self._table.expect(topics)

    def partitions(self) -> list[Partition]:
        """Return all partitions."""
        return self._table.all_partitions()

    @property
    def partition_count(self) -> int:
        """How many partitions there are."""
        return self.config.partitions_max - self._table.partitions_left

    @property
    def partitions_left(self) -> int:
        """How many more partitions may be created."""
        return self._table.partitions_left

    def partition(self, topic: str, number: int) -> Partition | None:
        """Return a partition; None: there is no such partition."""
        partitions = self._partitions.get(topic)
        if partitions is None or not 0 <= number < len(partitions):
            return None
        return partitions[number]

    def partitions_of(self, topic: str) -> Iterable[Partition]:
        """Return the partitions of a topic, in order; empty if there is no such topic."""
        return self._partitions.get(topic, ())

    async def missing(self, places: Collection[TopicPartition]) -> Set[TopicPartition]:
        """Return those of some partitions that certainly do not exist.

        Only for these may a client get the error of an unknown topic or partition. If topics are
        also created outside this server, every call asks the log: a partition may just have been
        created, and another server may have written to it. An existing partition is known or
        awaited when this returns.

        Parameters:
            places: partitions that are not known here; for a topic as a whole, its first one.
        """
        if self.ask_log is None or not places:
            return set(places)
        return await self.ask_log(places)

    def name_collision(self, name: str) -> str:
        """Return why no topic may have a name beside those that exist; empty: one may."""
        return self._table.collision(name)

    async def create_topic(self, topic: Topic) -> None:
        """Create a topic durably, even if the caller is cancelled meanwhile.

        Raises:
            TopicExistsError: a topic of that name exists.
            TopicCollisionError: see `name_collision`.
            TooManyPartitionsError: there would be more partitions than `partitions_max`.
            OSError: the topic is not durable.
        """
        await self._table.change(self._table.create(topic))

    async def delete_topic(self, name: str) -> None:
        """Delete a topic durably, with its records and the state of its producers.

        The batches in flight to it are completed first.

        Raises:
            UnknownTopicError: there is no topic of that name.
            OSError: the deletion is not durable; the topic still exists.
        """
        await self._table.change(self._table.delete(name))

    async def add_partitions(self, name: str, total: int) -> None:
        """Add partitions to a topic, durably.

        Parameters:
            name: the topic's name.
            total: the new number of partitions.

        Raises:
            UnknownTopicError: there is no topic of that name.
            PartitionCountError: the topic has as many partitions, or more.
            TooManyPartitionsError: there would be more partitions than `partitions_max`.
            OSError: the change is not durable.
        """
        await self._table.change(self._table.add_partitions(name, total))

    async def alter_topic(self, name: str, overrides: dict[str, str]) -> None:
        """Replace a topic's own settings, durably and at once.

        Parameters:
            name: the topic's name.
            overrides: all new settings of the topic, by Kafka's names; the caller checks them.

        Raises:
            UnknownTopicError: there is no topic of that name.
            ValueError: a setting is invalid.
            OSError: the settings are not durable.
        """
        await self.change_topic(name, lambda _: dict(overrides))

    async def change_topic(self, name: str, change: SettingsChange) -> None:
        """Change a topic's own settings, durably and at once.

        Parameters:
            name: the topic's name.
            change: derives all new settings from all old ones, and checks them; no other change
                runs meanwhile. If it raises, nothing has changed, and the error is passed on.

        Raises:
            UnknownTopicError: there is no topic of that name.
            ValueError: a setting is invalid.
            OSError: the settings are not durable.
        """
        await self._table.change(self._table.alter(name, change))

    @property
    def all_topics_settings(self) -> Mapping[str, str]:
        """The settings of all topics, by Kafka's names; a topic's own settings override them."""
        return self._table.policies.shared

    async def change_all_topics(self, change: SettingsChange) -> None:
        """Change the settings of all topics, durably and at once.

        Parameters:
            change: derives all new settings from all old ones, as for `change_topic`.

        Raises:
            OSError: the settings are not durable.
        """
        await self._table.change(self._table.alter_all(change))

    async def follow_settings(self) -> None:
        """Apply what other active servers have changed in settings of topics before this call.

        Raises:
            LogError: the settings cannot be read now.
        """
        if self.settings is not None:
            await self.settings.catch_up()

    async def follow(self, topics: Mapping[str, Topic]) -> None:
        """Sync the known topics with the log's, if topics are also created outside this server.

        Parameters:
            topics: the log's topics, by name.

        Raises:
            OSError: a partition cannot be opened; the next call does the rest.
        """
        await self._table.change(self._following.follow(topics))
        if self.moves is not None:
            self.moves.changed()

    @property
    def log_settings(self) -> LogConfig | None:
        """The log settings given at the server's start; None: Kafka's own settings hold."""
        return None if self._store.made_by_others else self._store.defaults
