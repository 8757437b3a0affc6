"""Creates, changes and deletes topics of Kafka for the HTTP API, and those that clients use."""

import time
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Final, NoReturn

from kio.schema.errors import ErrorCode
from typing_extensions import override

from pidlease.engine.engine import Engine, TopicExistsError, UnknownTopicError
from pidlease.engine.topic_admin import (
    InvalidTopicError,
    TopicAdmin,
    TopicForbiddenError,
    TopicsUnavailableError,
)
from pidlease.kafka.client.all_topics_cluster import AllTopicsCluster
from pidlease.kafka.client.topic_creation import (
    BY_DEFAULT,
    RefusedChangeError,
    change_settings,
    create_topic,
    delete_topic,
)
from pidlease.kafka.client.transactions import SERVED_TOPIC
from pidlease.kafka.error_codes import CLUSTER_AUTHORIZATION_FAILED, NO_RIGHT
from pidlease.kafka.errors import UpstreamError
from pidlease.storage.topics.stream_settings import STREAM_SETTINGS
from pidlease.storage.topics.topic_settings import change_of_own
from proxy.kafka.forwarded.topic_changes import TopicChanges

#: How long to wait until a topic that Kafka was asked to create appears.
_CREATE_SECONDS: Final = 1.0
#: How long not to ask again, if it did not appear.
_ABSENT_SECONDS: Final = 5.0
_ABSENT_MAX: Final = 10_000
#: The invalid field, by Kafka's error code.
_INVALID: Final[Mapping[int, str]] = {
    ErrorCode.invalid_topic_exception.value: "name",
    ErrorCode.invalid_partitions.value: "partitions",
    ErrorCode.invalid_replication_factor.value: "partitions",
    ErrorCode.invalid_config.value: "settings",
    ErrorCode.policy_violation.value: "settings",
    ErrorCode.topic_deletion_disabled.value: "topic",
}


class KafkaTopicAdmin(TopicAdmin):
    """Creates, changes and deletes topics of Kafka; returns when the engine sees the change."""

    def __init__(
        self,
        engine: Engine,
        cluster: AllTopicsCluster,
        changes: TopicChanges,
        *,
        auto_create: bool,
    ) -> None:
        self.auto_create = auto_create
        self._engine = engine
        self._cluster = cluster
        self._changes = changes
        self._absent: dict[str, float] = {}

    @override
    async def create(self, name: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        if name == SERVED_TOPIC:
            raise TopicForbiddenError(f"topic {name} is the server's own")
        count = BY_DEFAULT if partitions is None else partitions
        own, configs = _own_and_kafkas(settings)
        await self._change(name, create_topic(self._cluster, name, count, configs=configs))
        await self._changes.wait_until(lambda: name in self._engine.topics)
        if own:
            # A crash before leaves a topic without records, which the next attempt uses.
            if name not in self._engine.topics:
                raise TopicsUnavailableError(f"topic {name} does not appear in Kafka")
            await self._engine.change_topic(name, change_of_own(own))

    @override
    async def set(self, name: str, settings: Mapping[str, str]) -> None:
        own, configs = _own_and_kafkas(settings)
        if configs:
            await self._change(name, change_settings(self._cluster, name, configs))
        if own:
            await self._engine.change_topic(name, change_of_own(own))

    @override
    async def delete(self, name: str) -> None:
        await self._change(name, delete_topic(self._cluster, name))
        engine = self._engine
        await self._changes.wait_until(
            lambda: name not in engine.topics and name not in engine.awaited
        )

    @override
    async def create_on_use(self, name: str) -> None:
        # For a topic that did not appear, Kafka is not asked again for some seconds: clients repeat
        # their requests, and all requests of a client would wait each time.
        now = time.monotonic()
        if name in self._engine.awaited or now < self._absent.get(name, 0) or name == SERVED_TOPIC:
            return
        with suppress(UpstreamError):
            await self._cluster.look_up([name], create=True)
            seen = lambda: name in self._engine.topics  # noqa: E731
            await self._changes.wait_until(seen, _CREATE_SECONDS)
        if name not in self._engine.topics:
            if len(self._absent) >= _ABSENT_MAX:
                self._absent.clear()
            self._absent[name] = now + _ABSENT_SECONDS

    async def _change(self, name: str, change: Awaitable[None]) -> None:
        """Have Kafka make a change of one topic.

        Raises:
            TopicExistsError, UnknownTopicError, InvalidTopicError, TopicForbiddenError,
            TopicsUnavailableError: Kafka has not made the change, or does not say so.
        """
        try:
            await change
        except UpstreamError as error:
            self._cluster.stale()
            raise TopicsUnavailableError(f"Kafka does not answer: {error}") from error
        except RefusedChangeError as error:
            self._refuse(error.code, name, str(error))

    def _refuse(self, code: int, name: str, text: str) -> NoReturn:
        if code == ErrorCode.topic_already_exists.value:
            raise TopicExistsError(f"topic {name} exists")
        if code == ErrorCode.unknown_topic_or_partition.value:
            raise UnknownTopicError(f"there is no topic {name}")
        if code in _INVALID:
            raise InvalidTopicError(f"Kafka refuses it: {text}", _INVALID[code])
        if code in NO_RIGHT or code == CLUSTER_AUTHORIZATION_FAILED:
            raise TopicForbiddenError(f"Kafka refuses it: {text}")
        self._cluster.stale()  # the controller may be another broker now
        raise TopicsUnavailableError(f"Kafka has not confirmed the change: {text}")


def _own_and_kafkas(settings: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the settings that are pidlease's, and those that are Kafka's."""
    own = {each: value for each, value in settings.items() if each in STREAM_SETTINGS}
    return own, {each: value for each, value in settings.items() if each not in own}
