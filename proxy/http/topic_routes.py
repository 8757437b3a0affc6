"""/v1/topics and /v1/topic-defaults: read topics, and read and change their settings.

The settings of all topics are not below /v1/topics: their path could be the name of a topic.
"""

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Mapping
from typing import Annotated, Any, Final

import structlog
from fastapi import APIRouter, FastAPI, Path, Query, Request
from fastapi.responses import JSONResponse

from pidlease.engine.engine import Engine
from pidlease.engine.partition_lookup import find_topic, topic_of
from pidlease.engine.topic_admin import InvalidTopicError, TopicAdmin
from pidlease.http_api.problems import Problem
from pidlease.http_api.topic_messages import (
    PARTITIONS_MAX,
    TOPICS_MAX,
    NewTopic,
    PartitionRow,
    PartitionsAnswer,
    SettingRow,
    SettingsAnswer,
    SettingsChange,
    TopicAnswer,
    TopicsAnswer,
)
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogError, reason_for_clients
from pidlease.storage.topics.stream_settings import DELETES
from pidlease.storage.topics.topic_settings import (
    SettingError,
    change_by_client,
    change_of_shared,
    given_at_creation,
    settings_in_force,
)
from pidlease.storage.topics.topic_settings import SettingsChange as TopicChange
from pidlease.storage.topics.topic_store import Topic
from proxy.http.current_caller import may_see, note_change, require, require_create
from proxy.http.errors import ready_engine, ready_topics, refusal
from proxy.http.openapi import JSON_BODY, refusals
from proxy.http.unique_keys import UniqueKeysRoute
from proxy.security.acls import CLUSTER_NAME, Operation, ResourceKind
from proxy.security.authorizer import Right

#: The longest wait for a partition's offsets; clients wait for a response of all.
_RANGE_SECONDS: Final = 3.0
#: Changes that may wait for others.
_WAITING_MAX: Final = 100
#: The problems of a request for one topic, and of a change.
_ONE_TOPIC: Final = (Problem.INVALID_REQUEST, Problem.UNKNOWN_TOPIC, Problem.TOPIC_NOT_READY)
_STORING: Final = (Problem.OVERLOADED, Problem.NOT_STORED)
_CHANGE: Final = (*JSON_BODY, *_STORING)
_TOPIC_CHANGE: Final = (
    *_STORING,
    Problem.INVALID_TOPIC,
    Problem.KAFKA_FORBIDDEN,
    Problem.TOPIC_NOT_READY,
    Problem.KAFKA_UNAVAILABLE,
)

_log = structlog.get_logger(__name__)

_Name = Annotated[str, Path(min_length=1, max_length=249, description="the topic's name")]


class NotStoredError(Exception):
    """A change could not be made durable."""


class TooManyChangesError(Exception):
    """Too many changes wait already."""


class BoundedChanges:
    """Bounds the changes that wait: the engine makes one at a time."""

    def __init__(self) -> None:
        self._waiting = 0

    async def make(
        self, change: Coroutine[Any, Any, None], operation: str = "", resource: str = ""
    ) -> None:
        """Make a change.

        Parameters:
            operation, resource: for the audit log; empty: it is none that a client has requested.

        Raises:
            TooManyChangesError: too many changes wait already.
            NotStoredError: the change could not be made durable.
        """
        if self._waiting >= _WAITING_MAX:
            change.close()
            raise TooManyChangesError(f"{_WAITING_MAX} changes wait already; try again")
        self._waiting += 1
        try:
            await change
        except OSError as error:
            LINES.write(_log, "error", "a change of topics is not stored", kind_of(error),
                        error=str(error))  # fmt: skip
            raise NotStoredError(reason_for_clients(error)) from error
        finally:
            self._waiting -= 1
        if operation:
            note_change(operation, resource)


