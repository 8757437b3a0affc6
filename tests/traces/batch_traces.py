"""Traced requests to produce one batch."""

from typing import NamedTuple

from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient
from tests.traces.record import RUNS
from tests.traces.server import Traced
from tests.traces.tracer import Calls

#: A producer sends so many batches before its next one is a warm one: five are kept of each.
_BEFORE = 5


class Traces(NamedTuple):
    """Several traces of each kind of batch."""

    first: list[Calls]
    warm: list[Calls]


async def traces_of_batches(
    server: Traced, client: WireClient, topic: str, partitions: list[int]
) -> Traces:
    """Trace the first batch of new producers, one on each partition, and a later one of each."""
    assert len(partitions) == RUNS
    traces = Traces([], [])
    for partition in partitions:
        pid = await client.lease()
        for number in range(_BEFORE + 1):
            # A batch has one record: its number is the first sequence.
            data = batch([b"value"], pid, 0, number)
            with server.tracer.recording() as calls:
                answer = await client.produce(topic, data, partition=partition)
            assert answer.code == 0, answer
            if number == 0:
                traces.first.append(calls)
        traces.warm.append(calls)
    return traces
