"""Copies topics: each record of the source exactly once at the destination, over any crash."""

import asyncio
import logging
import os
import random
import secrets
import socket
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from pidlease.client.errors import (
    FencedError,
    LeaseRefusedError,
    LeaseUnavailableError,
    ProducerError,
)
from pidlease.client.lease_requests import GONE
from pidlease.client.producer_memory import Memory
from pidlease.copier.checkpoint_commits import CheckpointCommits
from pidlease.copier.cluster_pair import ClusterConnection, both_sides, check_apart, connect
from pidlease.copier.cluster_reader import RETRY_S, ClusterReader
from pidlease.copier.copy_checkpoint import CopyCheckpoint, read_checkpoint
from pidlease.copier.copy_metrics import CopyMetrics
from pidlease.copier.copy_reports import CopyReports
from pidlease.copier.copy_start import CopyStart
from pidlease.copier.destination import Destination, destination_settings
from pidlease.copier.errors import CheckpointError, CopierFencedError, CopyError
from pidlease.copier.group_membership import (
    GroupMembership,
    ReplacedError,
    Saved,
    UnavailableError,
)
from pidlease.copier.partition_copy import PartitionCopy
from pidlease.copier.settings import CopySettings
from pidlease.copier.source_fetcher import SourceFetcher
from pidlease.core.backoff import Backoff
from pidlease.core.lease import Lease
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.offset_requests import LATEST

_log = logging.getLogger(__name__)

#: How long the end of a fenced copier may wait for the id of its successor.
_SUCCESSOR_S: Final = 10.0
#: Before a lease is requested again; each partition has one.
_LEASE_BACKOFF: Final = Backoff(RETRY_S, 5.0, jitter=0.2)
#: How often a copy with `once` checks whether it is finished.
_LOOK_S: Final = 0.05
#: How long the last commit, and leaving the group, may take.
_LAST_S: Final = 15.0
#: How often the copier checks the clock.
_CLOCK_S: Final = 1.0
#: After silence, the group revokes partitions within this time.
_SOON_S: Final = 60.0