def topic_router(
    engine: Callable[[], Engine | None], topic_admin: Callable[[], TopicAdmin | None]
) -> APIRouter:
    """Make the routes for topics.

    Parameters:
        engine: returns the engine; None while there is none yet.
        topic_admin: creates and deletes topics.
    """
    router = APIRouter(prefix="/v1", tags=["topics"], route_class=UniqueKeysRoute)
    changes = BoundedChanges()

    def ready() -> Engine:
        return ready_engine(engine)

    @router.get("/topics", operation_id="list_topics", responses=refusals(Problem.INVALID_REQUEST))
    async def topics(
        after: Annotated[
            str, Query(max_length=249, description="the last topic of the previous response")
        ] = "",
        limit: Annotated[
            int, Query(ge=1, le=TOPICS_MAX, description="the most topics to list")
        ] = TOPICS_MAX,
    ) -> TopicsAnswer:
        """List topics in the order of their names, after a given one."""
        current = ready()
        names = (name for name in current.topics if name > after and may_see(name))
        found = heapq.nsmallest(limit + 1, names)
        answers = [_answer(current, current.topics[name]) for name in found[:limit]]
        return TopicsAnswer(topics=answers, more=len(found) > limit)

    @router.get("/topics/{topic}", operation_id="get_topic", responses=refusals(*_ONE_TOPIC))
    async def topic(topic: _Name) -> TopicAnswer:
        """Return a topic with its settings in force."""
        current = ready()
        return _answer(current, await find_topic(current, topic))

    @router.get(
        "/topics/{topic}/partitions", operation_id="list_partitions",
        responses=refusals(*_ONE_TOPIC),
    )  # fmt: skip
    async def partitions(
        topic: _Name,
        after: Annotated[int, Query(ge=-1, le=2**31 - 1)] = -1,
        limit: Annotated[int, Query(ge=1, le=PARTITIONS_MAX)] = PARTITIONS_MAX,
    ) -> PartitionsAnswer:
        """List the partitions of a topic with their offsets, after a given one.

        In front of Kafka, its brokers are asked for the offsets.
        """
        current = ready()
        count = (await find_topic(current, topic)).partitions
        numbers = range(after + 1, min(after + 1 + limit, count))
        rows = await asyncio.gather(*(_partition_row(current, topic, each) for each in numbers))
        return PartitionsAnswer(partitions=rows, more=after + 1 + limit < count)

    @router.post(
        "/topics", status_code=201, operation_id="create_topic",
        responses=refusals(*_CHANGE, *_TOPIC_CHANGE, Problem.INVALID_SETTING, Problem.TOPIC_EXISTS),
    )  # fmt: skip
    async def create(request: NewTopic) -> TopicAnswer:
        """Create a topic, durably. In front of Kafka, Kafka creates it."""
        require_create(request.name)
        current, admin = ready(), ready_topics(topic_admin)
        await changes.make(
            admin.create(request.name, request.partitions, given_at_creation(request.settings)),
            "CREATE_TOPIC",
            f"TOPIC:{request.name}",
        )
        return _answer(current, await find_topic(current, request.name))

    @router.delete(
        "/topics/{topic}", status_code=204, operation_id="delete_topic",
        responses=refusals(*_ONE_TOPIC, *_TOPIC_CHANGE),
    )  # fmt: skip
    async def delete(topic: _Name) -> None:
        """Delete a topic, durably, with its records and the state of its producers."""
        current, admin = ready(), ready_topics(topic_admin)
        await find_topic(current, topic)
        await changes.make(admin.delete(topic), "DELETE_TOPIC", f"TOPIC:{topic}")

    @router.patch(
        "/topics/{topic}/settings", operation_id="change_topic_settings",
        responses=refusals(*_ONE_TOPIC, *_CHANGE, Problem.INVALID_SETTING),
    )  # fmt: skip
    async def change(topic: _Name, request: SettingsChange) -> TopicAnswer:
        """Change some of a topic's own settings, durably and at once."""
        current = ready()
        await find_topic(current, topic)
        await changes.make(
            current.change_topic(topic, _change_of(topic, request.root)),
            "ALTER_CONFIGS",
            f"TOPIC:{topic}",
        )
        return _answer(current, topic_of(current, topic))

    @router.get("/topic-defaults", operation_id="get_topic_defaults", responses=refusals())
    async def defaults() -> SettingsAnswer:
        """Return the settings of topics without their own."""
        return _defaults(ready())

    @router.patch(
        "/topic-defaults", operation_id="change_topic_defaults",
        responses=refusals(Problem.INVALID_SETTING, *_CHANGE),
    )  # fmt: skip
    async def change_defaults(request: SettingsChange) -> SettingsAnswer:
        """Change the settings of all topics, durably and at once."""
        current = ready()
        await changes.make(
            current.change_all_topics(change_of_shared(request.root)),
            "ALTER_CONFIGS",
            f"CLUSTER:{CLUSTER_NAME}",
        )
        return _defaults(current)

    return router


