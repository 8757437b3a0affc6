"""The start: what was known before the stop is known after it, from whatever is left to read."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from pidlease.core.judge import judge
from pidlease.core.packed import judge_packed, unpack
from pidlease.core.rules import KAFKA
from pidlease.core.state import Batch
from pidlease.core.topic_partition import TopicPartition
from pidlease.engine import engine
from pidlease.engine.append_outcome import Status
from pidlease.engine.appenders.group_appender import GroupAppender
from pidlease.engine.producer_table import ProducerTable
from pidlease.engine.recovery import Base, Recovery, begin_at
from pidlease.engine.replay_progress import ReplayProgress
from pidlease.kafka.records.writer_batch import LoggedBatch
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.log.segments.embedded_log import EmbeddedPartitionLog
from pidlease.repair.survey import survey
from pidlease.storage.files import remove_tree
from pidlease.storage.snapshots import PartitionRows, SnapshotStore
from tests.sim.files import SimFiles
from tests.unit.engine.server import APPENDED, DATA, DUPLICATE, GAP, SNAPSHOTS, Server, known
from tests.unit.log.logs import bad_sector, segments


async def busy(server: Server, seed: int) -> None:
    """Batches of several producers and epochs, with snapshots in between."""
    random = Random(seed)
    producers = [[server.lease(), 0, 0, 0] for _ in range(4)]
    for _ in range(60):
        producer = random.choice(producers)
        if random.random() < 0.1:
            producer[1:] = [producer[1] + 1, 0, 0]
        partition, count = random.randrange(2), random.randint(1, 3)
        pid, epoch = producer[:2]
        first = producer[2 + partition]
        outcome = await server.send(pid, first, count, epoch=epoch, partition=partition)
        assert outcome.status is APPENDED
        producer[2 + partition] += count
        if random.random() < 0.08:
            await server.snapshot()


@pytest.mark.parametrize("seed", range(12))
async def test_live_apply_is_replay(seed: int) -> None:
    """From the newest snapshot, from the one before, and from the log alone."""
    server = await Server(SimFiles(seed)).start()
    await busy(server, seed)
    before = known(server)
    ends = [partition.next_offset for partition in server.engine.partitions()]
    for _ in range(3):
        server = await server.kill(power=seed)
        assert known(server) == before
        assert [p.next_offset for p in server.engine.partitions()] == ends
        numbers = SnapshotStore(server.files, SNAPSHOTS).numbers()
        if numbers:
            path = SNAPSHOTS / f"snapshot-{numbers[0]:012d}" / "producers.parquet"
            server.files.flip(path, 50, 1)


@pytest.mark.parametrize("ahead", ["", "its offset", "its states"])
async def test_what_other_servers_know_does_not_count_if_the_log_ends_before_it(
    ahead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka has cut the log since: when it has grown again, lost batches would be duplicates."""
    server = await Server(SimFiles(1)).start()
    pid, other = server.lease(), server.lease()
    await server.fill(pid, 0, 5)
    rows = server.partition().rows()
    moved = rows._replace(next_offset=rows.next_offset + (ahead == "its offset"),
                          end_offset=rows.next_offset + (ahead == "its states"))  # fmt: skip
    states = {**rows.producers, other: rows.producers[pid]}

    async def others(_: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionRows]:
        return {rows.partition: moved._replace(producers=states)}

    monkeypatch.setattr(engine, "Recovery", lambda *args: replace(Recovery(*args), others=others))
    server = await server.kill()
    assert server.partition().producers.keys() == ({pid} if ahead else {pid, other})
    assert server.partition().next_offset == rows.next_offset


@pytest.mark.parametrize("seed", range(6))
async def test_judging_what_was_restored_is_judging_what_was_saved(seed: int) -> None:
    server = await Server(SimFiles(seed)).start()
    await busy(server, seed)
    await server.snapshot()
    before = [dict(partition.producers) for partition in server.engine.partitions()]
    again = await server.kill()
    random = Random(seed)
    for states, partition in zip(before, again.engine.partitions(), strict=True):
        assert partition.producers == states, "arrival times included"
        for pid, packed in states.items():
            state = unpack(KAFKA, packed)
            for _ in range(200):
                first = max(0, state.high + random.randint(-12, 4))
                count = random.randint(1, 4)
                epoch = max(0, state.generation + random.randint(-1, 1))
                batch = Batch(epoch, first, first + count - 1, count, random.choice([0, 7]))
                assert judge_packed(KAFKA, partition.producers[pid], batch) == judge(
                    KAFKA, state, batch
                )


