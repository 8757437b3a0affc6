"""The topics, their partitions and their changes: one change at a time, durable first."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import structlog

from pidlease.engine.leases.leases import Leases
from pidlease.engine.partition import Partition
from pidlease.engine.partition_context import PartitionContext
from pidlease.engine.recovery import Base, base_of
from pidlease.engine.topics.topic_policies import TopicPolicies
from pidlease.engine.unloaded_partitions import UnloadedPartition, UnloadedPartitions
from pidlease.log.ports import LogStore
from pidlease.observability.repeated_lines import LINES
from pidlease.storage.errors import DataFolderError, LogError
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshots import PartitionRows, TopicPartition
from pidlease.storage.topics.stream_settings import STREAM_TYPE
from pidlease.storage.topics.topic_settings import SettingError, SettingsChange
from pidlease.storage.topics.topic_store import Topic

#: Partitions of a large topic that are opened at once.
_OPENED_AT_ONCE: Final = 64
#: The most names of deleted topics kept.
_DELETED_MAX: Final = 100_000
#: After a change of this setting the logs are flushed.
_FSYNC: Final = "pidlease.fsync"
#: Topics that are compared before other tasks run.
_COMPARED: Final = 500
#: How often a deletion checks whether appends are still in flight.
_LANDED_POLL_SECONDS: Final = 0.005
#: How long the creation of a topic waits for a new block of PIDs.
_BLOCK_SECONDS: Final = 0.5

_log = structlog.get_logger(__name__)


class TopicExistsError(Exception):
    """A topic of that name exists."""


class TopicCollisionError(Exception):
    """A topic has a name that differs only in dots and underscores."""


class UnknownTopicError(Exception):
    """No topic of that name exists."""


class AwaitedTopicError(Exception):
    """The topic exists, but cannot be read yet."""


class TooManyPartitionsError(Exception):
    """The server's limit of partitions is reached."""


class PartitionCountError(Exception):
    """The number of a topic's partitions can only grow."""


class UnseenTopic(NamedTuple):
    """A topic that the cluster no longer lists, with its state.

    Attributes:
        topic: its definition.
        partitions: its partitions, which are hidden from the listeners.
        since_ms: since when it is missing, in ms since 1970.
    """

    topic: Topic
    partitions: list[Partition]
    since_ms: int


