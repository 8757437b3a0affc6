"""Batches on their way into Kafka: many at a time, through lost answers, late writes and deaths."""

import asyncio
from collections.abc import Callable

import pytest

from pidlease.core.pid import Policy, make_pid
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.appenders import kafka_appender as lanes
from pidlease.engine.appenders import writer_appender as writing
from pidlease.engine.appenders.applied_offset import AppliedOffset
from pidlease.engine.batch_identity import batch_of
from pidlease.engine.pending_batches import Submitted
from pidlease.kafka.records.record_batch import read_header
from pidlease.log.ports import LATE_MS, Forwarded
from pidlease.storage.errors import LogError
from tests.crash.seeds import SOAK, new_random
from tests.sim.batches import make_batch
from tests.unit.engine.fakes import settle
from tests.unit.engine.kafka_sim import NOT_ENOUGH_REPLICAS, WRITER_MS, SimLog, StrictClient, World

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
    world = World(new_random(f"writer-{number}"), producers=1, batches=60, strict=4, epoch=1)
    await world.run(2500)
    world.check()
    for what in ("refused", "timed out", "cut", "killed", "stopped"):
        assert world.happened.get(what), f"no server or batch was {what}: {world.happened}"


@pytest.mark.parametrize("number", range(RUNS))
async def test_exactly_once_while_clients_move_between_servers(number: int) -> None:
    world = World(new_random(f"moving-{number}"), producers=3, batches=60, moving=True)
    await world.run(2000)
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
    world.partition.produce(Submitted(client.pid, header, data, batch_of(header), told.append))
    await _go(world, lambda: bool(told))
    assert [each.status for each in told] == [Status.APPENDED]


async def test_what_failed_here_and_was_stored_elsewhere_holds_nothing_off() -> None:
    """Batches 1 and 2 have gone by another server after 1 failed here; the client is at 3."""
    world = World(new_random("lanes-failed"), producers=1, batches=9)
    world.faults = False
    (client,) = world.clients
    client.send()
    await _go(world, lambda: 0 in client.acked)
    told: list[Outcome] = []

    def produce(number: int) -> None:
        data = make_batch([b"%d" % number], pid=client.pid, epoch=0, first=number)
        header = read_header(data)
        world.partition.produce(Submitted(client.pid, header, data, batch_of(header), told.append))

    produce(1)
    await settle()
    _, failed = world.log.out.pop(client.pid).popleft()
    failed(Forwarded(NOT_ENOUGH_REPLICAS, -1, definite=True, reason="no"))
    await _go(world, lambda: bool(told), sends=False)
    for number in (1, 2):
        elsewhere = make_batch([b"%d" % number], pid=client.pid, epoch=0, first=number)
        assert world.kafka.take(bytes(elsewhere))[0] == 0
    produce(3)
    await _go(world, lambda: len(told) == 2)
    assert [each.status for each in told] == [Status.REFUSED, Status.APPENDED]
    assert [number for number, _ in client.stored()] == [0, 1, 2, 3]


async def test_what_follows_a_batch_that_was_refused_in_a_takeover_is_no_gap() -> None:
    """Once a bug: a client that gets a gap error raises its epoch.

    It sends all batches without an answer again under the new epoch, and one of them was stored.
    """
    world = World(new_random("lanes-takeover"), producers=1, batches=9, moving=True)
    world.faults = False
    (client,) = world.clients
    client.send()
    await _go(world, lambda: 0 in client.acked)
    world._stop()  # another server has taken the partition over since batch 1 was sent here
    told: list[Outcome] = []

    def produce(number: int) -> None:
        data = make_batch([b"%d" % number], pid=client.pid, epoch=0, first=number)
        header = read_header(data)
        world.partition.produce(Submitted(client.pid, header, data, batch_of(header), told.append))

    for at, number in enumerate((2, 3, 1, 2, 3, 5), 1):
        produce(number)
        await _go(world, lambda at=at: len(told) == at)  # type: ignore[misc]
    # A producer that is known here has no batch on the way to another server.
    assert [each.status for each in told] == [
        Status.FAILED, Status.FAILED, *[Status.APPENDED] * 3, Status.GAP,
    ]  # fmt: skip
    assert [number for number, _ in client.stored()] == [0, 1, 2, 3]


