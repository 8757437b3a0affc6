"""Partitions that move between active servers: takeovers, hand-overs, and the fences of names."""

import asyncio
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from random import Random
from typing import Any

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from pidlease.coordination.fence_log import Fence
from pidlease.coordination.file.file_names import FileNames
from pidlease.coordination.file.file_sequence import FileSequence
from pidlease.coordination.members import Member
from pidlease.coordination.name_bindings import Binding
from pidlease.coordination.pid_sequence import Coordination
from pidlease.core.log_config import LogConfig
from pidlease.core.pid import Policy, make_pid
from pidlease.core.slots import SlotMap, slot_of
from pidlease.engine.append_outcome import FENCED_FOR_EVER, Status
from pidlease.engine.engine import Engine, EngineConfig
from pidlease.engine.partition import Partition
from pidlease.engine.shared_cluster import SharedCluster
from pidlease.engine.topics.topic_sync import TopicSync
from pidlease.engine.topics.topic_table import TopicTable
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.storage.errors import LogError
from pidlease.storage.snapshots import SnapshotStore
from pidlease.storage.topics.topic_store import Topic
from tests.sim.batches import TIME_MS
from tests.sim.files import SimFiles
from tests.sim.pool import SeededPool
from tests.unit.engine.server import APPENDED, DATA, DUPLICATE, LEASE_MS, NEVER, Server
from tests.unit.engine.shared_memory import Coordinator, Link, MemoryFences

NOT_OWNER, FENCED = Status.NOT_OWNER, Status.FENCED
ME, OTHER = 1, 2


async def never(self: SharedCluster) -> None:
    """A server that reads the map when the test says so."""
    await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def _moves_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedCluster, "_run", never)
    # Topics of the simulated directory come as those of Kafka do.
    monkeypatch.setattr(DataDirectory, "made_by_others", True)


class SharedServer(Server):
    """An active server of two; the test writes the map."""

    def __init__(self, files: SimFiles, now_ms: int = TIME_MS) -> None:
        super().__init__(files, now_ms)
        self.shared = Coordinator()
        self.fence_log = MemoryFences()

    @override
    async def start(self, *, retention_bytes: int = -1) -> "SharedServer":
        pool = SeededPool(asyncio.get_running_loop(), Random(0))
        folder = DataDirectory(self.files, DATA, LogConfig(1200, retention_ms=-1), pool)
        sequence = FileSequence(
            self.files, folder.sequence, "me", lambda: self.now_ms, 2 * LEASE_MS
        )
        snapshots = SnapshotStore(self.files, folder.snapshots)
        names = FileNames(self.files, folder.names)
        coordination = Coordination(sequence, names, fences=self.fence_log)
        self.link = Link(self.shared)
        own = Member(ME, "host:1", "127.0.0.1", 9001, "http://x")
        self.shared.members[OTHER] = own._replace(node_id=OTHER, server="host:2", joined=1)
        self.cluster = SharedCluster(self.link, own, pool, 10.0, lambda: self.shared.now)
        config = EngineConfig(lease_ms=LEASE_MS, maintenance=NEVER)
        self.engine = Engine(
            folder, snapshots, coordination, pool, config, lambda: self.now_ms, shared=self.cluster
        )
        await self.engine.start()
        assert self.engine.moves is not None
        self.engine.moves.start()
        await self.cluster.join()
        await self.engine.follow({"t": Topic("t", "1" * 32, 2, {})})
        return self

    async def assign(self, owner: int, number: int = 0, topic: str = "t") -> None:
        """Let a server own a partition, by the map."""
        slot, before = slot_of(topic, number), self.shared.slots
        owners, epochs = list(before.owners), list(before.epochs)
        owners[slot] = owner
        epochs[slot] += 1
        members = tuple(sorted(self.shared.members))
        self.shared.slots = SlotMap(tuple(owners), tuple(epochs), members, before.version + 1)
        await self.cluster.refresh()

    async def owns(self, number: int = 0) -> Partition:
        await self.assign(ME, number)
        await until(lambda: not self.partition(number).elsewhere)
        return self.partition(number)

    async def gives(self, number: int = 0) -> Partition:
        await self.assign(OTHER, number)
        partition = self.partition(number)
        await until(lambda: bool(partition.elsewhere) and not partition.landing)
        return partition


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not happened():  # noqa: ASYNC110 - turns of the loop are what is waited for
            await asyncio.sleep(0)


