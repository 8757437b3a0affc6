"""Background work of the engine: snapshots, flushes, retention, and expiry of leases."""

import asyncio
import math
import time
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from pidlease.core.backoff import Backoff
from pidlease.engine.leases.leases import Leases
from pidlease.engine.partition import Partition
from pidlease.engine.partition_context import PartitionContext
from pidlease.engine.topics.topic_table import TopicTable
from pidlease.observability.loop_lag import LoopLag
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogError
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshots import Manifest, PartitionRows, SnapshotStore, TopicPartition

#: How often ended leases are removed.
_EXPIRY_SECONDS: Final = 1.0
#: How often it is checked that the files of the log are where they were.
_PLACE_SECONDS: Final = 1.0
#: How often it is checked whether a snapshot is due.
_SNAPSHOT_POLL_SECONDS: Final = 0.5
#: How often unknown outcomes of batches in a log with other writers are resolved.
_SETTLE_SECONDS: Final = 15.0
#: For at most this many partitions at once: each needs a request to the log.
_SETTLED_AT_ONCE: Final = 500
#: How often the event loop's lag is measured during a snapshot.
_DELAY_LOOK_SECONDS: Final = 0.005
#: Between failed snapshots.
_BACKOFF: Final = Backoff(5.0, 60.0)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MaintenanceConfig:
    """How often the background work is done.

    Attributes:
        snapshot_batches: a snapshot is due after this many appended batches,
        snapshot_seconds: or after this time if anything changed. After the last change, snapshots
            go on until all that are kept include it.
        flush_seconds: the interval of fsync policy `interval`.
        retention_seconds: the interval between removals of old segments.
    """

    snapshot_batches: int = 100_000
    snapshot_seconds: float = 60.0
    flush_seconds: float = 1.0
    retention_seconds: float = 300.0


