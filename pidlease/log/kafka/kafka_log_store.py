"""The topics of a Kafka cluster as the engine's logs.

The methods run in threads; the connections belong to the event loop.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar
from weakref import WeakSet

import structlog
from typing_extensions import override

from pidlease.coordination.journal.journal import JournalError
from pidlease.coordination.journal.journal_beginnings import Beginning, JournalBeginnings
from pidlease.coordination.topic_book import (
    ALL_TOPICS,
    TopicBook,
    TopicBookError,
    TopicSettings,
)
from pidlease.coordination.writer_ids import WriterIdsError
from pidlease.core.backoff import Backoff
from pidlease.core.log_config import LogConfig
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.cluster import UpstreamTopic, View
from pidlease.kafka.client.kafka_client import Upstream
from pidlease.kafka.client.offset_requests import LeaderLog
from pidlease.kafka.client.topic_creation import RefusedChangeError
from pidlease.kafka.client.transactions import SERVED_TOPIC
from pidlease.kafka.errors import UpstreamError
from pidlease.log.kafka.kafka_journal import create_served_topic
from pidlease.log.kafka.kafka_partition_log import OTHER_TOPIC, KafkaPartitionLog
from pidlease.log.kafka.kafka_writers import KafkaWriters
from pidlease.log.ports import LogStore
from pidlease.storage.errors import DataFolderError, NotOwnerError
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshot_rows import PartitionRows
from pidlease.storage.topics.stream_settings import STREAM_SETTINGS
from pidlease.storage.topics.topic_settings import (
    SHARED_SETTINGS,
    SettingError,
    SettingsChange,
    check_shared,
)
from pidlease.storage.topics.topic_store import Topic, is_own_id

#: How often leaders are asked for leader epochs in all, and the pauses in between.
_TRIES: Final = 5
_BACKOFF: Final = Backoff(0.1, 1.0)

Result = TypeVar("Result")

_log = structlog.get_logger(__name__)


class KafkaStore(LogStore):
    """The topics and partitions of a Kafka cluster, as the engine's logs.

    Parameters:
        upstream: the cluster, after its first metadata response.
        writers: the partitions' writers.
        book: the topics' settings, which Kafka does not store.
        owned: returns whether this server has served the cluster alone since its start; None: there
            is no coordinator, or several servers are active.

    Attributes:
        leave: lets another server take over, at the close; None: there is no need.
        beginnings: where logs begin to have batches of leased PIDs; None: that is not noted.
        first_service: whether no server has served the cluster before; None: the topic shows it.
    """

    made_by_others: bool = True

    def __init__(
        self,
        upstream: Upstream,
        writers: KafkaWriters,
        book: TopicBook,
        pool: IoPool,
        owned: Callable[[], Coroutine[Any, Any, bool]] | None = None,
    ) -> None:
        self.leave: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.first_service: bool | None = None
        self.beginnings: JournalBeginnings | None = None
        self._begun: dict[str, Beginning] = {}
        self._upstream: Final = upstream
        self._writers: Final = writers
        self._book: Final = book
        self._settings = TopicSettings({}, {})
        #: Of the book, before `_settings` were read.
        self._settings_version: object = None
        self._owned: Final = owned
        self._pool: Final = pool
        self._loop = asyncio.get_running_loop()
        self._logs: dict[TopicPartition, LeaderLog] = {}
        #: The open logs, which hear of changes of their leaders.
        self._open: Final[WeakSet[KafkaPartitionLog]] = WeakSet()
        self._producers_kept_ms = 0

    @property
    @override
    def defaults(self) -> LogConfig:
        return LogConfig()  # has no effect: Kafka applies its own retention

    @override
    def is_first_service(self) -> bool:
        cluster = self._upstream.cluster
        if self.first_service is not None:
            return self.first_service
        if SERVED_TOPIC in cluster.view.topics:
            return False
        try:
            return self._wait(create_served_topic(cluster))
        except RefusedChangeError as error:
            _log.warning("Kafka does not let this server create a topic, so a start without"
                         " a snapshot reads all logs from their beginning; allow Create, or"
                         " create the topic", topic=SERVED_TOPIC, error=str(error))  # fmt: skip
            return False
        except UpstreamError as error:
            raise DataFolderError(f"topic {SERVED_TOPIC} cannot be created: {error}") from error

    @override
    def note_first_service(self, ends: Sequence[PartitionRows]) -> None:
        if self.beginnings is None:
            return
        offsets: dict[str, dict[int, PartitionRows]] = {}
        for each in ends:
            offsets.setdefault(each.topic_id, {})[each.partition.partition] = each
        self._begun = {
            topic_id: Beginning(
                rows[0].partition.topic, [rows[at].next_offset for at in range(len(rows))],
                [rows[at].leader_epoch for at in range(len(rows))], rows[0].hole_ms,
            )
            for topic_id, rows in offsets.items()
        }  # fmt: skip
        try:
            self.beginnings.put(self._begun)
        except JournalError as error:
            raise OSError(str(error)) from error

    @override
    def first_rows(self, name: TopicPartition, topic_id: str) -> PartitionRows | None:
        found = self._begun.get(topic_id)
        if found is None or not is_own_id(topic_id) or name.partition >= len(found.offsets):
            return None
        number = name.partition
        offset, epoch = found.offsets[number], found.epochs[number]
        return PartitionRows(name, topic_id, offset, found.at_ms, {}, epoch)

    @override
    def ends_of_epochs(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for attempt in range(1, _TRIES + 1):
            left = {name: epoch for name, epoch in epochs.items() if name not in found}
            found |= self._wait(self._upstream.ends_of_epochs(left))
            if len(found) == len(epochs):
                break
            self._wait(asyncio.sleep(_BACKOFF.seconds(attempt)))
        return found

    @override
    def topics(self) -> list[Topic]:
        """Return the topics that can be read now; the others follow when they can.

        Raises:
            DataFolderError: Kafka cannot be reached, or rejects a request.
        """
        view = self._upstream.cluster.view
        try:
            self._logs = dict(self._wait(self._upstream.logs(_partitions(view))))
            kept = self._wait(self._upstream.cluster.id_expirations())
            self._writers.load()
            if self.beginnings is not None:
                self._begun = self.beginnings.load()
        except (UpstreamError, WriterIdsError, JournalError) as error:
            raise DataFolderError(f"the log in Kafka cannot be read: {error}") from error
        self._producers_kept_ms = kept.producers_ms
        self._writers.kafka_keeps(kept)
        if not self._producers_kept_ms:
            _log.warning("Kafka does not report how long it remembers producers"
                         " (producer.id.expiration.ms): their batches go one at a time; allow"
                         " DescribeConfigs on the cluster")  # fmt: skip
        return [self.topic_of(each) for each in served(view) if self._is_readable(each)]

    @override
    def awaited(self) -> list[Topic]:
        topics = served(self._upstream.cluster.view)
        return [self.topic_of(each) for each in topics if not self._is_readable(each)]

    def _is_readable(self, topic: UpstreamTopic) -> bool:
        names = (TopicPartition(topic.name, number) for number in range(len(topic.leaders)))
        found = (self._logs.get(name) for name in names)
        return all(each is not None and each.topic_id == topic.topic_id for each in found)

    @override
    def open_partition(
        self,
        topic: Topic,
        partition: int,
        recovery_offset: int,
    ) -> KafkaPartitionLog:
        name = TopicPartition(topic.name, partition)
        opened = self._logs.pop(name, None)
        if opened is None:
            try:
                opened = self._wait(self._upstream.log_of(name))
            except UpstreamError as error:
                raise OSError(f"{name} cannot be read yet: {error}") from error
        if opened.topic_id != topic.topic_id:
            self._loop.call_soon_threadsafe(self._upstream.stale)
            raise OSError(f"{name} cannot be read yet: {OTHER_TOPIC}")
        self._writers.open_anew(name)
        if self._writers.learns:
            # Its former writers' ids are read meanwhile, so that no client waits for them later.
            self._loop.call_soon_threadsafe(self._writers.knows, name)
        log = KafkaPartitionLog(self._upstream, name, opened, self._writers, self._pool, self._loop)
        log.producers_kept_ms = self._producers_kept_ms
        self._loop.call_soon_threadsafe(self._watch, log)
        return log

    def follow_leaders(self) -> None:
        """Let open logs hear of changes of their leaders from now on."""
        self._upstream.cluster.on_change.append(self._note_leaders)
        self._upstream.channels.on_lost = self._note_connection_lost

    def _watch(self, log: KafkaPartitionLog) -> None:
        """Let a log hear of changes of its leader, the last one included."""
        self._open.add(log)
        log.note_view(self._upstream.cluster.view)

    def _note_leaders(self, before: View, now: View) -> None:
        if before.topics != now.topics:
            for each in self._open:
                each.note_view(now)

    def _note_connection_lost(self, broker: int) -> None:
        for each in self._open:
            each.note_connection_lost(broker)

    @override
    def check_owned(self) -> None:
        if self._owned is not None and not self._wait(self._owned()):
            raise NotOwnerError("another server serves this Kafka cluster")

    @override
    def close(self) -> None:
        if self.leave is not None:
            self._wait(self.leave())
        self._wait(self._upstream.close())

    # ------------------------------------------------------------------ topics and their settings

    @override
    def topic_defaults(self) -> dict[str, str]:
        try:
            shared = self.read_settings()
            check_shared(shared)
        except (TopicBookError, SettingError) as error:
            raise DataFolderError(f"the topics' settings cannot be used: {error}") from error
        return shared

    @override
    def settings_changed(self) -> bool:
        return self._book.version() != self._settings_version

    @override
    def read_settings(self) -> dict[str, str]:
        version = self._book.version()  # first: a change during the read is noticed later
        self._settings = self._book.load()
        self._settings_version = version
        return self._settings.shared

    @override
    def own_settings(self, topic: Topic) -> dict[str, str]:
        return self._settings.own.get(topic.topic_id, {})

    @override
    def change_topic_defaults(self, change: SettingsChange) -> dict[str, str]:
        settings = self._book.change("", ALL_TOPICS, change)
        self._settings = self._settings._replace(shared=settings)
        return settings

    @override
    def change_topic(self, topic: Topic, change: SettingsChange) -> Topic:
        """Change pidlease's own settings of a topic durably. The others are stored by Kafka.

        Raises:
            SettingError: a setting is one of Kafka's.
        """

        def checked(own: dict[str, str]) -> dict[str, str]:
            settings = change(own)
            for name in settings.keys() - {*SHARED_SETTINGS, *STREAM_SETTINGS}:
                raise SettingError(name, f"{name} is a setting of Kafka's; set it in Kafka")
            return settings

        settings = self._book.change(topic.name, topic.topic_id, checked)
        self._settings.own[topic.topic_id] = settings
        return replace(topic, overrides=settings)

    @override
    def make_topic(self, topic: Topic, first: int = 0) -> None:
        raise OSError(f"the topics are Kafka's; create or extend {topic.name} in Kafka")

    @override
    def save_topic(self, topic: Topic) -> None:
        raise OSError(f"the topics are Kafka's; change {topic.name} in Kafka")

    @override
    def delete_topic(self, topic: Topic) -> None:
        raise OSError(f"the topics are Kafka's; delete {topic.name} in Kafka")

    def topic_of(self, topic: UpstreamTopic) -> Topic:
        """Return a topic of the cluster as the engine's Topic."""
        found = Topic(
            topic.name, topic.topic_id, len(topic.leaders), {},
            compacted=topic.compacted is not False,
        )  # fmt: skip
        return replace(found, overrides=self.own_settings(found))

    def _wait(self, call: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


def served(view: View) -> list[UpstreamTopic]:
    """Return the topics that clients write to: all but the coordinator's own."""
    return [topic for topic in view.topics.values() if topic.name != SERVED_TOPIC]


def _partitions(view: View) -> list[TopicPartition]:
    return [
        TopicPartition(topic.name, number)
        for topic in served(view)
        for number in range(len(topic.leaders))
    ]
