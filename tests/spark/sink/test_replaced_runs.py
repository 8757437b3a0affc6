"""A run that was replaced while it grew: its successors continue what it has written."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pidlease.copier.cluster_reader import FetchedChunk
from pidlease.core.lease import Lease, LeaseWanted
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.offset_requests import EARLIEST
from pidlease.kafka.records.identity_header import HEADER_NAME, Identity, encode_identity
from pidlease.spark.errors import SinkError
from pidlease.spark.partition_offsets import OffsetRange
from pidlease.spark.sink.run_preparation import RunPreparation
from pidlease.spark.sink.run_state import Chain, RunState, SourceProducer
from pidlease.spark.sink.spark_checkpoint import MicroBatch
from tests.copier.logs import Record, batch_of

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
_NAME = "spark/x"


class Destination:
    """The destination, with its leases: A has 100 rows of the query, and B 50."""

    cluster_id = "c"

    def __init__(self) -> None:
        self.reader = self
        self._ends = {A: 100, B: 50}

    async def topics(self) -> dict[str, int]:
        return {"t": 2}

    async def check_judged(self, topic: str) -> None:
        """Any topic will do."""

    async def provide(self, topic: str, partitions: int) -> None:
        """The topic is there."""

    async def partitions(self, topic: str) -> int:
        return 2

    async def offset(self, place: TopicPartition, time_ms: int) -> int:
        return 0 if time_ms == EARLIEST else self._ends[place]

    async def records_until(self, place: TopicPartition) -> tuple[bool, int]:
        return True, self._ends[place]

    async def chunks(
        self, place: TopicPartition, start: int, end: int
    ) -> AsyncIterator[FetchedChunk]:
        raise AssertionError(f"no log is searched: {place}, {start} to {end}")
        yield

    async def lease_pids(self, wanted: Sequence[LeaseWanted]) -> list[Lease]:
        return [
            Lease(topic=each.topic, partition=each.partition, pid=70, generation=12,
                  sequence_number=self._ends[TopicPartition(each.topic, each.partition)],
                  resume_at=0, expire_ms=-1, ends_at=time.monotonic() + 60, name=each.name)
            for each in wanted
        ]  # fmt: skip


class LateDestination(Destination):
    """The lease of PID 70 has ended. Its last batch, of 20 rows, lands as its name is granted."""

    async def lease_pids(self, wanted: Sequence[LeaseWanted]) -> list[Lease]:
        self._ends[A] = 120
        leases = await super().lease_pids(wanted)
        return [replace(each, pid=71, generation=13, sequence_number=0) for each in leases]

    async def chunks(
        self, place: TopicPartition, start: int, end: int
    ) -> AsyncIterator[FetchedChunk]:
        batches = [
            batch_of(first, last, [
                Record(n, n, None, b"%d" % n,
                       [(HEADER_NAME, encode_identity(Identity(70, "", 11, first, last)))])
                for n in (first, last)
            ])
            for first, last in ((90, 99), (100, 119)) if start <= first and last < end
        ]  # fmt: skip
        yield FetchedChunk(b"".join(batches), [], self._ends[place])


def preparation(*, append: bool, destination: Destination | None = None) -> RunPreparation:
    settings: Any = SimpleNamespace(
        delivery_timeout_ms=5_000, renamed=lambda topic: topic, append=append
    )
    destination = destination or Destination()
    return RunPreparation(settings, cast("Any", destination), cast("Any", destination))


def state(
    name: str, ends: dict[TopicPartition, int], *, spread: bool, **chains: dict[Any, Chain]
) -> RunState:
    sources = {
        TopicPartition("t", int(source[1:])): SourceProducer(70, 11, 1, -1, own)
        for source, own in chains.items()
    }
    query = {"cluster": "c"}
    return RunState(name, 4, 5, "q", query, spread, ends, sources)


@pytest.mark.parametrize("append", [False, True])
async def test_a_source_partition_that_came_as_the_run_was_replaced(append: bool) -> None:
    """The successor had read the state before; all later runs were refused."""
    first = state(_NAME, {A: 100, B: 7}, spread=False, t0={A: Chain(100, 100)}, t1={B: Chain(0, 0)})
    second = state(_NAME, {A: 100}, spread=False, t0={A: Chain(100, 100)})
    batch = MicroBatch(5, {A: OffsetRange(100, 100), B: OffsetRange(-1, 50)}, 4)
    grown = await preparation(append=append).grow(second, batch, [second, first])
    assert grown.sources[B].chains == {B: Chain(50, 50)}
    assert grown.ends == {A: 100, B: 7}


async def test_a_destination_partition_that_came_as_the_run_was_replaced() -> None:
    first = state(_NAME, {A: 100, B: 7}, spread=True, t0={A: Chain(100, 100), B: Chain(0, 0)})
    second = state(_NAME, {A: 100}, spread=True, t0={A: Chain(100, 100)})
    third = await preparation(append=False).prepare([second, first], {}, spread=True)
    assert third.sources[A].chains == {A: Chain(100, 100), B: Chain(50, 50)}
    assert third.ends == {A: 100, B: 7}


async def test_a_batch_that_lands_as_its_name_is_granted_is_found() -> None:
    """The log was searched up to its end before the grant, and the rows were stored twice."""
    first = state(_NAME, {A: 90}, spread=False, t0={A: Chain(90, 90)})
    late = preparation(append=False, destination=LateDestination())
    second = await late.prepare([first], {}, spread=False)
    assert second.sources[A].chains == {A: Chain(0, 120)}


async def test_records_of_another_query_are_refused() -> None:
    other = state("spark/y", {A: 100, B: 7}, spread=False, t1={B: Chain(0, 0)})
    second = state(_NAME, {A: 100}, spread=False, t0={A: Chain(100, 100)})
    batch = MicroBatch(5, {B: OffsetRange(-1, 50)}, 4)
    with pytest.raises(SinkError, match=r"t-1 .* records that this checkpoint does not know"):
        await preparation(append=False).grow(second, batch, [second, other])
