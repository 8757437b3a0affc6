"""Policy monotonic: an id that is not above the last one is a duplicate, as with Apache Pulsar."""

import asyncio
import logging
from typing import Any

import pytest

from pidlease.client import (
    DeliveryTimeoutError,
    FencedError,
    OutcomeUnknownError,
    ProducerError,
    SessionEndedError,
)
from tests.client.fake_broker import Fault, RandomFaults
from tests.client.harness import until, world
from tests.client.test_blocking import producer_of, served
from tests.client.test_monotonic import FAULTS, MONOTONIC
from tests.crash.seeds import SOAK, new_random


async def test_a_repeated_id_is_a_duplicate() -> None:
    async with world() as all_, all_.producer(**MONOTONIC) as producer:
        await producer.send_and_wait("t", b"5", sequence_id=5)
        requests = all_.broker.requests
        for repeated in (5, 4, 0):
            sent = await producer.send_and_wait("t", b"again", sequence_id=repeated)
            assert sent[:4] == ("t", 0, -1, producer.pid)
            assert (sent.sequence, sent.duplicate) == (repeated, True)
        assert all_.broker.requests == requests
        assert (await producer.send_and_wait("t", b"6", sequence_id=6)).offset == 1
        assert all_.broker.values() == [b"5", b"6"]
        assert (producer.metrics.records, producer.metrics.duplicates) == (5, 3)
        assert producer.last_sequence_id("t", 0) == 6
        assert producer.metrics.buffered_bytes == 0


async def test_what_is_wrong_is_refused_as_ever() -> None:
    async with world() as all_, all_.producer(**MONOTONIC) as producer:
        await producer.send_and_wait("t", b"", sequence_id=5)
        with pytest.raises(ValueError, match="either all records"):
            await producer.send("t", b"")
        with pytest.raises(ValueError, match="outside"):
            await producer.send("t", b"", sequence_id=-1)
        with pytest.raises(TypeError, match="value is str"):
            await producer.send("t", "text", sequence_id=5)


async def test_policy_strict_refuses_an_id_that_does_not_rise() -> None:
    """It says that none is out of order; one that is would never be stored."""
    async with world() as all_, all_.producer(name="n") as producer:
        await producer.send_and_wait("t", b"", sequence_id=5)
        for repeated in (5, 4):
            with pytest.raises(ValueError, match="does not rise: 5 was the last"):
                await producer.send("t", b"", sequence_id=repeated)


@pytest.mark.parametrize("in_flight", [True, False])
async def test_a_duplicate_waits_for_what_it_repeats(*, in_flight: bool) -> None:
    async with world() as all_, all_.producer(**MONOTONIC, max_batch_size=200) as producer:
        await producer.send_and_wait("t", b"0", sequence_id=0)
        if in_flight:
            all_.broker.fault = lambda _: Fault("late", seconds=-1)
        told: list[int] = []
        futures = []
        ids = [1, 2, 3, 2, 3, 4, 4, 10, 7, 11, 1]
        for each in ids:
            future = await producer.send("t", b"%d" % each * 20, sequence_id=each)
            future.add_done_callback(lambda done: told.append(done.result().sequence))
            futures.append(future)
        if in_flight:
            await until(lambda: all_.broker.requests > 1)
            await asyncio.sleep(0.01)
            assert told == []
            all_.broker.release.set()
        await producer.flush()
        await asyncio.sleep(0)
        assert told == ids, "futures are resolved in the order of sends"
        duplicates = [each.result().duplicate for each in futures]
        assert duplicates == [each in (3, 4, 6, 8, 10) for each in range(11)]
        due = [b"0", *(b"%d" % each * 20 for each in (1, 2, 3, 4, 10, 11))]
        assert all_.broker.values() == due
        assert producer.metrics.buffered_bytes == 0


async def test_a_duplicate_fails_with_what_it_repeats() -> None:
    async with world() as all_, all_.producer(**MONOTONIC) as producer:
        await producer.send_and_wait("t", b"0", sequence_id=0)
        all_.broker.fault = lambda _: Fault("cut before")
        first = await producer.send("t", b"5", sequence_id=5)
        repeated = await producer.send("t", b"5", sequence_id=5)
        await until(lambda: all_.broker.done["cut before"] > 2)
        assert not repeated.done()
        producer._pipeline.end(FencedError("gone"), SessionEndedError("gone"))
        assert isinstance(first.exception(), FencedError)
        assert isinstance(repeated.exception(), FencedError)
        assert producer.metrics.buffered_bytes == 0
        assert all_.broker.values() == [b"0"]


async def test_a_duplicate_of_what_was_sent_is_never_said_to_be_unsent() -> None:
    """The error for "never sent" would allow the caller to do something else with the record."""
    async with world() as all_, all_.producer(**MONOTONIC, max_in_flight=1) as producer:
        await producer.send_and_wait("t", b"0", sequence_id=0)
        all_.broker.fault = lambda _: Fault("late", seconds=3600)
        sent = await producer.send("t", b"5", sequence_id=5)
        await until(lambda: all_.broker.requests == 2)
        unsent = await producer.send("t", b"6", sequence_id=6)
        of_sent = await producer.send("t", b"5", sequence_id=5)
        of_unsent = await producer.send("t", b"6", sequence_id=6)
        of_stored = await producer.send("t", b"0", sequence_id=0)
        producer._pipeline.end(OutcomeUnknownError("sent"), SessionEndedError("never sent"))
        kinds = [type(each.exception()) for each in (sent, unsent, of_sent, of_unsent)]
        unknown = OutcomeUnknownError
        assert kinds == [unknown, SessionEndedError, unknown, SessionEndedError]
        assert of_stored.result().duplicate


