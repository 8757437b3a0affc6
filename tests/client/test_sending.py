"""Records on an even way: batches, order, back-pressure, what is refused."""

import asyncio
from dataclasses import replace
from typing import Any, ClassVar, cast

import pytest

from pidlease.client import (
    LeasedProducer,
    OutcomeUnknownError,
    ProducerClosedError,
    ProducerError,
    Sent,
    SessionEndedError,
    partition_for_key,
)
from pidlease.client.leader_connections import LeaderConnections
from pidlease.client.metrics import ProducerMetrics
from pidlease.client.partition_queue import RECORD_OVERHEAD, PartitionQueue
from pidlease.client.settings import ProducerSettings
from pidlease.kafka.client import broker_connection
from tests.client.fake_broker import Fault
from tests.client.harness import until, world


async def test_a_record_and_where_it_stands() -> None:
    async with world() as all_, all_.producer() as producer:
        first = await producer.send_and_wait("t", b"one", key=b"k", timestamp_ms=17)
        second = await producer.send_and_wait("t", None, key=b"k", headers=[("a", b"b")])
        assert first == Sent("t", 0, 0, producer.pid, 1000, 0, duplicate=False)
        assert second == first._replace(offset=1, sequence=1)
        records = all_.broker.log(("t", 0)).records
        assert [(each.key, each.value) for each in records] == [(b"k", b"one"), (b"k", None)]
        assert records[0].timestamp == 17
        assert records[1].headers[1:] == [("a", b"b")]
        assert producer.last_sequence_id("t", 0) == 1
        assert producer.metrics.records == 2


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_codecs(codec: Any) -> None:
    async with world() as all_, all_.producer(compression_type=codec) as producer:
        for number in range(3000):
            await producer.send("t", b"%d" % number * 9)
        await producer.flush()
        assert all_.broker.values() == [b"%d" % number * 9 for number in range(3000)]


async def test_order_on_each_partition_and_one_pid_for_all() -> None:
    async with world(t=3, u=2) as all_, all_.producer(max_batch_size=200) as producer:
        places = [("t", 0), ("t", 1), ("t", 2), ("u", 0), ("u", 1)]
        futures = [
            await producer.send(topic, b"%d" % number, partition=partition)
            for number, (topic, partition) in enumerate(places * 400)
        ]
        await producer.flush()
        sent = [each.result() for each in futures]
        assert {each.pid for each in sent} == {producer.pid}
        for place, (topic, partition) in enumerate(places):
            due = [b"%d" % number for number in range(place, 2000, 5)]
            assert all_.broker.values(topic, partition) == due
        for number, each in enumerate(sent):
            assert all_.broker.values(each.topic, each.partition)[each.offset] == b"%d" % number
        # A fresh PID is leased once; the other partitions are asked for together.
        assert all_.leases.done == {"fresh": 1, "known": 4}
        assert producer.metrics.leases == 5
        # Batches of several partitions go in one request.
        assert producer.metrics.requests < producer.metrics.batches


async def test_several_batches_are_in_flight_but_never_more_than_allowed() -> None:
    async with world() as all_:
        for allowed in (1, 3, 5):
            broker = all_.broker
            broker.came.clear()
            before = broker.requests
            broker.release.clear()
            broker.fault = lambda _: Fault("late", seconds=-1)
            async with all_.producer(max_in_flight=allowed, max_batch_size=300) as producer:
                for _ in range(200):
                    await producer.send("t", b"x" * 50)
                await until(lambda: broker.requests > before)  # noqa: B023 - awaited at once
                await until(lambda: len(broker.came) >= allowed)  # noqa: B023 - the same
                await asyncio.sleep(0.05)  # one too many would come meanwhile
                assert len(broker.came) == allowed
                broker.fault = lambda _: None
                broker.release.set()
                await producer.flush()


