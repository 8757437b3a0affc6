"""Named leases over whole lives of a server: kills, leases that end, topics made again, others."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from pidlease.coordination.file.file_names import FileNames
from pidlease.coordination.file.file_sequence import FileSequence
from pidlease.coordination.name_bindings import BindingChange, NamesError
from pidlease.coordination.pid_sequence import Coordination, SequenceError
from pidlease.core.blocks import PidBlock
from pidlease.core.judge import Age
from pidlease.core.lease import Lease, LeaseWanted
from pidlease.core.log_config import LogConfig
from pidlease.core.pid import Policy, make_pid
from pidlease.engine import lease_service
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.append_service import AppendService
from pidlease.engine.batch_identity import identified as judged_by
from pidlease.engine.engine import Engine, EngineConfig
from pidlease.engine.lease_service import LeaseService, UnknownPidError
from pidlease.engine.leases.leases import NoPidError
from pidlease.engine.named_leases import (
    NameBusyError,
    NameConflictError,
    NameTakenError,
    UnknownNameError,
)
from pidlease.engine.pending_batches import Submitted
from pidlease.kafka.records.identity_header import Identity
from pidlease.kafka.records.record_batch import read_header
from pidlease.kafka.records.writer_batch import crc_of_send, under_writer
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.storage.snapshots import SnapshotStore
from pidlease.storage.topics.topic_store import Topic
from tests.kafka_listener.batches import identified
from tests.sim.batches import TIME_MS
from tests.sim.files import SimFiles
from tests.sim.gate import SimulatedCrash
from tests.sim.pool import SeededPool
from tests.unit.engine.fakes import settle
from tests.unit.engine.server import DATA, LEASE_MS, NEVER, Server

STORED, FENCED = Status.APPENDED, Status.FENCED


async def begin() -> Server:
    return await Server(SimFiles()).start()


async def put(
    server: Server,
    lease: Lease,
    first: int,
    last: int = -1,
    *,
    partition: int = 0,
    records: int = 0,
) -> Outcome:
    """A batch under a lease; of as many records as its range has numbers, or as is said."""
    last = max(first, last)
    values: list[bytes | None] = [b"x"] * (records or last - first + 1)
    identity = Identity(lease.pid, "", lease.generation, first, last)
    data = bytearray(identified(values, identity))
    header = under_writer(read_header(data), data)
    told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    place = server.partition(partition)
    batch = judged_by(identity, header, crc_of_send(header, data))
    place.produce(Submitted(lease.pid, header, data, batch, told.set_result))
    return await told


async def request(server: Server, seq: int) -> Outcome:
    """A request of a producer with an id of its own."""
    identity = Identity(-1, "web", 0, seq, seq)
    data = bytearray(identified([b"%d" % seq], identity))
    return await AppendService(server.engine).append(server.partition(), data, identity)


async def ask(
    server: Server, partition: int = 0, *, renew: bool = False, policy: str = "strict"
) -> Lease:
    return await lease_of(server, LeaseWanted("t", partition, name="n", renew=renew, policy=policy))


async def lease_of(server: Server, wanted: LeaseWanted) -> Lease:
    return await LeaseService(server.engine, [wanted]).lease(wanted)


def end_leases(server: Server) -> None:
    server.now_ms += 3 * LEASE_MS
    while server.engine.leases.expire():
        pass


# ---------------------------------------------------------------------- who was forgotten


async def test_who_begins_again_after_its_lease_goes_on_over_a_kill() -> None:
    """Once a bug: a new request passed for the one that had its number a lease before."""
    server = await begin()
    for seq in range(5):
        assert (await request(server, seq)).status is STORED
    end_leases(server)
    assert (await request(server, 5)).expected == 0
    assert (await request(server, 0)).status is STORED
    server = await server.kill()
    assert (await request(server, 1)).status is STORED


async def test_a_monotonic_zombie_does_not_come_in_when_its_state_has_ended() -> None:
    """Once a bug: of whom nothing is known could begin anywhere, and stored it all twice."""
    server = await begin()
    first = await ask(server, policy="monotonic")
    assert (await put(server, first, 10)).status is STORED
    end_leases(server)
    second = await ask(server, policy="monotonic")
    assert second.pid != first.pid
    assert (await put(server, second, 11)).status is STORED
    assert (await put(server, first, 11)).status is Status.UNKNOWN


async def test_a_monotonic_zombie_does_not_come_in_behind_a_kill() -> None:
    """Its PID was leased late from its block, and the kill came before the next snapshot."""
    server = await begin()
    server.now_ms += 2 * LEASE_MS
    first = await ask(server, policy="monotonic")
    server = await server.kill()
    second = await ask(server, policy="monotonic")
    assert second.pid == first.pid, "the binding says that it lasts"
    assert (await put(server, second, 1)).status is STORED
    assert (await put(server, first, 1)).status is FENCED


async def test_a_monotonic_pid_without_a_name_is_nobody_s() -> None:
    server = await begin()
    pid = server.engine.leases.lease(Policy.MONOTONIC)
    assert (await put(server, Lease("t", 0, pid, 0, 0, 0, 0), 5)).status is Status.UNKNOWN


# ---------------------------------------------------------------------- what a name keeps


async def test_a_name_goes_on_where_history_is_missing_on_a_partition() -> None:
    """Once a bug: granted again and again, and UNKNOWN to the partition each time."""
    server = await begin()
    first = await ask(server)
    assert (await put(server, first, 0, 4)).status is STORED
    server.now_ms += 10
    await server.engine.delete_topic("t")
    await server.engine.create_topic(Topic.new("t", 2))
    server.now_ms += 10
    second = await ask(server)
    assert (await put(server, second, second.sequence_number)).status is STORED
    assert second.pid != first.pid
    third = await ask(server)
    assert (third.pid, third.sequence_number) == (second.pid, 1)


@pytest.mark.parametrize("policy", [Policy.STRICT, Policy.KAFKA])
async def test_a_pid_leased_after_its_topic_was_made_again_begins_there_after_a_kill(
    policy: Policy,
) -> None:
    """Once only its block counted then, which was older than the topic."""
    server = await begin()
    server.engine.leases.lease(policy)
    server.now_ms += 10
    await server.engine.delete_topic("t")
    await server.engine.create_topic(Topic.new("t", 2))
    server.now_ms += 10  # the clock stood still while the topic was made
    server.engine.leases.expire()
    await settle()
    pid = server.engine.leases.lease(policy)
    server = await server.kill()
    assert server.engine.leases.age(pid, server.partition().hole_ms) is Age.YOUNG


async def test_a_pid_leased_late_from_its_block_lasts_over_a_kill() -> None:
    server = await begin()
    server.now_ms += 2 * LEASE_MS
    first = await ask(server)
    assert (await put(server, first, 0)).status is STORED
    server = await server.kill()
    second = await ask(server, 1)
    assert second.pid == first.pid
    assert (await put(server, second, 0, partition=1)).status is STORED


async def test_a_renewal_lasts_over_a_kill() -> None:
    """Once a bug: the numbering was lost, and who had the PID before it was let in."""
    server = await begin()
    server.now_ms += LEASE_MS // 2
    first = await ask(server)
    assert (await put(server, first, 0, 99)).status is STORED
    await server.snapshot()
    server.now_ms += LEASE_MS * 9 // 10
    second = await ask(server, renew=True)
    assert (second.pid != first.pid, second.resume_at) == (True, 100)
    server = await server.kill()
    assert (await put(server, first, 100)).status is FENCED
    assert (await put(server, second, 0, 100, records=1)).status is STORED, "a chained range"
    third = await ask(server)
    assert (third.pid, third.resume_at) == (second.pid, 101)
    server = await server.kill()
    assert (await put(server, first, 100)).status is FENCED


async def test_what_came_under_the_pid_before_is_a_duplicate() -> None:
    """Once a bug: sent again after a renewal by ids of one's own, it was stored again."""
    server = await begin()
    first = await ask(server, policy="monotonic")
    assert (await put(server, first, 0, 9)).status is STORED
    server.now_ms += LEASE_MS * 9 // 10
    second = await ask(server, renew=True, policy="monotonic")
    assert (await put(server, second, 5, 9)).status is Status.DUPLICATE
    assert (await put(server, second, 10)).status is STORED
    assert (await put(server, second, 5, 9)).status is Status.DUPLICATE


