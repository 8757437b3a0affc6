"""Topics that are made while their client goes away."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pidlease.coordination.file.file_names import FileNames
from pidlease.coordination.file.file_sequence import FileSequence
from pidlease.coordination.pid_sequence import Coordination
from pidlease.core.log_config import LogConfig
from pidlease.engine.engine import Engine, EngineConfig, TopicExistsError, wall_clock_ms
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshots import SnapshotStore
from pidlease.storage.topics.topic_store import Topic
from tests.sim.files import SimFiles

DATA = Path("/data")


def build(files: SimFiles, pool: IoPool) -> Engine:
    folder = DataDirectory(files, DATA, LogConfig(), pool)
    sequence = FileSequence(files, folder.sequence, "test", wall_clock_ms, keep_ms=1000)
    coordination = Coordination(sequence, FileNames(files, folder.names))
    return Engine(
        folder, SnapshotStore(files, folder.snapshots), coordination, pool, EngineConfig()
    )


@pytest.fixture
async def pool() -> AsyncIterator[IoPool]:
    pool = IoPool(asyncio.get_running_loop(), threads=4)
    yield pool
    pool.close()


async def test_a_client_that_goes_away_does_not_leave_a_topic_half_made(pool: IoPool) -> None:
    """Once a bug: its cancelled task let the next client in, while a thread still wrote the first
    definition, and would then truncate the second's segment, acknowledged records and all."""
    files = SimFiles()
    engine = build(files, pool)
    await engine.start()
    reached, go_on = threading.Event(), threading.Event()

    def hold(operation: str, path: Path) -> None:
        if operation == "rename" and path.name == "t.json" and not reached.is_set():
            reached.set()
            assert go_on.wait(10)

    files.on_operation = hold
    first = asyncio.create_task(engine.create_topic(Topic.new("t", 1)))
    assert await asyncio.to_thread(reached.wait, 10)
    first.cancel()
    second = asyncio.create_task(engine.create_topic(Topic.new("t", 2)))
    await asyncio.sleep(0.05)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    with pytest.raises(TopicExistsError):
        await second
    assert len(list(engine.partitions_of("t"))) == 1
    await engine.stop()
    again = build(files, pool)
    await again.start()
    assert again.topics == engine.topics


async def test_no_legal_topic_is_taken_for_what_was_written_aside(pool: IoPool) -> None:
    """Once a bug: the next start removed the definition of a topic named like an aside file."""
    files = SimFiles()
    engine = build(files, pool)
    await engine.start()
    names = [".aside-x", ".aside-1-2", ".aside-", "clean-stop", "meta.json"]
    for name in names:
        await engine.create_topic(Topic.new(name, 1))
    await engine.stop()
    again = build(files, pool)
    await again.start()
    assert sorted(again.topics) == sorted(names)
    await again.stop()