def require_deletion(topic: str, given: Mapping[str, str | None]) -> None:
    """Check that the client may delete a topic, if the server will by the settings it gives.

    Raises:
        NotAuthorizedError: it may not.
    """
    if any(given.get(name) is not None for name in DELETES):
        require(Right(Operation.DELETE, ResourceKind.TOPIC, topic))


def _change_of(topic: str, given: Mapping[str, str | None]) -> TopicChange:
    require_deletion(topic, given)
    return change_by_client(given)


def add_topic_handlers(app: FastAPI) -> None:
    """Give the errors of these routes the common form."""

    @app.exception_handler(SettingError)
    async def unfit(_: Request, error: SettingError) -> JSONResponse:
        return refusal(
            Problem.INVALID_SETTING, _sayable(str(error)), _sayable(error.setting[:_SHOWN])
        )

    @app.exception_handler(InvalidTopicError)
    async def invalid(_: Request, error: InvalidTopicError) -> JSONResponse:
        return refusal(Problem.INVALID_TOPIC, _sayable(str(error)), error.field)

    @app.exception_handler(TooManyChangesError)
    async def too_many(_: Request, error: TooManyChangesError) -> JSONResponse:
        return refusal(Problem.OVERLOADED, str(error))

    @app.exception_handler(NotStoredError)
    async def not_stored(_: Request, error: NotStoredError) -> JSONResponse:
        return refusal(Problem.NOT_STORED, f"the change could not be stored: {error}")


#: The most characters of a setting's name that an error repeats.
_SHOWN: Final = 100


def _sayable(text: str) -> str:
    """Replace lone surrogates: JSON's escapes can express them, UTF-8 cannot."""
    return text.encode(errors="replace").decode()


async def _partition_row(engine: Engine, topic: str, number: int) -> PartitionRow:
    partition = engine.partition(topic, number)
    if partition is None:
        return PartitionRow(
            partition=number, log_start=None, log_end=None, reason="it cannot be read yet"
        )
    start: int | None = None
    end: int | None = None
    reason = ""
    try:
        async with asyncio.timeout(_RANGE_SECONDS):
            start, end = await partition.readable_range()
    except (TimeoutError, LogError):
        # The log of this server has the reason, with addresses.
        reason = "Kafka cannot be asked now"
    return PartitionRow(
        partition=number, log_start=start, log_end=end, reason=partition.log.stopped or reason
    )


def _answer(engine: Engine, topic: Topic) -> TopicAnswer:
    settings = _rows(engine, topic.overrides)
    return TopicAnswer(name=topic.name, partitions=topic.partitions, settings=settings)


def _defaults(engine: Engine) -> SettingsAnswer:
    return SettingsAnswer(settings=_rows(engine, {}))


def _rows(engine: Engine, own: Mapping[str, str]) -> dict[str, SettingRow]:
    found = settings_in_force(own, engine.all_topics_settings, engine.log_settings)
    return {
        name: SettingRow(value=value, source=source.value)
        for name, (value, source) in found.items()
    }
