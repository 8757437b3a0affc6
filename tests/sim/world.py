"""The whole engine on a simulated disk, life after life, with clients that outlive it.

A world is a disk and clients. In each life an engine starts on the disk as the last one left it,
serves for a while, and is stopped, killed or loses its power. Each life has an event loop of its
own, so nothing of the one before goes on. What consumers were shown is kept, and must still
stand there, at the same offsets, in every later life.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from pidlease.coordination.file.file_names import FileNames
from pidlease.coordination.file.file_sequence import FileSequence
from pidlease.coordination.pid_sequence import Coordination
from pidlease.core.log_config import LogConfig
from pidlease.core.pid import Policy
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.batch_identity import batch_of
from pidlease.engine.engine import Engine, EngineConfig
from pidlease.engine.leases.leases import NoPidError
from pidlease.engine.maintenance import MaintenanceConfig
from pidlease.engine.partition import Partition
from pidlease.engine.pending_batches import Submitted
from pidlease.kafka.records.record_batch import read_header
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.storage.errors import LogError
from pidlease.storage.files import Files
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshots import SnapshotStore
from pidlease.storage.topics.topic_store import Topic
from tests.sim.batches import make_batch, read_records
from tests.sim.clients import Stream
from tests.sim.files import SimFiles, SimulatedCrash
from tests.sim.pool import SeededPool

DATA: Final = Path("/data")
TOPIC: Final = "events"
LEASE_MS: Final = 24 * 3600 * 1000

#: The keeper's own clock never strikes in a life: the world says when.
NEVER: Final = MaintenanceConfig(10**9, 10**6, 10**6, 10**6)

#: What is done in a life.
Work = Callable[["Life"], Awaitable[None]]

#: What a world's files are shown through; a broken one, to prove that it is noticed.
Wrap = Callable[[SimFiles], Files]


class Violation(AssertionError):  # noqa: N818 - what the harness is there to find
    """A guarantee does not hold."""


@dataclass(slots=True)
class Setup:
    """What a world is made of."""

    seed: int
    streams: int = 3
    partitions: int = 2
    batches: int = 20
    log: LogConfig = field(
        default_factory=lambda: LogConfig(segment_bytes=1500, retention_ms=-1, retention_bytes=4000)
    )
    threads: int = 0
    power_cuts: bool = True
    wrap: Wrap = lambda files: files


class World:
    """See the module."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.random = Random(setup.seed)
        self.files = SimFiles(setup.seed)
        self.now_ms = 1_700_000_000_000
        self.streams = [
            Stream(f"s{n}", n % setup.partitions, setup.batches) for n in range(setup.streams)
        ]
        self.archive: list[list[bytes]] = [[] for _ in range(setup.partitions)]
        self.pids: set[int] = set()
        self.virgins: list[int] = []
        self.topic: Topic | None = None
        self.counts: Counter[str] = Counter()

    # ------------------------------------------------------------------ lives

    def live(self, work: "Work | None" = None) -> None:
        """One life; ends when `work` returns, or at the disk's crash point."""
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            loop.set_exception_handler(lambda _loop, _context: None)
            with suppress(SimulatedCrash):
                runner.run(self._live(work))

    async def _live(self, work: "Work | None") -> None:
        pool = self._make_pool()
        try:
            life = await Life.start(self, pool)
            await life.settle()
            if work is not None:
                await work(life)
        finally:
            if self.setup.threads:
                await asyncio.to_thread(pool.close)

    def _make_pool(self) -> IoPool:
        loop = asyncio.get_running_loop()
        if self.setup.threads:
            return IoPool(loop, self.setup.threads)
        return SeededPool(loop, Random(self.random.getrandbits(32)))

    def die(self, *, power: bool, seed: int | None = None) -> None:
        """Go on with what a kill -9, or a power cut, leaves of the disk."""
        self.counts["crash points hit"] += self.files.crashed
        if power:
            self.files = self.files.power_loss(seed)
            self.counts["power cuts"] += 1
            self.counts["lost writes"] += self.files.lost_writes
            self.counts["lost names"] += self.files.lost_names
            self.counts["torn files"] += self.files.torn_files
        else:
            self.files = self.files.process_death()
            self.counts["kills"] += 1
        for stream in self.streams:
            stream.connect(server_died=True)

    # ------------------------------------------------------------------ the verdict

    def check_crashed(self) -> None:
        """The crash point was reached."""
        if not self.files.crashed:
            raise Violation("the crash point was never reached")

    def check_clients(self) -> None:
        """No client was told what it must not be told."""
        errors = [error for stream in self.streams for error in stream.errors]
        if errors:
            raise Violation("; ".join(errors))

    def check_archive(self) -> None:
        """What clients were told is what consumers were shown; at the end, all of it."""
        self.check_clients()
        for stream in self.streams:
            shown = self.archive[stream.partition]
            mine = [value for value in shown if value.startswith(stream.name.encode() + b"/")]
            if mine != stream.produced:
                raise Violation(f"{stream.name}: {_difference(stream.produced, mine)}")
            for offset, value in stream.offsets.items():
                if shown[offset] != value:
                    raise Violation(f"{stream.name}: told {offset}, where {shown[offset]!r} stands")

    @property
    def done(self) -> bool:
        """Whether all clients have had all their answers."""
        return all(stream.done for stream in self.streams)