@pytest.mark.parametrize("linger_ms", [0, 1])
async def test_a_batch_that_is_not_full_waits_for_one_under_way(linger_ms: float) -> None:
    async with world() as all_, all_.producer(linger_ms=linger_ms) as producer:
        await producer.send_and_wait("t", b"the lease is there")
        all_.broker.fault = lambda _: Fault("late", seconds=-1)
        futures = [await producer.send("t", b"0")]
        await until(lambda: all_.broker.requests == 2)
        for number in range(1, 50):
            futures.append(await producer.send("t", b"%d" % number))
            await asyncio.sleep(0.0005)
        assert all_.broker.requests == 2
        all_.broker.release.set()
        await asyncio.gather(*futures)
        assert producer.metrics.batches == 3


async def test_linger() -> None:
    hour = 3_600_000
    async with world() as all_:
        async with all_.producer(linger_ms=hour, delivery_timeout_ms=2 * hour) as producer:
            for number in range(10):
                await producer.send("t", b"%d" % number)
                await asyncio.sleep(0.0005)
            assert not all_.broker.came
            await producer.send("t", b"10")
            await producer.flush()  # does not wait for the linger time
            assert len(all_.broker.came) == 1
        async with all_.producer(linger_ms=30) as producer:
            await (await producer.send("t", b"alone"))  # the linger time passes by itself
            assert all_.broker.values()[-1] == b"alone"


async def test_a_large_record_goes_alone_and_a_too_large_one_is_refused() -> None:
    async with world() as all_:
        async with all_.producer(max_batch_size=1000, max_request_size=5000) as producer:
            await producer.send("t", b"small")
            large = await producer.send("t", b"x" * 4000)
            await producer.send("t", b"small")
            await large
            with pytest.raises(ValueError, match="max_request_size"):
                await producer.send("t", b"x" * 4990)
            with pytest.raises(ValueError, match="max_request_size"):
                await producer.send("t", b"", headers=[("h", b"x" * 4990)])
            await producer.flush()
        assert [len(each or b"") for each in all_.broker.values()] == [5, 4000, 5]


async def test_requests_are_no_larger_than_allowed() -> None:
    async with (
        world(t=20) as all_,
        all_.producer(max_batch_size=3000, max_request_size=3000) as producer,
    ):
        for number in range(20):
            await producer.send("t", b"x" * 1000, partition=number)
        await producer.flush()
        assert producer.metrics.batches == 20
        assert producer.metrics.requests >= 7


@pytest.mark.parametrize(
    ("wrong", "error", "named"),
    [
        ({"headers": [("pidlease", b"")]}, ValueError, "pidlease"),
        ({"headers": [("ok", b""), ("pidlease", None)]}, ValueError, "pidlease"),
        ({"headers": [("ok", "text")]}, TypeError, "."),
        ({"value": "text"}, TypeError, "."),
        ({"key": "text"}, TypeError, "."),
        ({"timestamp_ms": 2**63}, ValueError, "timestamp_ms"),
        ({"partition": 1}, ValueError, "partition 1"),
        ({"partition": -1}, ValueError, "partition -1"),
        ({"sequence_id": -1}, ValueError, "sequence_id"),
        ({"sequence_id": 2**63}, ValueError, "sequence_id"),
    ],
)
async def test_refused_records_change_nothing(
    wrong: dict[str, Any], error: type[Exception], named: str
) -> None:
    async with world() as all_, all_.producer() as producer:
        for _ in range(2):
            with pytest.raises(error, match=named):
                await producer.send("t", **{"value": b"v", **wrong})
            used = producer.metrics.buffered_bytes
            sent = await producer.send_and_wait("t", b"good", partition=0)
            assert producer.metrics.buffered_bytes == used == 0
            assert sent.sequence == sent.offset


async def test_a_topic_that_does_not_exist() -> None:
    async with world() as all_, all_.producer(request_timeout_ms=50) as producer:
        with pytest.raises(ProducerError, match="nowhere"):
            await producer.send("nowhere", b"")
        await producer.send_and_wait("t", b"")


