"""What is done from time to time: snapshots, flushes, retention, leases that end."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from pidlease.core.backoff import Backoff
from pidlease.engine.leases.leases import Leases
from pidlease.engine.partition_context import PartitionContext
from pidlease.engine.topics.topic_table import TopicTable
from pidlease.observability.loop_lag import LoopLag
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogError
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshots import Manifest, SnapshotError, SnapshotStore

#: How often leases that have ended leave.
_EXPIRY_SECONDS: Final = 1.0
#: How often it is looked whether enough batches came for a snapshot.
_SNAPSHOT_POLL_SECONDS: Final = 0.5
#: How often doubts about a log that others write to are ended.
_SETTLE_SECONDS: Final = 15.0
#: Of so many partitions at once: the log is asked for each.
_SETTLED_AT_ONCE: Final = 500
#: How often it is looked how long anything waits for a snapshot.
_DELAY_LOOK_SECONDS: Final = 0.005
#: Between failed snapshots.
_BACKOFF: Final = Backoff(5.0, 60.0)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MaintenanceConfig:
    """When things are done.

    Attributes:
        snapshot_batches: a snapshot after this many appended batches,
        snapshot_seconds: or after this time, if anything changed; and once more after the last
            change, so that all which are kept have it.
        flush_seconds: how often fsync policy `interval` fsyncs.
        retention_seconds: how often old segments are looked for.
    """

    snapshot_batches: int = 100_000
    snapshot_seconds: float = 60.0
    flush_seconds: float = 1.0
    retention_seconds: float = 300.0


class Maintenance:
    """The background tasks of the engine.

    Parameters:
        table: all partitions, and what is known of those that cannot be read yet.
        leases: the leases.
        snapshots: where snapshots go.
        around: what all partitions share.
        pool: the threads for blocking work.
        config: when things are done.
    """

    def __init__(
        self,
        table: TopicTable,
        leases: Leases,
        snapshots: SnapshotStore,
        around: PartitionContext,
        pool: IoPool,
        config: MaintenanceConfig,
    ) -> None:
        self._partitions = table.all_partitions
        self._to_snapshot = table.partitions_to_snapshot
        self._held = table.rows_held
        self._check_owned = table.check_owned
        self._leases = leases
        self._snapshots = snapshots
        self._judging = around.judging
        self._counts = around.counts
        self._clock_ms = around.clock_ms
        self._pool = pool
        self._config = config
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._snapshot_lock = asyncio.Lock()
        self._batches_at_snapshot = 0
        self._granted_at_snapshot = 0
        #: How many of the newest snapshots hold the same: what an older one needs may not go.
        self._alike = 0
        self.newest: Manifest | None = None
        self.snapshot_seconds = 0.0
        #: The longest that anything waited while the last one was made.
        self.snapshot_delay_seconds = 0.0
        self.snapshots_taken = 0
        self.snapshot_failures = 0

    def start(self) -> None:
        """Begin."""
        self._tasks = [
            asyncio.create_task(self._snapshot_loop()),
            asyncio.create_task(self._repeat(lambda: self._config.flush_seconds, self._flush)),
            asyncio.create_task(self._repeat(lambda: self._config.retention_seconds, self.retain)),
            asyncio.create_task(self._repeat(lambda: _EXPIRY_SECONDS, self._expire)),
            asyncio.create_task(self._repeat(lambda: _SETTLE_SECONDS, self._settle)),
        ]

    def reconfigure(self, config: MaintenanceConfig) -> None:
        """Do things at other times, each from its next time on."""
        self._config = config

    async def stop(self) -> None:
        """End after the running work: a thread that writes a snapshot cannot be cancelled."""
        self._stopping.set()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, BaseException):
                _log.error("maintenance had ended", error=repr(outcome))

    async def _pause(self, seconds: float) -> bool:
        """Wait; False when it is time to end."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return not self._stopping.is_set()

    async def snapshot(self) -> Manifest:
        """Take a snapshot now.

        Raises:
            OSError: it could not be written.
            LogError: what it would speak of may not be on the disk, or another server may have
                served the logs meanwhile.
        """
        async with self._snapshot_lock, LoopLag(_DELAY_LOOK_SECONDS) as delay:
            started = time.monotonic()
            batches, granted = self._counts.batches, self._leases.granted
            rows = self._held()
            for partition in self._to_snapshot():
                rows.append(partition.rows())
                # The vector may not run ahead of the disk: a snapshot that does is worth nothing
                # after a power cut. Where that cannot be known of a partition, there is none:
                # without it, its producers would be forgotten when its old segments go.
                await partition.log.flush()
                await asyncio.sleep(0)  # the loop breathes between two partitions
            leases = await self._leases.rows()
            # Of what another server stored, a snapshot taken beside it knows nothing; its vector
            # may lie past that, and no replay would read it.
            await self._check_owned()
            now_ms = self._clock_ms()
            work = partial(self._snapshots.write, now_ms, rows, leases)
            manifest = await self._pool.run(work)
            self.newest = manifest
            # Not before it is there: one that failed is tried again with nothing new to say.
            same = (batches, granted) == (self._batches_at_snapshot, self._granted_at_snapshot)
            self._alike = self._alike + 1 if same else 1
            self._batches_at_snapshot, self._granted_at_snapshot = batches, granted
            self.snapshots_taken += 1
            self.snapshot_seconds = time.monotonic() - started
            self.snapshot_delay_seconds = delay.longest
            _log.info("snapshot", number=manifest.number, rows=manifest.rows,
                      seconds=round(self.snapshot_seconds, 3))  # fmt: skip
            return manifest

    async def _snapshot_loop(self) -> None:
        last, failures = time.monotonic(), 0
        while await self._pause(_SNAPSHOT_POLL_SECONDS):
            if not self._judging:
                continue  # nothing is folded: a snapshot would call applied what is not
            batches = self._counts.batches - self._batches_at_snapshot
            changed = batches or self._leases.granted != self._granted_at_snapshot
            # Once all that are kept are alike they hold up no retention.
            changed = changed or self._alike < self._snapshots.keep
            late = time.monotonic() - last >= self._config.snapshot_seconds
            if batches < self._config.snapshot_batches and not (late and changed):
                continue
            try:
                await self.snapshot()
            except Exception as error:  # noqa: BLE001 - the one before stays, the next is tried
                failures += 1
                wait = _BACKOFF.seconds(failures)
                self._failed(error, wait)
                await self._pause(wait)
            else:
                last, failures = time.monotonic(), 0

    def _failed(self, error: Exception, wait: float) -> None:
        self.snapshot_failures += 1
        trace = None if isinstance(error, OSError | LogError) else error  # of a bug only
        LINES.write(_log, "error", "snapshot failed; the one before stays", kind_of(error), trace,
                    error=str(error) or repr(error), again_in_seconds=wait)  # fmt: skip

    async def _flush(self) -> None:
        for partition in self._partitions():
            with suppress(LogError):  # it has stopped the partition, and said so
                await partition.log.flush()

    async def retain(self) -> None:
        """Remove what is past retention and no snapshot needs."""
        manifests = await self._pool.run(self._valid_manifests)
        for partition in self._partitions():
            needed = [
                manifest.offset_vector[partition.name].next_offset
                if partition.name in manifest.offset_vector
                and manifest.offset_vector[partition.name].topic_id == partition.topic_id
                else 0
                for manifest in manifests
            ]
            try:
                removed = await partition.log.retain(min(needed, default=0), self._clock_ms())
            except (OSError, LogError) as error:
                LINES.write(_log, "error", "retention failed", kind_of(error),
                            partition=str(partition.name), error=str(error))  # fmt: skip
                continue
            if removed:
                _log.info("segments removed", partition=str(partition.name), segments=removed,
                          start_offset=partition.log.start_offset)  # fmt: skip

    def _valid_manifests(self) -> list[Manifest]:
        found = []
        for number in self._snapshots.numbers():
            try:
                found.append(self._snapshots.manifest(number))
            except SnapshotError as error:
                LINES.write(_log, "warning", "snapshot cannot be used", number,
                            number=number, reason=str(error))  # fmt: skip
        return found

    async def _settle(self) -> None:
        settled = 0
        for partition in self._partitions():
            settled += not partition.log.stopped and partition.settle()
            if settled >= _SETTLED_AT_ONCE:
                return  # the others the next time

    async def _expire(self) -> None:
        # A bounded part at a time, so that the loop stays free; the next part comes in a second.
        self._leases.expire()

    async def _repeat(
        self, seconds: Callable[[], float], work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        while await self._pause(seconds()):
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - what goes wrong once is tried again
                LINES.write(_log, "error", "maintenance failed", (work.__name__, kind_of(error)),
                            error, work=work.__name__, error=repr(error))  # fmt: skip