async def test_a_gap_is_one_when_no_batch_can_be_on_the_way_any_more() -> None:
    world = World(new_random("lanes-no-takeover"), producers=1, batches=9, moving=True)
    world.faults = False
    (client,) = world.clients
    client.send()
    await _go(world, lambda: 0 in client.acked)
    world._stop()
    world.now_ms += LATE_MS
    assert world.partition.settle()
    await _go(world, lambda: not world.partition.settle())
    told: list[Outcome] = []
    data = make_batch([b"2"], pid=client.pid, epoch=0, first=2)
    header = read_header(data)
    world.partition.produce(Submitted(client.pid, header, data, batch_of(header), told.append))
    await _go(world, lambda: bool(told))
    assert [each.status for each in told] == [Status.GAP]


async def test_stored_elsewhere_past_what_is_in_flight_is_no_gap() -> None:
    """Batches 1 and 2 went by another server, while this one still waits for its answer to 1."""
    world = World(new_random("lanes-past"), producers=1, batches=9)
    world.faults = False
    (client,) = world.clients
    client.send()
    await _go(world, lambda: 0 in client.acked)
    outcomes: dict[int, list[Outcome]] = {1: [], 2: [], 3: []}

    def produce(number: int) -> None:
        data = make_batch([b"%d" % number], pid=client.pid, epoch=0, first=number)
        header = read_header(data)
        done = outcomes[number].append
        world.partition.produce(Submitted(client.pid, header, data, batch_of(header), done))

    produce(1)
    await settle()
    for number in (1, 2):
        elsewhere = make_batch([b"%d" % number], pid=client.pid, epoch=0, first=number)
        assert world.kafka.take(bytes(elsewhere))[0] == 0
    produce(3)
    await _go(world, lambda: len(world.log.out[client.pid]) == 2, sends=False)
    produce(2)  # a retry is answered while 1 and 3 are in flight, when the log was asked
    while not outcomes[2]:
        world._read()
        await settle()
    assert [each.offset for each in outcomes[2]] == [2]
    assert outcomes[2][0].status is Status.DUPLICATE
    await _go(world, lambda: all(outcomes.values()))
    assert [each.status for each in (*outcomes[1], *outcomes[3])] == [Status.APPENDED] * 2
    assert [number for number, _ in client.stored()] == [0, 1, 2, 3]


@pytest.mark.parametrize("policy", [Policy.KAFKA, Policy.STRICT])
async def test_nothing_of_a_former_topic_is_a_duplicate(policy: Policy) -> None:
    """The topic was deleted and created again, and the server has not noticed."""
    if policy is Policy.KAFKA:
        world = World(new_random("lanes-former"), producers=1, batches=9)
        world.faults = False
    else:
        world = await _with_writer("lanes-former-strict")
    (client,) = world.clients
    if not client.acked:
        client.send()
    await _go(world, lambda: 0 in client.acked)
    world.kafka.topic_id = "other"
    told: list[Outcome] = []
    client._produce(0, told.append)
    await settle()
    assert not told, "the log is asked first"
    await _go(world, lambda: bool(told), sends=False)
    assert [each.status for each in told] == [Status.STOPPED]
    assert world.log.stopped == "another topic"


@pytest.mark.parametrize("policy", [Policy.KAFKA, Policy.STRICT])
async def test_after_a_sign_of_another_log_the_log_is_asked_first(policy: Policy) -> None:
    if policy is Policy.KAFKA:
        world = World(new_random("lanes-sign"), producers=1, batches=9)
        world.faults = False
    else:
        world = await _with_writer("lanes-sign-strict")
    (client,) = world.clients
    if not client.acked:
        client.send()
    await _go(world, lambda: 0 in client.acked)
    world.log.confirmed = False
    told: list[Outcome] = []
    client._produce(1, told.append)
    await settle()
    assert not any(world.log.out.values()), "it is not sent"
    await _go(world, lambda: bool(told))
    assert [each.status for each in told] == [Status.APPENDED]
    assert world.log.confirmed


