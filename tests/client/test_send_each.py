"""`send_each`: the results of a bulk load one by one, with a bound on those that are kept."""

import asyncio
from collections.abc import Iterator

import pytest

from pidlease.client import Sent
from pidlease.client.producer import UNACKNOWLEDGED_MAX
from tests.client.fake_broker import Fault
from tests.client.harness import until, world
from tests.client.test_blocking import producer_of, served

_MORE = UNACKNOWLEDGED_MAX + 5_000


class Values:
    """Numbers as bytes; counts those that were taken."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.taken = 0

    def __iter__(self) -> Iterator[bytes]:
        for number in range(self._count):
            self.taken += 1
            yield b"%d" % number


async def test_results_come_in_order_while_later_records_are_sent() -> None:
    values = Values(_MORE)
    async with world() as all_, all_.producer() as producer:
        offsets, ahead = [], []
        async for sent in producer.send_each("t", values, key_of=lambda value: value[-1:]):
            offsets.append(sent.offset)
            ahead.append(values.taken - len(offsets))
        assert offsets == list(range(_MORE))
        assert 0 < max(ahead) < UNACKNOWLEDGED_MAX
        assert all_.broker.values() == list(Values(_MORE))
        assert [each async for each in producer.send_each("t", [])] == []


async def test_no_more_results_are_kept() -> None:
    """While the broker does not respond, so many values are taken; with its return, the rest."""
    values = Values(_MORE)
    async with world() as all_, all_.producer() as producer:
        all_.broker.fault = lambda _: Fault("late", seconds=-1)

        async def offsets() -> list[int | None]:
            return [sent.offset async for sent in producer.send_each("t", values)]

        load = asyncio.create_task(offsets())
        await until(lambda: values.taken == UNACKNOWLEDGED_MAX)
        await asyncio.sleep(0.05)
        assert values.taken == UNACKNOWLEDGED_MAX
        all_.broker.fault = lambda _: None
        all_.broker.release.set()
        assert await load == list(range(_MORE))


async def test_a_loop_that_ends_early() -> None:
    values = Values(1_000)
    async with world() as all_, all_.producer() as producer:
        async for sent in producer.send_each("t", values):
            assert sent.offset == 0
            break
        await producer.flush()
        assert all_.broker.values() == list(Values(values.taken))


async def test_an_invalid_record_comes_after_the_results_of_the_preceding() -> None:
    async with world() as all_, all_.producer() as producer:
        found: list[Sent] = []

        async def collect() -> None:
            async for sent in producer.send_each("t", [b"1", b"2", "3", b"4"]):
                found.append(sent)  # noqa: PERF401 - those before the error count

        with pytest.raises(TypeError, match="value is str"):
            await collect()
        assert [each.offset for each in found] == [0, 1]
        assert all_.broker.values() == [b"1", b"2"]


@pytest.mark.parametrize("early", [False, True])
def test_the_blocking_producer(early: bool) -> None:
    values = Values(_MORE)
    with served() as all_, producer_of(all_) as producer:
        offsets = []
        for sent in producer.send_each("t", values, partition=0):
            offsets.append(sent.offset)
            if early and len(offsets) == 10:
                break
        producer.flush()
        assert offsets == list(range(10 if early else _MORE))
        assert all_.broker.values() == list(Values(values.taken))
        with pytest.raises(ValueError, match="illegal topic"):
            list(producer.send_each("a b", [b"1"]))