async def test_a_proper_stop_and_start_replays_nothing() -> None:
    server = await Server(SimFiles()).start()
    await busy(server, 3)
    before = known(server)
    leases = list(await server.engine.leases.rows())
    await server.engine.stop()
    again = await Server(server.files.process_death(), server.now_ms).start()
    assert known(again) == before
    assert list(await again.engine.leases.rows()) == leases
    assert again.engine.maintenance.newest is not None


def flip_producers(files: SimFiles, folder: Path) -> None:
    files.flip(folder / "producers.parquet", 100, 3)


def cut_leases(files: SimFiles, folder: Path) -> None:
    files.cut(folder / "leases.parquet", 10)


def flip_manifest(files: SimFiles, folder: Path) -> None:
    files.flip(folder / "manifest.json", 30, 0)


def lose_manifest(files: SimFiles, folder: Path) -> None:
    files.remove(folder / "manifest.json")


DAMAGES = [flip_producers, cut_leases, flip_manifest, lose_manifest]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("both", [True, False])
async def test_a_damaged_snapshot_gives_way_to_the_one_before_and_then_to_the_log(
    damage: Callable[[SimFiles, Path], None], both: bool
) -> None:
    server = await Server(SimFiles()).start()
    pid = server.lease()
    await server.fill(pid, 0, 10)
    first = await server.snapshot()
    await server.fill(pid, 10, 20)
    second = await server.snapshot()
    await server.fill(pid, 20, 25)
    before = known(server)
    for number in (first, second)[0 if both else 1 :]:
        damage(server.files, SNAPSHOTS / f"snapshot-{number:012d}")
    again = await server.kill()
    assert known(again) == before
    newest = again.engine.maintenance.newest
    assert (newest.number if newest else None) == (None if both else first)
    assert (await again.send(pid, 24)).status is DUPLICATE
    await again.fill(pid, 25, 27)