async def started() -> SharedServer:
    return await SharedServer(SimFiles(1)).start()


async def test_a_server_begins_with_no_partition() -> None:
    server = await started()
    pid = server.lease()
    outcome = await server.send(pid, 0)
    assert (outcome.status, outcome.reason) == (NOT_OWNER, "no server owns it now")
    await server.owns()
    assert (await server.send(pid, 0)).status is APPENDED
    assert (await server.send(pid, 0, partition=1)).status is NOT_OWNER


async def test_a_partition_that_comes_back_is_read_anew() -> None:
    server = await started()
    before = await server.owns()
    pid = server.lease()
    await server.fill(pid, 0, 5)
    await server.snapshot()
    await server.fill(pid, 5, 8)
    assert await server.gives() is before
    assert not before.producers
    assert before.elsewhere == "host:2 serves it"
    assert (await server.send(pid, 8)).status is NOT_OWNER
    after = await server.owns()
    assert after is not before
    assert before.gone
    assert (await server.send(pid, 7)).status is DUPLICATE
    assert (await server.send(pid, 8)).status is APPENDED
    moves = server.engine.moves
    assert moves is not None
    assert (moves.taken_over, moves.handed_over) == (2, 1)


async def test_what_the_snapshot_had_is_kept_while_another_server_owns_it() -> None:
    """And goes into later snapshots, so that the next takeover reads little."""
    server = await started()
    await server.owns()
    pid = server.lease()
    await server.fill(pid, 0, 3)
    await server.snapshot()
    await server.fill(pid, 3, 6)
    await server.gives()
    held = server.engine._table.held
    assert [each.snapshotted.next_offset for each in held.without(())] == [3]
    for _ in range(3):
        await server.snapshot()
    await server.owns()
    assert (await server.send(pid, 5)).status is DUPLICATE
    assert len(held) == 0


async def test_a_slot_that_went_away_and_came_back_is_taken_over_again() -> None:
    """Another server may have written, although this one never saw it own the partition."""
    server = await started()
    before = await server.owns()
    refresh, missed = server.cluster.refresh, []

    async def miss() -> bool:
        missed.append(server.shared.slots)
        return True

    server.cluster.refresh = miss  # type: ignore[method-assign]
    await server.assign(OTHER)
    server.cluster.refresh = refresh  # type: ignore[method-assign]
    assert missed
    assert not before.elsewhere
    after = await server.owns()
    await until(lambda: server.partition() is not before)
    after = server.partition()
    assert after.epoch == before.epoch + 2
    assert not after.elsewhere


async def test_a_partition_that_is_lost_while_its_log_is_read_is_not_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = await started()
    sync: Any = server.engine._following
    begin = sync._begin

    async def slow(partition: Partition) -> None:
        await begin(partition)
        await server.assign(OTHER)

    monkeypatch.setattr(sync, "_begin", slow)
    await server.assign(ME)
    moves = server.engine.moves
    assert moves is not None
    await until(lambda: bool(moves._takeovers))
    await until(lambda: not moves._takeovers)
    assert server.partition().elsewhere
    assert (await server.send(server.lease(), 0)).status is NOT_OWNER
    monkeypatch.setattr(sync, "_begin", begin)
    await server.owns()


async def test_a_snapshot_has_only_what_was_owned_all_the_while() -> None:
    server = await started()
    await server.owns(0)
    await server.owns(1)
    pid = server.lease()
    await server.fill(pid, 0, 2, partition=0)
    await server.fill(pid, 0, 2, partition=1)
    partitions = server.engine.partitions()
    names = [each.name for each in partitions]
    moves = server.engine.moves
    assert moves is not None
    assert await moves.verified(partitions) == set(names)
    # The map moves on, and this server has not seen it yet.
    slot, slots = slot_of("t", 0), server.shared.slots
    epochs = tuple(each + 2 * (at == slot) for at, each in enumerate(slots.epochs))
    server.shared.slots = slots._replace(epochs=epochs)
    assert await moves.verified(partitions) == {names[1]}
    assert not await moves.owns(names[0])
    assert await moves.owns(names[1])
    server.link.away = True
    with pytest.raises(LogError, match="not known now"):
        await moves.verified(partitions)
    server.link.away = False
    # It has gone, and come back: what was taken of it before is another one's.
    server.shared.slots = slots
    await server.gives(0)
    await server.owns(0)
    assert await moves.verified(partitions) == {names[1]}


