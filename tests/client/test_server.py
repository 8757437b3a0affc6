"""The client against the real server: what the fake one cannot tell."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from pidlease.client import (
    BlockingProducer,
    FencedError,
    LeaseClient,
    LeasedProducer,
    LeaseRefusedError,
    LeaseWanted,
    ProducerError,
    SessionEndedError,
)
from tests.servers.pidlease import PidleaseServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PidleaseServer]:
    settings = {"fsync": "never", "default_partitions": "3", "log_level": "warning"}
    with PidleaseServer(tmp_path_factory.mktemp("client"), settings=settings) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """One for each test."""
    return "".join(each if each.isalnum() else "-" for each in request.node.name)[:200]


def producer_of(server: PidleaseServer, **options: Any) -> LeasedProducer:
    return LeasedProducer(
        bootstrap_servers=server.bootstrap, leases=server.http_url, retry_backoff_ms=5, **options
    )


async def stored(server: PidleaseServer, topic: str, partition: int = 0) -> list[Any]:
    """Every record of a partition, as a plain consumer gets it."""
    place = TopicPartition(topic, partition)
    consumer = AIOKafkaConsumer(bootstrap_servers=server.bootstrap)
    await consumer.start()
    try:
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        (end,) = (await consumer.end_offsets([place])).values()
        found: list[Any] = []
        while len(found) < end:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found += records
        return found
    finally:
        await consumer.stop()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("policy", ["strict", "monotonic"])
async def test_records_come_back_as_they_were(
    server: PidleaseServer, topic: str, codec: Any, policy: Any
) -> None:
    options: dict[str, Any] = {"name": topic, "policy": policy, "compression_type": codec}
    async with producer_of(server, **options) as producer:
        futures = [
            await producer.send(
                topic, b"%d" % n * 99, key=b"k%d" % n, partition=0, headers=[("own", b"%d" % n)],
                timestamp_ms=1_700_000_000_000 + n,
            )
            for n in range(2000)
        ]  # fmt: skip
        await producer.flush()
        assert [each.result().offset for each in futures] == list(range(2000))
        assert [each.result().sequence for each in futures] == list(range(2000))
    for n, record in enumerate(await stored(server, topic)):
        assert (record.key, record.value) == (b"k%d" % n, b"%d" % n * 99)
        assert record.timestamp == 1_700_000_000_000 + n
        assert [each for each in record.headers if each[0] != "pidlease"] == [("own", b"%d" % n)]


async def test_what_is_sent_again_in_other_batches_is_stored_once(
    server: PidleaseServer, topic: str
) -> None:
    options: dict[str, Any] = {"max_batch_size": 300}
    async with producer_of(server, **options) as producer:
        for n in range(100):
            await producer.send(topic, b"%d" % n, partition=1)
        await producer.flush()
        pid = producer.pid
    for first, size in ((0, 700), (30, 250), (99, 4000), (50, 300)):
        again: dict[str, Any] = {"pid": pid, "sequences": {(topic, 1): first}}
        async with producer_of(server, max_batch_size=size, **again) as producer:
            futures = [
                await producer.send(topic, b"%d" % n, partition=1) for n in range(first, 150)
            ]
            await producer.flush()
            assert producer.metrics.duplicates == (100 if first == 0 else 150) - first
            assert [each.result().sequence for each in futures] == list(range(first, 150))
    assert [each.value for each in await stored(server, topic, 1)] == [
        b"%d" % n for n in range(150)
    ]


async def test_ids_with_holes_and_a_name(server: PidleaseServer, topic: str) -> None:
    options: dict[str, Any] = {"name": topic, "policy": "monotonic", "max_batch_size": 400}
    for begin in (0, 40, 20, 90):
        async with producer_of(server, **options) as producer:
            await producer.lease(topic, 0)
            for n in range(begin, begin + 50):
                await producer.send(topic, b"%d" % (n * 7), partition=0, sequence_id=n * 7)
            await producer.flush()
            assert producer.last_sequence_id(topic, 0) >= (begin + 49) * 7
    values = [int(each.value) for each in await stored(server, topic)]
    assert values == [n * 7 for n in range(140)]


async def test_a_name_goes_on_and_fences(server: PidleaseServer, topic: str) -> None:
    async with producer_of(server, name=topic) as first, producer_of(server, name=topic) as second:
        for partition in range(3):
            assert (await first.send_and_wait(topic, b"a", partition=partition)).sequence == 0
        for partition in range(3):
            await second.lease(topic, partition)
            assert second.last_sequence_id(topic, partition) == 0
        future = await first.send(topic, b"b", partition=0)
        with pytest.raises(FencedError):
            await future
        for partition in range(3):
            assert (await second.send_and_wait(topic, b"c", partition=partition)).sequence == 1
        assert second.pid == first.pid
    for partition in range(3):
        assert [each.value for each in await stored(server, topic, partition)] == [b"a", b"c"]


async def test_leases(server: PidleaseServer, topic: str) -> None:
    async with producer_of(server) as producer:
        await producer.send_and_wait(topic, b"", partition=0)
        pid = producer.pid
    async with LeaseClient(server.http_url) as leases:
        fresh = await leases.lease_pid(topic, 0)
        assert (fresh.sequence_number, fresh.resume_at, fresh.name) == (0, 0, None)
        assert (await leases.lease_pid(topic, 0, pid)).sequence_number == 1
        wanted = [LeaseWanted(topic, partition, name=topic) for partition in (0, 1, 77)]
        first, second, third = await leases.lease_pids(wanted)
        assert not isinstance(first, ProducerError)
        assert not isinstance(second, ProducerError)
        assert (first.pid, first.generation) == (second.pid, second.generation)
        assert isinstance(third, LeaseRefusedError)
        assert third.status == 404
        with pytest.raises(LeaseRefusedError, match="policy") as caught:
            await leases.lease_named(topic, 0, topic, policy="monotonic")
        assert caught.value.status == 409


async def test_a_gap_is_final(server: PidleaseServer, topic: str) -> None:
    async with producer_of(server) as producer:
        await producer.send_and_wait(topic, b"", partition=0)
        pid = producer.pid
    async with producer_of(server, pid=pid, sequences={(topic, 0): 5}) as producer:
        future = await producer.send(topic, b"", partition=0)
        with pytest.raises(ProducerError, match="expected sequence 1"):
            await future
        with pytest.raises(SessionEndedError, match="expected sequence 1"):
            await producer.send(topic, b"", partition=0)
    assert len(await stored(server, topic)) == 1


async def test_an_old_generation_is_fenced(server: PidleaseServer, topic: str) -> None:
    async with producer_of(server) as producer:
        sent = await producer.send_and_wait(topic, b"", partition=0)
        pid = producer.pid
    options: dict[str, Any] = {"pid": pid, "sequences": {(topic, 0): 1}}
    async with producer_of(server, **options, generation=sent.generation + 1) as producer:
        await producer.send_and_wait(topic, b"", partition=0)
    async with producer_of(server, **options, generation=sent.generation) as producer:
        with pytest.raises(FencedError):
            await producer.send_and_wait(topic, b"", partition=0)


async def test_many_partitions_at_once(server: PidleaseServer, topic: str) -> None:
    topics = [f"{topic}-{number}" for number in range(100)]
    async with producer_of(server, name=topic) as producer:
        futures = [
            await producer.send(each, b"%d" % partition, partition=partition)
            for each in topics
            for partition in range(3)
        ]
        await producer.flush()
        assert {each.result().offset for each in futures} == {0}
        assert len({each.result().generation for each in futures}) == 1
        assert producer.metrics.requests < producer.metrics.batches


def test_without_asyncio(server: PidleaseServer, topic: str) -> None:
    with BlockingProducer(bootstrap_servers=server.bootstrap, leases=server.http_url) as producer:
        futures = [producer.send(topic, b"%d" % n, key=b"same") for n in range(1000)]
        producer.flush()
        assert [each.result().offset for each in futures] == list(range(1000))
    partition = futures[0].result().partition
    found = asyncio.run(stored(server, topic, partition))
    assert [each.value for each in found] == [b"%d" % n for n in range(1000)]


async def test_a_server_that_is_not_up_yet(tmp_path: Path) -> None:
    late = PidleaseServer(tmp_path)
    producer = producer_of(late)
    start = asyncio.create_task(producer.start())
    try:
        await asyncio.to_thread(late.start)
        await start
        assert (await producer.send_and_wait("t", b"")).offset == 0
        await producer.stop()
    finally:
        late.kill9()
