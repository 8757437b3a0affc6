"""Moves of partitions between servers that share a Kafka cluster: takeovers and hand-overs.

A takeover makes a new partition from verified states, of a snapshot or of another server, or from
nothing, and reads the log on from there. So a partition that comes back never goes on with what was
known of it before: another server may have written meanwhile. The order of a takeover is

    1. the map names this server; read the settings of topics that other servers have changed
    2. take the writer                          (`WriterTakeover`, before its first batch)
    3. read the fences of names                 (`FenceReader`, within `KafkaWriters.take`)
    4. read the log to the writer's marker; for Kafka clients' own batches, to its end
    5. validate

A hand-over admits no more batches, and waits until those in flight have their outcome.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

import structlog

from pidlease.engine.leases.leases import Leases
from pidlease.engine.partition import Partition
from pidlease.engine.recovery import rows_of
from pidlease.engine.shared_cluster import SharedCluster
from pidlease.engine.topics.settings_follower import SettingsFollower
from pidlease.engine.topics.topic_sync import TopicSync
from pidlease.engine.topics.topic_table import TopicTable
from pidlease.observability.histogram import Histogram
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogError
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshots import (
    Snapshot,
    SnapshotError,
    SnapshotStore,
    TopicPartition,
)

#: How long a hand-over waits for batches in flight.
_LANDING_SECONDS: Final = 5.0
_LANDING_POLL_SECONDS: Final = 0.005
#: Partitions of a topic that are taken over at once: while their producers are noted, nothing else
#: runs, and the next ones are read while these take their writers.
_AT_ONCE: Final = 16
#: Topics of which partitions are taken over at once.
_TOPICS_AT_ONCE: Final = 16
#: Partitions compared with the map before other tasks run.
_COMPARED: Final = 500
#: How long a failed takeover waits before the next attempt.
_AGAIN_SECONDS: Final = 0.5
#: Of the durations of takeovers, in seconds.
_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_log = structlog.get_logger(__name__)


class PartitionMoves:
    """Takes over the partitions that the map gives to this server, and hands over the others.

    Parameters:
        cluster: the map.
        table: the partitions.
        sync: opens and reads partitions.
        leases: forgets the producers of partitions that were handed over.
        snapshots: where a takeover begins.
        settings: follows the settings of topics.
    """

    def __init__(  # noqa: PLR0913 - built in one place
        self,
        cluster: SharedCluster,
        table: TopicTable,
        sync: TopicSync,
        leases: Leases,
        snapshots: SnapshotStore,
        pool: IoPool,
        *,
        settings: SettingsFollower,
    ) -> None:
        self._cluster: Final = cluster
        self._table: Final = table
        self._sync: Final = sync
        self._leases: Final = leases
        self._snapshots: Final = snapshots
        self._settings: Final = settings
        self._pool: Final = pool
        self._wanted: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: The topics with a running takeover.
        self._takeovers: dict[str, asyncio.Task[None]] = {}
        self._landing: Final[set[asyncio.Task[None]]] = set()
        self._room: Final = asyncio.Semaphore(_TOPICS_AT_ONCE)
        self._stopping = False
        #: The epoch of each partition's slot at its last takeover.
        self._epochs: Final[dict[TopicPartition, int]] = {}
        self.taken_over = 0
        self.handed_over = 0
        #: How long takeovers took, from the map's change until batches were validated.
        self.seconds: Final = Histogram(_BUCKETS)
        #: Gets what other servers know of partitions to take over; None: there are none.
        self.fetch: Callable[[Sequence[TopicPartition]], Awaitable[None]] | None = None

    @property
    def offsets_read(self) -> int:
        """How many offsets of the log takeovers have read."""
        return self._sync.offsets_read

    # ------------------------------------------------------------------ life cycle

    async def begin(self) -> None:
        """Begin with no partition: what the recovery has read is where takeovers begin."""
        self._sync.claim = self.claim
        held = []
        for partition in self._table.all_partitions():
            if not partition.log.stopped:
                held.append(partition.rows())
            partition.leave_to("no server owns it yet")
            partition.landing = False
        await self._drop(self._table.all_partitions())
        for each in held:
            await self._table.held.put(each)

    def start(self) -> None:
        """Follow the map."""
        self._cluster.on_change.append(self._on_change)
        self._wanted.set()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Take over nothing more; the owned partitions stay as they are."""
        self._stopping = True  # a running step ends: its threads still use the log
        tasks = [*([self._task] if self._task else []), *self._landing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._takeovers.values(), return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                await self._compare()
            except Exception as error:  # noqa: BLE001 - a bug must not end the moves
                LINES.write(_log, "error", "partitions could not be moved", kind_of(error), error,
                            error=repr(error))  # fmt: skip
                self._again()

    def _on_change(self) -> None:
        if self._cluster.adrift:
            # At once: nothing that waits may be sent before the map has been read again.
            self._step_down()
        self._wanted.set()

    def _step_down(self) -> None:
        """Hand over all partitions, because another server may own them."""
        leaving = [each for each in self._table.all_partitions() if not each.elsewhere]
        for each in leaving:
            each.leave_to(self._cluster.owner_text(each.name))
        if leaving:
            self._keep(asyncio.create_task(self._hand_over(leaving)))

    def _again(self) -> None:
        asyncio.get_running_loop().call_later(_AGAIN_SECONDS, self._wanted.set)

    def changed(self) -> None:
        """Compare the partitions with the map soon: there are new ones."""
        self._wanted.set()

    async def _compare(self) -> None:
        """Hand over and take over as the map says."""
        leaving: list[Partition] = []
        coming: dict[str, list[int]] = {}
        for number, partition in enumerate(self._table.all_partitions()):
            epoch = self._cluster.epoch_if_owned(partition.name)
            if not partition.elsewhere and epoch != partition.epoch:
                partition.leave_to(self._cluster.owner_text(partition.name))
                leaving.append(partition)
            elif partition.elsewhere and epoch is not None and not partition.landing:
                coming.setdefault(partition.name.topic, []).append(partition.name.partition)
            if number % _COMPARED == _COMPARED - 1:
                await asyncio.sleep(0)
        if leaving:
            self._keep(asyncio.create_task(self._hand_over(leaving)))
        coming = {topic: each for topic, each in coming.items() if topic not in self._takeovers}
        if not coming:
            return
        names = [TopicPartition(topic, n) for topic, numbers in coming.items() for n in numbers]
        ready = asyncio.create_task(self._prepare(names))
        self._keep(ready)
        for topic, numbers in coming.items():
            task = asyncio.create_task(self._take_over(topic, numbers, ready))
            self._takeovers[topic] = task

    async def _prepare(self, names: Sequence[TopicPartition]) -> None:
        """Get what other servers know of partitions that are about to be taken over.

        Raises:
            LogError: the settings of topics cannot be read now.
        """
        await self._settings.catch_up()
        if self.fetch is None:
            return
        try:
            await self.fetch(names)
        except Exception as error:  # noqa: BLE001 - the log has everything
            LINES.write(_log, "error", "states could not be fetched; reading the log instead",
                        kind_of(error), error, error=repr(error))  # fmt: skip

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._landing.add(task)
        task.add_done_callback(self._landing.discard)

    # ------------------------------------------------------------------ hand-over

    async def _hand_over(self, partitions: Sequence[Partition]) -> None:
        """Wait for batches in flight, and go back to the last verified snapshot."""
        try:
            deadline = time.monotonic() + _LANDING_SECONDS
            while (  # noqa: ASYNC110 - a bounded wait, over all of them
                any(each.in_flight for each in partitions) and time.monotonic() < deadline
            ):
                await asyncio.sleep(_LANDING_POLL_SECONDS)
            await self._drop(partitions)
            snapshot = await self._pool.run(self._newest)
            for each in partitions:
                rows = rows_of(snapshot, each.name)
                if rows is not None:
                    await self._table.held.put(rows)
            self.handed_over += len(partitions)
            _log.info("partitions handed over", partitions=len(partitions))
        finally:
            for each in partitions:
                each.landing = False
            self._wanted.set()

    async def _drop(self, partitions: Sequence[Partition]) -> None:
        for each in partitions:
            each.wake()
            await self._leases.leave(each)

    def _newest(self) -> Snapshot | None:
        for manifest in self._snapshots.manifests():
            try:
                return self._snapshots.load(manifest.number)
            except SnapshotError as error:
                LINES.write(_log, "error", "snapshot skipped", kind_of(error),
                            number=manifest.number, reason=str(error))  # fmt: skip
        return None

    # ------------------------------------------------------------------ takeover

    def claim(self, partition: Partition) -> bool:
        """Note whether this server owns a partition that is not served yet.

        A second call, after its log was read, checks that no other server has owned it meanwhile.
        """
        epoch = self._cluster.epoch_if_owned(partition.name)
        if partition.elsewhere or epoch is None or partition.epoch not in (0, epoch):
            partition.leave_to(self._cluster.owner_text(partition.name))
            partition.landing = False
            return False
        partition.epoch = self._epochs[partition.name] = epoch
        return True

    async def _take_over(
        self, topic: str, numbers: Sequence[int], ready: asyncio.Task[None]
    ) -> None:
        began, taken = time.monotonic(), 0
        failure: Exception | None = None
        try:
            await asyncio.wait([ready])
            ready.result()
            for start in range(0, len(numbers), _AT_ONCE):
                async with self._room:
                    if self._stopping:
                        return
                    some = numbers[start : start + _AT_ONCE]
                    try:
                        await self._sync.take_over(topic, some)
                    except Exception as error:  # noqa: BLE001 - logged; it holds up no others
                        failure = error
                    taken += self._count_taken(topic, some, began)
        except Exception as error:  # noqa: BLE001 - logged below, and tried again
            failure = error
        finally:
            del self._takeovers[topic]
        if failure is not None:
            self._log_failure(topic, failure)
        if failure is not None or not taken:
            self._again()  # or the map changed meanwhile, and may name this server again
        if taken:
            _log.info("partitions taken over", topic=topic, partitions=taken,
                      seconds=round(time.monotonic() - began, 3))  # fmt: skip
            # The map may have changed meanwhile.
            self._wanted.set()

    def _count_taken(self, topic: str, numbers: Sequence[int], began: float) -> int:
        """Count those of some partitions that this server serves now."""
        found = self._table.partitions.get(topic, [])
        taken = sum(not found[each].elsewhere for each in numbers if each < len(found))
        self.taken_over += taken
        for _ in range(taken):
            self.seconds.observe(time.monotonic() - began)
        return taken

    @staticmethod
    def _log_failure(topic: str, failure: Exception) -> None:
        is_expected = isinstance(failure, OSError | LogError)
        LINES.write(_log, "warning" if is_expected else "error",
                    "partitions could not be taken over; trying again", (topic, kind_of(failure)),
                    None if is_expected else failure, topic=topic,
                    error=str(failure) if is_expected else repr(failure))  # fmt: skip

    # ------------------------------------------------------------------ snapshots

    async def verified(self, partitions: Collection[Partition]) -> set[TopicPartition]:
        """Return the names of partitions that this server has owned since it took them over.

        If another server has written to a partition meanwhile, its rows lack that, but their
        offset may be after it: no replay would read it.

        Parameters:
            partitions: those with rows that were taken; one that came back since is another object.

        Raises:
            LogError: the map cannot be read now.
        """
        slots = await self._cluster.fresh_slots()
        return {
            each.name for each in partitions
            if not each.elsewhere and self._cluster.still_owns(slots, each.name, each.epoch)
        }  # fmt: skip

    async def owns(self, name: TopicPartition) -> bool:
        """Return whether this server has owned a partition since it took it over, by a new read.

        Raises:
            LogError: the map cannot be read now.
        """
        slots = await self._cluster.fresh_slots()
        epoch = self._epochs.get(name)
        return epoch is not None and self._cluster.still_owns(slots, name, epoch)