async def test_a_server_that_is_adrift_serves_nothing_at_once() -> None:
    server = await started()
    before = await server.owns()
    server.link.away = True
    server.shared.now += 11
    await server.cluster.refresh()
    assert before.elsewhere
    server.link.away = False
    await server.cluster.refresh()
    await until(lambda: not server.partition().elsewhere)
    assert server.partition() is not before


# ---------------------------------------------------------------------- fences of names


def granted(pid: int, generation: int, former: int = -1) -> Fence:
    return Fence("name", Binding(pid, generation, former, TIME_MS))


async def test_a_grant_of_another_server_fences_here() -> None:
    server = await started()
    reader, leases = server.engine.fences, server.engine.leases
    assert reader is not None
    pid, former = make_pid(Policy.STRICT, 70_001), make_pid(Policy.STRICT, 70_000)
    server.fence_log.entries.append(granted(pid, 5, former))
    await reader.read()
    # The former PID has no lease here yet: it may come with a partition that is taken over.
    assert leases.fences == {pid: 5, former: FENCED_FOR_EVER}
    assert leases.formers == {pid: former}
    server.fence_log.entries.append(granted(pid, 6, former))
    await reader.read()
    assert leases.fences[pid] == 6


async def test_a_fence_outlives_the_lease_here() -> None:
    server = await started()
    reader, leases = server.engine.fences, server.engine.leases
    assert reader is not None
    pid = make_pid(Policy.STRICT, 70_001)
    server.fence_log.entries.append(granted(pid, 5))
    await reader.read()
    assert pid in leases
    server.now_ms += LEASE_MS + 1
    leases.expire()
    assert pid not in leases
    assert leases.fences[pid] == 5
    # It may come back with a partition that is taken over: then its name counts for rights.
    assert server.engine.naming.names == {pid: "name"}
    server.now_ms += 2 * LEASE_MS + 300_000
    await reader.read()
    assert pid not in leases.fences
    assert server.engine.naming.names == {}


async def test_fences_that_were_read_at_the_start_end_as_well() -> None:
    server = await started()
    reader, leases = server.engine.fences, server.engine.leases
    assert reader is not None
    pid = make_pid(Policy.STRICT, 70_001)
    server.engine.naming._bindings.change("name", None, Binding(pid, 9, -1, TIME_MS))
    await reader.begin(server.engine.naming.load)
    assert (leases.fences, server.engine.naming.names) == ({pid: 9}, {pid: "name"})
    server.now_ms += 3 * LEASE_MS + 300_000
    leases.expire()
    await reader.read()
    assert (leases.fences, server.engine.naming.names) == ({}, {})


async def test_a_reader_that_was_late_reads_all_bindings() -> None:
    server = await started()
    reader = server.engine.fences
    assert reader is not None
    pid = make_pid(Policy.STRICT, 70_001)
    server.engine.naming._bindings.change("other", None, Binding(pid, 9, -1, TIME_MS))
    server.fence_log.first = 1
    server.fence_log.entries.append(granted(pid, 9))
    await reader.read()
    assert server.engine.leases.fences[pid] == 9


async def test_an_unreadable_fence_log_says_nothing() -> None:
    server = await started()
    reader = server.engine.fences
    assert reader is not None
    server.fence_log.away = True
    with pytest.raises(LogError, match="fences of names"):
        await reader.read()


async def test_a_monotonic_pid_is_looked_up_before_it_is_unknown() -> None:
    """Only a fence shows that it may begin."""
    server = await started()
    leases = server.engine.leases
    pid = make_pid(Policy.MONOTONIC, 70_001)
    assert leases.unsure(pid)
    server.fence_log.entries.append(granted(pid, 5))
    await leases.look()
    assert not leases.unsure(pid)


# ---------------------------------------------------------------------- settings of topics


