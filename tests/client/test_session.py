"""Leases: on first use, by name, replaced before they end; what happens when they end."""

import asyncio
import time
from typing import Any

import pytest

from pidlease.client import (
    FencedError,
    LeasedProducer,
    LeaseRefusedError,
    OutcomeUnknownError,
    ProducerError,
    SessionEndedError,
)
from tests.client.fake_broker import Fault, RandomFaults
from tests.client.harness import until, world
from tests.crash.seeds import SOAK, new_random


async def test_nothing_is_leased_before_it_is_needed() -> None:
    async with world() as all_:
        async with all_.producer() as producer:
            assert producer.pid == -1
        assert not all_.leases.asked


async def test_a_lease_that_is_not_to_be_had_now_is_asked_for_again() -> None:
    async with world() as all_, all_.producer() as producer:
        all_.leases.away = 5
        assert (await producer.send_and_wait("t", b"")).offset == 0
        assert all_.leases.done["away"] == 5


async def test_a_partition_without_a_lease_fails_alone() -> None:
    async with world(t=2) as all_, all_.producer() as producer:
        all_.leases.refusals[("t", 1)] = 404, "there is no such partition"
        bad = await producer.send("t", b"", partition=1)
        with pytest.raises(LeaseRefusedError, match="no such partition"):
            await bad
        await producer.send_and_wait("t", b"good", partition=0)
        with pytest.raises(LeaseRefusedError, match="no such partition"):
            await producer.lease("t", 1)
        del all_.leases.refusals[("t", 1)]
        await producer.send_and_wait("t", b"now", partition=1)


@pytest.mark.parametrize("status", [400, 409])
async def test_a_lease_that_is_refused_ends_the_producer(status: int) -> None:
    async with world() as all_, all_.producer(name="n") as producer:
        all_.leases.refusals[("t", 0)] = status, "the name has another policy"
        future = await producer.send("t", b"")
        with pytest.raises(LeaseRefusedError, match="another policy"):
            await future
        with pytest.raises(LeaseRefusedError, match="another policy"):
            await producer.send("t", b"")


async def test_a_known_pid_goes_on_where_it_was() -> None:
    async with world(t=2) as all_:
        async with all_.producer() as producer:
            for number in range(10):
                await producer.send("t", b"%d" % number, partition=0)
            await producer.flush()
            pid = producer.pid
        async with all_.producer(pid=pid) as producer:
            sent = await producer.send_and_wait("t", b"10", partition=0)
            assert (sent.pid, sent.sequence, sent.offset, sent.generation) == (pid, 10, 10, 1001)
            other = await producer.send_and_wait("t", b"", partition=1)
            assert (other.pid, other.sequence) == (pid, 0)
        options: dict[str, Any] = {"pid": pid, "generation": 1001, "sequences": {("t", 0): 8}}
        async with all_.producer(**options) as producer:
            sent = await producer.send_and_wait("t", b"8", partition=0)
            assert sent[4:] == (1001, 8, True)
            sent = await producer.send_and_wait("t", b"9", partition=0)
            sent = await producer.send_and_wait("t", b"10", partition=0)
            assert sent[4:] == (1001, 10, True)
            sent = await producer.send_and_wait("t", b"11", partition=0)
            assert sent[4:] == (1001, 11, False)


async def test_a_pid_that_nobody_knows() -> None:
    async with world() as all_, all_.producer(pid=(1 << 48) + 99) as producer:
        future = await producer.send("t", b"")
        with pytest.raises(SessionEndedError, match="has ended"):
            await future


async def test_a_name_goes_on_after_a_crash() -> None:
    async with world(t=3) as all_:
        pids, generations = [], []
        for life in range(3):
            async with all_.producer(name="n") as producer:
                await asyncio.gather(*(producer.lease("t", partition) for partition in range(3)))
                for partition in range(3):
                    assert producer.last_sequence_id("t", partition) == life * 10 - 1
                futures = [
                    await producer.send("t", b"%d" % (life * 10 + number), partition=partition)
                    for number in range(10)
                    for partition in range(3)
                ]
                await producer.flush()
                pids.append(producer.pid)
                generations += sorted({each.result().generation for each in futures})
                assert producer.producer_name == "n"
        assert len(set(pids)) == 1
        # One raise of the generation in each life, whatever the number of partitions.
        assert generations == [8, 9, 10]
        assert all_.leases.done["raised"] == 3
        assert all_.broker.values("t", 2) == [b"%d" % number for number in range(30)]