class TopicTable:
    """All topics of a server.

    Parameters:
        leases: forgets the producers of removed partitions.
        partitions_max: of all topics together.
    """

    def __init__(
        self,
        store: LogStore,
        pool: IoPool,
        context: PartitionContext,
        leases: Leases,
        partitions_max: int,
    ) -> None:
        self.topics: Final[dict[str, Topic]] = {}
        self.partitions: Final[dict[str, list[Partition]]] = {}
        #: Topics that exist, but cannot be read yet; they are not in `topics`.
        self.awaited: dict[str, Topic] = {}
        #: Topics that the cluster no longer lists; their producers' states are kept.
        self.unseen: Final[dict[str, UnseenTopic]] = {}
        #: The last snapshot's rows of partitions that are not loaded.
        self.held: Final = UnloadedPartitions(leases, context.clock_ms)
        self.policies: Final = TopicPolicies(store, pool)
        #: Grows with every change.
        self.version = 0
        #: Called with a deleted topic, before its name can be used again.
        self.on_deleted: Final[list[Callable[[Topic], Coroutine[Any, Any, None]]]] = []
        self._store = store
        self._pool = pool
        self._context = context
        self._leases = leases
        self._partitions_max = partitions_max
        #: Names of topics deleted since the start, and whether there were too many to keep.
        self._deleted: set[str] = set()
        self._deleted_more = False
        self._changing = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()

    @property
    def partitions_left(self) -> int:
        """How many more partitions may be created."""
        return self._partitions_max - sum(map(len, self.partitions.values()))

    def begin_with(
        self,
        topics: Iterable[Topic],
        partitions: Iterable[Partition],
        awaited: Iterable[Topic] = (),
        held: Iterable[UnloadedPartition] = (),
    ) -> None:
        """Begin with the result of a recovery.

        Raises:
            DataFolderError: a topic's settings are invalid.
        """
        self.awaited = {topic.name: topic for topic in awaited}
        self.held.begin_with(held)
        for topic in topics:
            self.topics[topic.name] = topic
            self.partitions[topic.name] = []
        for each in partitions:
            self.partitions[each.name.topic].append(each)
        for name, topic in self.topics.items():
            try:
                self._set_policy(topic, self.partitions[name])
            except SettingError as error:
                raise DataFolderError(f"the definition of topic {name}: {error}") from error
        self.version += 1

    def all_partitions(self) -> list[Partition]:
        """Return all visible partitions."""
        return [partition for topic in self.partitions.values() for partition in topic]

    def kept_partitions(self) -> list[Partition]:
        """Return all partitions, including those of unseen topics."""
        unseen = (each.partitions for each in self.unseen.values())
        return [*self.all_partitions(), *itertools.chain.from_iterable(unseen)]

    def base_of(self, partition: Partition, candidates: Iterable[PartitionRows]) -> Base:
        """Return where the replay of a partition begins. Blocks.

        Parameters:
            candidates: what is known of it, the best first. After them comes where its log begins
                to have batches of leased PIDs.
        """
        first = self._store.first_rows(partition.name, partition.topic_id)
        each = itertools.chain(candidates, [] if first is None else [first])
        return base_of(self._store, partition, each)

    def partitions_to_snapshot(self) -> list[Partition]:
        """Return the partitions that the next snapshot must contain.

        With Kafka as the log, stopped partitions are left out: their rows of the last snapshot are
        kept as unloaded. Retention of an embedded log relies on every partition being there.
        """
        kept = self.kept_partitions()
        if not self._store.made_by_others:
            return kept
        return [partition for partition in kept if not partition.log.stopped]

    def expect(self, topics: Mapping[str, Topic]) -> None:
        """Set the topics that exist, including those that cannot be read yet."""
        awaited = {name: each for name, each in topics.items() if name not in self.topics}
        if awaited != self.awaited:
            self.awaited = awaited
            self.version += 1

    def unloaded(self) -> list[UnloadedPartition]:
        """Return the unloaded partitions, for the next snapshot."""
        return self.held.without({partition.name for partition in self.partitions_to_snapshot()})

    async def check_owned(self) -> None:
        """Check that no other server has served these logs since this server started to.

        Raises:
            NotOwnerError: another server has.
            LogError: it is unknown now.
        """
        await self._pool.run(self._store.check_owned)

    async def check_place(self) -> None:
        """Stop the partitions with files that are not where they were."""
        await self._pool.run(self._store.check_place)

    async def settle(self) -> None:
        """Wait for running changes."""
        await asyncio.gather(*self._changes, return_exceptions=True)

    async def change(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a change to its end, even if the caller is cancelled meanwhile."""
        task = asyncio.create_task(self._locked(work))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        await asyncio.shield(task)

    async def _locked(self, work: Coroutine[Any, Any, None]) -> None:
        async with self._changing:
            await work

    # ------------------------------------------------------------------ the changes

    async def create(self, topic: Topic) -> None:
        """Create a topic, durably."""
        if topic.name in self.topics:
            raise TopicExistsError(f"topic {topic.name} exists")
        if reason := self.collision(topic.name):
            raise TopicCollisionError(reason)
        self._check_room(topic.partitions)
        self.policies.of(topic)  # validates the settings before they are durable
        topic = self._made_again(topic)
        await self._pool.run(partial(self._store.make_topic, topic))
        try:
            opened = await self.open(topic, range(topic.partitions))
        except OSError:
            # No partial topic: the missing partitions might never open.
            await self._pool.run(partial(self._store.delete_topic, topic))
            raise
        self.publish(topic, opened)
        if topic.made_again_ms >= 0:
            blocks = self._leases.blocks
            for _ in range(2):  # a block that was being taken may be older than the topic, too
                blocks.retire(topic.made_again_ms)
                if blocks.prefetch_error or not await blocks.fetched(_BLOCK_SECONDS):
                    break  # the next leases are from the old block
        _log.info("topic created", topic=topic.name, partitions=topic.partitions)

    async def delete(self, name: str) -> None:
        """Delete a topic, durably."""
        topic = self._known(name)
        partitions = self.partitions[name]
        self.hide(topic)
        try:
            for each in partitions:
                while each.in_flight:  # noqa: ASYNC110 - a wait for one append
                    await asyncio.sleep(_LANDED_POLL_SECONDS)
            await self._pool.run(partial(self._store.delete_topic, topic))
        except OSError:
            for each in partitions:
                each.gone = False
            self.publish(topic, partitions)
            raise
        self._note_deleted(name)
        for each in partitions:
            await self._leases.leave(each)
        await self.held.forget_topic(name)
        for callback in self.on_deleted:
            try:
                await callback(topic)
            except Exception:  # noqa: BLE001 - the topic is deleted all the same
                _log.exception("a callback for a deleted topic failed", topic=name)
        _log.info("topic deleted", topic=name, partitions=topic.partitions)

    async def add_partitions(self, name: str, total: int) -> None:
        """Add partitions to a topic, durably."""
        topic = self._known(name)
        if total <= topic.partitions:
            raise PartitionCountError(f"topic {name} has {topic.partitions} partitions already")
        self._check_room(total - topic.partitions)
        grown = replace(topic, partitions=total)
        await self._pool.run(partial(self._store.make_topic, grown, topic.partitions))
        # If this fails, the next start opens them.
        opened = await self.open(grown, range(topic.partitions, total))
        self.publish(grown, [*self.partitions[name], *opened])
        _log.info("partitions added", topic=name, partitions=total)

    async def alter(self, name: str, change: SettingsChange) -> None:
        """Change a topic's own settings, durably."""
        topic = self._known(name)

        def checked(own: dict[str, str]) -> dict[str, str]:
            settings = change(own)
            self.policies.of(replace(topic, overrides=settings))
            return settings

        altered = await self._pool.run(partial(self._store.change_topic, topic, checked))
        self.publish(altered, self.partitions[name])
        if altered.overrides.get(_FSYNC) != topic.overrides.get(_FSYNC):
            # Make durable what was acknowledged under the former setting.
            for each in self.partitions[name]:
                with suppress(LogError):  # it has stopped the partition, and logged that
                    await each.log.flush()
        _log.info("topic altered", topic=name, settings=altered.overrides)

    async def alter_all(self, change: SettingsChange) -> None:
        """Change the settings of all topics, durably."""
        await self.policies.change_shared(change, self.topics, self.partitions)
        self.version += 1

    async def apply_settings(self, shared: dict[str, str]) -> None:
        """Apply the settings that the store has read, as if they had been changed here.

        Parameters:
            shared: those of all topics.
        """
        if shared != self.policies.shared:
            await self.policies.apply_shared(shared, self.topics, self.partitions)
            self.version += 1
        for number, topic in enumerate(list(self.topics.values())):
            stored = self.with_stored_settings(topic)
            if stored.overrides != topic.overrides:
                self.publish(stored, self.partitions[topic.name])
                _log.info("topic altered by another server", topic=topic.name,
                          settings=stored.overrides)  # fmt: skip
            if number % _COMPARED == _COMPARED - 1:
                await asyncio.sleep(0)

    # ------------------------------------------------------------------ steps of the changes

    def _known(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicError(f"there is no topic {name}")
        return topic

    def collision(self, name: str) -> str:
        """Return why no topic may have a name beside those that exist; empty: one may.

        Kafka refuses names that are equal in its metrics, where dots are underscores
        (Topic.hasCollision).
        """
        unified = name.replace(".", "_")
        if "_" not in unified or name in self.topics:
            return ""
        for each in self.topics:
            if each.replace(".", "_") == unified:
                return f"the name {name} collides with that of topic {each}"
        return ""

    def _note_deleted(self, name: str) -> None:
        if len(self._deleted) < _DELETED_MAX:
            self._deleted.add(name)
        else:
            self._deleted_more = True

    def _made_again(self, topic: Topic) -> Topic:
        """Return the definition of a new topic, with the time if another one had the name before.

        Producers of the former topic continue their numbers, as with Kafka, which admits any first
        batch of a producer without state (ProducerAppendInfo.checkSequence). PIDs leased later
        begin at 0.
        """
        if not self._deleted_more and topic.name not in self._deleted:
            return topic
        return replace(topic, made_again_ms=self._context.clock_ms())

    def with_stored_settings(self, topic: Topic) -> Topic:
        """Return a topic with its own settings as they are stored, if they are valid here."""
        stored = replace(topic, overrides=self._store.own_settings(topic))
        try:
            self.policies.of(stored)
        except SettingError as error:
            LINES.write(_log, "error", "a topic's settings are invalid here; the former ones stay"
                        " in force", topic.name, topic=topic.name, error=str(error))  # fmt: skip
            return topic
        return stored

    def _check_room(self, wanted: int) -> None:
        if wanted > self.partitions_left:
            raise TooManyPartitionsError(f"only {self.partitions_left} partitions more may be made")

    def _set_policy(self, topic: Topic, partitions: Iterable[Partition]) -> None:
        policy = self.policies.of(topic)
        is_stream = topic.partitions == 1 and STREAM_TYPE in topic.overrides
        for each in partitions:
            each.policy = policy
            each.set_stream(is_stream=is_stream, pool=self._pool)

    def publish(self, topic: Topic, partitions: list[Partition]) -> None:
        """Make a topic visible to listeners, with this definition and these partitions."""
        self._set_policy(topic, partitions)
        self.topics[topic.name] = topic
        self.partitions[topic.name] = partitions
        self.awaited.pop(topic.name, None)
        self.version += 1

    def hide(self, topic: Topic) -> None:
        """Hide a topic from the listeners, and wake the consumers that wait for its records."""
        del self.topics[topic.name]
        for each in self.partitions.pop(topic.name):
            each.gone = True
            each.wake()
        self.version += 1

    def unsee(self, topic: Topic) -> list[UnseenTopic]:
        """Hide a topic that the cluster no longer lists, but keep its producers' states.

        Returns:
            The topics unseen for longest that exceed the limit of partitions.
        """
        partitions = self.partitions[topic.name]
        self.hide(topic)
        self.unseen[topic.name] = UnseenTopic(topic, partitions, self._context.clock_ms())
        too_many = []
        while sum(len(each.partitions) for each in self.unseen.values()) > self._partitions_max:
            too_many.append(self.unseen.pop(next(iter(self.unseen))))
        return too_many

    def see_again(self, name: str) -> None:
        """Show an unseen topic to the listeners again, with its state."""
        unseen = self.unseen.pop(name)
        for each in unseen.partitions:
            each.gone = False
        self.publish(self.with_stored_settings(unseen.topic), unseen.partitions)

    async def open(self, topic: Topic, numbers: Sequence[int]) -> list[Partition]:
        """Open some of a topic's partitions.

        Raises:
            OSError: one of them cannot be opened.
        """
        opened: list[Partition] = []
        for start in range(0, len(numbers), _OPENED_AT_ONCE):
            for each in await self.open_each(topic, numbers[start : start + _OPENED_AT_ONCE]):
                if not isinstance(each, Partition):
                    raise each
                opened.append(each)
        return opened

    async def open_each(self, topic: Topic, numbers: Sequence[int]) -> list[Partition | OSError]:
        """Open some of a topic's partitions; the result has why one of them cannot be opened."""

        async def open_one(number: int) -> Partition | OSError:
            name = TopicPartition(topic.name, number)
            try:
                log = await self._pool.run(partial(self._store.open_partition, topic, number, 0))
            except OSError as error:
                return error
            return Partition(name, topic, log, self._context)

        opened: list[Partition | OSError] = []
        for start in range(0, len(numbers), _OPENED_AT_ONCE):
            opened += await asyncio.gather(*map(open_one, numbers[start : start + _OPENED_AT_ONCE]))
        return opened