@pytest.mark.parametrize("known", [True, False], ids=["another server serves", "nobody answers"])
async def test_a_server_that_was_replaced_finds_no_gap(
    monkeypatch: pytest.MonkeyPatch, *, known: bool
) -> None:
    """Its successor has stored batch 1 before what was applied here since: no reading finds it."""
    world = World(new_random("lanes-replaced"), producers=1, batches=9, moving=True)
    world.faults = False
    (client,) = world.clients
    client.send()
    await _go(world, lambda: 0 in client.acked)
    world.now_ms += LATE_MS
    assert world.partition.settle()
    await _go(world, lambda: not world.partition.settle())
    replaced, log = world.partition, world.log
    world._stop()
    client._server = None  # it reaches the successor
    client.send()
    await _go(world, lambda: 1 in client.acked)
    outcomes: list[Outcome] = []

    def produce(pid: int, number: int) -> None:
        data = make_batch([b"%d" % number], pid=pid, epoch=0, first=number)
        header = read_header(data)
        replaced.produce(Submitted(pid, header, data, batch_of(header), outcomes.append))

    successor, world.log = world.log, log
    produce(0, 0)
    await _go(world, lambda: bool(outcomes))
    assert replaced.applied_offset == world.kafka.end == 3
    world.log = successor
    if not known:
        monkeypatch.setattr(SimLog, "owned", _nobody_answers)
    produce(client.pid, 2)
    await _go(world, lambda: len(outcomes) == 2)
    assert outcomes[0].status is Status.APPENDED
    assert outcomes[1].status is (Status.NOT_OWNER if known else Status.FAILED), outcomes[1]


async def _nobody_answers(_: SimLog) -> bool:
    raise LogError("nobody answers")


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


def settled() -> AppliedOffset:
    """One that is past the doubts of its beginning."""
    applied_offset = AppliedOffset(10, -LATE_MS)
    assert (
        applied_offset.doubts(PID, acknowledged=False),
        applied_offset.doubts(PID, acknowledged=True),
    ) == (
        True,
        False,
    )
    assert applied_offset.overdue(0)
    applied_offset.read(10, 0)
    assert not applied_offset.doubts(PID, acknowledged=False)
    return applied_offset


def test_a_life_before_may_still_write() -> None:
    applied_offset = AppliedOffset(10, 0)
    applied_offset.sent("a")
    applied_offset.landed("a", 20)
    assert applied_offset.applied == 10
    applied_offset.read(20, 1)
    assert (applied_offset.applied, applied_offset.overdue(1)) == (20, False)
    assert applied_offset.doubts(PID, acknowledged=False)


def test_answers_in_any_order() -> None:
    applied_offset = settled()
    applied_offset.sent("a")
    applied_offset.sent("b")
    applied_offset.landed("b", 15)
    assert (applied_offset.applied, applied_offset.end) == (10, 15)
    applied_offset.sent("c")
    applied_offset.landed("a", 12)
    assert (applied_offset.applied, applied_offset.end) == (15, 15)
    applied_offset.refused("c")
    assert applied_offset.applied == 15


def test_what_may_still_be_written_holds_it_back() -> None:
    applied_offset = settled()
    applied_offset.sent("a")
    applied_offset.lost("a", PID, 0)
    applied_offset.sent("b")
    applied_offset.landed("b", 20)
    assert (applied_offset.applied, applied_offset.doubts(PID, acknowledged=True)) == (10, True)
    applied_offset.read(20, LATE_MS - 1)  # it may come yet, but not before that
    assert (applied_offset.applied, applied_offset.doubts(PID, acknowledged=True)) == (20, True)
    applied_offset.sent("c")
    applied_offset.landed("c", 30)
    assert applied_offset.applied == 20
    applied_offset.read(30, LATE_MS)
    assert (applied_offset.applied, applied_offset.doubts(PID, acknowledged=True)) == (30, False)


