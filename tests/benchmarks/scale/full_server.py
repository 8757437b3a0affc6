"""An engine on a real disk whose partitions know a million producers."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

from pidlease.coordination.file.file_names import FileNames
from pidlease.coordination.file.file_sequence import FileSequence
from pidlease.coordination.pid_sequence import Coordination
from pidlease.core.log_config import FsyncPolicy, LogConfig
from pidlease.core.pid import Policy, make_pid
from pidlease.engine.engine import Engine, EngineConfig, wall_clock_ms
from pidlease.engine.maintenance import MaintenanceConfig
from pidlease.kafka.records.record_batch import MAGIC, BatchHeader
from pidlease.kafka.records.writer_batch import LoggedBatch
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.storage.files import RealFiles
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshots import SnapshotStore
from pidlease.storage.topics.topic_store import Topic

TOPIC = "t"
#: As in a server, see `proxy.app.serve`.
_GC = (100_000, 50, 1000)
_LEASE_MS = 24 * 3600 * 1000
_SELDOM = MaintenanceConfig(10**9, 10**6, 10**6, 10**6)
#: Behind those that the engine leases itself.
_FIRST_PID = 1001
#: Batches kept of each, all of one record.
_BATCHES = 5


def as_in_a_server() -> None:
    """Set the interpreter as the server does."""
    gc.set_threshold(*_GC)


async def start(folder: Path) -> tuple[Engine, IoPool]:
    """An engine in a folder, as the server builds it."""
    pool = IoPool(asyncio.get_running_loop())
    files = RealFiles()
    defaults = LogConfig(fsync=FsyncPolicy.NEVER, retention_ms=-1)
    data = DataDirectory(files, folder, defaults, pool)
    sequence = FileSequence(files, data.sequence, "bench", wall_clock_ms, keep_ms=2 * _LEASE_MS)
    config = EngineConfig(lease_ms=_LEASE_MS, ring_capacity=2_000_000, maintenance=_SELDOM)
    coordination = Coordination(sequence, FileNames(files, data.names))
    engine = Engine(data, SnapshotStore(files, data.snapshots), coordination, pool, config)
    gc.disable()
    await engine.start()
    gc.freeze()
    gc.enable()
    return engine, pool


async def make_topic(engine: Engine, partitions: int) -> None:
    """The one topic."""
    await engine.create_topic(Topic.new(TOPIC, partitions))


def fill(engine: Engine, producers: int, partitions_each: int) -> None:
    """Let partitions fold batches as if they had read them in the log, by the replay's way.

    Parameters:
        engine: with the topic.
        producers: how many PIDs.
        partitions_each: on how many partitions each of them writes, evenly over all.
    """
    partitions = engine.partitions()
    of_partition: list[list[int]] = [[] for _ in partitions]
    for n in range(producers):
        pid = make_pid(Policy.KAFKA, _FIRST_PID + n)
        for each in range(partitions_each):
            of_partition[(n * partitions_each + each) % len(partitions)].append(pid)
    now_ms = wall_clock_ms()
    for partition, pids in zip(partitions, of_partition, strict=True):
        partition.table.replay(_headers(pids), now_ms)
        partition.table.next_offset = partition.log.end_offset
        partition.note_leases()


def _headers(pids: list[int]) -> Iterator[LoggedBatch]:
    offset = 0
    for sequence in range(_BATCHES):
        for pid in pids:
            crc = 12345 + offset
            yield LoggedBatch(
                BatchHeader(offset, 100, 0, MAGIC, crc, 0, 0, 0, 0, pid, 0, sequence, 1)
            )
            offset += 1
