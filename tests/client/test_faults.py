"""Errors, lost answers and broken connections: once each, in order, with the same bytes."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

from pidlease.client import (
    FencedError,
    LeaseEndedError,
    OutcomeUnknownError,
    ProducerError,
    SessionEndedError,
)
from tests.client.fake_broker import Came, FakeBroker, Fault, RandomFaults
from tests.client.harness import World, until, world
from tests.crash.seeds import SOAK, new_random


def once(request: int, fault: Fault) -> Callable[[int], Fault | None]:
    """A fault of one request only."""
    return lambda number: fault if number == request else None


async def send_all(producer: Any, count: int, **options: Any) -> list[Any]:
    futures = [await producer.send("t", b"%d" % n, **options) for n in range(count)]
    await producer.flush()
    return [each.result() for each in futures]


def check_same_bytes(came: list[Came]) -> None:
    """A batch that came again was the same, byte for byte."""
    seen: dict[Any, bytes] = {}
    for each in came:
        key = each.place, each.identity.pid, each.identity.first, each.identity.last
        assert seen.setdefault(key, each.data) == each.data


def check_exactly_once(broker: FakeBroker, sent: list[Any], partitions: int = 1) -> None:
    due = defaultdict(list)
    for number, each in enumerate(sent):
        due[each.partition].append(b"%d" % number)
        if each.offset >= 0:
            assert broker.values("t", each.partition)[each.offset] == b"%d" % number
    for partition in range(partitions):
        assert broker.values("t", partition) == due[partition]
    check_same_bytes(broker.came)


FAULTS = [
    Fault("cut before"),
    Fault("cut after"),
    *(Fault("refuse", code) for code in (-1, 2, 3, 5, 6, 7, 13, 19, 20, 56)),
    *(Fault("stored but", code) for code in (7, 13, -1)),
]

#: All of them, and what breaks connections more often.
MIXED = [*FAULTS, *FAULTS[:2], *FAULTS[:2]]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind} {fault.code}")
@pytest.mark.parametrize("policy", ["strict", "monotonic"])
@pytest.mark.parametrize("request_number", [1, 2, 4])
async def test_one_fault(fault: Fault, policy: Any, request_number: int) -> None:
    async with world() as all_:
        all_.broker.fault = once(request_number, fault)
        async with all_.producer(name="n", policy=policy, max_batch_size=300) as producer:
            sent = await send_all(producer, 400)
        assert all_.broker.done[fault.kind] == 1
        check_exactly_once(all_.broker, sent)
        assert [each.sequence for each in sent] == list(range(400))
        if fault.kind != "cut before":  # which may also lose answers to those before
            stored = fault.kind in ("cut after", "stored but")
            assert (producer.metrics.duplicates > 0) == stored
        assert producer.metrics.retries > 0


def _note(completed: list[int], number: int, _: object) -> None:
    completed.append(number)


@pytest.mark.parametrize("policy", ["strict", "monotonic"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind} {fault.code}")
async def test_futures_complete_in_sequence_order(fault: Fault, policy: Any) -> None:
    """As in Kafka's clients: an application may take the last one for the end of what is stored."""
    async with world() as all_:
        all_.broker.fault = once(2, fault)
        completed: list[int] = []
        async with all_.producer(name="n", policy=policy, max_batch_size=300) as producer:
            for number in range(400):
                future = await producer.send("t", b"%d" % number)
                future.add_done_callback(partial(_note, completed, number))
            await producer.flush()
        assert all_.broker.done[fault.kind] == 1
        assert completed == list(range(400))


async def test_duplicates_without_an_offset_are_successes() -> None:
    async with world() as all_:
        all_.broker.forgets_offsets = True
        all_.broker.fault = once(2, Fault("cut after"))
        async with all_.producer(max_batch_size=300) as producer:
            sent = await send_all(producer, 100)
        check_exactly_once(all_.broker, sent)
        completed = [each for each in sent if each.duplicate]
        assert completed
        assert {each.offset for each in completed} == {-1}


async def test_an_answer_that_never_comes() -> None:
    async with world() as all_:
        all_.broker.fault = once(2, Fault("late", seconds=3600))
        async with all_.producer(max_batch_size=300, request_timeout_ms=50) as producer:
            sent = await send_all(producer, 100)
        check_exactly_once(all_.broker, sent)
        assert producer.metrics.reconnects > 0


