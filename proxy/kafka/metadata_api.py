"""Metadata (key 3): the broker and the topics; creates missing topics if so configured.

The server is a cluster of one broker, which leads every partition and is the controller.
"""

import asyncio
from collections.abc import Callable, Coroutine, Set
from contextlib import suppress
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from pidlease.engine.engine import Engine
from pidlease.kafka.codec.metadata import (
    BY_ID_FROM,
    FLEXIBLE_FROM,
    NO_ID,
    MetadataReader,
    MetadataRequest,
    RequestedTopic,
    topic_layout,
    write_head,
    write_no_topic,
    write_tail,
)
from pidlease.kafka.codec.primitives import MalformedError, RequestHeader, write_array
from pidlease.storage.snapshots import TopicPartition
from pidlease.storage.topics.topic_store import illegal_name
from proxy.kafka.brokers import Brokers
from proxy.kafka.client_connection import Slot
from proxy.kafka.listener_config import ClusterConfig
from proxy.kafka.metadata_cache import CACHE_BYTES_MAX, MetadataCache, TopicIds

#: Topics that are decoded or encoded before other tasks run.
_TOPICS_AT_ONCE: Final = 200
#: Only a few larger requests are decoded at once: decoded they take far more memory.
_LARGE_REQUEST_BYTES: Final = 16 << 10
_LARGE_AT_ONCE: Final = 4
#: How long a request for an unknown topic id waits for a refresh of the log's topics, in seconds.
_LOOK_SECONDS: Final = 3.0
#: A larger response counts as the connection's memory until the client has read it.
_LARGE_RESPONSE_BYTES: Final = 16 << 10


class MetadataApi:
    """Handles Metadata requests.

    Parameters:
        create: creates a topic with the configured number of partitions.
        leader_epoch: of all partitions; -1: unknown.
        look: refreshes the log's topics, where other programs create some; None: none do.
        brokers: the brokers of responses; None: this server is the only one.
    """

    def __init__(
        self,
        engine: Engine,
        config: ClusterConfig,
        create: Callable[[str], Coroutine[Any, Any, None]],
        leader_epoch: int = 0,
        look: Callable[[], Coroutine[Any, Any, None]] | None = None,
        brokers: Brokers | None = None,
    ) -> None:
        self._engine = engine
        self._create = create
        self._look = look
        self._config = config
        self._brokers: Final = brokers or Brokers(config)
        names = self._brokers.listeners if self._brokers.differ else self._brokers.listeners[:1]
        #: By listener, if its clients may see other leaders than those of another one.
        self._caches: Final = {
            name: MetadataCache(
                engine, CACHE_BYTES_MAX // len(names), leader_epoch,
                leaders=partial(self._brokers.leaders, name),
            )
            for name in names
        }  # fmt: skip
        for cache in self._caches.values():
            self._brokers.on_change(cache.clear)
        self._cache: Final = self._caches[names[0]]
        self._ids = TopicIds(engine)
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)

    async def answer(self, slot: Slot, header: RequestHeader, frame: bytearray) -> None:
        """Answer a request; create the named topics that do not exist, if so configured.

        Raises:
            MalformedError: the frame is not a valid request.
        """
        # The response shows the topics of the moment when it can be sent; and one connection never
        # has two large responses in memory.
        await slot.turn()
        layout, listener = topic_layout(header.version), slot.connection.listener
        cache = self._caches[listener] if self._brokers.differ else self._cache
        if len(frame) <= _LARGE_REQUEST_BYTES:
            topics = await self._named(slot, header, layout, frame, cache)
        else:
            async with self._large:
                topics = await self._named(slot, header, layout, frame, cache)
        if topics is None:
            topics = await cache.everything(layout)
        if len(topics) > _LARGE_RESPONSE_BYTES:
            slot.count(len(topics))
        slot.fill(
            write_head(
                header.version,
                header.correlation_id,
                cluster_id=self._config.cluster_id,
                brokers=self._brokers.all(listener),
                controller=self._brokers.node_id,
            ),
            topics,
            write_tail(header.version),
        )

    async def look(self) -> None:
        """Learn which topics exist, where other programs create some; not for long."""
        if self._look is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._look()

    async def _named(
        self,
        slot: Slot,
        header: RequestHeader,
        layout: int,
        frame: bytearray,
        cache: MetadataCache,
    ) -> bytes | None:
        """Return the encoded array of the requested topics; None if all topics are requested."""
        request = await _read(header, frame)
        if request.topics is None:
            return None
        requested = dict.fromkeys(request.topics)  # each once, however often it is named
        parts = [write_array(len(requested), flexible=layout >= FLEXIBLE_FROM)]
        unknown: list[TopicPartition] = []
        for number, topic in enumerate(requested, 1):
            if request.create and self._config.auto_create:
                await self._create_if_absent(slot, topic.name)
            if topic.name is not None and not self._knows(topic.name):
                unknown.append(TopicPartition(topic.name, 0))
            if number % _TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)
        missing = {each.topic for each in await self._engine.missing(unknown)}
        if any(map(self._is_unknown_id, requested)):
            await self.look()
        for number, topic in enumerate(requested, 1):
            parts.append(self._topic(cache, header.version, layout, topic, missing))
            if number % _TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)
        return b"".join(parts)

    def _knows(self, name: str) -> bool:
        return name in self._engine.topics or name in self._engine.awaited

    def _is_unknown_id(self, requested: RequestedTopic) -> bool:
        name, topic_id = requested
        return name is None and topic_id != NO_ID and self._ids.find(topic_id.hex()) is None

    def _topic(
        self,
        cache: MetadataCache,
        version: int,
        layout: int,
        requested: RequestedTopic,
        missing: Set[str],
    ) -> bytes:
        name, topic_id = requested
        if name is not None:
            requested = RequestedTopic(name, NO_ID)
            found = self._engine.topics.get(name) or self._engine.awaited.get(name)
            code = _UNKNOWN if name in missing else _NOT_YET
            if illegal_name(name):
                code = _ILLEGAL
        elif topic_id == NO_ID or version < BY_ID_FROM:
            found, code = None, _INVALID
            requested = RequestedTopic("", topic_id)
        else:
            found, code = self._ids.find(topic_id.hex()), _UNKNOWN_ID
        if found is not None:
            return cache.topic(layout, found)
        return write_no_topic(layout, requested, code.value)

    async def _create_if_absent(self, slot: Slot, name: str | None) -> None:
        if name is None or name in self._engine.topics or illegal_name(name):
            return
        if name in self._engine.awaited or slot.connection.may_create(name):
            await self._create(name)


async def _read(header: RequestHeader, frame: bytearray) -> MetadataRequest:
    try:
        reader = MetadataReader(frame, header.body, header.version)
        reader.read_topics(_TOPICS_AT_ONCE)
        while reader.left:
            await asyncio.sleep(0)
            reader.read_topics(_TOPICS_AT_ONCE)
        return reader.end()
    except MalformedError as error:
        raise MalformedError(f"Metadata version {header.version}: {error}") from None


_UNKNOWN: Final = ErrorCode.unknown_topic_or_partition
#: It is not known yet whether the topic exists: clients ask again and drop nothing. (librdkafka
#: ignores a response with this error and without partitions.)
_NOT_YET: Final = ErrorCode.leader_not_available
_ILLEGAL: Final = ErrorCode.invalid_topic_exception
_INVALID: Final = ErrorCode.invalid_request
_UNKNOWN_ID: Final = ErrorCode.unknown_topic_id