async def test_partitions_used_later_do_not_raise_the_generation() -> None:
    async with world(t=3) as all_, all_.producer(name="n") as producer:
        for partition in (0, 1, 2, 0):
            sent = await producer.send_and_wait("t", b"", partition=partition)
            assert sent.generation == 8
        assert all_.leases.done == {"raised": 1, "known": 2}


# ---------------------------------------------------------------------- the switch


@pytest.mark.parametrize(
    ("name", "policy", "own_ids"),
    [(None, "strict", False), (None, "strict", True), ("n", "strict", False), ("n", "strict", True),
     ("n", "monotonic", False), ("n", "monotonic", True)],
)  # fmt: skip
@pytest.mark.parametrize("run", range(10 if SOAK else 1))
async def test_switches_under_load_and_faults(
    name: str | None, policy: Any, own_ids: bool, run: int
) -> None:
    random = new_random(f"client-switches-{name}-{policy}-{own_ids}-{run}")
    async with world(t=2) as all_:
        kinds = [Fault("cut after"), Fault("refuse", 19), Fault("cut before"), Fault("late")]
        all_.broker.fault = RandomFaults(random, kinds, 0.1, 10**6)
        options: dict[str, Any] = {"policy": policy, "max_batch_size": 300}
        async with all_.producer(name=name, **options) as producer:
            futures: list[Any] = []
            partitions: list[int] = []
            while producer.metrics.switches < 8 or not producer.metrics.retries:
                if random.random() < 0.05:
                    producer._pipeline.session._drain()
                for _ in range(random.randrange(30)):
                    place, number = random.randrange(2), len(futures)
                    partitions.append(place)
                    futures.append(
                        await producer.send(
                            "t", b"%d" % number, partition=place,
                            sequence_id=number if own_ids else None,
                        )
                    )  # fmt: skip
                await asyncio.sleep(random.random() * 0.003)
            await producer.flush()
        sent = [each.result() for each in futures]
        for partition in range(2):
            mine = [n for n, where in enumerate(partitions) if where == partition]
            assert all_.broker.values("t", partition) == [b"%d" % n for n in mine]
            numbers = [sent[n].sequence for n in mine]
            if own_ids:
                assert numbers == mine
            elif name is not None:
                # The name's numbering goes on, whatever PID it has.
                assert numbers == list(range(len(mine)))
        pids = {each.pid for each in sent}
        assert len(pids & set(all_.leases.ends_at)) == len(pids) >= 4
        assert producer.metrics.retries > 0
        assert all_.broker.done["ended"] == all_.broker.done["gap"] == 0


async def test_the_first_batch_under_a_name_s_next_pid_covers_what_came_before() -> None:
    async with world() as all_, all_.producer(name="n") as producer:
        for number in range(5):
            await producer.send_and_wait("t", b"%d" % number)
        await switched(producer)
        sent = await producer.send_and_wait("t", b"5")
        assert (sent.sequence, sent.pid) == (5, producer.pid)
        await producer.send_and_wait("t", b"6")
        identities = [each.identity[3:5] for each in all_.broker.came]
        assert identities[-2:] == [(0, 5), (6, 6)]
        assert producer.last_sequence_id("t", 0) == 6


async def test_a_switch_waits_for_what_is_under_way_and_no_longer() -> None:
    async with world() as all_, all_.producer(name="n") as producer:
        first = await producer.send_and_wait("t", b"0")
        all_.broker.fault = lambda _: Fault("late", seconds=-1)
        futures = [await producer.send("t", b"1")]
        await until(lambda: all_.broker.requests == 2)
        producer._pipeline.session._drain()
        futures += [await producer.send("t", b"%d" % number) for number in range(2, 50)]
        await asyncio.sleep(0.02)
        assert producer.metrics.switches == 0
        all_.broker.release.set()
        sent = await asyncio.gather(*futures)
        assert [each.sequence for each in sent] == list(range(1, 50))
        assert sent[0].pid == first.pid
        assert {each.pid for each in sent[1:]} == {producer.pid} != {first.pid}