async def test_a_broker_that_goes_away_and_comes_back() -> None:
    async with world() as all_, all_.producer(max_batch_size=300) as producer:
        futures: list[Any] = []
        for _ in range(5):
            for _ in range(50):
                futures.append(await producer.send("t", b"%d" % len(futures)))
            await asyncio.sleep(0.002)
            await all_.broker.go_away()
            futures.append(await producer.send("t", b"%d" % len(futures)))
            await asyncio.sleep(0.01)
            await all_.broker.listen()
        await producer.flush()
        check_exactly_once(all_.broker, [each.result() for each in futures])
        assert producer.metrics.reconnects > 0


@pytest.mark.parametrize("policy", ["strict", "monotonic"])
@pytest.mark.parametrize("run", range(60 if SOAK else 6))
async def test_random_faults(policy: Any, run: int) -> None:
    random = new_random(f"client-faults-{policy}-{run}")
    partitions = 3
    async with world(t=partitions) as all_:
        faults = all_.broker.fault = RandomFaults(random, MIXED, 0.4, 50)
        options = _any_options(random)
        async with all_.producer(name="n", policy=policy, **options) as producer:
            futures: list[Any] = []
            while faults.left or len(futures) < 1000:
                partition = random.randrange(partitions)
                value = b"%d" % len(futures)
                futures.append(await producer.send("t", value, partition=partition))
                if random.random() < 0.01:
                    await asyncio.sleep(random.random() * 0.004)
            await producer.flush()
        check_exactly_once(all_.broker, [each.result() for each in futures], partitions)
        print(f"{options}: {dict(all_.broker.done)}, {producer.metrics}")
        assert producer.metrics.duplicates > 0
        assert producer.metrics.reconnects > 0
        assert producer.metrics.refusals
        assert all_.broker.done["gap"] == 0


def _any_options(random: Random) -> dict[str, Any]:
    return {
        "max_batch_size": random.choice((150, 600, 3000)),
        "max_in_flight": random.randint(1, 5),
        "linger_ms": random.choice((0, 0, 1)),
        "compression_type": random.choice((None, "lz4", "zstd")),
        "buffer_memory": random.choice((20_000, 1 << 20)),
        "max_request_size": random.choice((3000, 100_000)),
    }


@pytest.mark.parametrize("policy", ["strict", "monotonic"])
async def test_partitions_that_move_from_node_to_node(policy: Any) -> None:
    """Nothing goes to the new leader before what went to the old one has its answer."""
    random = new_random(f"client-moves-{policy}")
    async with world(nodes=3, t=2) as all_:
        broker = all_.broker
        faults = RandomFaults(random, [Fault("late"), Fault("cut after")], 0.2, 10**6)
        broker.fault = faults
        broker.slow = lambda: random.choice((0, 0, 0.004))
        async with all_.producer(name="n", policy=policy, max_batch_size=200) as producer:
            futures: list[Any] = []
            while broker.done["not leader"] < (300 if SOAK else 40):
                for _ in range(random.randrange(100)):
                    value, partition = b"%d" % len(futures), random.randrange(2)
                    futures.append(await producer.send("t", value, partition=partition))
                if random.random() < 0.2:
                    broker.leader = random.randint(1, 3)
                if random.random() < 0.2:
                    producer._pipeline._connections.refresh()
                await asyncio.sleep(random.random() * 0.004)
            faults.left = 0
            broker.slow = lambda: 0
            await producer.flush()
        check_exactly_once(broker, [each.result() for each in futures], 2)
        assert producer.metrics.refusals[6] > 0


@pytest.mark.parametrize("policy", ["strict", "monotonic"])
async def test_nothing_goes_to_a_new_leader_past_the_old_one(policy: Any) -> None:
    async with world(nodes=2) as all_:
        broker = all_.broker
        async with all_.producer(name="n", policy=policy, max_batch_size=200) as producer:
            futures = [await producer.send("t", b"0")]
            await futures[0]
            broker.look[1] = asyncio.Event()
            futures += [await producer.send("t", b"%d" % number) for number in range(1, 20)]
            await until(lambda: producer.metrics.requests == 2)
            broker.leader = 2
            cluster = producer._pipeline._connections.cluster
            producer._pipeline._connections.refresh()
            await until(lambda: cluster.view.leader("t", 0) == 2)
            futures += [await producer.send("t", b"%d" % number) for number in range(20, 60)]
            await asyncio.sleep(0.02)
            assert len(broker.came) == 1
            broker.look[1].set()
            await producer.flush()
        check_exactly_once(broker, [each.result() for each in futures])
        assert producer.metrics.duplicates == 0


# ---------------------------------------------------------------------- overlaps