def test_what_came_behind_settles_it() -> None:
    applied_offset = settled()
    for key, producer in (("a", PID), ("b", OTHER)):
        applied_offset.sent(key)
        applied_offset.lost(key, producer, 0)
    applied_offset.sent("c")
    applied_offset.landed("c", 30)
    applied_offset.settled(PID)
    assert applied_offset.applied == 10
    assert (
        applied_offset.doubts(PID, acknowledged=True),
        applied_offset.doubts(OTHER, acknowledged=True),
    ) == (
        False,
        True,
    )
    applied_offset.settled(OTHER)
    assert applied_offset.applied == 30


def test_an_older_loss_of_the_same_producer_counts() -> None:
    applied_offset = settled()
    applied_offset.sent("a")
    applied_offset.lost("a", PID, 0)
    applied_offset.sent("b")
    applied_offset.landed("b", 20)
    applied_offset.sent("c")
    applied_offset.lost("c", PID, 5)
    assert applied_offset.applied == 10


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


async def test_what_follows_a_batch_that_met_no_owner_is_no_gap() -> None:
    """The writer was taken by a server that does not own the partition: this one goes on."""
    world = World(new_random("lanes-owner"), producers=1, batches=9, strict=1)
    world.faults = False
    kafkas, ours = world.clients
    for client in (kafkas, ours):
        client.send()
    await _go(world, lambda: 0 in kafkas.acked and 0 in ours.acked)
    appender = world.partition._appends._writer_appender  # type: ignore[attr-defined]
    appender.fence()
    appender.lose("another server has taken it")
    for client in (kafkas, ours):
        client.send()
    assert (Status.NOT_OWNER, 0) in kafkas.errors & ours.errors
    await _go(world, lambda: not world.partition._appends.lost)
    for client in (kafkas, ours):  # it was on the wire already
        told: list[Outcome] = []
        client._produce(2, told.append)
        await _go(world, lambda told=told: bool(told))  # type: ignore[misc]
        assert [each.status for each in told] == [Status.FAILED]
    await world.run(0)
    world.check()


async def _with_writer(what: str) -> World:
    """A server that has the partition's writer, and nothing in flight."""
    world = World(new_random(what), producers=0, batches=9, strict=1)
    world.faults = False
    (client,) = world.clients
    client.send()
    await _go(world, lambda: 0 in client.acked)
    return world


@pytest.mark.parametrize("renewed", [False, True])
async def test_a_writer_is_taken_again_when_its_time_is_up(*, renewed: bool) -> None:
    """Kafka forgets a transactional id that nobody uses: somebody else would not be fenced."""
    world = await _with_writer("lanes-time")
    epoch = world.kafka.epoch
    world.now_ms += WRITER_MS - 1 + renewed
    world.clients[0].send()
    await _go(world, lambda: 1 in world.clients[0].acked)
    assert world.kafka.epoch == epoch + renewed


@pytest.mark.parametrize("renewed", [False, True])
async def test_a_writer_is_taken_again_before_its_numbers_wrap(*, renewed: bool) -> None:
    world = await _with_writer("lanes-wrap")
    appender = world.partition._appends._writer_appender  # type: ignore[attr-defined]
    epoch = world.kafka.epoch
    appender._sequence = writing._SEQUENCE_MAX - 1 + renewed
    assert appender.ready is not renewed
    if renewed:
        world.clients[0].send()
        await _go(world, lambda: 1 in world.clients[0].acked)
        assert world.kafka.epoch == epoch + 1
        assert world.kafka.stored[-1].base_sequence == 0