async def test_the_partitions_of_a_topic() -> None:
    async with world(t=3) as all_, all_.producer(request_timeout_ms=2_000) as producer:
        assert list(await producer.partitions_for("t")) == [0, 1, 2]
        for key in (b"a", b"b", b"c", b"d"):
            assert (await producer.send_and_wait("t", b"", key=key)).partition == (
                partition_for_key(key, 3)
            )
        with pytest.raises(ProducerError, match="nowhere"):
            await producer.partitions_for("nowhere")


async def test_a_full_buffer_holds_senders_up_in_order() -> None:
    async with world() as all_:
        limit = 20 * (RECORD_OVERHEAD + 100)
        async with all_.producer(buffer_memory=limit) as producer:
            await producer.send_and_wait("t", b"the lease is there")
            all_.broker.fault = lambda _: Fault("late", seconds=0.02)
            tasks = [asyncio.create_task(producer.send("t", b"%99d" % n)) for n in range(200)]
            most = 0
            while not all(each.done() for each in tasks):
                most = max(most, producer.metrics.buffered_bytes)
                await asyncio.sleep(0)
            assert limit // 2 < most <= limit + RECORD_OVERHEAD + 120
            await producer.flush()
            assert producer.metrics.buffered_bytes == 0
        assert all_.broker.values()[1:] == [b"%99d" % n for n in range(200)]


async def test_a_sender_that_leaves_the_queue_holds_nobody_up() -> None:
    async with world() as all_:
        async with all_.producer(buffer_memory=1) as producer:
            all_.broker.fault = lambda _: Fault("late", seconds=0.002)
            tasks = [asyncio.create_task(producer.send("t", b"%d" % n)) for n in range(60)]
            await asyncio.sleep(0.01)
            left = set(range(1, 60, 3))
            for number in left:
                tasks[number].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await producer.flush()
        stored = [int(each or b"") for each in all_.broker.values()]
        assert stored == sorted(stored)
        assert set(range(60)) - left <= set(stored)


async def test_a_cancelled_future_is_delivered_all_the_same() -> None:
    async with world() as all_, all_.producer() as producer:
        futures = [await producer.send("t", b"%d" % n) for n in range(4)]
        futures[3].cancel()
        futures[0].cancel()
        await producer.flush()
        assert all_.broker.values() == [b"0", b"1", b"2", b"3"]
        assert futures[2].result().offset == 2


async def test_stop_delivers_and_leaves_nothing_behind() -> None:
    async with world() as all_:
        before = asyncio.all_tasks()
        producer = all_.producer()
        with pytest.raises(ProducerClosedError, match="not started"):
            await producer.send("t", b"")
        await producer.start()
        with pytest.raises(ProducerError, match="once"):
            await producer.start()
        futures = [await producer.send("t", b"%d" % n) for n in range(100)]
        await producer.stop()
        await producer.stop()
        assert [each.result().offset for each in futures] == list(range(100))
        with pytest.raises(ProducerClosedError, match="stopped"):
            await producer.send("t", b"")
        await _settled(before)


async def test_stop_gives_up_in_time() -> None:
    async with world() as all_:
        before = asyncio.all_tasks()
        producer = all_.producer()
        await producer.start()
        await producer.send_and_wait("t", b"0")
        await all_.broker.go_away()
        future = await producer.send("t", b"1")
        await producer.stop(0.05)
        with pytest.raises(ProducerError, match="stopped"):
            await future
        await _settled(before)


async def test_a_producer_that_cannot_start_leaves_nothing_behind() -> None:
    async with world() as all_:
        await all_.broker.go_away()
        before = asyncio.all_tasks()
        producer = all_.producer(request_timeout_ms=30)
        with pytest.raises(ProducerError, match="bootstrap"):
            await producer.start()
        await producer.stop()
        await _settled(before)


async def test_flush_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as all_:
        async with all_.producer() as producer:
            await producer.flush()
        producer = LeasedProducer(bootstrap_servers=all_.broker.bootstrap, leases=all_.leases.url)
        await producer.stop()
    assert not caplog.records