@pytest.mark.parametrize("policy", ["strict", "monotonic"])
@pytest.mark.parametrize("stored", [1, 7, 30, 45, 99])
async def test_what_is_stored_already_is_cut_off(policy: Any, stored: int) -> None:
    """A crashed application sends again what it is not sure of, in other batches."""
    async with world() as all_:
        async with all_.producer(name="n", policy=policy, max_batch_size=330) as producer:
            for n in range(stored):
                await producer.send("t", b"%d" % n, sequence_id=n)
        all_.broker.came.clear()
        async with all_.producer(name="n", policy=policy, max_batch_size=500) as producer:
            futures = [await producer.send("t", b"%d" % n, sequence_id=n) for n in range(100)]
            await producer.flush()
        sent = [each.result() for each in futures]
        check_exactly_once(all_.broker, sent)
        assert [each.sequence for each in sent] == list(range(100))
        assert [each.duplicate for each in sent] == [n < stored for n in range(100)]
        assert all(each.offset in (-1, n) for n, each in enumerate(sent))
        assert producer.metrics.duplicates == stored
        assert producer.metrics.records == 100


async def test_overlaps_with_faults() -> None:
    random = new_random("client-overlaps")
    for turn in range(200 if SOAK else 20):
        async with world() as all_:
            stored = random.randint(1, 299)
            async with all_.producer(max_batch_size=random.randrange(100, 900)) as producer:
                await send_all(producer, stored)
                pid = producer.pid
            all_.broker.fault = RandomFaults(random, MIXED, 0.4, 6)
            first = random.randrange(stored + 1)
            options = {"max_batch_size": random.randrange(100, 900), "pid": pid,
                       "sequences": {("t", 0): first}}  # fmt: skip
            async with all_.producer(**options) as producer:
                futures = [await producer.send("t", b"%d" % n) for n in range(first, 300)]
                await producer.flush()
            assert all_.broker.values() == [b"%d" % n for n in range(300)], turn
            assert [each.result().sequence for each in futures] == list(range(first, 300))


# ---------------------------------------------------------------------- the end


def answering(code: int, text: str = "no") -> Callable[[World], None]:
    def change(all_: World) -> None:
        broker = all_.broker
        original = broker.judged

        def judged(place: Any, data: bytes, failed: Any, connection: int) -> list[Any]:
            if len(broker.came) < 3:
                return original(place, data, failed, connection)
            broker.came.append(Came(place, None, data, code, connection))  # type: ignore[arg-type]
            return [place[1], code, -1, -1, 0, [], text]

        broker.judged = judged  # type: ignore[method-assign]

    return change


@pytest.mark.parametrize(
    ("code", "refused", "others"),
    [
        (47, FencedError, FencedError),
        (59, OutcomeUnknownError, LeaseEndedError),
        (87, ProducerError, SessionEndedError),
        (45, ProducerError, SessionEndedError),
        (44, ProducerError, SessionEndedError),
        (10, ProducerError, SessionEndedError),
    ],
)
async def test_what_is_final(
    code: int, refused: type[ProducerError], others: type[ProducerError]
) -> None:
    async with world(t=2) as all_:
        answering(code, "said the server")(all_)
        async with all_.producer(max_batch_size=300) as producer:
            all_.leases.away = 10**6  # so that all are handed over before the first is sent
            futures = [await producer.send("t", b"%d" % n, partition=0) for n in range(200)]
            all_.leases.away = 0
            with pytest.raises((OutcomeUnknownError, FencedError), match="said the server"):
                await producer.flush()
            errors = [each.exception() for each in futures]
            good = [error is None for error in errors]
            assert good == sorted(good, reverse=True)
            assert all_.broker.values() == [b"%d" % n for n in range(good.count(True))]
            assert type(errors[good.count(True)]) is refused
            assert "said the server" in str(errors[good.count(True)])
            assert type(errors[-1]) is others
            with pytest.raises(others, match="said the server"):
                await producer.send("t", b"", partition=1)
            with pytest.raises(others, match="said the server"):
                await producer.flush()
            assert producer.metrics.buffered_bytes == 0
            requests = producer.metrics.requests
            await asyncio.sleep(0.03)
            assert producer.metrics.requests == requests, "something was sent after the end"
            assert producer.metrics.errors.total() == good.count(False) + 1  # and the last `send`


async def test_a_server_that_is_too_old() -> None:
    async with world() as all_, all_.producer() as producer:
        all_.broker.versions = [(0, 3, 7), (3, 0, 5), (18, 0, 0)]
        future = await producer.send("t", b"")
        with pytest.raises(ProducerError, match="Produce 8"):
            await future
        with pytest.raises(ProducerError, match="Produce 8"):
            await producer.send("t", b"")
