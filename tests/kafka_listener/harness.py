"""The Kafka door with an engine behind it, inside the test's own event loop."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pidlease.coordination.file.file_names import FileNames
from pidlease.coordination.file.file_sequence import FileSequence
from pidlease.coordination.pid_sequence import Coordination
from pidlease.core.log_config import FsyncPolicy, LogConfig
from pidlease.engine.engine import Engine, EngineConfig, wall_clock_ms
from pidlease.engine.topic_admin import TopicAdmin
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.storage.file_faults import FaultPlan, FaultyFiles
from pidlease.storage.files import Files, RealFiles
from pidlease.storage.io_pool import IoPool
from pidlease.storage.offsets.offset_store import OffsetStore
from pidlease.storage.snapshots import SnapshotStore
from pidlease.storage.topics.topic_settings import check_settings
from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from proxy.configuration.listen_addresses import bound_sockets
from proxy.kafka.access.secure_listener import secure_listener
from proxy.kafka.embedded_apis import EmbeddedApis
from proxy.kafka.groups.group_steps import GroupLimits
from proxy.kafka.groups.groups_api import GroupsApi
from proxy.kafka.kafka_listener import KafkaListener
from proxy.kafka.listener_config import ClusterConfig, KafkaListenerConfig
from proxy.kafka.memory_budget import MemoryBudget
from proxy.security.security import Security
from proxy.security.security_config import SECURITY_FOLDER, SecurityConfig
from tests.kafka_listener.client import WireClient


@dataclass
class Clock:
    """The engine's clock, which a test may move on."""

    ahead_ms: int = 0

    def __call__(self) -> int:
        return wall_clock_ms() + self.ahead_ms


@dataclass
class Server:
    """A running door."""

    port: int
    engine: Engine
    door: KafkaListener
    clock: Clock
    cluster_id: str
    offsets: OffsetStore
    groups: GroupsApi
    topics: TopicAdmin
    security: Security | None = None

    async def connect(self) -> WireClient:
        return await WireClient.connect(LOOPBACK, self.port)

    def let_leases_end(self) -> None:
        """Move the clock to where every block of PIDs is older than a lease, and all leases end."""
        self.clock.ahead_ms += 2 * self.engine.config.lease_ms
        self.engine.leases.expire()


@dataclass(frozen=True)
class Wanted:
    """How the server is to be."""

    faults: str = ""
    fsync: FsyncPolicy = FsyncPolicy.NEVER
    auto_create: bool = True
    default_partitions: int = 1
    segment_bytes: int = 1 << 30
    engine: EngineConfig = field(default_factory=EngineConfig)
    request_bytes_max: int = 100 << 20
    batch_bytes_max: int = 1_048_588
    fetch_bytes_max: int = 16 << 20
    memory_bytes_max: int = 256 << 20
    connections_max: int = 10_000
    idle_seconds: float = 600.0
    groups: GroupLimits = field(
        default_factory=lambda: GroupLimits(session_min_ms=50, initial_rebalance_ms=0)
    )
    security: SecurityConfig | None = None


@asynccontextmanager
async def serving(directory: Path, wanted: Wanted | None = None) -> AsyncIterator[Server]:
    """A server on a free port, stopped in order at the end."""
    wanted = wanted or Wanted()
    files: Files = RealFiles()
    if wanted.faults:
        files = FaultyFiles(files, FaultPlan(wanted.faults))
    clock = Clock()
    pool = IoPool(asyncio.get_running_loop(), 4)
    folder = await pool.run(
        partial(
            DataDirectory, files, directory,
            LogConfig(segment_bytes=wanted.segment_bytes, fsync=wanted.fsync), pool,
        )
    )  # fmt: skip
    sequence = FileSequence(
        files, folder.sequence, f"test:{os.getpid()}", clock, keep_ms=2 * wanted.engine.lease_ms
    )
    snapshots = SnapshotStore(files, folder.snapshots)
    coordination = Coordination(sequence, FileNames(files, folder.names))
    engine = Engine(folder, snapshots, coordination, pool, wanted.engine, clock)
    await engine.start()
    offsets = OffsetStore(files, folder.groups, pool, wanted.fsync)
    await pool.run(offsets.open)
    (port,) = free_ports(1)
    config = _door_config(wanted, folder.cluster_id, port)
    groups = GroupsApi(engine, offsets, wanted.groups, config.cluster.addresses(), clock)
    budget = MemoryBudget(config.memory_bytes_max)
    apis = EmbeddedApis(engine, config, budget, check_settings, groups)
    door, security = KafkaListener(config, budget, apis), None
    if wanted.security is not None:
        security = Security(wanted.security, files, directory / SECURITY_FOLDER)
        await security.start()
        door = secure_listener(config, budget, apis, engine, security)
    await door.listen(bound_sockets(f"{LOOPBACK}:{port}", "the test"))
    try:
        yield Server(port, engine, door, clock, folder.cluster_id, offsets, groups, apis.topics,
                     security)  # fmt: skip
    finally:
        for connection in list(door.connections):
            connection.close()
        await door.close()
        await offsets.close()
        await engine.stop()
        if security is not None:
            await security.close()
        pool.close()


def _door_config(wanted: Wanted, cluster_id: str, port: int) -> KafkaListenerConfig:
    return KafkaListenerConfig(
        cluster=ClusterConfig(
            cluster_id,
            LOOPBACK,
            port,
            auto_create=wanted.auto_create,
            default_partitions=wanted.default_partitions,
        ),
        log=LogConfig(segment_bytes=wanted.segment_bytes, fsync=wanted.fsync),
        request_bytes_max=wanted.request_bytes_max,
        batch_bytes_max=wanted.batch_bytes_max,
        fetch_bytes_max=wanted.fetch_bytes_max,
        memory_bytes_max=wanted.memory_bytes_max,
        connections_max=wanted.connections_max,
        idle_seconds=wanted.idle_seconds,
    )
