"""Metadata (key 3): the broker, and the topics with their partitions; topics that make themselves.

The server is a cluster of one broker, which leads every partition and is the controller.
"""

import asyncio
from collections.abc import Callable, Coroutine, Set
from contextlib import suppress
from typing import Any, Final

import structlog
from kio.schema.errors import ErrorCode

from pidlease.engine.engine import Engine, TooManyPartitionsError, TopicExistsError
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
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.snapshots import TopicPartition
from pidlease.storage.topics.topic_store import Topic, illegal_name
from proxy.kafka.client_connection import Slot
from proxy.kafka.listener_config import ClusterConfig
from proxy.kafka.metadata_cache import MetadataCache, TopicIds

#: Topics that are read or answered before others get their turn.
_TOPICS_AT_ONCE: Final = 200
#: A request that is larger waits until few other large ones are worked on: it is taken apart.
_LARGE_REQUEST_BYTES: Final = 16 << 10
_LARGE_AT_ONCE: Final = 4
#: How long a client that asks for an unknown id waits for a look at the log's topics, in seconds.
_LOOK_SECONDS: Final = 3.0
#: An answer that is larger counts as memory of the client's until it has taken it.
_LARGE_ANSWER_BYTES: Final = 16 << 10

_log = structlog.get_logger(__name__)


class MetadataApi:
    """Answers Metadata.

    Parameters:
        engine: where the topics are.
        config: how the server describes itself.
        make: makes a topic of that name, with as many partitions as it is set.
        leader_epoch: of all partitions; -1: not said.
        look: looks which topics there are, where others make some as well.
    """

    def __init__(
        self,
        engine: Engine,
        config: ClusterConfig,
        make: Callable[[str], Coroutine[Any, Any, None]] | None = None,
        leader_epoch: int = 0,
        look: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._engine = engine
        self._create = make or self._create_here
        self._look = look
        self._config = config
        self.cache: Final = MetadataCache(engine, leader_epoch=leader_epoch)
        self._ids = TopicIds(engine)
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)

    async def answer(self, slot: Slot, header: RequestHeader, frame: bytearray) -> None:
        """Answer a request; topics that are named for the first time are made, if so set.

        Raises:
            MalformedError: it is none.
        """
        # Not before: the response has the topics of that moment, and one large answer is enough.
        await slot.turn()
        layout = topic_layout(header.version)
        if len(frame) <= _LARGE_REQUEST_BYTES:
            topics = await self._named(header, layout, frame)
        else:
            async with self._large:
                topics = await self._named(header, layout, frame)
        if topics is None:
            topics = await self.cache.everything(layout)
        if len(topics) > _LARGE_ANSWER_BYTES:
            slot.count(len(topics))
        slot.fill(
            write_head(
                header.version,
                header.correlation_id,
                cluster_id=self._config.cluster_id,
                host=self._config.host,
                port=self._config.port,
            ),
            topics,
            write_tail(header.version),
        )

    async def _named(self, header: RequestHeader, layout: int, frame: bytearray) -> bytes | None:
        """The array of the topics that are asked for by name or id; None for all there are."""
        request = await _read(header, frame)
        if request.topics is None:
            return None
        # Each once, however often it is named.
        asked_for = dict.fromkeys(request.topics)
        parts = [write_array(len(asked_for), flexible=layout >= FLEXIBLE_FROM)]
        unknown: list[TopicPartition] = []
        for number, asked in enumerate(asked_for, 1):
            if request.create and self._config.auto_create:
                await self._make(asked.name)
            if asked.name is not None and not self._knows(asked.name):
                unknown.append(TopicPartition(asked.name, 0))
            if number % _TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)  # others want to be served, too
        missing = {place.topic for place in await self._engine.missing(unknown)}
        if self._look is not None and any(map(self._is_unknown_id, asked_for)):
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._look()
        for number, asked in enumerate(asked_for, 1):
            parts.append(self._one(header.version, layout, asked, missing))
            if number % _TOPICS_AT_ONCE == 0:
                await asyncio.sleep(0)  # others want to be served, too
        return b"".join(parts)

    def _knows(self, name: str) -> bool:
        return name in self._engine.topics or name in self._engine.awaited

    def _is_unknown_id(self, asked: RequestedTopic) -> bool:
        name, topic_id = asked
        return name is None and topic_id != NO_ID and self._ids.find(topic_id.hex()) is None

    def _one(self, version: int, layout: int, asked: RequestedTopic, missing: Set[str]) -> bytes:
        name, topic_id = asked
        if name is not None:
            asked = RequestedTopic(name, NO_ID)
            found = self._engine.topics.get(name) or self._engine.awaited.get(name)
            code = _UNKNOWN if name in missing else _NOT_YET
            if illegal_name(name):
                code = _ILLEGAL
        elif topic_id == NO_ID or version < BY_ID_FROM:
            found, code = None, _INVALID
            asked = RequestedTopic("", topic_id)
        else:
            found, code = self._ids.find(topic_id.hex()), _UNKNOWN_ID
        if found is not None:
            return self.cache.topic(layout, found)
        return write_no_topic(layout, asked, code.value)

    async def _make(self, name: str | None) -> None:
        """Make a topic that is asked for by a legal name, and not there."""
        if name is None or name in self._engine.topics or illegal_name(name):
            return
        await self._create(name)

    async def _create_here(self, name: str) -> None:
        try:
            await self._engine.create_topic(Topic.new(name, self._config.default_partitions))
        except TopicExistsError:
            pass  # another client made it at the same time
        except (OSError, TooManyPartitionsError) as error:
            LINES.write(_log, "error", "topic not created", kind_of(error), topic=name,
                        error=str(error))  # fmt: skip


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
#: Whether there is such a topic is not known yet: clients ask again, and give up nothing.
#: (librdkafka ignores an answer with this error and without partitions.)
_NOT_YET: Final = ErrorCode.leader_not_available
_ILLEGAL: Final = ErrorCode.invalid_topic_exception
_INVALID: Final = ErrorCode.invalid_request
_UNKNOWN_ID: Final = ErrorCode.unknown_topic_id
