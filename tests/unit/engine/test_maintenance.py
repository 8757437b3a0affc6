"""What is done from time to time, where it fails."""

import asyncio
import errno
from pathlib import Path

import pytest

from pidlease.core.backoff import Backoff
from pidlease.engine import maintenance
from pidlease.engine.maintenance import MaintenanceConfig
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.storage.errors import NotOwnerError
from pidlease.storage.snapshots import SnapshotStore
from tests.sim.files import SimFiles
from tests.unit.engine.server import SNAPSHOTS, Server

_FAILURES = 2


async def test_a_snapshot_that_failed_is_tried_again_though_nothing_new_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once a bug: it was counted as taken, and the next one waited for the next batch."""
    monkeypatch.setattr(maintenance, "_SNAPSHOT_POLL_SECONDS", 0.01)
    monkeypatch.setattr(maintenance, "_BACKOFF", Backoff(0.01, 0.01))
    files = SimFiles()
    server = await Server(files).start()
    await server.fill(server.lease(), 0, 3)
    failed: list[Path] = []

    def full(operation: str, path: Path) -> None:
        if operation == "rename" and "snapshot" in str(path) and len(failed) < _FAILURES:
            failed.append(path)
            raise OSError(errno.ENOSPC, "no space")

    files.on_operation = full
    upkeep = server.engine.maintenance
    upkeep.reconfigure(MaintenanceConfig(10**9, 0.05, 10**6, 10**6))
    async with asyncio.timeout(60):
        while upkeep.newest is None:  # noqa: ASYNC110 - it is seen by looking
            await asyncio.sleep(0.01)

    assert len(failed) == upkeep.snapshot_failures == _FAILURES
    assert upkeep.newest.rows
    await server.engine.stop()


async def test_a_server_that_was_replaced_leaves_no_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its vector may lie past what its successor stored: started again, it would not read that."""
    server = await Server(SimFiles()).start()
    await server.fill(server.lease(), 0, 3)
    number = await server.snapshot()
    await server.fill(server.lease(), 0, 3)
    asked: list[str] = []

    def replaced(_: DataDirectory) -> None:
        asked.append("owned")
        raise NotOwnerError("another server serves this Kafka cluster")

    monkeypatch.setattr(DataDirectory, "check_owned", replaced)
    with pytest.raises(NotOwnerError):
        await server.snapshot()
    await server.engine.stop()
    assert len(asked) == 2, "at the stop, too"
    assert SnapshotStore(server.files, SNAPSHOTS).numbers()[0] == number


async def test_an_old_snapshot_holds_up_retention_only_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once a bug: what came between the last two snapshots stayed until something new came."""
    monkeypatch.setattr(maintenance, "_SNAPSHOT_POLL_SECONDS", 0.01)
    server = await Server(SimFiles()).start(retention_bytes=1)
    await server.snapshot()
    await server.fill(server.lease(), 0, 40)
    upkeep, log = server.engine.maintenance, server.partition().log
    await server.snapshot()
    await upkeep.retain()
    assert log.start_offset == 0
    upkeep.reconfigure(MaintenanceConfig(10**9, 0.05, 10**6, 0.02))
    async with asyncio.timeout(60):
        while log.start_offset < 30:
            await asyncio.sleep(0.01)
            await upkeep.retain()
    taken = upkeep.snapshots_taken
    await asyncio.sleep(0.3)
    assert upkeep.snapshots_taken == taken == 3, "one more than there was anything new"
    await server.engine.stop()


async def test_a_server_without_records_and_leases_takes_no_snapshot() -> None:
    """The first one imports pyarrow, and would keep nothing. A lease alone is worth one."""
    server = await Server(SimFiles()).start()
    upkeep = server.engine.maintenance
    assert not await upkeep.worth_a_snapshot()
    await server.engine.stop()
    store = SnapshotStore(server.files, SNAPSHOTS)
    assert not store.numbers()

    server = await Server(server.files).start()
    server.lease()
    assert await server.engine.maintenance.worth_a_snapshot()
    await server.engine.stop()
    assert store.numbers() == [1]

    server = await Server(server.files).start()
    assert await server.engine.maintenance.worth_a_snapshot(), "there is one already"
    await server.engine.stop()


async def test_a_failed_look_at_the_snapshots_does_not_end_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once there was no snapshot any more, nothing was removed by retention, and no log line."""
    monkeypatch.setattr(maintenance, "_SNAPSHOT_POLL_SECONDS", 0.01)
    monkeypatch.setattr(maintenance, "_BACKOFF", Backoff(0.01, 0.01))
    files = SimFiles()
    server = await Server(files).start()
    failed: list[Path] = []

    def no_files_left(operation: str, path: Path) -> None:
        if operation == "list" and path == SNAPSHOTS and not failed:
            failed.append(path)
            raise OSError(errno.EMFILE, "too many open files")

    files.on_operation = no_files_left
    upkeep = server.engine.maintenance
    upkeep.reconfigure(MaintenanceConfig(1, 0.02, 10**6, 10**6))
    async with asyncio.timeout(60):
        while not failed:  # noqa: ASYNC110 - it is seen by looking
            await asyncio.sleep(0.01)
        await server.fill(server.lease(), 0, 3)
        while upkeep.newest is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert upkeep.snapshot_failures == 1
    await server.engine.stop()
