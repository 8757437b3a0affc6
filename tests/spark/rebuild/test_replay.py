"""A rebuilt snapshot equals, row by row, the one that a server takes after its own replay."""

import asyncio
import shutil
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from pidlease.coordination.file.file_names import FileNames
from pidlease.coordination.file.file_sequence import FileSequence
from pidlease.coordination.pid_sequence import Coordination
from pidlease.core.log_config import LogConfig
from pidlease.core.pid import Policy, make_pid
from pidlease.engine.engine import Engine, EngineConfig
from pidlease.engine.maintenance import MaintenanceConfig
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.spark.errors import RebuildError
from pidlease.spark.rebuild.snapshot_rebuild import rebuild_directory
from pidlease.storage.files import RealFiles
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshots import Manifest, SnapshotStore
from tests.golden import HISTORIES
from tests.golden.appends import APPENDS
from tests.property.profile import SCALE
from tests.spark.audit.histories import POLICIES, history, interleaved
from tests.spark.audit.logs import Logs, Origin, encoded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW_MS = 1_800_000_000_000
NEVER = MaintenanceConfig(10**9, 10**6, 10**6, 10**6)


async def replayed(path: Path) -> Manifest:
    """Start a server in a directory, which replays its log, and take a snapshot."""
    pool = IoPool(asyncio.get_running_loop(), 2)
    files = RealFiles()
    folder = DataDirectory(files, path, LogConfig(), pool)
    sequence = FileSequence(files, folder.sequence, "me", lambda: NOW_MS, 1)
    snapshots = SnapshotStore(files, folder.snapshots)
    names = FileNames(files, folder.names)
    engine = Engine(folder, snapshots, Coordination(sequence, names), pool,
                    EngineConfig(maintenance=NEVER), lambda: NOW_MS)  # fmt: skip
    await engine.start()
    manifest = await engine.maintenance.snapshot()
    await engine.maintenance.stop()
    folder.release()
    pool.close()
    return manifest


def tables(folder: Path, number: int) -> dict[str, list[dict[str, object]]]:
    path = folder / f"snapshot-{number:012d}"
    return {
        name: pq.read_table(path / f"{name}.parquet").to_pylist()
        for name in ("producers", "leases")
    }


def same(spark: "SparkSession", path: Path, tmp_path: Path) -> Manifest:
    """Rebuild a directory, compare with a replay, and return the result."""
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    theirs = asyncio.run(replayed(copy))
    rebuilt = rebuild_directory(spark, path, None, NOW_MS)
    ours = rebuilt.manifest
    assert ours.offset_vector == theirs.offset_vector
    assert ours.created_ms == theirs.created_ms
    assert ours.rows == theirs.rows
    assert rebuilt.leases == theirs.rows["leases.parquet"]
    expected = tables(copy / "snapshots", theirs.number)
    found = tables(path / "snapshots", ours.number)
    assert found == expected, "in the same order, too"
    return ours


def test_random_logs_of_all_policies(spark: "SparkSession", tmp_path: Path) -> None:
    """With all kinds of violations: a fold does not validate."""
    seed = Random().randrange(10**6)
    print(f"seed {seed}")
    random = Random(seed)
    path = tmp_path / "data"
    with Logs(path, 2_000) as logs:
        for topic, partitions in (("one", 3), ("empty", 1), ("two", 2)):
            logs.topic(topic, partitions)
            if topic == "empty":
                continue
            for number in range(partitions):
                histories = [
                    history(random, random.choice(POLICIES), each, whole=True)
                    for each in range(25 * SCALE)
                ]
                for one, place, _ in interleaved(random, histories, 0):
                    generation, first, last, records = one.sends[place].wire(one.policy)
                    producer = Origin(one.pid, one.producer_id)
                    logs.append(topic, number, [
                        encoded(producer, generation, first, records, last=last)
                    ])  # fmt: skip
                    if random.random() < 0.1:
                        logs.append(topic, number, [encoded(Origin(), -1, -1, 1)])
    same(spark, path, tmp_path)


def test_golden_histories(spark: "SparkSession", tmp_path: Path) -> None:
    """What they admit, and what failed appends leave; each history is a producer."""
    path = tmp_path / "data"
    with Logs(path, 4_000) as logs:
        logs.topic("golden", 2)
        for number, one in enumerate(HISTORIES):
            producer = golden(one.policy, number)
            for batch in [step.batch for step in one.steps if step.verdict.kind == "admit"]:
                logs.append("golden", number % 2, [
                    encoded(producer, batch.generation, batch.first, batch.count, last=batch.last)
                ])  # fmt: skip
        for number, history_ in enumerate(APPENDS, len(HISTORIES)):
            producer = golden(history_.policy, number)
            (holds,) = [step["holds"] for step in history_.steps if "holds" in step]
            for first, last in holds:
                sent = encoded(producer, 0, first, last - first + 1)
                logs.append("golden", number % 2, [sent])
    assert same(spark, path, tmp_path).rows["producers.parquet"] > len(HISTORIES) // 2


