"""What a review found in a name's renewals, and in what may not be passed by."""

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from pidlease.client import (
    FencedError,
    LeasedProducer,
    ProducerClosedError,
    ProducerError,
    SessionEndedError,
)
from tests.client.harness import until, world
from tests.client.test_server import producer_of, stored
from tests.servers.pidlease import PidleaseServer

#: Long enough for a busy machine; most tests do not wait for its end.
LEASE_S = 6


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PidleaseServer]:
    settings = {"fsync": "never", "default_partitions": "2", "lease_seconds": str(LEASE_S)}
    with PidleaseServer(tmp_path_factory.mktemp("renewals"), settings=settings) as running:
        yield running


@pytest.mark.parametrize("policy", ["strict", "monotonic"])
async def test_ids_that_came_under_the_pid_before(server: PidleaseServer, policy: Any) -> None:
    """Once a bug: an application that sends its last ids again stored them again."""
    topic = f"again-{policy}"
    async with producer_of(server, name=topic, policy=policy) as producer:
        for number in range(10):
            await producer.send_and_wait(topic, b"%d" % number, partition=0, sequence_id=number)
        before = producer.pid
        producer._pipeline.session._drain()
        await until(lambda: producer.pid not in (before, -1))
    async with producer_of(server, name=topic, policy=policy) as producer:
        await producer.lease(topic, 0)
        assert producer.last_sequence_id(topic, 0) == 9
        told = [
            await producer.send(topic, b"%d" % number, partition=0, sequence_id=number)
            for number in range(5, 12)
        ]
        sent = [await each for each in told]
        assert [each.sequence for each in sent] == list(range(5, 12))
        assert [each.duplicate for each in sent] == [True] * 5 + [False] * 2
    assert [each.value for each in await stored(server, topic)] == [b"%d" % n for n in range(12)]


async def test_renewals_are_as_many_as_are_due(server: PidleaseServer) -> None:
    """Once a bug: at the end of every second lease, dozens of them."""
    async with producer_of(server, name="often", policy="monotonic") as producer:
        began = time.monotonic()
        while time.monotonic() < began + 2.3 * LEASE_S:
            await producer.send_and_wait("often", b"x", partition=0)
            await asyncio.sleep(0.005)
        leases = (time.monotonic() - began) / LEASE_S
        assert 1 <= producer.metrics.switches < 3 * leases


async def test_a_quiet_partition_keeps_its_numbers_while_its_producer_lives(
    server: PidleaseServer,
) -> None:
    async with producer_of(server, name="quiet") as producer:
        for number in range(5):
            await producer.send_and_wait("quiet", b"%d" % number, partition=0)
        while producer.metrics.switches < 2:
            await producer.send_and_wait("quiet", b"x", partition=1)
            await asyncio.sleep(LEASE_S * 0.55)  # a renewal sooner than that keeps the PID
            before = producer.pid
            producer._pipeline.session._drain()
            await until(partial(_has_switched, producer, before))
        sent = await producer.send_and_wait("quiet", b"5", partition=0)
        assert sent.sequence == 5
    async with producer_of(server, name="quiet") as producer:
        await producer.lease("quiet", 0)
        assert producer.last_sequence_id("quiet", 0) == 5


def _has_switched(producer: LeasedProducer, before: int) -> bool:
    return producer.pid not in (before, -1)


async def test_a_zombie_takes_nothing_back_after_a_renewal_that_found_no_topic() -> None:
    async with world(t=1, u=1) as all_, all_.producer(name="n") as zombie:
        await zombie.send_and_wait("t", b"a0")
        async with all_.producer(name="n") as successor:
            await successor.send_and_wait("u", b"b0")
            all_.leases.refusals[("t", 0)] = (404, "there is no topic t")
            zombie._pipeline.session._drain()
            await until(lambda: not zombie._pipeline.session.draining or zombie._pipeline.refusal)
            with pytest.raises(FencedError):
                await (await zombie.send("u", b"a1"))
            await successor.send_and_wait("u", b"b1")
    assert all_.broker.values("u") == [b"b0", b"b1"]


async def test_a_zombie_takes_nothing_back_after_an_answer_that_was_lost() -> None:
    async with (
        world() as all_,
        all_.producer(name="n", retry_backoff_ms=300, retry_backoff_max_ms=300) as zombie,
    ):
        await zombie.send_and_wait("t", b"a0")
        all_.leases.away = 1
        zombie._pipeline.session._drain()
        await until(lambda: all_.leases.done["away"] == 1)
        async with all_.producer(name="n") as successor:
            await successor.send_and_wait("t", b"b0")
            with pytest.raises(FencedError):
                await (await zombie.send("t", b"a1"))
            await successor.send_and_wait("t", b"b1")
    assert all_.broker.values() == [b"a0", b"b0", b"b1"]