class Copier:
    """A copier; several of one group share the work.

    ```python
    import asyncio

    from pidlease.copier import Copier, CopySettings

    settings = CopySettings(
        source="kafka1:9092",
        destination="127.0.0.1:9092",
        leases="http://127.0.0.1:8080",
        group="mirror",
        topics=["payments"],
        once=True,
    )
    asyncio.run(Copier(settings).run())
    ```

    Parameters:
        settings: the copy's.
    """

    def __init__(self, settings: CopySettings) -> None:
        self.settings: Final = settings
        self.metrics: Final = CopyMetrics()
        self.copier_id: Final = settings.who or _new_id()
        self.cluster = ""
        self.destination: Destination
        self.copy_start: CopyStart
        self.memory: Final = Memory(settings.memory_bytes)
        self._copies: Final[dict[TopicPartition, PartitionCopy]] = {}
        #: The destination's topics by the source's, checked since the last assignment.
        self._prepared: Final[dict[str, str]] = {}
        self._preparing: Final = asyncio.Lock()
        #: The last check of the clock, in seconds of the monotonic clock.
        self._seen_s = 0.0
        #: The last check that found this process stopped for longer than its session.
        self._silent_s = float("-inf")
        #: Partitions that the group revoked after such a stop: another copier may have them.
        self._lost: Final[set[TopicPartition]] = set()
        #: Why there was no lease last; empty: there was one.
        self._no_lease = ""
        self._stopping: asyncio.Event
        self._failed: asyncio.Future[None]
        self._source: ClusterConnection
        self._target: ClusterConnection
        self._fetcher: SourceFetcher
        self._membership: GroupMembership
        self._saving: CheckpointCommits
        self._joined = False

    # ------------------------------------------------------------------ life

    async def run(self) -> None:
        """Copy until it is stopped, or, with `once`, until it is finished.

        Raises:
            CopierFencedError: another copier has taken over.
            CopyError: the copy cannot continue without an operator.
        """
        settings = self.settings
        self._stopping = asyncio.Event()
        self._failed = asyncio.get_running_loop().create_future()
        self._source, self._target = both_sides(settings)
        self.destination = Destination(destination_settings(settings))
        reports = CopyReports(settings, self.copier_id, self.metrics, self.destination.leases)
        reporting = self.destination.spawn(reports.run())
        self._membership = GroupMembership(settings, self._assigned, self._revoked)
        self._saving = CheckpointCommits(self._membership, self.metrics)
        self.copy_start = CopyStart(self._places, self._saving.all_saved)
        self._fetcher = SourceFetcher(
            self._source.cluster, settings.fetch_wait_ms, settings.give_up_ms / 1000
        )
        ended_by: BaseException | None = None
        try:
            if await self._unless_stopped(self._connect()):
                self._seen_s = time.monotonic()
                await self._membership.start()
                self._joined = True
                await self._work()
        except BaseException as error:
            ended_by = error
            raise
        finally:
            await self._close()
            reporting.cancel()
            await reports.end(ended_by)
            await self._disconnect()

    def stop(self) -> None:
        """End `run` after the responses to in-flight batches and a last commit."""
        self._stopping.set()

    async def _connect(self) -> None:
        """Connect both sides, and check that they fit."""
        await connect(self.settings, self._source, self._target)
        if self.settings.start == LATEST:
            await self.copy_start.note_partitions()
        self.cluster = self._target.cluster_id
        try:
            await self.destination.start()
        except ProducerError as error:
            raise CopyError(f"the destination cannot be reached: {error}") from None

    async def _places(self) -> list[TopicPartition]:
        """Return the partitions to copy that the source has now."""
        topics = await self._source.topics()
        return [
            TopicPartition(topic, number)
            for topic, partitions in topics.items()
            if self.settings.selects(topic)
            for number in range(partitions)
        ]

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run a coroutine until it is done or the copier is stopped; return whether it was done."""
        task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            return task.done()
        finally:
            task.cancel()
            stopped.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)

    async def _work(self) -> None:
        works = [
            asyncio.ensure_future(work)
            for work in (
                self._fetcher.run(),
                self._save_often(),
                self._watch_clock(),
                self._until_done(),
            )
        ]
        try:
            done, _ = await asyncio.wait(
                (*works, self._failed), return_when=asyncio.FIRST_COMPLETED
            )
            for each in done:
                each.result()
            self.destination.check()
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)

    async def _until_done(self) -> None:
        """Wait until the copier is stopped, or has finished."""
        while not self._stopping.is_set():
            copies = self._copies.values()
            if self.settings.once and copies and all(each.finished for each in copies):
                return
            await asyncio.sleep(_LOOK_S)

    async def _close(self) -> None:
        if self._joined:
            if not self._failed.done():
                await self._leave(list(self._copies.values()))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._membership.stop(), _LAST_S)
        for copy in list(self._copies.values()):
            await copy.stop(lost=True)

    async def _disconnect(self) -> None:
        await self.destination.close()
        await self._source.close()
        await self._target.close()
        if not self._failed.cancel():
            self._failed.exception()  # it may have failed again since `run` got an error

    # ------------------------------------------------------------------ the group

    def _assigned(self, places: set[TopicPartition]) -> None:
        self._prepared.clear()
        gate = asyncio.Barrier(max(len(places), 1))
        for place in sorted(places):
            copy = self._copies[place] = PartitionCopy(self, place, gate)
            self.metrics.assigned += 1
            copy.start()
        _log.info("%s partitions are this copier's (%s)", len(places), self.copier_id)
        self._show()

    async def _revoked(self, places: set[TopicPartition], *, lost: bool) -> None:
        copies = [self._copies[place] for place in places if place in self._copies]
        if lost:
            await asyncio.gather(*(copy.stop(lost=True) for copy in copies))
            _log.warning("the group has lost this copier: its partitions are others' to take")
            self._look_at_clock()
            if self._seen_s - self._silent_s < _SOON_S:
                self._lost.update(places)
        else:
            await self._leave(copies)
        for copy in copies:
            self._copies.pop(copy.place, None)
        self._show()

    async def _watch_clock(self) -> None:
        while True:
            await asyncio.sleep(_CLOCK_S)
            self._look_at_clock()

    def _look_at_clock(self) -> None:
        """Note whether this process was stopped for so long that others may have taken over.

        A group also loses its members if its coordinator is away, or forgets them. Then they get
        partitions again, and no copier has to end.
        """
        now = time.monotonic()
        if now - self._seen_s > self.settings.session_timeout_ms / 1000:
            self._silent_s = now
        self._seen_s = now

    async def _leave(self, copies: list[PartitionCopy]) -> None:
        """Stop copies, and commit them once more: the next copier would else send records again."""
        await asyncio.gather(*(copy.stop(lost=False) for copy in copies))
        try:
            await asyncio.wait_for(self._saving.save_all(copies), _LAST_S)
        except (UnavailableError, ReplacedError, CopyError, TimeoutError) as error:
            self.metrics.commit_failures += 1
            _log.warning("the last checkpoint is not saved: %s", error)

    def _show(self) -> None:
        self.metrics.partitions = [copy.progress for _, copy in sorted(self._copies.items())]

    async def _save_often(self) -> None:
        while True:
            await asyncio.sleep(self.settings.commit_interval_ms / 1000)
            self._membership.check()
            self.destination.check()
            await self._look_for_successors()
            try:
                await self._saving.save_all(list(self._copies.values()))
            except (UnavailableError, ReplacedError) as error:
                self.metrics.commit_failures += 1
                _log.info("not saved now: %s", error)

    async def _look_for_successors(self) -> None:
        """Check whether another copier has partitions that this one lost while silent."""
        lost = sorted(self._lost - self._copies.keys())
        if not lost:
            return
        try:
            saved = await self._membership.saved(lost)
        except UnavailableError:
            return
        for place in lost:
            self._check_mine(place, saved.get(place))

    def _check_mine(self, place: TopicPartition, saved: Saved | None) -> None:
        """Check that a lost partition has this copier's checkpoint.

        Raises:
            CopierFencedError: another copier has taken it over.
        """
        if place not in self._lost or saved is None:
            return
        try:
            successor = read_checkpoint(*saved).who
        except CheckpointError:
            return  # `PartitionCopy` raises it
        if successor != self.copier_id:
            raise CopierFencedError(
                f"this copier ({self.copier_id}) was silent for too long, and {successor} has taken"
                f" over {place.topic}-{place.partition}"
            )

    # ------------------------------------------------------------------ called by partitions

    @property
    def source(self) -> ClusterReader:
        """The reader of the source."""
        return self._source.reader

    @property
    def target(self) -> ClusterReader:
        """The reader of the destination."""
        return self._target.reader

    async def prepare(self, topic: str, partition: int) -> str:
        """Make sure that the destination has a partition, and return its topic there."""
        async with self._preparing:
            if topic not in self._prepared:
                check_apart(self.settings, self._source, self._target, {topic})
                renamed = self.settings.renamed(topic)
                partitions = await self._source.partitions(topic)
                await self._target.provide(renamed, max(partitions, partition + 1))
                self._prepared[topic] = renamed
            return self._prepared[topic]

    async def saved(self, place: TopicPartition) -> Saved | None:
        """Return the committed offset with its metadata."""
        found = await self._saving.saved(place)
        self._check_mine(place, found)
        self._lost.discard(place)
        return found

    async def save(self, place: TopicPartition, checkpoint: CopyCheckpoint) -> None:
        """Commit a checkpoint now."""
        await self._saving.save(place, checkpoint)

    async def lease(self, topic: str, partition: int, pid: int) -> Lease | None:
        """Lease a new PID (-1), or renew one; None: its lease has ended."""
        failures = 0
        while True:
            try:
                lease = await self.destination.leases.lease_pid(topic, partition, pid)
            except LeaseUnavailableError as error:
                failures += 1
                level = logging.WARNING if str(error) != self._no_lease else logging.INFO
                self._no_lease = str(error)  # many partitions wait for the same
                _log.log(level, "%s-%s: %s", topic, partition, error)
                await asyncio.sleep(_LEASE_BACKOFF.seconds(failures, random.uniform))
            except LeaseRefusedError as error:
                if error.status == GONE:
                    return None
                raise CopyError(f"the destination, {topic}-{partition}: {error}") from None
            else:
                self._no_lease = ""
                return lease

    def read(self, reader: PartitionCopy) -> None:
        """Fetch a partition from now on."""
        self._fetcher.add(reader)

    def leave(self, reader: PartitionCopy) -> None:
        """Stop fetching a partition."""
        self._fetcher.remove(reader)

    def more(self) -> None:
        """Look again: a partition may accept more."""
        self._fetcher.wake()

    def fail(self, error: Exception) -> None:
        """End the copy with an error."""
        if not self._failed.done():
            self._failed.set_exception(error)

    def fenced(self, place: TopicPartition, error: FencedError) -> None:
        """End the copy: another copier writes under a partition's PID."""
        self.destination.spawn(self._end_fenced(place, error))

    async def _end_fenced(self, place: TopicPartition, error: FencedError) -> None:
        """End the copy with an error that names the successor."""
        successor = "another copier"
        with suppress(TimeoutError):
            async with asyncio.timeout(_SUCCESSOR_S):
                try:
                    saved = await self._saving.saved(place)
                    successor = successor if saved is None else read_checkpoint(*saved).who
                except CopyError as unknown:
                    _log.info("the successor is unknown: %s", unknown)
        self.fail(CopierFencedError(
            f"{place.topic}-{place.partition} is copied by {successor}, and not by this one"
            f" ({self.copier_id}) any more: {error}"
        ))  # fmt: skip


def _new_id() -> str:
    return f"{socket.gethostname()[:80]}:{os.getpid()}:{secrets.token_hex(4)}"
