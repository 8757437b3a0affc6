"""Policy monotonic: ids of the application's own, which rise and may have holes."""

from typing import Any

import pytest

from tests.client.fake_broker import Fault, RandomFaults
from tests.client.harness import world
from tests.crash.seeds import SOAK, new_random

MONOTONIC: dict[str, Any] = {"policy": "monotonic", "name": "n"}
FAULTS = [
    Fault("cut before"),
    Fault("cut after"),
    Fault("refuse", 19),
    Fault("stored but", 7),
    Fault("late"),
]


async def test_ids_with_gaps() -> None:
    async with world() as all_, all_.producer(**MONOTONIC, max_batch_size=300) as producer:
        ids = [3, 4, 9, 2**40, 2**62, 2**63 - 1]
        futures = [await producer.send("t", b"", sequence_id=each) for each in ids]
        await producer.flush()
        assert [each.result().sequence for each in futures] == ids
        assert all_.broker.came[0].identity[3:5] == (3, 2**63 - 1)
        assert producer.last_sequence_id("t", 0) == 2**63 - 1


@pytest.mark.parametrize("policy", ["strict", "monotonic"])
async def test_ids_rise(policy: Any) -> None:
    async with world() as all_, all_.producer(policy=policy, name="n") as producer:
        await producer.send_and_wait("t", b"", sequence_id=5)
        for wrong in (5, 4, 0) if policy == "strict" else ():
            with pytest.raises(ValueError, match="does not rise"):
                await producer.send("t", b"", sequence_id=wrong)
        for wrong in (-1, 2**63):
            with pytest.raises(ValueError, match="outside"):
                await producer.send("t", b"", sequence_id=wrong)
        with pytest.raises(ValueError, match="either all records"):
            await producer.send("t", b"")
        assert (await producer.send_and_wait("t", b"", sequence_id=6)).sequence == 6
        assert len(all_.broker.values()) == 2


async def test_a_partition_without_ids_takes_none() -> None:
    async with world(t=2) as all_, all_.producer(**MONOTONIC) as producer:
        await producer.send_and_wait("t", b"", partition=0)
        with pytest.raises(ValueError, match="either all records"):
            await producer.send("t", b"", partition=0, sequence_id=77)
        await producer.send_and_wait("t", b"", partition=1, sequence_id=77)


async def test_numbers_continue_after_the_last_one() -> None:
    async with world() as all_:
        async with all_.producer(**MONOTONIC) as producer:
            await producer.lease("t", 0)
            assert producer.last_sequence_id("t", 0) == -1
            await producer.send_and_wait("t", b"", sequence_id=41)
        async with all_.producer(**MONOTONIC) as producer:
            await producer.lease("t", 0)
            assert producer.last_sequence_id("t", 0) == 41
            assert (await producer.send_and_wait("t", b"")).sequence == 42


async def test_numbers_begin_after_the_given_one() -> None:
    async with world() as all_:
        async with all_.producer(**MONOTONIC, initial_sequence_id=99) as producer:
            assert (await producer.send_and_wait("t", b"")).sequence == 100
            producer._pipeline.session._drain()
            assert (await producer.send_and_wait("t", b"")).sequence == 101
        async with all_.producer(**MONOTONIC, initial_sequence_id=99) as producer:
            # It says that it begins there: what is there already is not stored again.
            sent = await producer.send_and_wait("t", b"")
            assert (sent.sequence, sent.duplicate) == (100, True)


async def test_an_application_sends_again_what_it_is_not_sure_of() -> None:
    async with world() as all_:
        for begin in (0, 30, 10, 55):
            async with all_.producer(**MONOTONIC, max_batch_size=250) as producer:
                futures = [
                    await producer.send("t", b"%d" % (n * 3), sequence_id=n * 3)
                    for n in range(begin, begin + 50)
                ]
                await producer.flush()
                assert all(each.result().sequence % 3 == 0 for each in futures)
        assert all_.broker.values() == [b"%d" % (n * 3) for n in range(105)]


async def test_an_error_ends_the_session_on_the_connection() -> None:
    async with world() as all_, all_.producer(**MONOTONIC, max_batch_size=200) as producer:
        all_.broker.fault = lambda n: Fault("refuse", 19) if n == 2 else None
        for number in range(200):
            await producer.send("t", b"%d" % number)
        await producer.flush()
        failed = next(each for each in all_.broker.came if each.code == 19)
        following = [
            each for each in all_.broker.came if each.identity.first > failed.identity.last
        ]
        # What followed it on that connection was not judged, and came again on another.
        assert {each.code for each in following if each.connection == failed.connection} <= {13}
        assert all_.broker.values() == [b"%d" % number for number in range(200)]
        assert producer.metrics.reconnects == 1


@pytest.mark.parametrize("run", range(40 if SOAK else 4))
async def test_random_gaps_and_faults(run: int) -> None:
    random = new_random(f"client-monotonic-{run}")
    async with world(t=2) as all_:
        given: list[list[int]] = [[], []]
        sent = [0, 0]
        faults = RandomFaults(random, FAULTS, 0.3, 25)
        for _ in range(3):
            all_.broker.fault = faults
            size = random.choice((150, 600))
            async with all_.producer(**MONOTONIC, max_batch_size=size) as producer:
                futures = []
                for _ in range(400):
                    place = random.randrange(2)
                    if sent[place] == len(given[place]):
                        last = given[place][-1] if given[place] else random.randrange(100)
                        given[place].append(last + random.choice((1, 1, 1, 2, 500)))
                    number = given[place][sent[place]]
                    sent[place] += 1
                    value = b"%d" % number
                    futures.append(
                        await producer.send("t", value, partition=place, sequence_id=number)
                    )
                await producer.flush()
                assert all(each.exception() is None for each in futures)
            # The next life sends some of it again.
            sent = [max(count - random.randrange(60), 0) for count in sent]
        for place in range(2):
            stored = [int(each or b"") for each in all_.broker.values("t", place)]
            assert stored == given[place]