async def test_a_refusal_is_not_said_of_what_was_sent_before() -> None:
    async with world() as all_, all_.producer(**MONOTONIC, max_batch_size=200) as producer:
        await producer.send_and_wait("t", b"0", sequence_id=0)
        all_.broker.fault = lambda _: Fault("late", seconds=3600)
        first = await producer.send("t", b"x" * 150, sequence_id=1)
        second = await producer.send("t", b"x" * 150, sequence_id=2)
        repeated = [await producer.send("t", b"", sequence_id=each) for each in (1, 2)]
        await until(lambda: len(producer._pipeline.partitions[("t", 0)].in_flight.open) == 2)
        partition = producer._pipeline.partitions[("t", 0)]
        partition.fail_refused(partition.in_flight.open[1], ProducerError("refused"))
        partition.end(SessionEndedError("refused"))
        partition.fail_sent(OutcomeUnknownError("refused"))
        kinds = [type(each.exception()) for each in (first, second, *repeated)]
        unknown = OutcomeUnknownError
        assert kinds == [unknown, ProducerError, unknown, ProducerError]


async def test_a_delivery_timeout_fails_the_duplicate_too() -> None:
    async with world() as all_, all_.producer(**MONOTONIC, delivery_timeout_ms=100) as producer:
        all_.leases.away = 10**9
        first = await producer.send("t", b"5", sequence_id=5)
        repeated = await producer.send("t", b"5", sequence_id=5)
        for each in (first, repeated):
            with pytest.raises(DeliveryTimeoutError):
                await each
        with pytest.raises(ProducerError):
            await producer.send("t", b"5", sequence_id=5)


async def test_what_is_known_from_the_life_before() -> None:
    """Ids at or below the last of the life before are the server's to answer."""
    async with world() as all_:
        async with all_.producer(**MONOTONIC) as producer:
            await producer.send_and_wait("t", b"", sequence_id=41)
        async with all_.producer(**MONOTONIC) as producer:
            for each in (7, 7, 3):
                assert (await producer.send_and_wait("t", b"", sequence_id=each)).duplicate
            assert not (await producer.send_and_wait("t", b"", sequence_id=42)).duplicate


async def test_a_renewed_lease_knows_duplicates_too() -> None:
    async with world() as all_, all_.producer(**MONOTONIC) as producer:
        await producer.send_and_wait("t", b"0", sequence_id=5)
        pid = producer.pid
        producer._pipeline.session._drain()
        new = await producer.send("t", b"1", sequence_id=6)
        repeated = await producer.send("t", b"1", sequence_id=6)
        assert (await new).pid != pid
        assert (await repeated) == (await new)._replace(offset=-1, duplicate=True)
        old = await producer.send_and_wait("t", b"0", sequence_id=5)
        assert old.duplicate


async def test_duplicates_count_against_the_buffer() -> None:
    async with world() as all_, all_.producer(**MONOTONIC, buffer_memory=3000) as producer:
        await producer.send_and_wait("t", b"0", sequence_id=0)
        all_.broker.fault = lambda _: Fault("late", seconds=-1)
        await producer.send("t", b"1", sequence_id=1)
        sends = [asyncio.create_task(producer.send("t", b"1", sequence_id=1)) for _ in range(100)]
        await until(lambda: all_.broker.requests == 2)
        await asyncio.sleep(0.01)
        assert sum(each.done() for each in sends) < 12
        all_.broker.release.set()
        answers = await asyncio.gather(*await asyncio.gather(*sends))
        assert all(each.duplicate for each in answers)


async def test_one_line_says_that_ids_do_not_rise(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pidlease.client.partition_queue")
    async with world() as all_, all_.producer(**MONOTONIC) as producer:
        for each in (5, 5, 4, 6, 6):
            await producer.send_and_wait("t", b"", sequence_id=each)
    lines = [each.getMessage() for each in caplog.records if "sequence_id" in each.getMessage()]
    assert len(lines) == 1
    assert "t-0: sequence_id 5 is not above 5" in lines[0]


@pytest.mark.parametrize("run", range(40 if SOAK else 4))
async def test_random_repeats_and_faults(run: int) -> None:
    random = new_random(f"client-repeated-{run}")
    async with world(t=2) as all_:
        faults = RandomFaults(random, FAULTS, 0.3, 25)
        all_.broker.fault = faults
        size = random.choice((150, 600))
        given: list[list[int]] = [[], []]
        async with all_.producer(**MONOTONIC, max_batch_size=size) as producer:
            futures: list[list[Any]] = [[], []]
            for _ in range(800):
                place = random.randrange(2)
                ids = given[place]
                highest = max(ids, default=-1)
                back = random.random() < 0.2 and highest >= 0
                number = random.randint(0, highest) if back else highest + random.choice((1, 1, 9))
                ids.append(number)
                value = b"%d" % number
                future = await producer.send("t", value, partition=place, sequence_id=number)
                futures[place].append(future)
                if random.random() < 0.02:
                    await producer.flush()
            await producer.flush()
            assert producer.metrics.buffered_bytes == 0
            assert sum(producer.metrics.refusals.values()) + producer.metrics.retries > 0
        for place in range(2):
            ids = given[place]
            rising = [n for at, n in enumerate(ids) if n > max(ids[:at], default=-1)]
            assert [int(each or b"") for each in all_.broker.values("t", place)] == rising
            assert [each.result().sequence for each in futures[place]] == given[place]


def test_the_blocking_producer_does_the_same() -> None:
    with served() as all_, producer_of(all_, **MONOTONIC) as producer:
        futures = [producer.send("t", b"%d" % n, sequence_id=n) for n in (1, 2, 2, 1, 3)]
        producer.flush()
        assert [each.result().duplicate for each in futures] == [False, False, True, True, False]
        assert all_.broker.values() == [b"1", b"2", b"3"]