def _difference(sent: list[bytes], stored: list[bytes]) -> str:
    counted = Counter(stored)
    lost = [value for value in sent if not counted[value]]
    doubled = [value for value, count in counted.items() if count > 1]
    return f"lost {lost[:3]}, doubled {doubled[:3]}, {len(sent)} sent, {len(stored)} stored"


class Life:
    """One engine, from its start to its end."""

    def __init__(self, world: World, engine: Engine) -> None:
        self.world = world
        self.engine = engine
        self.random = world.random

    @classmethod
    async def start(cls, world: World, pool: IoPool) -> "Life":
        """Start an engine on the world's disk."""
        files = world.setup.wrap(world.files)
        make = partial(DataDirectory, files, DATA, world.setup.log, pool)
        folder = await pool.run(make)

        def clock() -> int:
            return world.now_ms

        def rest() -> tuple[SnapshotStore, FileSequence]:
            sequence = FileSequence(files, folder.sequence, "sim", clock, keep_ms=2 * LEASE_MS)
            return SnapshotStore(files, folder.snapshots), sequence

        snapshots, sequence = await pool.run(rest)
        config = EngineConfig(lease_ms=LEASE_MS, maintenance=NEVER)
        coordination = Coordination(sequence, FileNames(files, folder.names))
        engine = Engine(folder, snapshots, coordination, pool, config, clock)
        await engine.start()
        world.counts["starts"] += 1
        return cls(world, engine)

    async def settle(self) -> None:
        """Find what must be there, make the topic where it is missing, and give PIDs."""
        world = self.world
        if world.topic is not None and world.topic.name not in self.engine.topics:
            raise Violation("a topic that was made is gone")
        if TOPIC not in self.engine.topics:
            topic = Topic.new(TOPIC, world.setup.partitions)
            await self.engine.create_topic(topic)
        world.topic = self.engine.topics[TOPIC]
        for number, partition in enumerate(self.partitions()):
            if partition.log.stopped:
                raise Violation(f"{partition.name} is stopped: {partition.log.stopped}")
            await self.reread(number, partition)
        self.check_virgins()
        for stream in world.streams:
            if stream.pid < 0:
                stream.pid = self.lease()

    def partitions(self) -> list[Partition]:
        """All partitions of the topic."""
        return list(self.engine.partitions_of(TOPIC))

    def lease(self) -> int:
        """A PID that nobody ever had; -1: none now."""
        try:
            pid = self.engine.leases.lease(Policy.KAFKA)
        except NoPidError:
            return -1
        if pid in self.world.pids:
            raise Violation(f"PID {pid} was leased twice")
        self.world.pids.add(pid)
        return pid

    def check_virgins(self) -> None:
        """A leased PID that never wrote starts at 0, on every partition, in every later life."""
        for pid in self.world.virgins[-3:]:
            data = make_batch([b"not the first"], pid=pid, epoch=0, first=4)
            header = read_header(data)
            for partition in self.partitions():
                told: list[Outcome] = []
                partition.produce(Submitted(pid, header, data, batch_of(header), told.append))
                if [(each.status, each.expected) for each in told] != [(Status.GAP, 0)]:
                    raise Violation(f"PID {pid} never wrote, and began at 4: {told}")
        virgin = self.lease()
        if virgin >= 0:
            self.world.virgins.append(virgin)

    async def reread(self, number: int, partition: Partition) -> None:
        """Read a partition from its start: what was shown before stands where it stood."""
        shown = self.world.archive[number]
        start = partition.log.start_offset
        if start > len(shown) or partition.readable_end < len(shown):
            raise Violation(
                f"{partition.name}: {len(shown)} records were shown; now it holds"
                f" {start} to {partition.readable_end}"
            )
        values = await read_values(partition, start)
        if values[: len(shown) - start] != shown[start:]:
            raise Violation(f"{partition.name}: what was shown before is not what stands there")
        shown.extend(values[len(shown) - start :])

    async def consume(self) -> None:
        """Show consumers what is new."""
        for number, partition in enumerate(self.partitions()):
            shown = self.world.archive[number]
            start = len(shown)
            values = await read_values(partition, start)
            shown.extend(values[len(shown) - start :])  # another consumer may have been faster


async def read_values(partition: Partition, offset: int) -> list[bytes]:
    """The records from an offset to the end of what may be read."""
    values: list[bytes] = []
    end = partition.readable_end
    at = offset
    while at < end:
        try:
            records = read_records((await partition.log.read(at, 700)).data)
        except LogError as error:
            raise Violation(f"{partition.name}: offset {at} cannot be read: {error!r}") from error
        new = [record for record in records if at <= record.offset < end]
        if [record.offset for record in new] != list(range(at, at + len(new))) or not new:
            raise Violation(f"{partition.name}: a hole at {at}")
        values.extend(record.value for record in new)
        at += len(new)
    return values
