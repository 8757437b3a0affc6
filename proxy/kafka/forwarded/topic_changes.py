"""Delays the response to a change of topics until this server sees the change.

Kafka responds when the change is committed; brokers apply it a moment later. A client that uses the
topic at once would get an error for an unknown topic.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from pidlease.engine.engine import Engine, wall_clock_ms
from pidlease.kafka.api import API_CREATE_PARTITIONS, API_CREATE_TOPICS, API_DELETE_TOPICS
from pidlease.kafka.client.cluster import Cluster
from pidlease.kafka.codec.messages import Request, read_request_slowly
from pidlease.kafka.codec.primitives import RequestHeader
from pidlease.kafka.errors import UpstreamNonsenseError

TOPIC_CHANGES: Final = (API_CREATE_TOPICS, API_DELETE_TOPICS, API_CREATE_PARTITIONS)

#: How long to delay a response at most.
_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.05


class TopicChanges:
    """Delays responses until the engine has the changed topics."""

    def __init__(self, cluster: Cluster, engine: Engine) -> None:
        self._cluster = cluster
        self._engine = engine

    async def seen(
        self, header: RequestHeader, frame: bytearray, forwarded: Coroutine[Any, Any, bytes]
    ) -> bytes:
        """Return Kafka's response when the engine sees the changes that it confirms.

        Raises:
            MalformedError: the frame is not a valid request.
            UpstreamError: Kafka does not answer.
        """
        try:
            request = await read_request_slowly(header, frame)
        except BaseException:
            forwarded.close()
            raise
        answer = await forwarded
        if not getattr(request, "validate_only", False):
            try:
                entity = Request(header.api_key, header.version).decode(bytearray(answer))
            except UpstreamNonsenseError:
                return answer  # pass it on: the client may be able to read it
            await self.wait_until(lambda: self._is_seen(header.api_key, request, entity))
        return answer

    def _is_seen(self, key: int, request: Any, answer: Any) -> bool:
        topics = self._engine.topics
        if key == API_DELETE_TOPICS:
            there = {**topics, **self._engine.awaited}
            gone = [row.name for row in answer.responses if not row.error_code.value]
            return not any(name in there for name in gone)
        if key == API_CREATE_PARTITIONS:
            wanted = {topic.name: topic.count for topic in request.topics}
            done = [row.name for row in answer.results if not row.error_code.value]
            return all(name in topics and topics[name].partitions >= wanted[name] for name in done)
        return all(row.name in topics for row in answer.topics if not row.error_code.value)

    async def wait_until(self, happened: Callable[[], bool], seconds: float = _SECONDS) -> None:
        """Refresh the cluster's metadata until the condition holds or the time is up.

        The other active servers refresh theirs, too.
        """
        if self._engine.shared_cluster is not None:
            self._engine.shared_cluster.pings.topics_changed(wall_clock_ms())
        deadline = time.monotonic() + seconds
        while not happened() and time.monotonic() < deadline:
            await self._cluster.refresh()
            await asyncio.sleep(_POLL_SECONDS)