async def test_the_numbering_outlives_a_pid_that_never_wrote() -> None:
    server = await begin()
    first = await ask(server)
    assert (await put(server, first, 0, 99)).status is STORED
    server.now_ms += LEASE_MS * 9 // 10
    second = await ask(server, renew=True)
    assert second.resume_at == 100
    await server.snapshot()
    server.now_ms += LEASE_MS // 2
    server = await server.kill()  # what wrote has its full lease again, what did not has not
    server.now_ms += LEASE_MS * 7 // 10
    server.engine.leases.expire()
    assert server.partition().producer(first.pid) is not None
    assert (await ask(server)).resume_at == 100


async def test_the_numbering_outlives_several_pids_and_a_start() -> None:
    """Once a start knew one PID before, and what an earlier one had stored was stored again."""
    server = await begin()
    first = await ask(server)
    assert (await put(server, first, 0, 4)).status is STORED
    for name in ("again", "once more"):
        await server.engine.create_topic(Topic.new(name, 1))
        server.now_ms += 10
        await server.engine.delete_topic(name)
        await server.engine.create_topic(Topic.new(name, 1))
        server.now_ms += 10
        other = await lease_of(server, LeaseWanted(name, 0, name="n"))
    assert other.pid != first.pid
    for _ in range(2):
        last = await ask(server)
        assert (last.pid, last.resume_at) == (other.pid, 5)
        server = await server.kill()
    assert (await put(server, await ask(server), 0, 4)).status is Status.DUPLICATE


