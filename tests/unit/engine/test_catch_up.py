"""Batches that wait for the log to be read: each is answered, and none passes a failed one."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from typing_extensions import override

from pidlease.core.backoff import Backoff
from pidlease.core.state import Batch
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.appenders import catch_up
from pidlease.engine.appenders.catch_up import CatchUp, Parked
from pidlease.engine.pending_batches import Pending
from pidlease.log.ports import ForwardingLog
from pidlease.storage.errors import LogError, NotOwnerError
from pidlease.storage.snapshots import TopicPartition
from tests.servers.waiting import WAIT_S
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
        self.rereading = CatchUp(self.read, cast(ForwardingLog, SimpleNamespace(stopped="")))
        self.told: list[tuple[str, Status | None]] = []
        self.told_something = asyncio.Event()

    def park(self, name: str, pending: Pending | None = None) -> None:
        self.rereading.park(PID, self._parked(name, pending))

    def put_back(self, *names: str) -> None:
        self.rereading.put_back(PID, [self._parked(name, None) for name in names])

    def _parked(self, name: str, pending: Pending | None) -> Parked:
        def tell(outcome: Outcome | None = None) -> None:
            self.told.append((name, None if outcome is None else outcome.status))
            self.told_something.set()

        return Parked(tell, tell, pending)

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


class Waiting(Pending):
    """A batch of a Kafka client, whose request ends when the test says so."""

    patient = True

    def __init__(self, generation: int = 0) -> None:
        super().__init__(PID, None, bytearray(), Batch(generation, 0, 0, 1, 0))  # type: ignore[arg-type]
        self.over = False

    @property
    @override
    def ended(self) -> bool:
        return self.over


async def test_a_batch_whose_request_has_not_ended_waits_through_failed_readings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catch_up, "_BACKOFF", Backoff(0.0, 0.0))
    bench = Bench()
    bench.park("patient", Waiting())
    await bench.end(0, LogError("away"))
    bench.park("later", Waiting())
    await bench.end(1, LogError("away"))
    assert bench.told == []
    await bench.end(2)
    assert bench.told == [("patient", None), ("later", None)]


async def test_a_refusal_for_good_ends_the_wait() -> None:
    bench = Bench()
    bench.park("patient", Waiting())
    await bench.end(0, NotOwnerError("another"))
    assert bench.told == [("patient", Status.NOT_OWNER)]


async def test_a_batch_is_given_up_when_its_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catch_up, "_LOOK_SECONDS", 0.001)
    bench = Bench()
    ended, waits = Waiting(), Waiting()
    bench.park("ended", ended)
    bench.park("waits", waits)
    await settle()
    ended.over = True
    async with asyncio.timeout(WAIT_S):
        await bench.told_something.wait()
    assert bench.told == [("ended", Status.FAILED)], "while the reading goes on"
    await bench.end(0)
    assert bench.told == [("ended", Status.FAILED), ("waits", None)]


async def test_a_request_that_ends_as_the_reading_does_is_not_sent() -> None:
    bench = Bench()
    ended = Waiting()
    bench.park("ended", ended)
    await settle()
    ended.over = True
    await bench.end(0)
    assert bench.told == [("ended", Status.FAILED)]


async def test_a_higher_generation_ends_what_waits_under_a_lower_one() -> None:
    bench = Bench()
    bench.park("old", Waiting(0))
    await settle()
    bench.park("new", Waiting(1))
    await bench.end(0)
    assert bench.told == [("old", Status.FAILED)]
    await bench.end(1)
    assert bench.told == [("old", Status.FAILED), ("new", None)]


async def test_what_was_put_back_comes_before_what_waits() -> None:
    bench = Bench()
    bench.park("third", Waiting())
    await settle()
    bench.put_back("first", "second")
    await bench.end(0)
    assert bench.told == [], "the third must not overtake them"
    await bench.end(1)
    assert bench.told == [("first", None), ("second", None), ("third", None)]
    assert not bench.rereading.holds(PID)