@pytest.mark.parametrize("name", [None, "n"])
async def test_a_lease_that_ends_while_another_partition_is_asked_for(name: str | None) -> None:
    """Nothing is unresolved: another PID takes over, and no session ends."""
    async with world(t=2) as all_, all_.producer(name=name) as producer:
        await producer.send_and_wait("t", b"1", partition=0)
        all_.leases.away = 10**6
        future = await producer.send("t", b"2", partition=1)
        await until(lambda: all_.leases.done["away"] > 1)
        all_.leases.ends_at[producer.pid] = 0
        all_.leases.away = 0
        assert (await future).partition == 1


async def test_a_lease_without_time_left_is_not_asked_for_at_once() -> None:
    slow = {"retry_backoff_ms": 50, "retry_backoff_max_ms": 400}
    async with world(lease_ms=0) as all_, all_.producer(**slow) as producer:
        future = await producer.send("t", b"x")
        await until(lambda: all_.leases.done["fresh"] >= 4)
        began, before = time.monotonic(), all_.leases.done["fresh"]
        await until(lambda: all_.leases.done["fresh"] >= before + 2)
        assert time.monotonic() - began > 0.2, "it rests longer and longer"
        await producer.stop(0)
        assert isinstance(future.exception(), ProducerClosedError)


@pytest.mark.parametrize("has_pid", [False, True])
async def test_a_pid_that_is_unknown_again_and_again_is_asked_for_with_rests(
    has_pid: bool,
) -> None:
    """Once a producer with a name sent hundreds of lease requests in a second, for hours."""
    slow = {"retry_backoff_ms": 50, "retry_backoff_max_ms": 400}
    async with world(t=2) as all_, all_.producer(name="n", **slow) as producer:
        if has_pid:
            await producer.send_and_wait("t", b"0", partition=0)
        all_.leases.refusals[("t", 1)] = 410, "PID 1 is not leased on t-1"

        def refused() -> int:
            return sum(each["partition"] == 1 for each in all_.leases.asked)

        future = await producer.send("t", b"1", partition=1)
        await until(lambda: refused() >= 4)
        began, before = time.monotonic(), refused()
        await until(lambda: refused() >= before + 4)
        assert time.monotonic() - began > 0.2, "it rests longer and longer"
        all_.leases.refusals.clear()
        assert (await future).partition == 1
        await producer.send_and_wait("t", b"2", partition=0)
        assert not producer._pipeline.session._refused
    assert all_.broker.values("t", 1) == [b"1"]


async def test_a_partition_that_does_not_know_the_pid_has_a_say_in_the_names_next_one() -> None:
    """Once only those with a lease had one: a PID that was renewed just now was kept for hours."""
    async with world(t=2) as all_, all_.producer(name="n") as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        all_.leases.refusals[("t", 1)] = 410, "PID 1 is not leased on t-1"
        future = await producer.send("t", b"1", partition=1)
        await until(lambda: any(each.get("renew") for each in all_.leases.asked))
        renewed = {each["partition"] for each in all_.leases.asked if each.get("renew")}
        assert renewed == {0, 1}
        all_.leases.refusals.clear()
        assert (await future).partition == 1


async def test_what_was_never_sent_is_not_passed_by_under_a_name() -> None:
    """Once a bug: the next record took its number, and a restart by numbers lost it."""
    async with world() as all_:
        producer = all_.producer(name="n", delivery_timeout_ms=500)
        await producer.start()
        await producer.send_and_wait("t", b"0")
        all_.leases.away = 10**9
        producer._pipeline.session._drain()
        await until(lambda: all_.leases.done["away"] > 0)
        late = await producer.send("t", b"1")
        await asyncio.wait([late])
        assert late.exception() is not None
        with pytest.raises(SessionEndedError):
            await producer.flush()
        with pytest.raises(ProducerError):
            await producer.send("t", b"2")
        await producer.stop(0)
        all_.leases.away = 0
        async with all_.producer(name="n") as again:
            await again.lease("t", 0)
            assert again.last_sequence_id("t", 0) == 0
    assert all_.broker.values() == [b"0"]


async def test_ids_are_not_passed_by_where_there_is_no_topic_for_a_while() -> None:
    async with world() as all_:
        all_.leases.refusals[("t", 0)] = (404, "there is no topic t")
        producer = all_.producer(name="n", policy="monotonic")
        await producer.start()
        future = await producer.send("t", b"5", sequence_id=5)
        await asyncio.wait([future])
        assert future.exception() is not None
        all_.leases.refusals.clear()
        with pytest.raises(ProducerError):
            await producer.send("t", b"7", sequence_id=7)
        await producer.stop(0)
    assert all_.broker.values() == []
