"""GET /v1/producers lists the producers' states; DELETE releases a name."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Annotated, Final

from fastapi import APIRouter, Query
from starlette.responses import Response

from pidlease.core.lease import NO_PID
from pidlease.core.pid import policy_of
from pidlease.core.state import ProducerState
from pidlease.engine.engine import Engine
from pidlease.engine.partition import Partition
from pidlease.engine.partition_lookup import find_partition, find_topic
from pidlease.http_api.lease_messages import ProducerRow, ProducersAnswer, StoppedPartition
from pidlease.http_api.problems import Problem
from pidlease.kafka.codec.time_slices import TimeSlices
from proxy.http.current_caller import note_change, shown_name
from proxy.http.errors import ready_engine
from proxy.http.model_response import model_response
from proxy.http.openapi import refusals

#: The most producers in one response.
_LIMIT: Final = 1000
#: How many steps of about a microsecond a row counts as.
_STEPS_PER_ROW: Final = 10
_INT64_MAX: Final = 2**63 - 1
_LIST_REFUSALS: Final = refusals(
    Problem.INVALID_REQUEST,
    Problem.UNKNOWN_TOPIC,
    Problem.UNKNOWN_PARTITION,
    Problem.TOPIC_NOT_READY,
    Problem.PARTITION_STOPPED,
    Problem.NAMES_UNAVAILABLE,
)
_RELEASE_REFUSALS: Final = refusals(
    Problem.INVALID_REQUEST,
    Problem.INVALID_NAME,
    Problem.UNKNOWN_NAME,
    Problem.NAME_BUSY,
    Problem.NAMES_UNAVAILABLE,
)


def producer_router(engine: Callable[[], Engine | None]) -> APIRouter:
    """Make the routes for producers.

    Parameters:
        engine: returns the engine; None while there is none yet.
    """
    router = APIRouter(prefix="/v1/producers", tags=["producers"])

    @router.get(
        "", operation_id="list_producers", responses=_LIST_REFUSALS, response_model=ProducersAnswer
    )
    async def producers(
        pid: Annotated[
            int | None, Query(ge=1, le=_INT64_MAX, description="only this producer id")
        ] = None,
        name: Annotated[
            str | None,
            Query(min_length=1, max_length=256, description="only this name, or Producer-Id"),
        ] = None,
        topic: Annotated[
            str | None, Query(min_length=1, max_length=249, description="only this topic")
        ] = None,
        partition: Annotated[
            int | None, Query(ge=0, le=2**31 - 1, description="only the partitions of this number")
        ] = None,
        limit: Annotated[
            int, Query(ge=1, le=_LIMIT, description="the most producers to list")
        ] = _LIMIT,
    ) -> Response:
        """List producers with state, of all partitions or of the given ones.

        A partition that is stopped by damage is left out, and listed in `stopped`.
        """
        current = ready_engine(engine)
        readable, stopped = await _split(await _partitions(current, topic, partition))
        if topic is not None and partition is not None and stopped:
            raise stopped[0].stopped_error()
        pids = None if pid is None else [pid]
        if name is not None:
            named = await _pids_of(current, name)
            pids = named if pids is None else [each for each in pids if each in named]
        if pids is None:
            found = await _first_rows(current, readable, limit + 1)
        else:
            found = list(islice(_rows_of(current, set(readable), pids), limit + 1))
        return model_response(
            ProducersAnswer(
                producers=found[:limit],
                more=len(found) > limit,
                stopped=[_stopped(each) for each in stopped[:_LIMIT]],
            )
        )

    @router.delete("", status_code=204, operation_id="release_name", responses=_RELEASE_REFUSALS)
    async def release(
        name: Annotated[
            str, Query(min_length=1, max_length=256, description="the name to release")
        ],
    ) -> None:
        """Release a name: its producer is fenced, and the next producer begins anew."""
        await ready_engine(engine).naming.release(name)
        note_change("RELEASE_NAME", f"TRANSACTIONAL_ID:{name}")

    return router


async def _pids_of(engine: Engine, name: str) -> list[int]:
    """Return the PID bound to a name, and the stand-in number of the name as a producer id."""
    binding = await engine.naming.binding(name) if shown_name(name) else None
    stands_in = engine.names.find(name)
    return [each for each in (binding.pid if binding else None, stands_in) if each is not None]


async def _split(partitions: Iterable[Partition]) -> tuple[list[Partition], list[Partition]]:
    """Split partitions into those with complete producer states, and the others."""
    complete: list[Partition] = []
    incomplete: list[Partition] = []
    turns = TimeSlices()
    for each in partitions:
        (incomplete if each.incomplete else complete).append(each)
        if turns.due():
            await asyncio.sleep(0)
    return complete, incomplete


def _stopped(stopped: Partition) -> StoppedPartition:
    topic, partition = stopped.name
    return StoppedPartition(topic=topic, partition=partition, reason=stopped.log.stopped)


async def _partitions(engine: Engine, topic: str | None, number: int | None) -> list[Partition]:
    if topic is not None and number is not None:
        return [await find_partition(engine, topic, number)]
    if topic is not None:
        await find_topic(engine, topic)
        return list(engine.partitions_of(topic))
    return [each for each in engine.partitions() if number in (None, each.name.partition)]


async def _first_rows(
    engine: Engine, partitions: Iterable[Partition], limit: int
) -> list[ProducerRow]:
    """Return the first producers of partitions, at most `limit`."""
    found: list[ProducerRow] = []
    turns = TimeSlices()
    for partition in partitions:
        for pid, state in partition.table.some_producers(limit - len(found)):
            found.append(_row(engine, partition, pid, state))
            if turns.due(_STEPS_PER_ROW):
                await asyncio.sleep(0)
        if len(found) == limit:
            break
        if turns.due():
            await asyncio.sleep(0)
    return found


def _rows_of(
    engine: Engine, partitions: Collection[Partition], pids: Iterable[int]
) -> Iterator[ProducerRow]:
    """Yield the producers with these PIDs on some partitions: their leases say where they write."""
    for pid in pids:
        written = [
            each
            for each in engine.leases.partitions_of(pid)
            if isinstance(each, Partition) and each in partitions
        ]
        for partition in sorted(written, key=lambda each: each.name):
            state = partition.producer(pid)
            if state is not None:
                yield _row(engine, partition, pid, state)


def _row(engine: Engine, partition: Partition, pid: int, state: ProducerState) -> ProducerRow:
    policy = policy_of(pid)
    producer_id = engine.names.name(pid)
    return ProducerRow(
        pid=NO_PID if producer_id else pid,
        name=producer_id or shown_name(engine.naming.names.get(pid)),
        policy="" if policy is None else policy.name.lower(),
        topic=partition.name.topic,
        partition=partition.name.partition,
        generation=state.generation,
        last_sequence=state.high,
        sequence_number=state.high,
        last_offset=state.batches[-1].offset,
        last_write_ms=state.arrival_ms,
        expire_ms=engine.leases.expire_ms(pid),
    )
