"""What operators look at: history, outcomes, partitions, producers, leases and refusals, as JSON.

The console (`proxy/ops/console_page.py`) and `pidlease top` show these. Each route bounds its
response and its work: `console_answers.py` has how.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated, Final

import structlog
from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from pidlease.core.timed_offset import TimedOffset
from pidlease.engine.engine import Engine
from pidlease.engine.outcome_history import SAMPLES_KEPT
from pidlease.engine.partition import Partition
from pidlease.engine.partition_lookup import find_partition
from pidlease.engine.topics.topic_table import UnknownTopicError
from pidlease.http_api.console_messages import (
    ROWS_DEFAULT,
    ROWS_MAX,
    EventsAnswer,
    HistoryAnswer,
    LeasesAnswer,
    OffsetAnswer,
    OutcomesAnswer,
    PartitionStatesAnswer,
    ProducerStateAnswer,
    RefusalsAnswer,
    State,
)
from pidlease.http_api.job_messages import JOBS_PATH, JobReport, JobsAnswer
from pidlease.http_api.problems import Problem
from pidlease.http_api.record_messages import IN_DIGITS
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogError, reason_for_clients
from proxy.http.console_answers import (
    ConsoleSources,
    PartitionSearch,
    find_leases,
    history_of,
    kept_refusals,
    leases_answer,
    number_of_producer,
    outcomes_of,
    page_of_events,
    producer_answer,
    refusals_answer,
)
from proxy.http.current_caller import require_leases
from proxy.http.errors import ready_engine, refusal
from proxy.http.job_board import JobBoard, TooManyProcessesError
from proxy.http.model_response import model_response
from proxy.http.openapi import JSON_BODY, refusals
from proxy.http.unique_keys import UniqueKeysRoute

_INT64_MAX: Final = 2**63 - 1
#: Searches for a time that run at once: each reads files.
_TIMES_AT_ONCE: Final = 2
_CURSOR: Final = r"^(.{1,249}-[0-9]{1,10})?$"
_INVALID: Final = refusals(Problem.INVALID_REQUEST)
_ONE_PRODUCER: Final = refusals(Problem.INVALID_REQUEST, Problem.UNKNOWN_NAME, Problem.UNKNOWN_PID)
_FIND: Final = refusals(
    Problem.INVALID_REQUEST,
    Problem.UNKNOWN_TOPIC,
    Problem.UNKNOWN_PARTITION,
    Problem.LOG_DAMAGED,
    Problem.TOPIC_NOT_READY,
    Problem.PARTITION_STOPPED,
    Problem.LOG_UNREADABLE,
)

_log = structlog.get_logger(__name__)

_Limit = Annotated[int, Query(ge=1, le=ROWS_MAX, description="the most rows to list"), IN_DIGITS]
_Before = Annotated[
    int,
    Query(ge=1, le=_INT64_MAX, description="only older events: `next` of the last response"),
    IN_DIGITS,
]
_After = Annotated[
    int, Query(ge=0, le=_INT64_MAX, description="`next` of the last response"), IN_DIGITS
]
_Cursor = Annotated[str, Query(pattern=_CURSOR, description="`next` of the last response")]
_Search = Annotated[
    str, Query(max_length=256, description="only names with this part, in any case; empty: all")
]
_Pid = Annotated[
    int, Path(ge=-1, le=_INT64_MAX, description="the PID; -1: the producer has its own id, `name`")
]
_Name = Annotated[
    str, Query(max_length=256, description="with PID -1: the producer's own id (Producer-Id)")
]
_Topic = Annotated[str, Path(min_length=1, max_length=249, description="the topic's name")]
_Number = Annotated[int, Path(ge=0, le=2**31 - 1, description="the partition's number"), IN_DIGITS]
_Time = Annotated[int, Query(ge=0, le=_INT64_MAX, description="in ms since 1970"), IN_DIGITS]

_Ready = Callable[[], Engine]


def console_router(engine: Callable[[], Engine | None], sources: ConsoleSources) -> APIRouter:
    """Make the routes.

    Parameters:
        engine: returns the engine; None while there is none yet.
    """
    router = APIRouter(prefix="/v1", tags=["console"], route_class=UniqueKeysRoute)

    def ready() -> Engine:
        return ready_engine(engine)

    _add_counts(router, ready, sources)
    _add_partitions(router, ready)
    _add_producers(router, ready)
    _add_leases(router, ready)
    _add_jobs(router, sources.jobs)
    return router


def _add_counts(router: APIRouter, ready: _Ready, sources: ConsoleSources) -> None:
    @router.get(
        "/history", operation_id="get_history", responses=_INVALID, response_model=HistoryAnswer
    )
    async def history(
        after_ms: Annotated[
            int,
            Query(ge=0, le=_INT64_MAX, description="only samples after this, in ms since 1970"),
            IN_DIGITS,
        ] = 0,
        limit: Annotated[
            int, Query(ge=1, le=SAMPLES_KEPT, description="the most samples to list"), IN_DIGITS
        ] = SAMPLES_KEPT,
    ) -> Response:
        """Return what happened in the last hour, in samples.

        The server keeps them in memory: after a restart they begin anew.
        """
        ready()
        return model_response(history_of(sources.history, after_ms, limit))

    @router.get(
        "/outcomes", operation_id="get_outcomes", responses=refusals(),
        response_model=OutcomesAnswer,
    )  # fmt: skip
    async def outcomes() -> Response:
        """Return what became of all batches since the start, by policy, outcome and topic."""
        return model_response(outcomes_of(ready(), sources.brokers()))


def _add_partitions(router: APIRouter, ready: _Ready) -> None:
    search_of = PartitionSearch()
    times = asyncio.Semaphore(_TIMES_AT_ONCE)

    @router.get(
        "/partitions", operation_id="search_partitions", responses=_INVALID,
        response_model=PartitionStatesAnswer,
    )  # fmt: skip
    async def partitions(
        search: _Search = "",
        state: Annotated[State | None, Query(description="only partitions in this state")] = None,
        after: _Cursor = "",
        limit: _Limit = ROWS_DEFAULT,
    ) -> Response:
        """List the partitions of all topics as this server knows them; Kafka is not asked."""
        return model_response(await search_of.answer(ready(), search, state, after, limit))

    @router.get(
        "/topics/{topic}/partitions/{partition}/offset", operation_id="find_offset",
        responses=_FIND, response_model=OffsetAnswer,
    )  # fmt: skip
    async def offset(topic: _Topic, partition: _Number, timestamp_ms: _Time) -> Response:
        """Find the first record with a timestamp or a later one, to read from there."""
        found = await find_partition(ready(), topic, partition)
        async with times:
            place = await _find_time(found, timestamp_ms)
        if place is None:
            return model_response(OffsetAnswer(offset=None, timestamp_ms=None))
        return model_response(OffsetAnswer(offset=place.offset, timestamp_ms=place.timestamp))


async def _find_time(partition: Partition, timestamp_ms: int) -> TimedOffset | None:
    """Find the first record with a timestamp or a later one.

    Raises:
        UnknownTopicError: the topic was deleted meanwhile.
        LogStoppedError: the record may be among those that cannot be read.
        LogError: the log cannot be read.
    """
    try:
        found = await partition.log.find_time(timestamp_ms)
    except OSError as error:
        LINES.write(_log, "error", "a log cannot be read", kind_of(error),
                    partition=str(partition.name), error=str(error))  # fmt: skip
        raise LogError(reason_for_clients(error)) from error
    if partition.gone:
        raise UnknownTopicError(f"there is no topic {partition.name.topic}")
    if found is None and partition.incomplete:
        raise partition.stopped_error()
    return found


def _add_producers(router: APIRouter, ready: _Ready) -> None:
    @router.get(
        "/producers/{pid}", operation_id="get_producer", responses=_ONE_PRODUCER,
        response_model=ProducerStateAnswer,
    )  # fmt: skip
    async def producer(
        pid: _Pid, name: _Name = "", after: _Cursor = "", limit: _Limit = ROWS_DEFAULT
    ) -> Response:
        """Return a producer: its lease, its fence, and its last batches on each partition."""
        current = ready()
        number = number_of_producer(current, pid, name)
        return model_response(producer_answer(current, number, after, limit))

    @router.get(
        "/producers/{pid}/events", operation_id="list_producer_events", responses=_INVALID,
        response_model=EventsAnswer,
    )  # fmt: skip
    async def events(
        pid: _Pid, name: _Name = "", before: _Before = _INT64_MAX, limit: _Limit = ROWS_DEFAULT
    ) -> Response:
        """List what happened to a producer, the newest first: leases, duplicates and refusals.

        The server keeps the last thousand events of each kind, of all producers together.
        """
        current = ready()
        known = name if pid < 0 else current.naming.names.get(pid, "")
        happened = current.counts.recent.of(pid, known)
        rows, following = page_of_events(current, happened, before, limit)
        return model_response(EventsAnswer(events=rows, next=following))


def _add_leases(router: APIRouter, ready: _Ready) -> None:
    @router.get(
        "/leases", operation_id="list_leases", responses=_INVALID, response_model=LeasesAnswer
    )
    async def leases(
        search: _Search = "",
        after: _After = 0,
        limit: _Limit = ROWS_DEFAULT,
        *,
        named: Annotated[bool, Query(description="only leases with a name")] = False,
    ) -> Response:
        """Return the lease table, and its leases in the order of their ends.

        A lease that is extended meanwhile moves to the end, and may be listed twice.
        """
        current = ready()
        listed, following = await find_leases(current, search, after, limit, named=named)
        return model_response(leases_answer(current, listed, following))

    @router.get(
        "/refusals", operation_id="list_refusals", responses=_INVALID,
        response_model=RefusalsAnswer,
    )  # fmt: skip
    async def refused(
        kind: Annotated[
            str, Query(max_length=30, description="only refusals of this kind; empty: all")
        ] = "",
        topic: Annotated[
            str, Query(max_length=249, description="only refusals of this topic; empty: all")
        ] = "",
        before: _Before = _INT64_MAX,
        limit: _Limit = ROWS_DEFAULT,
    ) -> Response:
        """List the last refused batches and leases, the newest first, and what to do about them.

        The server keeps the last thousand.
        """
        current = ready()
        kept = kept_refusals(current, kind, topic)
        return model_response(refusals_answer(current, kept, before, limit))


def _add_jobs(router: APIRouter, board: JobBoard) -> None:
    path = JOBS_PATH.removeprefix(router.prefix)

    @router.get(path, operation_id="list_jobs", responses=refusals(), response_model=JobsAnswer)
    async def jobs() -> Response:
        """List the copies and Spark queries that report to this server.

        The server keeps the last hundred in memory: after a restart the list begins anew.
        """
        return model_response(board.answer())

    @router.post(
        path, status_code=204, operation_id="report_job", responses=refusals(*JSON_BODY),
        response_class=Response,
    )  # fmt: skip
    async def report(request: JobReport) -> Response:
        """Report the progress of a copy or a Spark query, for operators; nothing depends on it."""
        require_leases()
        try:
            board.report(request)
        except TooManyProcessesError as error:
            return refusal(Problem.INVALID_REQUEST, str(error), "process")
        return Response(status_code=204)