async def test_a_switch_does_not_wait_for_what_was_given_up() -> None:
    async with world(t=2) as all_, all_.producer(delivery_timeout_ms=1000) as producer:
        for partition in range(2):
            await producer.send_and_wait("t", b"", partition=partition)
        all_.broker.fault = lambda _: Fault("cut before")
        bad = await producer.send("t", b"bad", partition=0)
        await until(lambda: all_.broker.done["cut before"])
        producer._pipeline.session._drain()
        await asyncio.sleep(0.5)
        good = await producer.send("t", b"good", partition=1)
        with pytest.raises(OutcomeUnknownError):
            await bad
        all_.broker.fault = lambda _: None
        assert (await good).sequence == 0


async def test_an_idle_producer_without_a_name_leases_again_when_it_is_needed() -> None:
    async with world(lease_ms=50) as all_, all_.producer() as producer:
        first = await producer.send_and_wait("t", b"")
        await until(lambda: producer.pid == -1)
        asked = len(all_.leases.asked)
        await asyncio.sleep(0.1)
        assert len(all_.leases.asked) == asked
        second = await producer.send_and_wait("t", b"")
        assert (second.sequence, second.pid != first.pid) == (0, True)


async def test_an_idle_producer_with_a_name_keeps_it() -> None:
    async with world(lease_ms=100) as all_, all_.producer(name="n") as producer:
        await producer.send_and_wait("t", b"")
        await until(lambda: producer.metrics.switches >= 3)
        assert (await producer.send_and_wait("t", b"")).sequence == 1
        assert all_.leases.done["renewed"] >= 3


