"""DescribeProducers (61): returns the state of a partition's producers (KIP-664).

A partition may have a million producers, so rows are encoded by hand, some hundred at a time.
"""

import asyncio
import struct
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from pidlease.core.producer_names import is_stand_in
from pidlease.core.state import ProducerState
from pidlease.engine.engine import Engine
from pidlease.engine.partition import Partition
from pidlease.kafka.codec.primitives import INT16, INT32, write_array, write_string
from pidlease.kafka.codec.time_slices import TimeSlices
from pidlease.storage.topics.topic_store import illegal_name
from proxy.kafka.admin.change_outcome import DONE, Verdict
from proxy.kafka.admin.response_rows import Rows

#: PID, epoch, last sequence, last timestamp, coordinator epoch, first offset of the open
#: transaction, tags.
_PRODUCER: Final = struct.Struct(">qiiqiqB")
_INT32_MAX: Final = 2**31 - 1
#: There are no transactions.
_NONE: Final = -1
_PRODUCERS_AT_ONCE: Final = 500
#: The cost of a partition without producers, in producers.
_PARTITION_STEPS: Final = 4
_TAGS: Final = b"\0"


class DescribeProducersApi:
    """Handles DescribeProducers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def describe(self, request: Any, rows: Rows) -> None:
        """Answer DescribeProducers: each partition once, however often it is named."""
        topics: dict[str, dict[int, None]] = {}
        for topic in request.topics:
            topics.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        turns = TimeSlices(_PRODUCERS_AT_ONCE)
        for name, numbers in topics.items():
            await _put(
                rows,
                write_string(name, flexible=True),
                write_array(len(numbers), flexible=True),
            )
            for number in numbers:
                if turns.due(_PARTITION_STEPS + await self._partition(name, number, rows)):
                    await asyncio.sleep(0)
            rows.write(_TAGS)
            await rows.end_row()

    async def _partition(self, topic: str, number: int, rows: Rows) -> int:
        """Add a partition; return the number of producers added since other tasks ran."""
        partition = self._engine.partition(topic, number)
        verdict = DONE
        found: _Producers | None = None
        if illegal_name(topic):
            verdict = Verdict(ErrorCode.invalid_topic_exception, illegal_name(topic))
        elif partition is None:
            reason = f"{topic}-{number} does not exist"
            verdict = Verdict(ErrorCode.unknown_topic_or_partition, reason)
        elif partition.incomplete:
            verdict = Verdict(ErrorCode.kafka_storage_error, str(partition.stopped_error()))
        else:
            found = await _encode_producers(partition, rows)
            verdict = _TOO_MUCH if found is None else DONE
        code, message = INT16.pack(verdict.code.value), write_string(verdict.message, flexible=True)
        array = write_array(found.known if found is not None else 0, flexible=True)
        await _put(rows, INT32.pack(number), code, message, array)
        for data in found.data if found is not None else ():
            rows.write(data)
        rows.write(_TAGS)
        return found.known % _PRODUCERS_AT_ONCE if found is not None else 0


async def _put(rows: Rows, *parts: bytes) -> None:
    data = b"".join(parts)
    await rows.grow(len(data))
    rows.write(data)


class _Producers(NamedTuple):
    """The encoded producers of a partition; `Rows.grow` has counted them."""

    known: int
    data: list[bytes]


async def _encode_producers(partition: Partition, rows: Rows) -> _Producers | None:
    """Encode a partition's producers; return None if the response has no room for them."""
    if rows.full:
        return None  # before the producers are copied
    found: list[bytes] = []
    data: list[bytes] = []
    count = 0
    for pid, state in partition.table.described_producers():
        if is_stand_in(pid):
            continue  # a producer with an id of Kafka's own has no PID
        if rows.full:
            return None
        found.append(_row(pid, state))
        count += 1
        if count % _PRODUCERS_AT_ONCE == 0:
            data.append(b"".join(found))
            await rows.grow(len(data[-1]))
            found.clear()
            await asyncio.sleep(0)
    data.append(b"".join(found))
    await rows.grow(len(data[-1]))
    return _Producers(count, data)


def _row(pid: int, state: ProducerState) -> bytes:
    epoch, high = _small(state.generation), _small(state.high)
    return _PRODUCER.pack(pid, epoch, high, state.arrival_ms, _NONE, _NONE, 0)


def _small(number: int) -> int:
    """Return -1 for a number that does not fit Kafka's field, as some policies have."""
    return number if number <= _INT32_MAX else _NONE


_TOO_MUCH: Final = Verdict(
    ErrorCode.invalid_request, "the response is too large; request fewer partitions at once"
)