@pytest.mark.parametrize("replaced", [False, True])
async def test_what_waits_while_another_server_is_the_writer_is_validated_again(
    *, replaced: bool
) -> None:
    """A server is suspended while it renews its writer, after it has checked the owner."""
    world = await _with_writer("lanes-suspended")
    (client,) = world.clients
    assert isinstance(client, StrictClient)
    partition, log = world.partition, world.log
    appender = partition._appends._writer_appender  # type: ignore[attr-defined]
    for _ in range(5):
        client.send()
    told: list[Outcome] = []
    client._produce(6, told.append)  # it waits: five are in flight
    assert len(appender._waiting) == 1
    world.now_ms += WRITER_MS
    for _ in range(5):
        world._arrive()
        world._answer()
    await settle()
    world._read()  # it owns the partition
    await settle()
    suspended = world.gates.popleft()
    if replaced:
        world._stop()
        client._server = None  # it reaches the other server
        client.send()
        await _go(world, lambda: 6 in client.acked)
        assert not told
    world.log = log
    suspended.set()
    world.faults = False
    await _go(world, lambda: bool(told))
    assert told[0].status is (Status.FAILED if replaced else Status.APPENDED)
    rows = [number for number, _ in client.rows()]
    assert rows == sorted(set(rows))


async def test_a_question_has_no_answer_once_the_partition_is_handed_over() -> None:
    """Its state is forgotten then, and the producer would seem to begin at 0."""
    world = await _with_writer("lanes-handed-over")
    (client,) = world.clients
    world.now_ms += WRITER_MS
    asked = asyncio.create_task(world.partition.sure_of(client.pid))
    await settle()
    assert world.gates  # it takes the writer first
    world.partition.leave_to("another server serves it")
    await _go(world, asked.done)
    assert not asked.result()


@pytest.mark.parametrize("step_ms", [lanes._ASK_AGAIN_MS, -600_000])
async def test_it_is_asked_again_who_owns_the_partition(step_ms: int) -> None:
    """The server that took the writer is gone, and the coordinator says so later."""
    world = await _with_writer("lanes-owned")
    appends = world.partition._appends
    own, world.log = world.log, SimLog(world)
    appender = appends._writer_appender  # type: ignore[attr-defined]
    appender.fence()
    appender.lose("another server has taken it")
    for _ in range(20):
        assert appends.lost
        world._read()
        await settle()
    world.log = own
    world.now_ms += step_ms
    await _go(world, lambda: not appends.lost)
    world.clients[0].send()
    await _go(world, lambda: 1 in world.clients[0].acked)


async def test_doubts_end_when_nothing_can_come_any_more() -> None:
    world = World(new_random("lanes-settle"), producers=0, batches=0)
    assert not world.partition.settle(), "it is too early"
    world.now_ms += LATE_MS
    assert world.partition.settle()
    await _go(world, lambda: not world.partition.settle())


async def test_nothing_is_kept_of_a_producer_that_is_gone() -> None:
    world = World(new_random("lanes-gone"), producers=1, batches=1)
    world.faults = False
    await world.run(0)
    appends = world.partition._appends
    pid = world.clients[0].pid
    assert pid in appends._acknowledged  # type: ignore[attr-defined]
    world.partition.forget(pid)
    for kept in ("_acknowledged", "_known_until_ms", "_queues"):
        assert pid not in getattr(appends, kept), kept


def test_what_counts_as_not_applied_only_for_its_unknown_outcomes() -> None:
    """From a takeover on, batches of the former owner may arrive, until the log is read."""
    known = AppliedOffset(100, 0)
    assert known.unread() == 0
    known.sent("a")
    known.landed("a", 5_100)
    assert (known.applied, known.unread()) == (100, 5_000)
    known.read(5_100, 1)
    assert (known.applied, known.unread()) == (5_100, 0)
    known.sent("b")
    known.landed("b", 6_000)
    known.read(6_000, LATE_MS)
    known.sent("c")
    known.landed("c", 9_000)
    assert (known.applied, known.unread()) == (9_000, 0)
