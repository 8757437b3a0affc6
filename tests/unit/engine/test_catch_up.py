"""Batches that wait for the log to be read: each is answered, and none passes a failed one."""

import asyncio
from typing import cast

from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.appenders.catch_up import CatchUp, Parked
from pidlease.log.ports import ForwardingLog
from pidlease.storage.errors import LogError
from pidlease.storage.snapshots import TopicPartition
from tests.unit.engine.fakes import settle

PID = 7


class Read:
    """A partition whose readings end when the test says so."""

    name = TopicPartition("t", 0)

    def __init__(self) -> None:
        self.readings: list[asyncio.Future[None]] = []

    async def catch_up(self, _: ForwardingLog) -> None:
        self.readings.append(asyncio.get_running_loop().create_future())
        await self.readings[-1]


class Bench:
    """A rereading, and what became of those that waited."""

    def __init__(self) -> None:
        self.read = Read()
        self.rereading = CatchUp(self.read, cast(ForwardingLog, None))
        self.told: list[tuple[str, Status | None]] = []

    def park(self, name: str) -> None:
        def give_up(outcome: Outcome) -> None:
            self.told.append((name, outcome.status))

        self.rereading.park(PID, Parked(lambda: self.told.append((name, None)), give_up))

    async def end(self, number: int, error: LogError | None = None) -> None:
        """A reading ends."""
        await settle()
        reading = self.read.readings[number]
        if error is None:
            reading.set_result(None)
        else:
            reading.set_exception(error)
        await settle()


async def test_a_batch_waits_for_a_reading_that_began_behind_it() -> None:
    bench = Bench()
    bench.park("a")
    await settle()
    bench.park("b")
    await bench.end(0)
    assert bench.told == [("a", None)]
    assert bench.rereading.holds(PID)
    await bench.end(1)
    assert bench.told == [("a", None), ("b", None)]
    assert not bench.rereading.holds(PID)


async def test_what_waits_behind_a_failed_one_is_given_up_and_the_next_is_not() -> None:
    bench = Bench()
    bench.park("a")
    bench.park("b")
    bench.rereading.fail(PID)
    await bench.end(0)
    assert bench.told == [("a", Status.FAILED), ("b", Status.FAILED)]
    bench.park("c")
    await bench.end(1)
    assert bench.told[2:] == [("c", None)]


async def test_a_reading_that_fails_fails_what_waits_behind_it_too() -> None:
    bench = Bench()
    bench.park("a")
    await settle()
    bench.park("b")
    await bench.end(0, LogError("away"))
    await bench.end(1)
    assert bench.told == [("a", Status.FAILED), ("b", Status.FAILED)]
    bench.park("c")
    await bench.end(2)
    assert bench.told[2:] == [("c", None)]


async def test_a_failure_without_waiters_holds_nothing_up() -> None:
    bench = Bench()
    bench.rereading.fail(PID)
    bench.park("a")
    await bench.end(0)
    assert bench.told == [("a", None)]


async def test_batches_that_are_sent_again_do_not_fail_one_another() -> None:
    """Once two of a producer did, for ever, although each later reading succeeded."""
    bench = Bench()
    bench.park("a")
    await settle()
    bench.park("b")
    await bench.end(0, LogError("away"))
    bench.park("a again")  # while b still waits, which comes after the failed one
    await bench.end(1)
    bench.park("b again")
    await bench.end(2)
    await bench.end(3)
    failed = Status.FAILED
    assert bench.told == [("a", failed), ("b", failed), ("a again", None), ("b again", None)]