async def test_a_snapshot_beyond_the_end_of_the_log_is_not_used_now_or_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # An embedded log is stopped then; one of Kafka goes on, under another leader epoch.
    monkeypatch.setattr(EmbeddedPartitionLog, "_check_complete", lambda *_, **__: None)
    monkeypatch.setattr(GroupAppender, "leader_epoch", 3)

    def ends(_: DataDirectory, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {each: 2**40 if epoch == 5 or each.partition else 6
                for each, epoch in epochs.items()}  # fmt: skip

    server = await Server(SimFiles()).start()
    pid, other = server.lease(), server.lease()
    await server.fill(pid, 0, 4)
    await server.snapshot()
    await server.fill(pid, 4, 8)
    await server.snapshot()
    # What acknowledged records were lost by: a log restored from a backup, all of it intact.
    log = DATA / "logs/t-0/00000000000000000000.log"
    size = len(server.files.open(log).read_at(1 << 20, 0)) // 8
    server.files.cut(log, size * 6)
    if server.files.exists(DATA / "logs/t-0/durable"):
        server.files.remove(DATA / "logs/t-0/durable")
    monkeypatch.setattr(DataDirectory, "ends_of_epochs", ends)
    monkeypatch.setattr(GroupAppender, "leader_epoch", 5)
    again = await server.kill()
    assert dict(again.partition().table.described_producers())[pid].high == 5
    assert again.partition().hole_ms == again.now_ms
    await again.fill(other, 0, 6)
    # Once a bug: now the log has grown past the snapshot's vector, with other batches.
    before = known(again)
    third = await again.kill()
    assert known(third) == before
    assert (await third.send(pid, 6)).status is APPENDED, "it is not there: no duplicate"


@pytest.mark.parametrize("what", ["its segments", "its folder", "its end"])
async def test_a_lost_log_takes_nothing_from_other_partitions(what: str) -> None:
    """Once all snapshots were removed as ahead of it, and with them what they alone knew."""
    server = await Server(SimFiles()).start(retention_bytes=1500)
    early, late = server.lease(), server.lease()
    await server.fill(early, 0, 8, 1)
    await server.fill(late, 0, 40, 1)
    await server.fill(late, 0, 5)
    await server.snapshot()
    await server.fill(late, 5, 6)
    await server.snapshot()
    await server.engine.maintenance.retain()
    assert server.partition(1).log.kept_offset >= 8
    folder, files = DATA / "logs/t-0", server.files
    if what == "its end":
        log = folder / f"{0:020d}.log"
        files.cut(log, files.open(log).size() // 6 * 5)
        files.remove(folder / "durable")
    else:
        for name in files.list(folder):
            if what == "its folder" or name.endswith(".log"):
                files.remove(folder / name)
    if what == "its folder":
        files.remove(folder)
    for _ in range(2):
        server = await server.kill(retention_bytes=1500)
        lost = server.partition()
        assert lost.log.stopped
        assert lost.incomplete
        assert lost.log.promised_end == 6
        assert (await server.send(early, 7, partition=1)).status is DUPLICATE
        assert (await server.send(late, 6)).status is Status.STOPPED
        await server.snapshot()


@pytest.mark.parametrize("which", [0, 1, -1])
async def test_a_bad_sector_stops_its_partition_only(
    monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """Once the server did not start, and `repair` refused all partitions."""
    server = await Server(SimFiles()).start()
    pid = server.lease()
    await server.fill(pid, 0, 3, 1)
    await server.fill(pid, 0, 11)
    await server.snapshot()
    await server.fill(pid, 11, 30)
    path = segments(server.files, DATA / "logs/t-0")[which]
    bad_sector(monkeypatch, path, 90)
    server = await server.kill()
    damaged = server.partition()
    # What a snapshot covers is not read at a start.
    assert bool(damaged.log.stopped) == bool(which)
    assert damaged.readable_end == (int(path.stem) if which else 30)
    assert bool(damaged.incomplete) == bool(which)
    assert (await server.send(pid, 2, partition=1)).status is DUPLICATE
    for task in server.engine.maintenance._tasks:
        task.cancel()
    found = survey(server.files.process_death(), DATA, server.now_ms)
    (each,) = found.damaged
    assert (each.name, each.losses) == (damaged.name, None)
    assert "cannot be read" in each.damage.reason
    assert "skips bad sectors" in each.reason


async def test_after_a_crash_a_leased_pid_that_never_wrote_still_starts_at_zero() -> None:
    server = await Server(SimFiles()).start()
    pids = [server.lease() for _ in range(3)]
    await server.fill(pids[0], 0, 2)  # wrote to partition 0 only
    await server.snapshot()
    late = server.lease()
    for power in (None, 1, 2):
        server = await server.kill(power=power)
        for pid in (*pids[1:], late):
            for number in range(2):
                outcome = await server.send(pid, 3, partition=number)
                assert (outcome.status, outcome.expected) == (GAP, 0)
        assert (await server.send(pids[0], 5, partition=1)).status is GAP
    assert (await server.send(late, 0, partition=1)).status is APPENDED


async def test_what_a_snapshot_has_of_before_a_hole_shows_no_gap_after_any_start() -> None:
    """Kafka has removed what came after the snapshot, with the batches 2 to 5 of a producer."""
    server = await Server(SimFiles()).start()
    pid = server.lease()
    await server.fill(pid, 0, 2)
    rows = server.partition().rows()
    again = server.partition().table
    begin_at(again, 7, Base(rows), server.now_ms)
    assert (again.removed_end, again.hole_ms, again.next_offset) == (7, server.now_ms, 7)
    later = again.position(9, -1)
    assert later.removed_end == 7
    begin_at(again, 7, Base(later.rows(rows.partition, rows.producers)), server.now_ms + 1)
    assert (again.removed_end, again.hole_ms) == (7, server.now_ms), "the hole stays known"


async def test_where_history_is_missing_young_pids_that_are_unknown_count_as_old() -> None:
    server = await Server(SimFiles()).start(retention_bytes=0)
    writer, quiet = server.lease(), server.lease()
    await server.fill(writer, 0, 40)
    await server.snapshot()
    await server.engine.maintenance.retain()
    assert server.partition().log.start_offset > 0
    for number in SnapshotStore(server.files, SNAPSHOTS).numbers():
        flip_manifest(server.files, SNAPSHOTS / f"snapshot-{number:012d}")
    server.now_ms += 5
    again = await server.kill()
    assert again.partition().hole_ms == again.now_ms
    assert again.partition(1).hole_ms == -1
    # On partition 0 nobody can know that it never wrote; on partition 1 the log proves it.
    assert (await again.send(quiet, 3, partition=1)).status is GAP
    assert (await again.send(quiet, 3)).status is APPENDED
    again.now_ms += 1
    await again.snapshot()
    third = await again.kill()
    assert third.partition().hole_ms == again.partition().hole_ms, "the hole stays known"


async def test_a_pid_leased_after_the_hole_was_found_is_young() -> None:
    server = await Server(SimFiles()).start(retention_bytes=0)
    await server.fill(server.lease(), 0, 40)
    await server.snapshot()
    await server.engine.maintenance.retain()
    for number in SnapshotStore(server.files, SNAPSHOTS).numbers():
        flip_manifest(server.files, SNAPSHOTS / f"snapshot-{number:012d}")
    server.now_ms += 5
    again = await server.kill()
    again.now_ms += 1
    assert (await again.send(again.lease(), 3)).status is GAP


async def test_retention_never_passes_what_a_valid_snapshot_needs() -> None:
    server = await Server(SimFiles()).start(retention_bytes=0)
    pid, other = server.lease(), server.lease()
    await server.fill(pid, 0, 20)
    await server.fill(other, 0, 3, partition=1)
    await server.engine.maintenance.retain()
    assert server.partition().log.start_offset == 0, "without a snapshot everything is needed"
    await server.snapshot()
    await server.fill(pid, 20, 40)
    await server.snapshot()
    await server.fill(pid, 40, 60)
    before = known(server)
    await server.engine.maintenance.retain()
    assert 0 < server.partition().log.start_offset <= 20
    for damaged in (2, 1):
        again = await server.kill(power=damaged)
        assert known(again) == before
        assert again.partition().hole_ms == -1
        flip_producers(again.files, SNAPSHOTS / f"snapshot-{damaged:012d}")
        server = again


async def test_a_damaged_partition_is_stopped_and_the_others_go_on() -> None:
    server = await Server(SimFiles()).start()
    pid = server.lease()
    await server.fill(pid, 0, 30)
    await server.fill(pid, 0, 5, partition=1)
    server.files.flip(DATA / "logs/t-0/00000000000000000000.log", 200, 1)
    again = await server.kill()
    assert (await again.send(pid, 30)).status is Status.STOPPED
    assert (await again.send(pid, 5, partition=1)).status is APPENDED
    assert (await again.send(pid, 4, partition=1)).status is DUPLICATE


async def test_a_snapshot_of_another_topic_of_the_same_name_is_not_used() -> None:
    server = await Server(SimFiles()).start()
    pid = server.lease()
    await server.fill(pid, 0, 5)
    await server.snapshot()
    server.files.remove(DATA / "topics/t.json")
    for number in range(2):
        remove_tree(server.files, DATA / f"logs/t-{number}")
    again = await server.kill()
    assert again.partition().producers == {}
    assert (await again.send(pid, 0)).status is APPENDED
    third = await again.kill()
    assert dict(third.partition().table.described_producers())[pid].high == 0


async def test_progress_is_told() -> None:
    server = await Server(SimFiles()).start()
    server = await server.kill()
    replay = server.engine.replay
    assert (replay.done, replay.total, replay.offsets_left) == (2, 2, 0)
    assert len(server.engine.partitions()) == replay.total


async def test_what_is_left_is_told_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """By offsets: one partition may hold nearly all of what there is to read."""
    server = await Server(SimFiles()).start()
    pid = server.lease()
    await server.fill(pid, 0, 5)
    told: list[tuple[int, int]] = []
    seen, replay = ReplayProgress(), ProducerTable.replay

    def slowly(table: ProducerTable, batches: Iterable[LoggedBatch], now_ms: int) -> None:
        def each() -> Iterator[LoggedBatch]:
            for batch in batches:
                told.append((seen.done, seen.offsets_left))
                yield batch

        replay(table, each(), now_ms)

    monkeypatch.setattr("pidlease.engine.engine.ReplayProgress", lambda: seen)
    monkeypatch.setattr(ProducerTable, "replay", slowly)
    await server.kill()
    assert [left for _, left in told] == [5, 4, 3, 2, 1]
    assert (seen.done, seen.offsets_left) == (2, 0)


@pytest.mark.parametrize("seed", range(6))
async def test_retention_trusts_no_snapshot_that_may_not_be_there_after_a_power_cut(
    seed: int,
) -> None:
    """Only the fsync of its folder failed, and the first snapshot covers what is removed."""
    server = await Server(SimFiles(seed)).start(retention_bytes=600)
    pid = server.lease()
    await server.fill(pid, 0, 40)
    fault = server.files.fail_next("fsync_folder", str(SNAPSHOTS))
    with pytest.raises(OSError, match="Input/output error"):
        await server.engine.maintenance.snapshot()
    assert fault.fired
    await server.engine.maintenance.retain()
    server = await server.kill(power=seed, retention_bytes=600)
    outcome = await server.send(pid, 0)
    assert outcome.status is DUPLICATE
