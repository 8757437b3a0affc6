"""Topics deleted, extended and altered, records deleted: done, or not, at every crash."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from pidlease.core.log_config import FsyncPolicy
from pidlease.engine.append_outcome import Status
from pidlease.engine.engine import PartitionCountError, TooManyPartitionsError, UnknownTopicError
from pidlease.storage.errors import LogStoppedError, OffsetRangeError
from pidlease.storage.topics.topic_store import Topic
from tests.sim.files import SimFiles
from tests.sim.gate import SimulatedCrash
from tests.unit.engine.server import APPENDED, DATA, DUPLICATE, Server, known

Change = Callable[[Server], Awaitable[object]]
Prepare = Callable[[Server], Awaitable[None]]


async def filled(seed: int = 0, *, retention_bytes: int = -1) -> tuple[Server, int]:
    """Twelve records of one producer on each of two partitions, over several segments."""
    server = await Server(SimFiles(seed)).start(retention_bytes=retention_bytes)
    pid = server.lease()
    for number in range(2):
        await server.fill(pid, 0, 12, number)
    return server, pid


def crashes(
    change: Change, *, power: bool, snapshot: bool = False
) -> Iterator[Callable[[], Awaitable[tuple[Server, int, bool]]]]:
    """Die at each step of a change in turn, until it comes through; then start again.

    Yields what gives the server that was started again, its producer, and whether the change was
    answered before the crash.
    """
    done = False

    async def run(step: int) -> tuple[Server, int, bool]:
        nonlocal done
        server, pid = await filled(step)
        if snapshot:
            await server.snapshot()
        server.files.crash_at(step)
        try:
            await change(server)
            done = True
        except SimulatedCrash:
            assert server.files.crashed
        return await server.kill(power=step if power else None), pid, done

    step = 1
    while not done:
        yield lambda: run(step)  # noqa: B023 - called before the next step
        step += 1
    assert step > 2, "the change has no step to die at"


# ---------------------------------------------------------------------- deleting a topic


@pytest.mark.parametrize("restart", [False, True])
async def test_a_producer_goes_on_in_a_topic_made_again(*, restart: bool) -> None:
    """A gap would be fatal to librdkafka, and end all that the producer sends elsewhere."""
    server, pid = await filled()
    await server.engine.delete_topic("t")
    server.now_ms += 1
    await server.engine.create_topic(Topic.new("t", 2))
    server.now_ms += 1
    younger = server.lease()
    if restart:
        server = await server.kill()
    assert (await server.send(pid, 12)).status is APPENDED
    assert (await server.send(pid, 14)).status is Status.GAP, "it is known from then on"
    if not restart:  # a lease that no snapshot knows is as old as its block
        assert (await server.send(younger, 1)).status is Status.GAP, "it was never there"
    await server.engine.add_partitions("t", 3)
    assert (await server.send(pid, 7, partition=2)).status is APPENDED, "it may have had more"


async def test_a_topic_that_is_new_is_begun_at_0() -> None:
    server, pid = await filled()
    await server.engine.create_topic(Topic.new("u", 1))
    assert (await server.send(pid, 12, topic="u")).status is Status.GAP


async def test_a_deleted_topic_leaves_nothing() -> None:
    server, pid = await filled()
    other = server.lease()
    await server.snapshot()
    watched = asyncio.Event()
    partition = server.partition()
    partition.watch(watched)
    version = server.engine.topics_version
    told: list[Topic] = []

    async def note(topic: Topic) -> None:
        told.append(topic)

    server.engine.on_topic_deleted.append(note)
    await server.engine.delete_topic("t")
    assert watched.is_set()
    assert partition.gone
    assert server.engine.partition("t", 0) is None
    assert server.engine.topics == {}
    assert server.engine.topics_version > version
    assert [topic.name for topic in told] == ["t"]
    assert server.files.list(DATA / "logs") == []
    assert server.files.list(DATA / "topics") == []
    with pytest.raises(UnknownTopicError):
        await server.engine.delete_topic("t")
    await server.engine.create_topic(Topic.new("t", 1))
    assert known(server) == [{}]
    await server.fill(pid, 0, 3)
    await server.fill(other, 0, 2)
    before = known(server)
    for again in (await server.kill(), await server.kill(power=1)):
        assert known(again) == before, "the old topic's snapshot says nothing about the new one"
        assert again.partition().readable_end == 5


@pytest.mark.parametrize("power", [False, True])
async def test_a_topic_is_deleted_or_not_at_every_crash(*, power: bool) -> None:
    kept = 0
    for attempt in crashes(lambda s: s.engine.delete_topic("t"), power=power, snapshot=True):
        server, pid, answered = await attempt()
        partition = server.partition()
        if partition.readable_end:
            assert not answered, "what was answered is deleted"
            kept += 1
            assert partition.readable_end == server.partition(1).readable_end == 12
            assert (await server.send(pid, 11)).status is DUPLICATE
        else:
            # The harness makes it again where there is none.
            assert server.files.list(DATA / "topics") == ["t.json"]
            assert (await server.send(pid, 0)).status is APPENDED
            assert (await server.kill()).partition().readable_end == 1
    assert kept, "no crash came before the deletion"


async def test_in_flight_is_answered_before_the_topic_goes() -> None:
    server, pid = await filled()
    sends = [asyncio.ensure_future(server.send(pid, 12 + n)) for n in range(5)]
    await asyncio.sleep(0)
    await server.engine.delete_topic("t")
    assert [(await each).status for each in sends] == [APPENDED] * 5


@pytest.mark.parametrize("operation", ["rename", "fsync_folder"])
async def test_a_deletion_that_fails_changes_nothing(operation: str) -> None:
    server, pid = await filled()
    server.files.fail_next(operation, "*topics*")
    with pytest.raises(OSError, match="error"):
        await server.engine.delete_topic("t")
    assert not server.partition().gone
    assert (await server.send(pid, 12)).status is APPENDED
    assert (await server.kill(power=3)).partition().readable_end == 13


async def test_what_cannot_be_removed_goes_later() -> None:
    server, pid = await filled()
    server.files.fail_next("remove", "*t-1*.log")
    await server.engine.delete_topic("t")
    assert server.files.list(DATA / "logs") == ["t-1"]
    assert server.files.list(DATA / "topics") == ["t.gone"]
    await server.engine.create_topic(Topic.new("t", 2))
    assert server.partition(1).readable_end == 0, "not the old records under the new name"
    assert (await server.send(pid, 0, partition=1)).status is APPENDED


async def test_a_snapshot_while_a_topic_goes() -> None:
    server, pid = await filled()
    await asyncio.gather(server.snapshot(), server.engine.delete_topic("t"))
    again = await server.kill(power=0)
    assert again.partition().readable_end == 0
    assert (await again.send(pid, 0)).status is APPENDED


# ---------------------------------------------------------------------- more partitions, settings


@pytest.mark.parametrize("power", [False, True])
async def test_partitions_are_added_or_not_at_every_crash(*, power: bool) -> None:
    for attempt in crashes(lambda s: s.engine.add_partitions("t", 4), power=power):
        server, pid, answered = await attempt()
        count = len(list(server.engine.partitions_of("t")))
        assert count == 4 if answered else count in (2, 4)
        assert (await server.send(pid, 11)).status is DUPLICATE
        if count == 4:
            assert (await server.send(pid, 0, partition=3)).status is APPENDED
            assert (await server.kill(power=1)).partition(3).readable_end == 1


async def test_partitions_are_only_added() -> None:
    server, _ = await filled()
    for total in (0, 1, 2):
        with pytest.raises(PartitionCountError):
            await server.engine.add_partitions("t", total)
    with pytest.raises(TooManyPartitionsError):
        await server.engine.add_partitions("t", 10**9)
    with pytest.raises(UnknownTopicError):
        await server.engine.add_partitions("u", 3)


@pytest.mark.parametrize("power", [False, True])
async def test_settings_are_altered_or_not_at_every_crash(*, power: bool) -> None:
    settings = {"segment.bytes": "100000"}
    for attempt in crashes(lambda s: s.engine.alter_topic("t", settings), power=power):
        server, _, answered = await attempt()
        found = server.engine.topics["t"].overrides
        assert found == settings if answered else found in ({}, settings)


async def test_settings_hold_at_once() -> None:
    server, pid = await filled()
    segments = len(server.files.list(DATA / "logs/t-0"))
    await server.engine.alter_topic("t", {"segment.bytes": "100000", "pidlease.fsync": "never"})
    await server.fill(pid, 12, 40)
    assert len(server.files.list(DATA / "logs/t-0")) == segments, "no segment was rolled"
    assert server.partition().log.config.fsync is FsyncPolicy.NEVER  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="whole number"):
        await server.engine.alter_topic("t", {"segment.bytes": "many"})
    assert server.engine.topics["t"].overrides["segment.bytes"] == "100000"


async def test_what_was_left_to_the_system_is_safe_once_fsync_is_asked_for() -> None:
    server, pid = await filled()
    await server.engine.alter_topic("t", {"pidlease.fsync": "never"})
    await server.fill(pid, 12, 20)
    await server.engine.alter_topic("t", {"pidlease.fsync": "batch"})
    for seed in range(5):
        assert (await server.kill(power=seed)).partition().readable_end == 20


# ---------------------------------------------------------------------- deleting records


async def test_deleted_records_are_gone_and_producers_are_known_on() -> None:
    server, pid = await filled()
    assert await server.partition().delete_records(7) == 7
    again = server
    for power in (None, 2, None):
        partition = again.partition()
        assert partition.log.start_offset == 7
        with pytest.raises(OffsetRangeError):
            await partition.log.read(6, 1000)
        assert (await partition.log.read(7, 1000)).data
        assert (await again.send(pid, 11)).status is DUPLICATE, "replayed, deleted or not"
        again = await again.kill(power=power)
    assert again.partition().hole_ms == -1


@pytest.mark.parametrize("power", [False, True])
async def test_records_are_deleted_or_not_at_every_crash(*, power: bool) -> None:
    for attempt in crashes(lambda s: s.partition().delete_records(-1), power=power):
        server, pid, answered = await attempt()
        start = server.partition().log.start_offset
        assert start == 12 if answered else start in (0, 12)
        assert server.partition().readable_end == 12
        assert (await server.send(pid, 12)).status is APPENDED


async def test_segments_of_deleted_records_go_when_a_snapshot_covers_them() -> None:
    server, pid = await filled()
    await server.partition().delete_records(-1)
    names = server.files.list(DATA / "logs/t-0")
    await server.engine.maintenance.retain()
    assert set(names) <= set(server.files.list(DATA / "logs/t-0")), "no snapshot, nothing goes"
    await server.snapshot()
    await server.engine.maintenance.retain()
    assert server.partition().log.kept_offset == 12
    again = await server.kill(power=5)
    assert again.partition().log.start_offset == again.partition().readable_end == 12
    assert (await again.send(pid, 11)).status is DUPLICATE


async def test_an_offset_that_is_not_there_is_refused() -> None:
    server, _ = await filled()
    for before in (13, -2):
        with pytest.raises(OffsetRangeError):
            await server.partition().delete_records(before)
    assert await server.partition().delete_records(5) == 5
    assert await server.partition().delete_records(3) == 5, "as Kafka does: done already"


async def test_a_log_does_not_end_before_it_starts() -> None:
    """Without fsync the end may go back in a power cut; what the start says is fsynced first."""
    server, pid = await filled()
    await server.engine.alter_topic("t", {"pidlease.fsync": "never"})
    await server.fill(pid, 12, 20)
    await server.partition().delete_records(-1)
    for seed in range(5):
        again = await server.kill(power=seed)
        assert again.partition().log.start_offset == again.partition().readable_end == 20


async def test_a_damaged_start_stops_the_partition() -> None:
    server, _ = await filled()
    await server.partition().delete_records(7)
    server.files.flip(DATA / "logs/t-0/log-start", 3, 1)
    again = await server.kill()
    assert "where the log starts is unknown" in again.partition().log.stopped
    with pytest.raises(LogStoppedError):
        await again.partition().delete_records(-1)


# ---------------------------------------------------------------------- fsync


@pytest.mark.parametrize(("policy", "fsyncs"), [("never", 0), ("interval", 1)])
async def test_only_policy_interval_has_an_fsync_by_the_clock(policy: str, fsyncs: int) -> None:
    """Once `never` had one each second, too."""
    server = await Server(SimFiles()).start()
    await server.engine.alter_topic("t", {"pidlease.fsync": policy})
    await server.fill(server.lease(), 0, 3, 0)
    before = len(server.files.trace)
    await server.engine.maintenance._flush()
    done = [str(each) for each in server.files.trace[before:] if each.operation == "fsync"]
    assert len(done) == fsyncs, done
    await server.partition().log.flush()
    assert not server.partition().log.stopped


# ---------------------------------------------------------------------- a partition in doubt


@pytest.mark.parametrize("seed", range(6))
async def test_a_stopped_partition_does_not_take_the_snapshots_along(seed: int) -> None:
    """Once a fault: its place in the vector ran ahead of the disk, and the start threw all away."""
    server = await Server(SimFiles(seed)).start()
    pid = server.lease()
    await server.engine.alter_topic("t", {"pidlease.fsync": "interval"})
    for number in range(2):
        await server.fill(pid, 0, 3, number)
    await server.snapshot()
    await server.fill(pid, 3, 6, 0)
    server.files.fail_next("fsync", "/data/logs/t-0/*.log")
    for _ in range(3):
        # None is better than one that leaves it out: its producers would be forgotten one day.
        with pytest.raises(LogStoppedError):
            await server.snapshot()
    assert server.partition(0).log.stopped
    await server.fill(pid, 3, 12, 1)
    await server.engine.maintenance._flush()
    again = await server.kill(power=seed)
    assert again.engine.maintenance.newest is not None
    assert (await again.send(pid, 2)).status is DUPLICATE
    assert (await again.send(pid, 11, partition=1)).status is DUPLICATE