class OtherSettings:
    """What another server has stored as the settings of topics."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shared: dict[str, str] = {}
        self.own: dict[str, dict[str, str]] = {}
        self.changed = self.away = False
        self.reads = 0
        self._known = dict(self.own)
        patch = partial(monkeypatch.setattr, DataDirectory)
        patch("settings_changed", lambda _: self._is_changed())
        patch("read_settings", lambda _: self._read())
        patch("own_settings", lambda _, topic: self._known.get(topic.name, {}))

    def set(self, name: str = "", **settings: str) -> None:
        found = {f"pidlease.{each.replace('_', '.')}": value for each, value in settings.items()}
        self.changed = True
        if name:
            self.own[name] = found
        else:
            self.shared = found

    def _is_changed(self) -> bool:
        if self.away:
            raise OSError("away")
        return self.changed

    def _read(self) -> dict[str, str]:
        self.reads += 1
        self.changed, self._known = False, dict(self.own)
        return dict(self.shared)


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> OtherSettings:
    return OtherSettings(monkeypatch)


async def test_settings_that_another_server_changes_are_followed(others: OtherSettings) -> None:
    server = await started()
    await server.owns()
    pid = server.lease()
    others.set("t", policies="strict")
    version = server.engine.topics_version
    await server.cluster.refresh()
    await until(lambda: server.engine.topics_version > version)
    assert server.engine.topics["t"].overrides == {"pidlease.policies": "strict"}
    assert (await server.send(pid, 0)).status is Status.FORBIDDEN
    others.set("t")
    others.set(policies="epoch")
    await server.engine.follow_settings()
    assert server.engine.all_topics_settings == {"pidlease.policies": "epoch"}
    assert (await server.send(pid, 0)).status is Status.FORBIDDEN
    others.set()
    await server.engine.follow_settings()
    assert (await server.send(pid, 0)).status is APPENDED
    reads = others.reads
    await server.engine.follow_settings()
    assert others.reads == reads


async def test_a_takeover_knows_the_settings_of_before(others: OtherSettings) -> None:
    """A stream that another server has made and closed, for example."""
    server = await started()
    await server.engine.follow({"t": Topic("t", "1" * 32, 2, {}), "s": Topic("s", "2" * 32, 1, {})})
    assert server.partition(0, "s").gate is None
    others.set("s", stream_type="text/plain")
    others.set("t", policies="strict")
    others.away = True
    await server.assign(ME)
    for _ in range(100):
        await asyncio.sleep(0)
    assert server.partition().elsewhere
    others.away = False
    await until(lambda: not server.partition().elsewhere)
    assert server.partition(0, "s").gate is not None
    assert (await server.send(server.lease(), 0)).status is Status.FORBIDDEN


async def test_settings_that_are_invalid_here_leave_the_former_in_force(
    others: OtherSettings,
) -> None:
    server = await started()
    await server.owns()
    others.set("t", policies="strict")
    others.set(initial="zero")
    await server.engine.follow_settings()
    others.set("t", policies="newer")
    others.set(initial="newer")
    with capture_logs() as logs:
        await server.engine.follow_settings()
    assert sum("invalid here" in each["event"] for each in logs) == 2
    assert server.engine.topics["t"].overrides == {"pidlease.policies": "strict"}
    assert server.engine.all_topics_settings == {"pidlease.initial": "zero"}
    assert (await server.send(server.lease(), 0)).status is Status.FORBIDDEN
    assert (await server.gives()).elsewhere
    assert not (await server.owns()).elsewhere


async def test_a_look_that_fails_is_logged_and_followed_by_the_next(others: OtherSettings) -> None:
    server = await started()
    others.set("t", policies="strict")
    others.away = True
    with capture_logs() as logs:
        await server.cluster.refresh()
        await until(lambda: any("may be old" in each["event"] for each in logs))
    with pytest.raises(LogError, match="cannot be read now: away"):
        await server.engine.follow_settings()
    others.away = False
    await server.cluster.refresh()
    await until(lambda: bool(server.engine.topics["t"].overrides))


async def test_a_topic_of_an_older_list_has_its_newest_settings(others: OtherSettings) -> None:
    server = await started()
    u = Topic("u", "3" * 32, 1, {"pidlease.policies": "epoch"})
    others.set("u", policies="strict")
    await server.engine.follow_settings()
    await server.engine.follow({"t": server.engine.topics["t"], "u": u})
    assert server.engine.topics["u"].overrides == {"pidlease.policies": "strict"}
    await server.engine.follow({"t": server.engine.topics["t"]})
    others.set("u", policies="monotonic")
    await server.engine.follow_settings()
    await server.engine.follow({"t": server.engine.topics["t"], "u": u})
    assert server.engine.topics["u"].overrides == {"pidlease.policies": "monotonic"}


async def opening(monkeypatch: pytest.MonkeyPatch, server: SharedServer) -> asyncio.Event:
    """Begin a takeover of t-0 that goes on when the event is set."""
    waits, goes_on = asyncio.Event(), asyncio.Event()
    before = TopicTable.open_each

    async def slow(self: TopicTable, topic: Topic, numbers: Sequence[int]) -> Any:
        opened = await before(self, topic, numbers)
        if topic.topic_id == "1" * 32:
            waits.set()
            await goes_on.wait()
        return opened

    monkeypatch.setattr(TopicTable, "open_each", slow)
    await server.assign(ME)
    await waits.wait()
    return goes_on


async def test_a_slow_partition_delays_no_other_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await started()
    await server.engine.follow({"t": Topic("t", "1" * 32, 2, {}), "u": Topic("u", "2" * 32, 1, {})})
    goes_on = await opening(monkeypatch, server)
    moves = server.engine.moves
    assert moves is not None
    taken = moves.taken_over
    await server.assign(ME, topic="u")
    await until(lambda: moves.taken_over == taken + 1)
    assert not server.partition(topic="u").elsewhere
    await server.engine.create_topic(Topic("w", "3" * 32, 1, {}))
    assert server.partition(0).elsewhere
    goes_on.set()
    await until(lambda: not server.partition(0).elsewhere)
    assert (await server.send(server.lease(), 0)).status is APPENDED


async def test_partitions_that_cannot_be_opened_do_not_keep_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once the first sixteen of a topic kept all its later ones from being served."""
    server = await started()
    away, opened = set(range(20)), DataDirectory.open_partition

    def open_partition(self: DataDirectory, topic: Topic, number: int, known: int) -> Any:
        if topic.name == "u" and number in away:
            raise OSError("no broker leads it now")
        return opened(self, topic, number, known)

    await server.engine.follow(
        {"t": Topic("t", "1" * 32, 2, {}), "u": Topic("u", "2" * 32, 50, {})}
    )
    monkeypatch.setattr(DataDirectory, "open_partition", open_partition)
    before, moves = server.shared.slots, server.engine.moves
    assert moves is not None
    members = tuple(sorted(server.shared.members))
    mine = tuple(ME for _ in before.owners)
    epochs = tuple(each + 1 for each in before.epochs)
    server.shared.slots = SlotMap(mine, epochs, members, before.version + 1)
    await server.cluster.refresh()
    await until(lambda: moves.taken_over == 32)
    here = [each.name.partition for each in server.engine.partitions_of("u") if not each.elsewhere]
    assert here == list(range(20, 50))
    away.clear()
    await until(lambda: moves.taken_over == 52)