def golden(policy: str, number: int) -> Origin:
    """Return the producer of a history."""
    if policy == "epoch":
        return Origin(-1, f"golden-{number}")
    return Origin(make_pid(Policy[policy.upper()], 1 + number))


def test_long_runs_epochs_and_the_wrap(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "data"
    kafka, strict = (make_pid(policy, 7) for policy in (Policy.KAFKA, Policy.STRICT))
    with Logs(path) as logs:
        logs.topic("t")
        for first in range(0, 3000, 3):
            logs.append("t", 0, [encoded(Origin(kafka), 3, (2**31 - 1500 + first) % 2**31, 3)])
            logs.append("t", 0, [encoded(Origin(strict), first // 1000, first, 3)])
        for name in ("a", "b"):
            for first in (0, 1, 2, 3, 0, 1, 2):
                logs.append("t", 0, [encoded(Origin(-1, name), 1, first, 1)])
        # A zombie's sends at the end are not the last ones that count.
        logs.append("t", 0, [encoded(Origin(strict), 0, 5 + each, 1) for each in range(8)])
    same(spark, path, tmp_path)


def test_a_log_without_its_beginning(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "data"
    pid = make_pid(Policy.KAFKA, 7)
    with Logs(path, 500) as logs:
        logs.topic("t")
        for first in range(40):
            logs.append("t", 0, [encoded(Origin(pid), 0, first, 1)])
        gone = logs.segments("t")[:2]
    for each in gone:
        for suffix in (".log", ".index", ".timeindex"):
            each.with_suffix(suffix).unlink()
    manifest = same(spark, path, tmp_path)
    assert all(place.hole_ms == NOW_MS for place in manifest.offset_vector.values())


def test_a_server_starts_with_what_was_rebuilt(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "data"
    pid = make_pid(Policy.STRICT, 7)
    with Logs(path) as logs:
        logs.topic("t")
        logs.append("t", 0, [encoded(Origin(pid), 0, 0, 5), encoded(Origin(pid), 0, 5, 5)])
    number = rebuild_directory(spark, path, None, NOW_MS).manifest.number

    async def start() -> None:
        pool = IoPool(asyncio.get_running_loop(), 2)
        files = RealFiles()
        folder = DataDirectory(files, path, LogConfig(), pool)
        sequence = FileSequence(files, folder.sequence, "me", lambda: NOW_MS, 1)
        names = FileNames(files, folder.names)
        engine = Engine(folder, SnapshotStore(files, folder.snapshots),
                        Coordination(sequence, names), pool, EngineConfig(maintenance=NEVER),
                        lambda: NOW_MS)  # fmt: skip
        await engine.start()
        assert engine.maintenance.newest is not None
        assert engine.maintenance.newest.number == number
        partition = engine.partition("t", 0)
        assert partition is not None
        state = partition.producer(pid)
        assert state is not None
        assert state.high == 9
        await engine.stop()
        pool.close()

    asyncio.run(start())


def test_a_directory_in_use_is_left_alone(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "data"
    with Logs(path) as logs:
        logs.topic("t")
        logs.append("t", 0, [encoded(Origin(make_pid(Policy.STRICT, 7)), 0, 0, 5)])
        with pytest.raises(RebuildError, match="in use"):
            rebuild_directory(spark, path, None, NOW_MS)
        elsewhere = tmp_path / "elsewhere"
        rebuilt = rebuild_directory(spark, path, elsewhere, NOW_MS)
    assert not (path / "snapshots").exists()
    assert tables(elsewhere, rebuilt.manifest.number)["producers"][0]["high"] == 4


def test_of_a_damaged_log_there_is_no_snapshot(spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "data"
    with Logs(path) as logs:
        logs.topic("t")
        for first in range(5):
            logs.append("t", 0, [encoded(Origin(make_pid(Policy.STRICT, 7)), 0, first, 1)])
        (log,) = logs.segments("t")
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    with pytest.raises(RebuildError, match="t-0 at offset 2"):
        rebuild_directory(spark, path, None, NOW_MS)
    assert list((path / "snapshots").iterdir()) == []