async def test_numbers_from_before_a_release_do_not_continue_after_a_start() -> None:
    server = await begin()
    assert (await put(server, await ask(server), 0, 4)).status is STORED
    await server.engine.naming.release("n")
    pids = {(await ask(server)).pid}
    for _ in range(2):
        server.now_ms += LEASE_MS * 3 // 10
        pids.add((await ask(server, renew=True)).pid)
    assert len(pids) > 1
    server = await server.kill()
    last = await ask(server)
    assert last.resume_at == 0
    assert (await put(server, last, 0, 4)).status is STORED


async def test_a_start_knows_what_numbers_continue() -> None:
    """As the server that granted the name did, whatever grants and releases there were."""
    assert sum([await _restarts_that_continue(Random(seed)) for seed in range(16)]) > 10


async def _restarts_that_continue(random: Random) -> int:
    """Return at how many starts the numbers of former PIDs continued."""
    server = await begin()
    count = 0
    for _ in range(8):
        server.now_ms += random.randrange(LEASE_MS // 40)
        last = await ask(server, random.randrange(2), renew=random.random() < 0.7)
        if random.random() < 0.5:
            number, at = last.sequence_number, last.partition
            stored = await put(server, last, number, last.resume_at, partition=at, records=1)
            assert stored.status is STORED, stored
        if random.random() < 0.1:
            await server.engine.naming.release("n")
        if random.random() < 0.2:
            server.now_ms += LEASE_MS // 2
        server.engine.leases.expire()  # as a server does that runs for longer
        leases = [await ask(server, each) for each in range(2)]
        server = await server.kill()
        again = [await ask(server, each) for each in range(2)]
        assert [each.resume_at for each in again] == [each.resume_at for each in leases]
        count += any(each.resume_at > each.sequence_number for each in leases)
    return count


# ---------------------------------------------------------------------- what comes to nothing


async def test_failed_grants_take_one_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a bug: each try took another one, and a full disk filled the ring for a day."""
    server = await begin()

    def fail(*_: object) -> None:
        raise NamesError("no space left")

    monkeypatch.setattr(FileNames, "change_many", fail)
    before = len(server.engine.leases.ring)
    for _ in range(60):
        with pytest.raises(NamesError):
            await ask(server)
    assert len(server.engine.leases.ring) == before + 1
    monkeypatch.undo()
    await ask(server)
    assert len(server.engine.leases.ring) == before + 1


def lose_responses(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bindings are changed, and nothing returns, as when a connection to ZooKeeper ends."""
    bindings = server.engine.naming._bindings
    change = bindings.change_many

    def lost(changes: Sequence[BindingChange]) -> Any:
        change(changes)
        raise NamesError("no response")

    monkeypatch.setattr(bindings, "change_many", lost)


@pytest.mark.parametrize("again", ["release", "grant"])
async def test_a_release_without_a_response_fences(
    again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the producer of before went on beside the next one of its name, until a restart."""
    server = await begin()
    zombie = await ask(server)
    assert (await put(server, zombie, 0)).status is STORED
    with monkeypatch.context() as patched:
        lose_responses(server, patched)
        with pytest.raises(NamesError):
            await server.engine.naming.release("n")
    if again == "release":
        with pytest.raises(UnknownNameError):
            await server.engine.naming.release("n")
    else:
        assert (await put(server, await ask(server), 0)).status is STORED
    assert (await put(server, zombie, 1)).status is FENCED


@pytest.mark.parametrize("renew", [False, True])
async def test_a_grant_without_a_response_is_not_granted_again_after_a_release(
    renew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once its PID was kept for the next grant, which was fenced from the beginning."""
    server = await begin()
    with monkeypatch.context() as patched:
        lose_responses(server, patched)
        with pytest.raises(NamesError):
            await ask(server)
    if not renew:
        await server.engine.naming.release("n")
    assert (await put(server, await ask(server, renew=renew), 0)).status is STORED


async def test_a_release_fences_after_the_next_grant_and_a_restart() -> None:
    """Once the PID was in no binding any more: its producer went on beside the next one."""
    server = await begin()
    zombie = await ask(server)
    assert (await put(server, zombie, 0)).status is STORED
    await server.engine.naming.release("n")
    second = await ask(server)
    assert (second.resume_at, second.pid != zombie.pid) == (0, True)
    server = await server.kill()
    assert (await put(server, second, 0)).status is STORED
    assert (await put(server, zombie, 1)).status is FENCED


@pytest.mark.parametrize("steps", ["release, release", "release, renew", "renew, release"])
@pytest.mark.parametrize("writes", [True, False])
async def test_all_pids_of_a_name_are_fenced_after_a_restart(steps: str, writes: bool) -> None:
    """Once only the last one before was; also if none of them had written before the kill."""
    server = await begin()
    zombies = [await ask(server)]
    for step in [*steps.split(", "), "release"]:
        if writes:
            resume_at = zombies[-1].resume_at
            assert (await put(server, zombies[-1], 0, resume_at, records=1)).status is STORED
        if step == "release":
            await server.engine.naming.release("n")
        server.now_ms += LEASE_MS // 10
        zombies.append(await ask(server, renew=step == "renew"))
    *zombies, latest = zombies
    assert len({each.pid for each in (*zombies, latest)}) == 4
    for _ in range(2):
        server = await server.kill()
        for zombie in zombies:
            first = zombie.resume_at + 1 if writes else 0
            assert (await put(server, zombie, first)).status is FENCED
    assert (await put(server, latest, 0)).status is STORED


@pytest.mark.parametrize(
    "steps", ["start, ask", "ask, start, ask", "ask twice, start", "ask twice, start, ask"]
)
async def test_a_lease_that_a_start_began_anew_is_fenced_as_long(steps: str) -> None:
    """Once its fence ended with the lease as it was granted, or with the one of the PID after."""
    server = await begin()
    zombie = await ask(server)
    assert (await put(server, zombie, 0)).status is STORED
    await server.engine.naming.release("n")
    await server.snapshot()
    for step in steps.split(", "):
        if step == "start":
            server.now_ms += 2 * LEASE_MS
            server = await server.kill()
        for _ in range({"start": 0, "ask": 1, "ask twice": 2}[step]):
            await ask(server)
            await server.engine.naming.release("n")
    assert zombie.pid in server.engine.leases, "or nothing is tried"
    assert (await put(server, zombie, 1)).status is FENCED
    server = await server.kill()
    assert (await put(server, zombie, 1)).status is FENCED


async def test_a_renewal_after_the_lease_that_is_requested_again_is_the_same() -> None:
    """Once it was taken for another producer's, and fenced the only one."""
    server = await begin()
    first = await ask(server)
    end_leases(server)
    renewal = LeaseWanted(
        "t", 0, pid=first.pid, name="n", generation=first.generation, renew=True, policy="strict"
    )
    second = await lease_of(server, renewal)
    assert second.pid != first.pid
    again = await lease_of(server, renewal)
    assert (again.pid, again.generation) == (second.pid, second.generation)
    assert (await put(server, again, 0)).status is STORED


async def test_a_binding_keeps_no_pid_after_its_lease() -> None:
    server = await begin()
    bindings = server.engine.naming._bindings
    pids = []
    for elapsed_ms in (0, 0, LEASE_MS // 2, LEASE_MS // 2 - 1):
        server.now_ms += elapsed_ms
        pids.append((await ask(server)).pid)
        await server.engine.naming.release("n")
    assert [pid for pid, _ in bindings.all()["n"].fenced] == [pids[1], pids[0]]
    end_leases(server)
    await ask(server)
    assert bindings.all()["n"].fenced == ()


async def test_a_name_fences_no_more_pids_than_a_binding_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pidlease.engine.named_leases.FENCED_MAX", 3)
    server = await begin()
    for _ in range(5):
        await ask(server)
        await server.engine.naming.release("n")
    for _ in range(2):
        with pytest.raises(NameBusyError, match="3 other PIDs of the name"):
            await ask(server)
    end_leases(server)
    assert (await put(server, await ask(server), 0)).status is STORED


async def test_a_release_that_was_made_without_a_response_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The coordinator's client sends it again, and finds the change made."""
    server = await begin()
    await ask(server)
    bindings = server.engine.naming._bindings
    change = bindings.change_many

    def twice(changes: Sequence[BindingChange]) -> Any:
        change(changes)
        return change(changes)

    monkeypatch.setattr(bindings, "change_many", twice)
    await server.engine.naming.release("n")
    with pytest.raises(UnknownNameError):
        await server.engine.naming.release("n")


async def test_a_conflict_takes_none() -> None:
    server = await begin()
    await ask(server)
    before = len(server.engine.leases.ring)
    for _ in range(20):
        with pytest.raises(NameConflictError):
            await ask(server, renew=True, policy="monotonic")
    assert len(server.engine.leases.ring) == before


async def test_a_refused_grant_is_refused_for_the_whole_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = await begin()
    calls: list[object] = []

    def fail(*given: object) -> None:
        calls.append(given)
        raise NamesError("no space left")

    monkeypatch.setattr(FileNames, "change_many", fail)
    asks = [LeaseWanted("t", each, name="n") for each in range(2)]
    service = LeaseService(server.engine, asks)
    for each in asks:
        with pytest.raises(NamesError):
            await service.lease(each)
    assert len(calls) == 1


async def test_a_request_waits_once_for_a_coordinator_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once each of its leases waited; after a block that came, the next ones may wait again."""
    server = await begin()
    blocks = server.engine.leases.blocks
    monkeypatch.setattr(blocks, "_prefetch", lambda: None)
    while blocks.prepare():
        blocks.take()
    now, waits, came = 0.0, list[float](), list[PidBlock]()

    async def fetched(seconds: float) -> bool:
        nonlocal now
        waits.append(seconds)
        if came:
            now += seconds / 2
            blocks._next = came.pop()
        else:
            now += seconds
        return True

    monkeypatch.setattr(blocks, "fetched", fetched)
    monkeypatch.setattr(lease_service, "time", SimpleNamespace(monotonic=lambda: now))
    asks = [LeaseWanted("t", 0), LeaseWanted("t", 0, name="n"), *[LeaseWanted("t", 1)] * 3]
    service = LeaseService(server.engine, asks)
    for each in asks:
        with pytest.raises(NoPidError):
            await service.lease(each)
    assert waits == [2.0]
    service = LeaseService(server.engine, asks)
    for number in range(3):
        came.append(PidBlock(1000 + number, 1, server.now_ms))
        assert (await service.lease(asks[0])).pid >= 0
    assert waits[1:] == [2.0] * 3


async def test_a_grant_overtaken_on_the_way_to_the_owner_keeps_its_generation() -> None:
    """Once a bug: both producers had the later generation, and records of one passed for stored."""
    server = await begin()
    place = server.partition()
    place.elsewhere = "another server serves it"
    later: list[Lease] = []

    async def owner(wanted: LeaseWanted) -> Lease:
        place.elsewhere = ""
        later.append(await ask(server))
        return await lease_of(server, wanted)

    wanted = LeaseWanted("t", 0, name="n")
    first = await LeaseService(server.engine, [wanted], owner).lease(wanted)
    (second,) = later
    assert (first.pid, first.generation) == (second.pid, second.generation - 1)
    assert (await put(server, second, 0)).status is STORED
    assert (await put(server, first, 0)).status is FENCED


async def test_nothing_is_kept_of_names_that_are_gone() -> None:
    server = await begin()
    for number in range(50):
        wanted = LeaseWanted("t", 0, name=f"n{number}")
        await lease_of(server, wanted)
    end_leases(server)
    for number in range(50):
        await server.engine.naming.release(f"n{number}")
    assert server.engine.leases.fences == {}
    assert server.engine.naming.names == {}
    server = await server.kill()
    assert await server.engine.naming._pool.run(server.engine.naming._bindings.all) == {}


async def test_an_invented_pid_does_not_move_the_sequence() -> None:
    """Once a bug, with deduplication off: every lease failed, for ever."""
    server = await begin()
    await server.engine.alter_topic("t", {"pidlease.deduplication": "off"})
    invented = Lease("t", 0, make_pid(Policy.STRICT, 2**48 - 5), 0, 0, 0, 0)
    assert (await put(server, invented, 0)).status is Status.UNKNOWN
    server = await server.kill()
    assert server.lease() % (1 << 48) < 10_000


async def test_a_pid_of_another_policy_with_the_same_number() -> None:
    server = await begin()
    lease = await ask(server)
    other = replace(lease, pid=make_pid(Policy.KAFKA, lease.pid % (1 << 48)), generation=0)
    assert (await put(server, other, 0)).status is Status.UNKNOWN
    assert (await put(server, lease, 0)).status is STORED


# ---------------------------------------------------------------------- several servers


class Shared:
    """One coordinator of several servers, each with a log of its own."""

    def __init__(self) -> None:
        files = SimFiles()
        self.now_ms = TIME_MS
        path = Path("/coordinator")
        self.sequence = FileSequence(
            files, path / "blocks", "me", lambda: self.now_ms, 2 * LEASE_MS
        )
        self.sequence.shared = True
        self.names = FileNames(files, path / "names")

    async def server(self) -> Server:
        server = Server(SimFiles(), self.now_ms)
        pool = SeededPool(asyncio.get_running_loop(), Random(0))
        folder = DataDirectory(server.files, DATA, LogConfig(1200, retention_ms=-1), pool)
        server.engine = Engine(
            folder,
            SnapshotStore(server.files, folder.snapshots),
            Coordination(self.sequence, self.names),
            pool,
            EngineConfig(lease_ms=LEASE_MS, maintenance=NEVER),
            lambda: self.now_ms,
        )
        await server.engine.start()
        await server.engine.create_topic(Topic.new("t", 2))
        return server


async def test_a_name_at_two_servers_is_one_pid() -> None:
    """Once a bug: the second one took it for ended, and its numbering on the first was lost."""
    shared = Shared()
    one, other = await shared.server(), await shared.server()
    first = await ask(other)
    assert (await put(other, first, 0, 99)).status is STORED
    second = await ask(one)
    assert (second.pid, second.sequence_number) == (first.pid, 0)
    assert (await put(one, second, 0)).status is STORED
    third = await ask(other)
    assert (third.pid, third.resume_at) == (first.pid, 100)
    assert (await put(other, first, 100)).status is FENCED
    assert (await put(other, third, 100)).status is STORED


async def test_a_pid_that_another_server_has_granted_is_granted_to_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once it was kept for the next grant after a release: that producer was fenced at once."""
    shared = Shared()
    one, other = await shared.server(), await shared.server()
    for each in (one, other):
        each.engine.leases.keeps_fences = True
    with monkeypatch.context() as patched:
        lose_responses(one, patched)
        with pytest.raises(NamesError):
            await ask(one)
    first = await ask(other)
    one.engine.naming.note_grant("n", shared.names.all()["n"])
    await other.engine.naming.release("n")
    second = await ask(other)
    await other.engine.naming.release("n")
    third = await ask(one)
    assert third.pid not in {first.pid, second.pid}
    assert (await put(one, third, 0)).status is STORED


async def test_a_server_that_starts_fences_all_pids_of_a_name() -> None:
    """Two leases long: another server may have begun a lease anew at a start of its own."""
    shared = Shared()
    one = await shared.server()
    one.engine.leases.keeps_fences = True
    zombies = []
    for _ in range(4):
        zombies.append(await ask(one))
        await one.engine.naming.release("n")
    await ask(one)
    shared.now_ms += LEASE_MS + 1
    other = await shared.server()
    other.engine.leases.keeps_fences = True
    await other.engine.naming.load()
    for zombie in zombies:
        assert (await put(other, zombie, 0)).status is FENCED


async def test_a_name_of_a_long_run_is_granted_by_a_server_that_saw_nothing_of_it() -> None:
    """The appends have kept its lease, at the owner only: the numbering goes on there."""
    shared = Shared()
    owner, other = await shared.server(), await shared.server()
    for each in (owner, other):
        each.engine.leases.keeps_fences = True
    first = await ask(owner, policy="monotonic")
    other.engine.naming.note_grant("n", shared.names.all()["n"])
    for number in range(6):
        assert (await put(owner, first, 100 * number, 100 * number + 99)).status is STORED
        shared.now_ms += LEASE_MS // 2
        for each in (owner, other):
            each.engine.leases.expire()
    second = await ask(other, policy="monotonic")
    owner.engine.naming.note_grant("n", shared.names.all()["n"])
    assert second.pid != first.pid
    known = await lease_of(owner, LeaseWanted("t", 0, second.pid))
    assert (known.generation, known.resume_at) == (second.generation, 600)
    assert (await put(owner, first, 600)).status is FENCED
    assert (await put(owner, second, 550)).status is Status.DUPLICATE
    assert (await put(owner, second, 600)).status is STORED

    # The first of these ends without a write, and the next one goes on all the same.
    pids = {first.pid, second.pid}
    for _ in range(2):
        shared.now_ms += LEASE_MS + 1
        other.engine.leases.expire()
        next_one = await ask(other, policy="monotonic")
        owner.engine.naming.note_grant("n", shared.names.all()["n"])
        assert next_one.pid not in pids
        pids.add(next_one.pid)
        assert (await lease_of(owner, LeaseWanted("t", 0, next_one.pid))).resume_at == 601


class MadeAgain:
    """A name has a lease, and its topic is made again; another server owns both partitions."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.shared = Shared()
        self.asked: list[LeaseWanted] = []
        self.busy: set[int] = set()

    async def begin(self, *again: int) -> Lease:
        self.owner, self.other = await self.shared.server(), await self.shared.server()
        servers = (self.owner, self.other)
        for each in servers:
            each.engine.leases.keeps_fences = True
        lease = await ask(self.owner, policy=self.policy)
        self._read_fences(self.other)
        self.shared.now_ms += 1000
        for each in servers:
            for number in again:
                each.partition(number).table.hole_ms = self.shared.now_ms
        self.shared.now_ms += 1000
        for number in range(2):
            place = self.other.partition(number)
            place.elsewhere = "another server serves it"
            place.log.stop("another server serves it")
        return lease

    def _read_fences(self, server: Server) -> None:
        server.engine.naming.note_grant("n", self.shared.names.all()["n"])

    async def ask_owner(self, wanted: LeaseWanted) -> Lease:
        self.asked.append(wanted)
        self._read_fences(self.owner)
        if wanted.partition in self.busy:
            raise NameBusyError("no answer")
        return await lease_of(self.owner, wanted)

    async def lease(self, *partitions: int, held: Lease | None = None) -> list[Lease]:
        pid, generation = (-1, -1) if held is None else (held.pid, held.generation)
        batch = [LeaseWanted("t", each, pid, "n", self.policy, held is not None, generation)
                 for each in partitions]  # fmt: skip
        service = LeaseService(self.other.engine, batch, self.ask_owner)
        return [await service.lease(each) for each in batch]


async def test_a_name_gets_another_pid_if_an_owner_elsewhere_does_not_know_the_last_one() -> None:
    """Once it got the error of an unknown PID, and the next generation, for the rest of a lease."""
    it = MadeAgain("strict")
    first = await it.begin(0)
    (second,) = await it.lease(0)
    assert second.pid != first.pid
    assert (second.sequence_number, second.resume_at) == (0, 0)
    assert (await put(it.owner, second, 0)).status is STORED
    # From now on it goes on with that one.
    (third,) = await it.lease(0)
    assert (third.pid, third.generation) == (second.pid, second.generation + 1)
    assert third.sequence_number == 1


async def test_all_leases_of_a_request_have_the_same_pid() -> None:
    """Only the owner of the last partition does not know it; each owner is asked once."""
    it = MadeAgain("strict")
    first = await it.begin(1)
    assert (await put(it.owner, first, 0, 4)).status is STORED
    leases = await it.lease(0, 1)
    (pid,) = {each.pid for each in leases}
    assert pid != first.pid
    assert len({each.generation for each in leases}) == 1
    assert [each.resume_at for each in leases] == [5, 0]
    assert [(each.partition, each.pid) for each in it.asked] == [
        (0, first.pid), (1, first.pid), (0, pid), (1, pid),
    ]  # fmt: skip
    told = [await put(it.owner, each, 0, partition=each.partition) for each in leases]
    assert [each.status for each in told] == [Status.DUPLICATE, STORED]


async def test_an_owner_that_does_not_answer_keeps_no_other_lease_of_a_request() -> None:
    it = MadeAgain("strict")
    await it.begin(1)
    it.busy = {0}
    batch = [LeaseWanted("t", each, name="n") for each in range(2)]
    service = LeaseService(it.other.engine, batch, it.ask_owner)
    with pytest.raises(NameBusyError, match="no answer"):
        await service.lease(batch[0])
    found = await service.lease(batch[1])
    assert (await put(it.owner, found, 0, partition=1)).status is STORED


async def test_a_renewal_that_takes_two_grants_is_recognised() -> None:
    """Its PID came by a renewal just now, so it would be kept; the owner does not know it."""
    it = MadeAgain("strict")
    await it.begin()
    first = (await it.lease(0))[0]
    held = (await it.lease(0, held=first))[0]
    it.shared.now_ms += 1000
    it.owner.partition().table.hole_ms = it.shared.now_ms
    it.shared.now_ms += 1000
    renewed = (await it.lease(0, held=held))[0]
    assert renewed.pid not in {first.pid, held.pid}
    # The response was lost.
    again = (await it.lease(0, held=held))[0]
    assert (again.pid, again.generation) == (renewed.pid, renewed.generation)
    assert (await put(it.owner, again, 0)).status is STORED
    with pytest.raises(NameTakenError):
        await it.lease(0, held=first)


async def test_a_monotonic_name_goes_on_at_another_server_as_at_the_owner() -> None:
    it = MadeAgain("monotonic")
    first = await it.begin(0)
    (second,) = await it.lease(0)
    assert (second.pid, second.generation) == (first.pid, first.generation + 1)
    assert (second.sequence_number, second.resume_at) == (0, 0)
    assert (await put(it.owner, second, 7)).status is STORED
    # Without its name it could begin anywhere, and store again what another PID has stored.
    unnamed = make_pid(Policy.MONOTONIC, second.pid % (1 << 48) + 1)
    with pytest.raises(UnknownPidError):
        await lease_of(it.owner, LeaseWanted("t", 0, unnamed))


async def test_a_pid_that_another_server_leased_just_now_is_looked_up() -> None:
    shared = Shared()
    one, other = await shared.server(), await shared.server()
    pid = (await lease_of(other, LeaseWanted("t", 0))).pid
    wanted = LeaseWanted("t", 0, pid)
    assert (await lease_of(one, wanted)).pid == pid
    with pytest.raises(UnknownPidError, match="never leased"):
        await lease_of(one, LeaseWanted("t", 0, make_pid(Policy.STRICT, 10**9)))


async def test_a_pid_is_not_unknown_while_the_coordinator_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = Shared()
    one, other = await shared.server(), await shared.server()
    pid = (await lease_of(other, LeaseWanted("t", 0))).pid

    def away(beyond: int = 0) -> list[PidBlock]:
        raise SequenceError(f"nobody answers beyond {beyond}")

    with monkeypatch.context() as patch:
        patch.setattr(shared.sequence, "blocks", away)
        with pytest.raises(NameBusyError, match="cannot be looked up now"):
            await lease_of(one, LeaseWanted("t", 0, pid))
    assert (await lease_of(one, LeaseWanted("t", 0, pid))).pid == pid


@pytest.mark.parametrize("seed", range(6))
async def test_a_lease_of_an_old_server_outlives_a_kill(seed: int) -> None:
    """Its block was as old as the server; without its row it counted as a lease of long ago."""
    server = await Server(SimFiles(seed)).start()
    server.now_ms += 2 * LEASE_MS
    server.engine.leases.expire()
    await settle()
    unused = await lease_of(server, LeaseWanted("t", 0, policy="strict"))
    used = await lease_of(server, LeaseWanted("t", 0, policy="strict"))
    kafka = server.lease()
    assert (await put(server, used, 0)).status is STORED
    server = await server.kill(power=seed)
    server.now_ms += LEASE_MS // 2
    assert (await put(server, unused, 0)).status is STORED
    assert (await put(server, used, 0, partition=1)).status is STORED
    assert (await server.send(kafka, 1)).status is Status.GAP, "0 is on its way"
    assert (await server.send(kafka, 0)).status is STORED


@pytest.mark.parametrize("seed", range(12))
async def test_what_a_kill_left_in_the_names_file_is_durable_once_it_is_answered(seed: int) -> None:
    """Once a power cut took a renewal back that a restarted server had confirmed."""
    server = await Server(SimFiles(seed)).start()
    lease = await ask(server, policy="monotonic")
    assert (await put(server, lease, 0)).status is STORED

    def die_before_the_fsync(operation: str, path: Path) -> None:
        if operation == "fsync" and path == DATA / "sequence" / "names":
            server.files.on_operation = None
            server.files.crash_at(1)

    server.files.on_operation = die_before_the_fsync
    wanted = LeaseWanted("t", 0, pid=lease.pid, name="n", generation=lease.generation,
                         renew=True, policy="monotonic")  # fmt: skip
    with pytest.raises((SimulatedCrash, asyncio.CancelledError)):
        await lease_of(server, wanted)
    assert server.files.on_operation is None, "it died there"
    server = await server.kill()
    renewed = await lease_of(server, wanted)
    assert renewed.pid != lease.pid
    assert [(await put(server, renewed, number)).status for number in (1, 2)] == [STORED] * 2
    server = await server.kill(power=seed)
    again = await ask(server, policy="monotonic")
    assert max(again.sequence_number, again.resume_at) == 3