@pytest.mark.parametrize("clock_off", [-5000.0, 5000.0])
async def test_steps_of_the_clock_do_no_harm(
    clock_off: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(lease_ms=300) as all_, all_.producer(renew_before=0.5) as producer:
        await producer.send_and_wait("t", b"")
        real = time.time
        monkeypatch.setattr("pidlease.client.lease_client.time.time", lambda: real() + clock_off)
        before = time.monotonic()
        await until(lambda: producer.pid == -1)
        assert time.monotonic() - before < 10
        monkeypatch.undo()
        assert not (await producer.send_and_wait("t", b"")).duplicate


# ---------------------------------------------------------------------- the end


async def test_what_is_unresolved_when_the_lease_ends_is_never_sent_again() -> None:
    async with world(lease_ms=200) as all_, all_.producer(max_batch_size=300) as producer:
        await producer.send_and_wait("t", b"0")
        pid = producer.pid
        all_.broker.fault = lambda _: Fault("cut after")
        futures = [await producer.send("t", b"%d" % number) for number in range(1, 300)]
        with pytest.raises(ProducerError, match="has ended"):
            await producer.flush()
        kinds = [type(each.exception()) for each in futures]
        unknown = kinds.count(OutcomeUnknownError)
        assert kinds == [OutcomeUnknownError] * unknown + [SessionEndedError] * (299 - unknown)
        assert unknown > 0
        all_.broker.fault = lambda _: None
        with pytest.raises(SessionEndedError, match="has ended"):
            await producer.send("t", b"")
        await asyncio.sleep(0.05)
        assert {each.identity.pid for each in all_.broker.came} == {pid}
        # They may be there; but each at most once, and in order.
        values = all_.broker.values()
        assert values == [b"%d" % number for number in range(len(values))]


async def test_a_loop_that_was_held_up_until_the_lease_had_ended() -> None:
    async with world(lease_ms=200) as all_, all_.producer() as producer:
        first = await producer.send_and_wait("t", b"")
        future = await producer.send("t", b"")
        time.sleep(0.3)  # noqa: ASYNC251 - on purpose: no timer runs in time
        second = await future
        assert (second.sequence, second.pid != first.pid) == (0, True)
        assert all_.broker.done["ended"] == 0


async def test_the_server_says_that_the_lease_has_ended() -> None:
    async with world(t=2) as all_, all_.producer() as producer:
        sent = await producer.send_and_wait("t", b"", partition=0)
        all_.leases.ends_at[sent.pid] = 0
        future = await producer.send("t", b"", partition=0)
        with pytest.raises(OutcomeUnknownError, match="ended"):
            await future
        with pytest.raises(SessionEndedError, match="ended"):
            await producer.send("t", b"", partition=1)


async def test_a_second_live_client_of_a_name_fences_the_first() -> None:
    async with world(t=2) as all_:
        async with all_.producer(name="n", max_batch_size=300) as first:
            await first.send_and_wait("t", b"a", partition=0)
            async with all_.producer(name="n") as second:
                sent = await second.send_and_wait("t", b"b", partition=0)
                assert sent.sequence == 1
                futures = [await first.send("t", b"c", partition=0) for _ in range(100)]
                with pytest.raises(FencedError):
                    await first.flush()
                assert {type(each.exception()) for each in futures} == {FencedError}
                with pytest.raises(FencedError):
                    await first.send("t", b"", partition=0)
                assert (await second.send_and_wait("t", b"d", partition=0)).sequence == 2
        assert all_.broker.values("t", 0) == [b"a", b"b", b"d"]


async def test_who_is_fenced_asks_for_nothing_more() -> None:
    async with world(lease_ms=150) as all_, all_.producer(name="n") as first:
        await first.send_and_wait("t", b"")
        async with all_.producer(name="n") as second:
            await second.lease("t", 0)
        with pytest.raises(FencedError):
            await first.send_and_wait("t", b"")
        asked = len(all_.leases.asked)
        await asyncio.sleep(0.3)
        assert len(all_.leases.asked) == asked


@pytest.mark.parametrize("successor_renewed", [False, True])
@pytest.mark.parametrize("by", ["switch", "another partition"])
async def test_a_first_client_takes_nothing_back(by: str, successor_renewed: bool) -> None:
    """It learns that it was replaced from its leases, before it sends anything."""
    async with world(t=2) as all_:
        async with all_.producer(name="n") as first, all_.producer(name="n") as second:
            await first.send_and_wait("t", b"a", partition=0)
            await second.send_and_wait("t", b"b", partition=0)
            if successor_renewed:
                await switched(second)
            if by == "switch":
                first._pipeline.session._drain()
                await until(lambda: first._pipeline.refusal)
                with pytest.raises(FencedError):
                    await first.send("t", b"", partition=0)
            else:
                future = await first.send("t", b"", partition=1)
                with pytest.raises(FencedError):
                    await future
            assert (await second.send_and_wait("t", b"c", partition=0)).sequence == 2
        assert all_.broker.values("t", 0) == [b"a", b"b", b"c"]
        assert not all_.broker.values("t", 1)


async def test_a_renewal_whose_answer_was_lost() -> None:
    async with world(t=2) as all_, all_.producer(name="n") as producer:
        for partition in range(2):
            await producer.send_and_wait("t", b"", partition=partition)
        all_.leases.away, all_.leases.loses_answers = 1, True
        before = producer.pid
        await switched(producer)
        assert all_.leases.done["renewed"] == 1
        for partition in range(2):
            sent = await producer.send_and_wait("t", b"", partition=partition)
            assert (sent.sequence, sent.pid != before) == (1, True)


async def test_a_renewal_whose_answer_was_lost_and_then_somebody_came() -> None:
    async with world() as all_:
        async with all_.producer(name="n") as first, all_.producer(name="n") as second:
            await first.send_and_wait("t", b"a")
            all_.leases.away = 10**9
            first._pipeline.session._drain()
            await until(lambda: all_.leases.done["away"] > 1)
            all_.leases.away = 0
            await second.lease("t", 0)  # it may be before or behind the renewal
            await until(lambda: first._pipeline.refusal or first.metrics.switches)
            assert (await second.send_and_wait("t", b"b")).sequence == 1
            with pytest.raises(FencedError):
                await first.send_and_wait("t", b"c")
        assert all_.broker.values() == [b"a", b"b"]


async def test_a_topic_that_is_gone_when_the_lease_is_renewed() -> None:
    async with world(t=1, u=1) as all_, all_.producer(name="n") as producer:
        await producer.send_and_wait("t", b"")
        all_.leases.refusals[("t", 0)] = 404, "there is no topic t"
        await switched(producer)
        assert (await producer.send_and_wait("u", b"")).sequence == 0
        future = await producer.send("t", b"")
        with pytest.raises(LeaseRefusedError, match="no topic"):
            await future


async def switched(producer: LeasedProducer) -> None:
    """Let it replace its PID now, and wait for that."""
    before = producer.metrics.switches
    producer._pipeline.session._drain()
    await until(lambda: producer.metrics.switches > before)


# ---------------------------------------------------------------------- delivery timeouts


async def test_a_batch_that_was_sent_and_is_overdue_ends_the_session() -> None:
    async with world(t=2) as all_:
        options = {"max_batch_size": 300, "delivery_timeout_ms": 500, "request_timeout_ms": 60}
        async with all_.producer(**options) as producer:
            await producer.send_and_wait("t", b"0", partition=0)
            all_.broker.fault = lambda _: Fault("cut after")
            futures = [await producer.send("t", b"%d" % n, partition=0) for n in range(1, 300)]
            errors = await asyncio.gather(*futures, return_exceptions=True)
            kinds = [type(each) for each in errors]
            unknown = kinds.count(OutcomeUnknownError)
            assert unknown > 0
            assert kinds == [OutcomeUnknownError] * unknown + [SessionEndedError] * (299 - unknown)
            all_.broker.fault = lambda _: None
            for partition in (0, 1):
                with pytest.raises(SessionEndedError, match="not delivered"):
                    await producer.send("t", b"", partition=partition)
            assert producer.metrics.buffered_bytes == 0
        values = all_.broker.values("t", 0)
        assert values == [b"%d" % number for number in range(len(values))]


async def test_other_partitions_deliver_what_they_took() -> None:
    options = {"delivery_timeout_ms": 1000, "request_timeout_ms": 20}
    async with world(t=2) as all_, all_.producer(**options) as producer:
        for partition in range(2):
            await producer.send_and_wait("t", b"", partition=partition)
        all_.broker.fault = lambda _: Fault("cut before")
        bad = await producer.send("t", b"bad", partition=0)
        await asyncio.sleep(0.5)
        good = await producer.send("t", b"good", partition=1)
        with pytest.raises(OutcomeUnknownError):
            await bad
        all_.broker.fault = lambda _: None
        assert (await good).offset == 1


async def test_what_was_never_sent_ends_nothing() -> None:
    async with world() as all_:
        async with all_.producer(delivery_timeout_ms=500) as producer:
            all_.leases.away = 10**9
            futures = [await producer.send("t", b"%d" % number) for number in range(10)]
            errors = await asyncio.gather(*futures, return_exceptions=True)
            assert {type(each).__name__ for each in errors} == {"DeliveryTimeoutError"}
            all_.leases.away = 0
            assert (await producer.send_and_wait("t", b"next")).sequence == 0
        assert all_.broker.values() == [b"next"]


async def test_what_brings_its_own_id_leaves_no_hole() -> None:
    """A range that covers ids which were never sent would make duplicates of them."""
    async with world() as all_:
        async with all_.producer(delivery_timeout_ms=1500, max_batch_size=300) as producer:
            all_.leases.away = 10**9
            futures = [
                await producer.send("t", b"%d" % number, sequence_id=number) for number in range(99)
            ]
            errors = await asyncio.gather(*futures, return_exceptions=True)
            assert {type(each).__name__ for each in errors} == {"DeliveryTimeoutError"}
            all_.leases.away = 0
            with pytest.raises(SessionEndedError):
                await producer.send("t", b"", sequence_id=99)
        assert not all_.broker.came


@pytest.mark.parametrize("name", [None, "n"])
async def test_a_partition_without_a_lease_keeps_no_other_waiting(name: str | None) -> None:
    """Once the whole producer waited for it, also with the renewal at the end of its lease."""
    async with world(lease_ms=1500, t=3) as all_:
        async with all_.producer(name=name) as producer:
            await producer.send_and_wait("t", b"", partition=0)
            all_.leases.refusals["t", 1] = 503, "the partition is stopped"
            held = await producer.send("t", b"held", partition=1)
            await until(lambda: any(each["partition"] == 1 for each in all_.leases.asked))
            await producer.send_and_wait("t", b"", partition=2)
            before = producer.pid
            while producer.metrics.switches < 2:
                await producer.send_and_wait("t", b"", partition=0)
                await producer.send_and_wait("t", b"", partition=2)
            assert producer.pid != before
            assert not held.done()
            del all_.leases.refusals["t", 1]
            assert (await held).offset == 0
        assert all_.broker.values("t", 1) == [b"held"]