async def test_a_topic_made_again_during_its_takeover(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await started()
    old = server.partition(0)
    goes_on = await opening(monkeypatch, server)
    await server.engine.follow({"t": Topic("t", "4" * 32, 2, {})})
    assert old.gone
    new = server.partition(0)
    goes_on.set()
    moves = server.engine.moves
    assert moves is not None
    await until(lambda: not moves._takeovers)
    assert server.partition(0) is new
    assert new.topic_id == "4" * 32
    assert (await server.send(server.lease(), 0)).status is APPENDED


async def test_a_takeover_passes_leases_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the partition, from the rows that were there before; what it does not have is left."""
    server = await started()
    await server.owns()
    pids = [server.lease() for _ in range(3)]
    for pid in pids:
        await server.send(pid, 0)
    await server.snapshot()
    await server.gives()
    table, name = server.engine.leases._table, server.partition().name
    held = server.engine._table.held
    unloaded = held.unloaded(name)
    assert unloaded is not None
    assert [table.partitions(pid) for pid in pids] == [(unloaded,)] * 3
    late = server.lease()
    replay = TopicSync._replay

    async def longer(
        self: TopicSync, opened: Iterable[Partition], known: Container[int], cut: Container[int]
    ) -> None:
        await replay(self, opened, known, cut)
        unloaded.producers[late] = unloaded.producers[pids[0]]
        server.engine.leases.restore([late], unloaded)

    monkeypatch.setattr(TopicSync, "_replay", longer)
    partition = await server.owns()
    await until(lambda: not table.partitions(late))
    assert held.unloaded(name) is None
    assert partition.producers.keys() == set(pids)
    assert [table.partitions(pid) for pid in pids] == [(partition,)] * 3
    server.now_ms += 2 * LEASE_MS
    assert server.engine.leases.expire() == 4
    assert not partition.producers
