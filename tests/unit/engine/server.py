"""An engine on a simulated disk, that is killed and started again."""

import asyncio
from pathlib import Path
from random import Random

from pidlease.coordination.file.file_names import FileNames
from pidlease.coordination.file.file_sequence import FileSequence
from pidlease.coordination.pid_sequence import Coordination
from pidlease.core.log_config import LogConfig
from pidlease.core.pid import Policy
from pidlease.core.state import ProducerState
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.batch_identity import batch_of
from pidlease.engine.engine import Engine, EngineConfig
from pidlease.engine.maintenance import MaintenanceConfig
from pidlease.engine.partition import Partition
from pidlease.engine.pending_batches import Submitted
from pidlease.kafka.records.record_batch import read_header
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.storage.snapshots import SnapshotStore
from pidlease.storage.topics.topic_store import Topic
from tests.sim.batches import TIME_MS, make_batch
from tests.sim.files import SimFiles
from tests.sim.pool import SeededPool

DATA = Path("/data")
SNAPSHOTS = DATA / "snapshots"
LEASE_MS = 100_000
NEVER = MaintenanceConfig(10**9, 10**6, 10**6, 10**6)
APPENDED, DUPLICATE, GAP = Status.APPENDED, Status.DUPLICATE, Status.GAP


class Server:
    """An engine on a simulated disk, with two partitions of one topic."""

    def __init__(self, files: SimFiles, now_ms: int = TIME_MS) -> None:
        self.files = files
        self.now_ms = now_ms
        self.replayed: list[str] = []

    async def start(self, *, retention_bytes: int = -1) -> "Server":
        pool = SeededPool(asyncio.get_running_loop(), Random(0))
        settings = LogConfig(1200, retention_ms=-1, retention_bytes=retention_bytes)
        folder = DataDirectory(self.files, DATA, settings, pool)
        sequence = FileSequence(
            self.files, folder.sequence, "me", lambda: self.now_ms, 2 * LEASE_MS
        )
        snapshots = SnapshotStore(self.files, folder.snapshots)
        config = EngineConfig(lease_ms=LEASE_MS, maintenance=NEVER)
        coordination = Coordination(sequence, FileNames(self.files, folder.names))
        self.engine = Engine(folder, snapshots, coordination, pool, config, lambda: self.now_ms)
        await self.engine.start()
        if "t" not in {**self.engine.topics, **self.engine.awaited}:
            await self.engine.create_topic(Topic.new("t", 2))
        return self

    async def kill(self, *, power: int | None = None, **options: int) -> "Server":
        """Kill -9, or a power cut; and start again."""
        for task in self.engine.maintenance._tasks:
            task.cancel()
        files = self.files.process_death() if power is None else self.files.power_loss(power)
        return await Server(files, self.now_ms).start(**options)

    def partition(self, number: int = 0, topic: str = "t") -> Partition:
        partition = self.engine.partition(topic, number)
        assert partition is not None
        return partition

    def lease(self) -> int:
        return self.engine.leases.lease(Policy.KAFKA)

    async def send(
        self,
        pid: int,
        first: int,
        count: int = 1,
        *,
        epoch: int = 0,
        partition: int = 0,
        topic: str = "t",
    ) -> Outcome:
        data = make_batch([b"x" * 60] * count, pid=pid, epoch=epoch, first=first)
        header = read_header(data)
        told: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        target = self.partition(partition, topic)
        target.produce(Submitted(pid, header, data, batch_of(header), told.set_result))
        return await told

    async def fill(self, pid: int, start: int, end: int, partition: int = 0) -> None:
        for first in range(start, end):
            assert (await self.send(pid, first, partition=partition)).status is APPENDED

    async def snapshot(self) -> int:
        return (await self.engine.maintenance.snapshot()).number


def known(server: Server) -> list[dict[int, ProducerState]]:
    """What is known of all producers; arrival times are those of the start after a replay."""
    return [
        {pid: state._replace(arrival_ms=0) for pid, state in partition.table.described_producers()}
        for partition in server.engine.partitions()
    ]
