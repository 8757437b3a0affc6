"""Finds, creates, forks, expires and deletes streams.

A stream's settings are settings of its topic, so its creation is one durable step. If it is created
with records, or closed, it exists when its first record is in the log (`StreamConfig.initial`).
Which streams have forks follows from the settings of all topics.

With several active servers, only the owner of a stream's partition knows its end, when it was last
used, and whether it has records: only the owner reads it, and removes it when it is over.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import structlog

from pidlease.engine.engine import Engine
from pidlease.engine.partition import Partition
from pidlease.engine.partition_lookup import find_topic
from pidlease.engine.stream_gate import StreamGate
from pidlease.engine.topic_admin import TopicAdmin
from pidlease.engine.topics.topic_table import TopicExistsError, UnknownTopicError
from pidlease.log.ports import ForwardingLog
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import NotOwnerError
from pidlease.storage.snapshots import TopicPartition
from pidlease.storage.topics.stream_settings import (
    STREAM_DELETED,
    StreamConfig,
    expires_ms,
    stream_config,
)
from pidlease.storage.topics.topic_settings import change_of_own
from pidlease.storage.topics.topic_store import Topic
from proxy.http.current_caller import require
from proxy.http.errors import ready_engine, ready_topics
from proxy.http.streams.stream_pages import UNKNOWN_END, Span
from proxy.http.topic_routes import BoundedChanges, require_deletion
from proxy.security.acls import Operation, ResourceKind
from proxy.security.authorizer import Right

#: How often expired streams, and those left over, are looked for.
_SWEEP_SECONDS: Final = 1.0
#: A log that is not longer may have nothing but Kafka's markers.
_MARKERS_MAX: Final = 16
#: Streams of which each is forked from the next.
_CHAIN_MAX: Final = 64
#: Records stay until the stream is deleted.
_KEPT: Final[Mapping[str, str]] = {"retention.ms": "-1", "retention.bytes": "-1"}

_log = structlog.get_logger(__name__)


class UnknownStreamError(Exception):
    """No stream has the path."""


class DeletedStreamError(Exception):
    """The stream is deleted, and kept for its forks."""


class StreamConflictError(Exception):
    """Another stream or topic has the path, or the stream cannot be forked so."""


class Stream(NamedTuple):
    """A stream that exists."""

    topic: Topic
    partition: Partition
    gate: StreamGate
    config: StreamConfig

    @property
    def tail(self) -> int:
        """The offset after its last value, as far as this server knows."""
        return self.config.base + self.gate.tail(self.partition.readable_end)

    async def tail_now(self) -> int:
        """Return the offset after its last value that may be read; others may have written it.

        Raises:
            LogError: the log cannot be asked.
        """
        if self.gate.closed is not None:
            return self.tail
        return self.config.base + self.gate.tail(await self.partition.stable_end())

    @property
    def own_span(self) -> Span:
        """Its part that it does not inherit."""
        is_known = self.gate.closed is not None or not self.partition.log_is_shared
        return Span(self.partition, self.config.base, self.tail if is_known else UNKNOWN_END)

    def is_closed_at(self, offset: int) -> bool:
        """Whether the stream is closed, and has no value at or after an offset."""
        return self.gate.closed is not None and offset >= self.tail

    @property
    def is_there(self) -> bool:
        """Whether the records are known to be there that it was created with."""
        return not self.config.initial or self.gate.has_data

    @property
    def has_begun(self) -> bool:
        """Whether the records are there that it was created with, if its gate is known.

        Raises:
            NotOwnerError: another server knows that.
            LogStoppedError: that is unknown, because the log is stopped.
        """
        if self.is_there:
            return True
        self.partition.check_not_stopped()
        return False

    def is_expired(self) -> bool:
        """Whether its time is over."""
        ttl = self.config.ttl_seconds
        if ttl is not None and time.monotonic() >= self.gate.touched + ttl:
            return True
        at = expires_ms(self.config.expires) if self.config.expires else None
        return at is not None and time.time() * 1000 >= at


class StreamCatalog:
    """The streams of a server.

    Parameters:
        engine: returns the engine; None while there is none yet.
        topics: creates and deletes topics.
    """

    def __init__(
        self, engine: Callable[[], Engine | None], topics: Callable[[], TopicAdmin | None]
    ) -> None:
        self._engine: Final = engine
        self._topics: Final = topics
        self._changes: Final = BoundedChanges()
        self._locks: dict[str, asyncio.Lock] = {}
        self._lock_users: Counter[str] = Counter()
        self._version = -1
        #: The number of forks, by topic of their source.
        self._forks: Counter[str] = Counter()
        #: The topics that are streams, and may have to be removed.
        self._passing: list[str] = []
        self._sweeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to remove expired streams."""
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep_always())

    def close(self) -> None:
        """Stop removing streams."""
        if self._sweeper is not None:
            self._sweeper.cancel()

    def ready(self) -> Engine:
        """Return the engine.

        Raises:
            NotReadyError: it is recovering or stopping.
        """
        return ready_engine(self._engine)

    @asynccontextmanager
    async def alone(self, *names: str) -> AsyncIterator[None]:
        """Let no other change of some streams run meanwhile.

        Parameters:
            names: of their topics.
        """
        ordered = sorted(set(names))
        for name in ordered:
            self._lock_users[name] += 1
        held = []
        try:
            for name in ordered:
                lock = self._locks.setdefault(name, asyncio.Lock())
                await lock.acquire()
                held.append(lock)
            yield
        finally:
            for lock in held:
                lock.release()
            for name in ordered:
                self._lock_users[name] -= 1
                if not self._lock_users[name]:
                    del self._lock_users[name]
                    self._locks.pop(name, None)

    # ------------------------------------------------------------------ finding

    def topic_stream(self, name: str) -> Stream | None:
        """Return a topic's stream, even one that is not complete or deleted; None: it has none."""
        engine = self.ready()
        topic = engine.topics.get(name)
        config = None if topic is None else stream_config(topic.overrides)
        partition = None if config is None else engine.partition(name, 0)
        if topic is None or config is None or partition is None or partition.gate is None:
            return None
        return Stream(topic, partition, partition.gate, config)

    def find_now(self, name: str) -> Stream | None:
        """Return a stream as `find` does; None: `find` must wait, or says what is wrong."""
        stream = self.topic_stream(name)
        if stream is None or stream.config.deleted or stream.partition.elsewhere:
            return None
        if stream.is_expired() or not stream.gate.is_known:
            return None
        return stream if stream.is_there else None

    async def find(self, name: str, *, removes: bool = True) -> Stream:
        """Return a stream, when it is known whether it is closed.

        Parameters:
            removes: whether to remove it if it has expired.

        Raises:
            UnknownStreamError: there is none, or it has expired.
            DeletedStreamError: it is deleted, and kept for its forks.
            AwaitedTopicError: its topic cannot be read yet.
            NotOwnerError: another server serves it.
            LogError: the log cannot be read.
        """
        stream = self.find_now(name)
        if stream is not None:
            return stream
        stream = self.topic_stream(name)
        if stream is None:
            # With Kafka as the log, the topic may be new, or a stream that another server has made.
            try:
                await find_topic(self.ready(), name)
            except UnknownTopicError:
                raise UnknownStreamError("there is no such stream") from None
            await self.ready().follow_settings()
            stream = self.topic_stream(name)
        if stream is None:
            raise UnknownStreamError("there is no such stream")
        if stream.config.deleted:
            raise DeletedStreamError("the stream is deleted, and kept for its forks")
        stream.partition.check_owned()
        if stream.is_expired():
            if removes:
                await self.remove(name, expired=True)
            raise UnknownStreamError("the stream has expired")
        await stream.gate.known()
        if not stream.has_begun:
            raise UnknownStreamError("there is no such stream yet")
        return stream

    def spans(self, stream: Stream) -> list[Span]:
        """Return the parts of a stream: those of the streams that it inherits from, then its own.

        Raises:
            UnknownStreamError: the topic of a stream that it inherits from is not there.
        """
        spans = [stream.own_span]
        while stream.config.source:
            base = spans[0].base
            source = self._source_of(stream.config)
            if source is None or len(spans) > _CHAIN_MAX:
                raise UnknownStreamError("a stream that this one is forked from is not there")
            spans.insert(0, Span(source.partition, source.config.base, base))
            stream = source
        return [each for each in spans if each.base < each.end or each is spans[-1]]

    def _source_of(self, config: StreamConfig) -> Stream | None:
        """Return the stream that a fork inherits from; None: it is gone, whatever has its name."""
        source = self.topic_stream(config.source)
        return (
            source if source is not None and config.inherits_from(source.topic.topic_id) else None
        )

    def depth(self, stream: Stream) -> int:
        """Return of how many streams a stream is a fork of a fork."""
        count = 0
        while stream.config.source and count <= _CHAIN_MAX:
            source = self._source_of(stream.config)
            if source is None:
                break
            stream, count = source, count + 1
        return count

    def may_fork(self, stream: Stream) -> bool:
        """Whether a stream may be forked: it is not a fork of too many forks."""
        return self.depth(stream) < _CHAIN_MAX - 1

    def check_owner(self, name: str) -> None:
        """Check that this server would own a stream.

        Raises:
            NotOwnerError: another server would.
        """
        shared, partition = self.ready().shared_cluster, TopicPartition(name, 0)
        if shared is not None and shared.epoch_if_owned(partition) is None:
            raise NotOwnerError(f"{partition}: {shared.owner_text(partition)}")

    # ------------------------------------------------------------------ changing

    async def create(self, name: str, settings: Mapping[str, str]) -> Stream:
        """Create a stream's topic, durably; or make a stream of an empty topic.

        Parameters:
            settings: those of the stream.

        Raises:
            StreamConflictError: a topic has the name.
            NotAuthorizedError: the client may not change the topic that has the name.
            LogError: a topic has the name, and it is unknown whether it is empty.
        """
        engine, admin = self.ready(), ready_topics(self._topics)
        wanted = {**_KEPT, **settings}
        try:
            await self._changes.make(admin.create(name, 1, wanted))
        except TopicExistsError:
            found = engine.partition(name, 0)
            topic = engine.topics.get(name)
            if found is None or topic is None or topic.partitions != 1:
                raise StreamConflictError("a topic that is no stream has the path") from None
            found.check_not_stopped()
            # Others may have written to it: to Kafka itself, if that is the log.
            if found.log.end_offset > 0 or (await found.log_range())[1] != 0:
                raise StreamConflictError("a topic that is no stream has the path") from None
            require(Right(Operation.ALTER_CONFIGS, ResourceKind.TOPIC, name))
            require_deletion(name, settings)
            await self._changes.make(admin.set(name, wanted))
        stream = self.topic_stream(name)
        if stream is None:
            raise StreamConflictError("the topic was changed meanwhile")
        return stream

    async def remove(self, name: str, *, expired: bool = False) -> None:
        """Delete a stream, durably; keep its records while it has forks.

        Parameters:
            expired: only if it has expired.

        Raises:
            UnknownStreamError: there is none.
        """
        async with self.alone(name):
            stream = self.topic_stream(name)
            if stream is None or (expired and not stream.is_expired()):
                if expired:
                    return
                raise UnknownStreamError("there is no such stream")
            if expired and not await self._owns(stream):
                return
            await self.remove_alone(name)
        if stream.config.source:
            await self._remove_if_unused(stream.config.source)

    async def remove_alone(self, name: str) -> None:
        """Delete a stream as `remove` does, when no other change of it runs."""
        stream = self.topic_stream(name)
        self._count_forks()
        if not self._forks[name]:
            await self._changes.make(ready_topics(self._topics).delete(name))
        elif stream is not None and not stream.config.deleted:
            change = change_of_own({STREAM_DELETED: "1"})
            await self._changes.make(self.ready().change_topic(name, change))

    async def _remove_if_unused(self, name: str) -> None:
        """Delete a deleted stream that was kept for its forks, and has none any more."""
        async with self.alone(name):
            stream = self.topic_stream(name)
            if stream is None or not stream.config.deleted:
                return
            self._count_forks()
            if self._forks[name]:
                return
            await self.remove_alone(name)
        if stream.config.source:
            await self._remove_if_unused(stream.config.source)

    def _count_forks(self) -> None:
        engine = self.ready()
        if self._version == engine.topics_version:
            return
        self._version = engine.topics_version
        self._forks.clear()
        self._passing.clear()
        for name, topic in engine.topics.items():
            config = stream_config(topic.overrides)
            if config is not None and config.source:
                source = engine.topics.get(config.source)
                self._forks[config.source] += source is None or config.inherits_from(
                    source.topic_id
                )
            if config is not None and (
                config.ttl_seconds is not None or config.expires or config.deleted or config.initial
            ):
                self._passing.append(name)

    # ------------------------------------------------------------------ removing what is over

    async def _sweep_always(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            engine = self._engine()
            if engine is None or not engine.ready:
                continue
            try:
                self._count_forks()
                for name in list(self._passing):
                    await self._sweep(name)
            except Exception:  # noqa: BLE001 - logged, and tried again
                _log.exception("expired streams could not be removed; tried again later")

    async def _sweep(self, name: str) -> None:
        try:
            await self._remove_if_over(name)
        except Exception as error:  # noqa: BLE001 - logged, and tried again; others go on
            LINES.write(_log, "error", "a stream that is over could not be removed; trying again",
                        (name, kind_of(error)), error, topic=name, error=repr(error))  # fmt: skip

    async def _remove_if_over(self, name: str) -> None:
        stream = self.topic_stream(name)
        if stream is None or stream.partition.elsewhere:
            return
        if stream.config.deleted:
            await self._remove_if_unused(name)
        elif stream.is_expired():
            await self.remove(name, expired=True)
        elif self._is_left_over(stream):
            await self._remove_left_over(name)

    def _is_left_over(self, stream: Stream) -> bool:
        """Whether its creation has ended before its first record was appended, as it seems."""
        age = time.monotonic() - stream.gate.touched
        return (
            stream.config.initial
            and stream.topic.name not in self._lock_users
            and age > _SWEEP_SECONDS
            and (stream.gate.is_known or stream.partition.readable_end <= _MARKERS_MAX)
            and not stream.partition.stopped
            and not stream.has_begun
        )

    async def _remove_left_over(self, name: str) -> None:
        async with self.alone(name):
            stream = self.topic_stream(name)
            if stream is None or stream.has_begun or not await self._owns(stream):
                return
            if await self.is_empty(stream):
                _log.info("a stream without its first record is removed", topic=name)
                await self.remove_alone(name)

    @staticmethod
    async def is_empty(stream: Stream) -> bool:
        """Return whether a stream has no record, by a new look at its log.

        Kafka clients may have written to its topic, and appends without a response may have landed.

        Raises:
            LogError: that is unknown now.
        """
        stream.gate.doubt()
        await stream.gate.known()
        return not stream.gate.has_data

    @staticmethod
    async def _owns(stream: Stream) -> bool:
        """Return whether this server still owns a stream, by a new read.

        It may have been suspended, while another server appended to it.

        Raises:
            LogError: that is unknown now.
        """
        log = stream.partition.log
        owned = await log.owned() if isinstance(log, ForwardingLog) else None
        return owned is not False and not stream.partition.elsewhere