async def _settled(before: set["asyncio.Task[Any]"]) -> None:
    """The fake servers' tasks end a little later."""
    for _ in range(100):
        left = {
            each for each in asyncio.all_tasks() - before
            if "pidlease" in repr(each.get_coro()) or "aiokafka" in repr(each.get_coro())
        }  # fmt: skip
        if not left:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"left behind: {left}")


# ---------------------------------------------------------------------- requests


async def test_every_request_has_the_client_id() -> None:
    async with world() as all_, all_.producer(client_id="caf\u00e9") as producer:
        await producer.send_and_wait("t", b"")
        assert all_.broker.client_ids == {"caf\u00e9"}


async def test_metadata_is_requested_of_used_topics_only() -> None:
    async with world(t=1, u=1, v=1) as all_, all_.producer(metadata_max_age_ms=5) as producer:
        await producer.send_and_wait("t", b"")
        await producer.send_and_wait("v", b"")
        await asyncio.sleep(0.05)
        assert all_.broker.described == {"t", "v"}


async def test_a_new_topic_waits_for_no_back_off() -> None:
    topics = {f"t{number}": 1 for number in range(20)}
    slow = {"retry_backoff_ms": 60_000, "retry_backoff_max_ms": 60_000}
    async with world(**topics) as all_, all_.producer(**slow) as producer, asyncio.timeout(20):
        for topic in topics:
            await producer.send_and_wait(topic, b"")


async def test_new_partitions_are_seen_when_the_metadata_is_old() -> None:
    async with world(t=1) as all_, all_.producer(metadata_max_age_ms=5) as producer:
        await producer.send_and_wait("t", b"")
        all_.broker.topics["t"] = 2
        while len(await producer.partitions_for("t")) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        assert (await producer.send_and_wait("t", b"", partition=1)).partition == 1


async def test_a_late_response_is_noticed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the time of the request, not by the longest pause between two looks."""
    monkeypatch.setattr(broker_connection, "_WATCH_SECONDS", 3600)
    async with world() as all_, all_.producer(request_timeout_ms=50) as producer:
        all_.broker.fault = {1: Fault("late", seconds=-1)}.get
        async with asyncio.timeout(60):
            await producer.send_and_wait("t", b"")
        assert producer.metrics.retries == 1


async def test_a_defect_in_the_handling_of_a_response_ends_the_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("mine")

    async with world() as all_, all_.producer() as producer:
        monkeypatch.setattr("pidlease.client.batch_sender.meaning_of", broken)
        with pytest.raises(OutcomeUnknownError, match=r"the producer broke: KeyError\('mine'\)"):
            await producer.send_and_wait("t", b"")
        with pytest.raises(SessionEndedError, match="the producer broke"):
            await producer.send("t", b"")


async def test_a_topic_is_looked_up_for_a_connection_that_needs_it() -> None:
    """A copier's partitions never ask for their topic."""

    class Owner:
        """Of connections."""

        settings = ProducerSettings(bootstrap_servers="", leases="http://x")
        metrics = ProducerMetrics()
        partitions: ClassVar[dict[tuple[str, int], PartitionQueue]] = {}

        def __init__(self) -> None:
            self.woken = asyncio.Event()

        def wake(self, _: Any) -> None:
            self.woken.set()

        def spawn(self, work: Any) -> "asyncio.Task[None]":
            return asyncio.ensure_future(work)

        def broken(self, error: BaseException) -> None:
            raise error

    async with world() as all_:
        owner = Owner()
        owner.settings = replace(owner.settings, bootstrap_servers=all_.broker.bootstrap)
        connections = LeaderConnections(owner)
        await connections.start()
        try:
            partition = PartitionQueue("t", 0, cast("Any", owner))
            async with asyncio.timeout(20):
                while connections.connection(partition) is None:
                    await owner.woken.wait()
                    owner.woken.clear()
            assert all_.broker.described == {"t"}
        finally:
            await connections.close()
