"""Positions as sequence ids and all of it again: refused records, other batches in each life."""

from random import Random
from typing import Any

import pytest

from pidlease.client import OutcomeUnknownError, SessionEndedError
from tests.client.fake_broker import RandomFaults
from tests.client.harness import World, world
from tests.client.test_monotonic import FAULTS
from tests.crash.seeds import SOAK, new_random

PARTITIONS = 3
RECORDS = 400
BYTES_MAX = 1_000


async def run_once(
    all_: World, random: Random, source: list[tuple[int, bytes]], until: int, **options: Any
) -> list[int]:
    """One life of an application: the positions that were refused; killed at a position."""
    refused: list[int] = []
    size = random.choice((150, 300, 900))
    producer = all_.producer(max_batch_size=size, max_request_size=BYTES_MAX, **options)
    await producer.start()
    futures = []
    try:
        for position, (partition, value) in enumerate(source[:until]):
            try:
                futures.append(
                    await producer.send("t", value, partition=partition, sequence_id=position)
                )
            except ValueError:
                refused.append(position)
            if random.random() < 0.02:
                await producer.flush()
        if until == len(source):
            await producer.flush()
    finally:
        killed = OutcomeUnknownError("killed"), SessionEndedError("killed")
        producer._pipeline.end(*killed, quietly=True)
        await producer.stop(0)
    if until == len(source):
        assert [each for each in futures if each.exception() is not None] == []
    return refused


@pytest.mark.parametrize("policy", ["strict", "monotonic"])
@pytest.mark.parametrize("run", range(60 if SOAK else 4))
async def test_each_record_once(policy: str, run: int) -> None:
    random = new_random(f"client-recipe-{policy}-{run}")
    too_large = b"x" * BYTES_MAX
    source = [
        (random.randrange(PARTITIONS), too_large if random.random() < 0.1 else b"%d" % position)
        for position in range(RECORDS)
    ]
    source[-1] = 0, too_large
    async with world(t=PARTITIONS) as all_:
        all_.broker.fault = RandomFaults(random, FAULTS, 0.15, 40)
        for _ in range(4):
            await run_once(all_, random, source, random.randrange(RECORDS), policy=policy, name="n")
        assert any(all_.broker.values("t", number) for number in range(PARTITIONS))
        refused = await run_once(all_, random, source, RECORDS, policy=policy, name="n")
        assert refused == [each for each, (_, value) in enumerate(source) if value is too_large]
        for number in range(PARTITIONS):
            due = [value for partition, value in source if partition == number]
            assert all_.broker.values("t", number) == [each for each in due if each != too_large]


@pytest.mark.parametrize("policy", ["strict", "monotonic"])
async def test_a_refused_record_at_the_end_of_a_batch(policy: Any) -> None:
    """Its number belongs to the range of the batch after it, in whichever life that is sent."""
    async with world() as all_:
        for lives in range(3):
            async with all_.producer(policy=policy, name="n", max_request_size=BYTES_MAX,
                                     max_batch_size=BYTES_MAX) as producer:  # fmt: skip
                told = []
                for position in range(3 + lives):
                    value = b"x" * BYTES_MAX if position == 2 else b"%d" % position
                    try:
                        future = await producer.send("t", value, sequence_id=position)
                    except ValueError:
                        await producer.flush()  # the batch ends where it would have been
                    else:
                        told.append((await future).duplicate)
                new = 2 if lives == 0 else 1
                assert told == [True] * (len(told) - new) + [False] * new
        assert all_.broker.values() == [b"0", b"1", b"3", b"4"]


async def test_a_refused_record_takes_no_number_so_counting_is_not_enough() -> None:
    """Why positions by `last_sequence_id` need `sequence_id`."""
    lines = [b"0", b"x" * BYTES_MAX, b"2", b"3"]
    async with world() as all_:
        sizes = {"max_request_size": BYTES_MAX, "max_batch_size": BYTES_MAX}
        async with all_.producer(name="n", **sizes) as producer:
            for line in lines[:3]:
                try:
                    await producer.send_and_wait("t", line)
                except ValueError:
                    continue
            assert producer.last_sequence_id("t", 0) == 1, "two records, of three lines"