class Maintenance:
    """The background tasks of the engine.

    Parameters:
        table: all partitions, and the snapshot's rows of unloaded ones.
        config: how often the work is done.
    """

    def __init__(
        self,
        table: TopicTable,
        leases: Leases,
        snapshots: SnapshotStore,
        context: PartitionContext,
        pool: IoPool,
        config: MaintenanceConfig,
    ) -> None:
        self._partitions = table.all_partitions
        self._to_snapshot = table.partitions_to_snapshot
        self._unloaded = table.unloaded
        self._held = table.held
        self._check_owned = table.check_owned
        self._check_place = table.check_place
        self._leases = leases
        self._snapshots = snapshots
        self._judging = context.judging
        self._counts = context.counts
        self._clock_ms = context.clock_ms
        self._pool = pool
        self._config = config
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._snapshot_lock = asyncio.Lock()
        self._batches_at_snapshot = 0
        self._granted_at_snapshot = 0
        #: How many of the newest snapshots have the same content. Retention keeps what the oldest
        #: kept one needs.
        self._alike = 0
        self.newest: Manifest | None = None
        #: Returns the names of partitions that this server has owned since it took them over; None:
        #: no other server is active.
        self.verified: (
            Callable[[Collection[Partition]], Coroutine[Any, Any, set[TopicPartition]]] | None
        ) = None
        self.snapshot_seconds = 0.0
        #: The longest lag of the event loop during the last snapshot.
        self.snapshot_delay_seconds = 0.0
        self.snapshots_taken = 0
        self.snapshot_failures = 0

    def start(self, *, at_once: bool = False) -> None:
        """Start the tasks.

        Parameters:
            at_once: take a snapshot now, whatever the intervals say.
        """
        self._tasks = [
            asyncio.create_task(self._snapshot_loop(at_once=at_once)),
            asyncio.create_task(self._repeat(lambda: self._config.flush_seconds, self._flush)),
            asyncio.create_task(self._repeat(lambda: self._config.retention_seconds, self.retain)),
            asyncio.create_task(self._repeat(lambda: _EXPIRY_SECONDS, self._expire)),
            asyncio.create_task(self._repeat(lambda: _SETTLE_SECONDS, self._settle)),
            asyncio.create_task(self._repeat(lambda: _PLACE_SECONDS, self._check_place)),
        ]

    def reconfigure(self, config: MaintenanceConfig) -> None:
        """Change the intervals, each from its next time on."""
        self._config = config

    async def stop(self) -> None:
        """Stop the tasks after their running work: a thread that writes cannot be cancelled."""
        self._stopping.set()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, BaseException):
                _log.error("maintenance had ended", error=repr(outcome))

    async def _pause(self, seconds: float) -> bool:
        """Wait; return False if it is time to stop."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return not self._stopping.is_set()

    async def snapshot(self) -> Manifest:
        """Take a snapshot now.

        Raises:
            OSError: it could not be written.
            LogError: a log could not be made durable, or another server may have served the logs.
        """
        async with self._snapshot_lock, LoopLag(_DELAY_LOOK_SECONDS) as delay:
            started = time.monotonic()
            batches, granted = self._counts.batches, self._leases.granted
            rows: dict[TopicPartition, PartitionRows] = {}
            await self._add_unloaded(rows)
            loaded: dict[Partition, PartitionRows] = {}
            for partition in self._to_snapshot():
                if partition.elsewhere:
                    continue  # since the list was made
                loaded[partition] = partition.rows()
                # The offset vector must not be ahead of the disk: after a power cut the snapshot
                # would be useless. If one log cannot be flushed, no snapshot is taken: without that
                # partition, its producers would be forgotten when its old segments are removed.
                await partition.log.flush()
                await asyncio.sleep(0)  # let other tasks run
            leases = await self._leases.rows()
            # If another server has served the logs meanwhile, this snapshot lacks what that server
            # appended, but its offset vector may be after it: no replay would read it.
            await self._check_owned()
            owned = await self.verified(loaded) if self.verified is not None else None
            for each in loaded.values():
                if owned is None or each.partition in owned:
                    rows[each.partition] = each
            del loaded
            await self._add_unloaded(rows)  # also what was handed over meanwhile
            now_ms = self._clock_ms()
            content = list(rows.values())
            rows.clear()
            work = partial(self._snapshots.write, now_ms, _one_by_one(content), leases)
            manifest = await self._pool.run(work)
            self.newest = manifest
            # Only now: after a failure the next attempt must still see the changes.
            same = (batches, granted) == (self._batches_at_snapshot, self._granted_at_snapshot)
            self._alike = self._alike + 1 if same else 1
            self._batches_at_snapshot, self._granted_at_snapshot = batches, granted
            self.snapshots_taken += 1
            self.snapshot_seconds = time.monotonic() - started
            self.snapshot_delay_seconds = delay.longest
            _log.info("snapshot", number=manifest.number, rows=manifest.rows,
                      seconds=round(self.snapshot_seconds, 3))  # fmt: skip
            return manifest

    async def _add_unloaded(self, rows: dict[TopicPartition, PartitionRows]) -> None:
        """Add the rows of unloaded partitions, except of those that are there."""
        for unloaded in self._unloaded():
            name = unloaded.snapshotted.partition
            # By name: the rows of the owner may have replaced it since the list was made.
            found = self._held.rows_of(name) if name not in rows else None
            if found is not None:
                rows[name] = found
            await asyncio.sleep(0)  # let other tasks run

    async def worth_a_snapshot(self) -> bool:
        """Whether a snapshot would keep anything: neither a log nor a snapshot has anything yet.

        The first snapshot imports pyarrow, which takes time and memory.
        """
        if self.newest is not None or self._counts.batches or self._leases.granted:
            return True
        if any(each.next_offset or each.producers for each in self._to_snapshot()):
            return True
        # Damaged ones: a new one takes their place.
        return bool(self._unloaded() or await self._pool.run(self._snapshots.numbers))

    async def _snapshot_loop(self, *, at_once: bool) -> None:
        last, failures = -math.inf if at_once else time.monotonic(), 0
        while await self._pause(_SNAPSHOT_POLL_SECONDS):
            if not self._judging:
                continue  # nothing is applied, but the offset vector would say so
            batches = self._counts.batches - self._batches_at_snapshot
            changed = batches or self._leases.granted != self._granted_at_snapshot
            # When all kept snapshots are equal, they do not delay retention.
            changed = changed or self._alike < self._snapshots.keep
            late = time.monotonic() - last >= self._config.snapshot_seconds
            due = batches >= self._config.snapshot_batches or (late and changed)
            if not due:
                continue
            try:
                if not await self.worth_a_snapshot():
                    continue
                await self.snapshot()
            except Exception as error:  # noqa: BLE001 - the last snapshot stays; try again
                failures += 1
                wait = _BACKOFF.seconds(failures)
                self._failed(error, wait)
                await self._pause(wait)
            else:
                last, failures = time.monotonic(), 0

    def _failed(self, error: Exception, wait: float) -> None:
        self.snapshot_failures += 1
        trace = None if isinstance(error, OSError | LogError) else error  # for bugs only
        LINES.write(_log, "error", "snapshot failed; the one before stays", kind_of(error), trace,
                    error=str(error) or repr(error), again_in_seconds=wait)  # fmt: skip

    async def _flush(self) -> None:
        for partition in self._partitions():
            with suppress(LogError):  # it has stopped the partition, and logged that
                await partition.log.flush(timed=True)

    async def retain(self) -> None:
        """Remove segments past retention that no snapshot needs."""
        manifests = await self._pool.run(self._snapshots.manifests)
        for partition in self._partitions():
            needed = [each.next_offset(partition.name, partition.topic_id) for each in manifests]
            try:
                removed = await partition.log.retain(min(needed, default=0), self._clock_ms())
            except (OSError, LogError) as error:
                LINES.write(_log, "error", "retention failed", kind_of(error),
                            partition=str(partition.name), error=str(error))  # fmt: skip
                continue
            if removed:
                _log.info("segments removed", partition=str(partition.name), segments=removed,
                          start_offset=partition.log.start_offset)  # fmt: skip

    async def _settle(self) -> None:
        settled = 0
        for partition in self._partitions():
            settled += not partition.log.stopped and partition.settle()
            if settled >= _SETTLED_AT_ONCE:
                return  # the others are next

    async def _expire(self) -> None:
        # A bounded number at a time, so that the event loop stays free.
        self._leases.expire()

    async def _repeat(
        self, seconds: Callable[[], float], work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        while await self._pause(seconds()):
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - it is tried again at the next interval
                LINES.write(_log, "error", "maintenance failed", (work.__name__, kind_of(error)),
                            error, work=work.__name__, error=repr(error))  # fmt: skip


def _one_by_one(rows: list[PartitionRows]) -> Iterator[PartitionRows]:
    """Yield rows and drop each: to free a million producers' rows at once delays the event loop."""
    rows.reverse()
    while rows:
        yield rows.pop()
