"""Creates and deletes topics for the HTTP API, and creates them on first use.

InvalidTopicError           the name, the number of partitions or a setting is invalid
TopicForbiddenError         Kafka does not allow this server the change
TopicsUnavailableError      Kafka does not answer, or cannot make the change now
"""

from collections.abc import Mapping
from typing import Protocol

import structlog
from typing_extensions import override

from pidlease.engine.engine import Engine, TooManyPartitionsError, TopicExistsError
from pidlease.engine.topics.topic_table import TopicCollisionError
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.topics.topic_settings import change_of_own, check_settings
from pidlease.storage.topics.topic_store import Topic, illegal_name

_log = structlog.get_logger(__name__)


class InvalidTopicError(Exception):
    """The name, the number of partitions or a setting is invalid.

    Attributes:
        field: which one.
    """

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


class TopicForbiddenError(Exception):
    """Kafka does not allow this server the change."""


class TopicsUnavailableError(Exception):
    """Kafka does not answer, or cannot make the change now."""


class TopicAdmin(Protocol):
    """Creates, changes and deletes topics.

    Attributes:
        auto_create: whether a topic is created on first use.
    """

    auto_create: bool

    async def create(self, name: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        """Create a topic, durably.

        Parameters:
            partitions: how many; None: the default number.
            settings: the topic's own, by name.

        Raises:
            TopicExistsError: a topic has the name.
            InvalidTopicError, TopicForbiddenError, TopicsUnavailableError: it is not created.
            SettingError: a setting is unknown, or its value is invalid.
            OSError: it could not be made durable.
        """

    async def set(self, name: str, settings: Mapping[str, str]) -> None:
        """Set settings of a topic, durably; its others stay.

        Raises:
            UnknownTopicError: no topic has the name.
            InvalidTopicError, TopicForbiddenError, TopicsUnavailableError: not all are set.
            SettingError: a setting is unknown, or its value is invalid.
            OSError: they could not be made durable.
        """

    async def delete(self, name: str) -> None:
        """Delete a topic, durably, with its records and the state of its producers.

        Raises:
            UnknownTopicError: no topic has the name.
            InvalidTopicError, TopicForbiddenError, TopicsUnavailableError: it is not deleted.
            OSError: the deletion could not be made durable.
        """

    async def create_on_use(self, name: str) -> None:
        """Create a missing topic that a client uses; a failure is logged."""


class EmbeddedTopicAdmin(TopicAdmin):
    """Creates and deletes topics of the embedded log.

    Parameters:
        default_partitions: of a topic that is created without their number.
    """

    def __init__(self, engine: Engine, default_partitions: int, *, auto_create: bool) -> None:
        self.auto_create = auto_create
        self._engine = engine
        self._default_partitions = default_partitions

    @override
    async def create(self, name: str, partitions: int | None, settings: Mapping[str, str]) -> None:
        if reason := illegal_name(name):
            raise InvalidTopicError(reason, "name")
        check_settings(settings)
        count = self._default_partitions if partitions is None else partitions
        try:
            await self._engine.create_topic(Topic.new(name, count, dict(settings)))
        except TopicCollisionError as error:
            raise InvalidTopicError(str(error), "name") from error
        except TooManyPartitionsError as error:
            raise InvalidTopicError(str(error), "partitions") from error

    @override
    async def set(self, name: str, settings: Mapping[str, str]) -> None:
        await self._engine.change_topic(name, change_of_own(settings))

    @override
    async def delete(self, name: str) -> None:
        await self._engine.delete_topic(name)

    @override
    async def create_on_use(self, name: str) -> None:
        if illegal_name(name):
            return
        try:
            await self.create(name, None, {})
        except TopicExistsError:
            pass  # another client created it at the same time
        except (OSError, InvalidTopicError) as error:
            LINES.write(_log, "error", "topic not created", kind_of(error), topic=name,
                        error=str(error))  # fmt: skip
