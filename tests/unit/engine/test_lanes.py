"""Batches on their way into Kafka: many at a time, through lost answers, late writes and deaths."""

import asyncio
from collections.abc import Callable

import pytest

from pidlease.core.pid import Policy, make_pid
from pidlease.engine.frontier import Frontier
from pidlease.engine.outcome import Outcome, Status
from pidlease.engine.whose import batch_of
from pidlease.storage.ports import LATE_MS, Forwarded
from pidlease.storage.record_batch import read_header
from tests.crash.seeds import SOAK, new_random
from tests.sim.batches import make_batch
from tests.unit.engine.fakes import settle
from tests.unit.engine.kafka_sim import World

RUNS = 400 if SOAK else 25
PID, OTHER = make_pid(Policy.KAFKA, 1), make_pid(Policy.KAFKA, 2)


@pytest.mark.parametrize("number", range(RUNS))
async def test_exactly_once_whatever_becomes_of_answers(number: int) -> None:
    world = World(new_random(f"lanes-{number}"), producers=4, batches=60)
    await world.run(1500)
    world.check()
    for what in ("refused", "timed out", "cut", "killed"):
        assert world.happened.get(what), f"no batch was {what}: {world.happened}"


@pytest.mark.parametrize("number", range(RUNS))
async def test_exactly_once_under_the_writer(number: int) -> None:
    world = World(new_random(f"writer-{number}"), producers=1, batches=60, strict=4)
    await world.run(2500)
    world.check()
    for what in ("refused", "timed out", "cut", "killed", "stopped"):
        assert world.happened.get(what), f"no server or batch was {what}: {world.happened}"


async def test_what_is_read_again_is_not_applied_again() -> None:
    world = World(new_random("lanes-again"), producers=1, batches=9)
    world.faults = False
    await world.run(0)
    before = dict(world.partition.producers)
    end = world.kafka.end
    for upto in (end // 2, end):
        await world.partition.read_on(world.log, 0, upto)
        assert world.partition.producers == before


async def test_what_another_server_let_in_is_no_gap() -> None:
    """A client has gone by another server meanwhile: the log is asked before it is refused."""
    world = World(new_random("lanes-elsewhere"), producers=1, batches=9)
    world.faults = False
    (client,) = world.clients
    client.send()
    await _go(world, lambda: 0 in client.acked)
    elsewhere = make_batch([b"1"], pid=client.pid, epoch=0, first=1)
    assert world.kafka.take(bytes(elsewhere))[0] == 0
    told: list[Outcome] = []
    data = make_batch([b"2"], pid=client.pid, epoch=0, first=2)
    header = read_header(data)
    world.partition.produce(client.pid, header, data, batch_of(header), told.append)
    await _go(world, lambda: bool(told))
    assert [each.status for each in told] == [Status.APPENDED]


async def test_nothing_is_sent_before_the_writer_s_marker_is_read() -> None:
    """Until then the writer before may still write."""
    world = World(new_random("lanes-marker"), producers=0, batches=9, strict=1)
    world.faults = False
    (client,) = world.clients
    client.send()
    for _ in range(20):
        while world.gates:
            world.gates.popleft().set()
        await settle()
    assert len(world.markers) == 1
    assert not any(world.log.out.values())
    await _go(world, lambda: 0 in client.acked)


async def _go(world: World, until: Callable[[], bool], *, sends: bool = True) -> None:
    """Everything goes its way, one thing behind the other."""
    for _ in range(500):
        if until():
            return
        world._read()
        if sends:
            world._arrive()
            world._answer()
        if world.markers:
            world._mark()
        await settle()
    raise AssertionError("it does not happen")


# ---------------------------------------------------------------------- how far it is applied


def settled() -> Frontier:
    """One that is past the doubts of its beginning."""
    frontier = Frontier(10, -LATE_MS)
    assert (frontier.doubts(PID, heard=False), frontier.doubts(PID, heard=True)) == (True, False)
    assert frontier.overdue(0)
    frontier.read(10, 0)
    assert not frontier.doubts(PID, heard=False)
    return frontier


def test_a_life_before_may_still_write() -> None:
    frontier = Frontier(10, 0)
    frontier.sent("a")
    frontier.landed("a", 20)
    assert frontier.applied == 10
    frontier.read(20, 1)
    assert (frontier.applied, frontier.overdue(1)) == (20, False)
    assert frontier.doubts(PID, heard=False)


def test_answers_in_any_order() -> None:
    frontier = settled()
    frontier.sent("a")
    frontier.sent("b")
    frontier.landed("b", 15)
    assert (frontier.applied, frontier.end) == (10, 15)
    frontier.sent("c")
    frontier.landed("a", 12)
    assert (frontier.applied, frontier.end) == (15, 15)
    frontier.refused("c")
    assert frontier.applied == 15


def test_what_may_still_be_written_holds_it_back() -> None:
    frontier = settled()
    frontier.sent("a")
    frontier.lost("a", PID, 0)
    frontier.sent("b")
    frontier.landed("b", 20)
    assert (frontier.applied, frontier.doubts(PID, heard=True)) == (10, True)
    frontier.read(20, LATE_MS - 1)  # it may come yet, but not before that
    assert (frontier.applied, frontier.doubts(PID, heard=True)) == (20, True)
    frontier.sent("c")
    frontier.landed("c", 30)
    assert frontier.applied == 20
    frontier.read(30, LATE_MS)
    assert (frontier.applied, frontier.doubts(PID, heard=True)) == (30, False)


def test_what_came_behind_settles_it() -> None:
    frontier = settled()
    for key, producer in (("a", PID), ("b", OTHER)):
        frontier.sent(key)
        frontier.lost(key, producer, 0)
    frontier.sent("c")
    frontier.landed("c", 30)
    frontier.settled(PID)
    assert frontier.applied == 10
    assert (frontier.doubts(PID, heard=True), frontier.doubts(OTHER, heard=True)) == (False, True)
    frontier.settled(OTHER)
    assert frontier.applied == 30


def test_an_older_loss_of_the_same_producer_counts() -> None:
    frontier = settled()
    frontier.sent("a")
    frontier.lost("a", PID, 0)
    frontier.sent("b")
    frontier.landed("b", 20)
    frontier.sent("c")
    frontier.lost("c", PID, 5)
    assert frontier.applied == 10


async def test_what_a_lease_tells_is_read_first() -> None:
    """Stored, and never answered: who takes the producer over is not to use the number again."""
    world = World(new_random("lanes-lease"), producers=0, batches=9, strict=1)
    world.faults = False
    (client,) = world.clients

    client.send()
    await _go(world, lambda: any(world.log.out.values()), sends=False)
    (queue,) = world.log.out.values()
    new, told = queue.popleft()
    assert world.kafka.take(bytes(new.data))[0] == 0
    told(Forwarded(0, -1, reason="cut"))
    assert world.partition.producer(client.pid) is None
    asked = asyncio.create_task(world.partition.sure_of(client.pid))
    await _go(world, asked.done, sends=False)
    assert asked.result()
    state = world.partition.producer(client.pid)
    assert state is not None
    assert state.high == 0
