"""The copy of one partition: its PID, its position and its checkpoint.

A copy resumes from its checkpoint, reads and sends, and the copier commits its new checkpoints.
When the lease of its PID has ended, it resumes from the destination's log, under the next PID,
which is committed before any batch is sent under it.
"""

import asyncio
import logging
import time
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from pidlease.client.errors import FencedError, LeaseEndedError, ProducerError
from pidlease.client.pending_batch import Sent
from pidlease.client.producer_memory import Memory
from pidlease.copier.batch_translator import BatchTranslator
from pidlease.copier.cluster_reader import ClusterReader, FetchedChunk
from pidlease.copier.copied_batch import CopiedBatch
from pidlease.copier.copy_checkpoint import CopyCheckpoint
from pidlease.copier.copy_metrics import CopyMetrics, PartitionProgress
from pidlease.copier.copy_start import CopyStart
from pidlease.copier.destination import Channel, Destination
from pidlease.copier.errors import CopyError
from pidlease.copier.group_membership import ReplacedError, Saved
from pidlease.copier.resume_position import ResumeCheck, carry_over, generation_of
from pidlease.copier.settings import CopySettings
from pidlease.core.backoff import Backoff
from pidlease.core.lease import Lease
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.offset_requests import LATEST
from pidlease.kafka.codec.fetch import READ_COMMITTED

_log = logging.getLogger(__name__)

#: The server ends a lease a little later than it said: the back-off before the copy asks again.
_LEASE_BACKOFF: Final = Backoff(0.5, 10.0)
#: How long a rebalance waits for the responses to in-flight batches.
_LAST_RESPONSES_S: Final = 5.0


class Hub(Protocol):
    """The copier, as its partitions use it."""

    @property
    def settings(self) -> CopySettings:
        """The settings of the copy."""

    @property
    def metrics(self) -> CopyMetrics:
        """The copier's counters."""

    @property
    def destination(self) -> Destination:
        """The connections to the destination."""

    @property
    def copier_id(self) -> str:
        """The id of this copier, for messages of other copiers."""

    @property
    def cluster(self) -> str:
        """The cluster id of the destination."""

    @property
    def memory(self) -> Memory:
        """The memory of records that were read and are not acknowledged, of all partitions."""

    @property
    def copy_start(self) -> CopyStart:
        """The start of the group's copy, with `--start latest`."""

    @property
    def source(self) -> ClusterReader:
        """The reader of the source."""

    @property
    def target(self) -> ClusterReader:
        """The reader of the destination."""

    async def prepare(self, topic: str, partition: int) -> str:
        """Make sure that the destination has a partition, and return its topic there."""

    async def saved(self, place: TopicPartition) -> Saved | None:
        """Return the committed offset with its metadata."""

    async def save(self, place: TopicPartition, checkpoint: CopyCheckpoint) -> None:
        """Commit a checkpoint now."""

    async def lease(self, topic: str, partition: int, pid: int) -> Lease | None:
        """Lease a new PID (-1), or renew one; None: its lease has ended."""

    def read(self, reader: "PartitionCopy") -> None:
        """Fetch a partition from now on."""

    def leave(self, reader: "PartitionCopy") -> None:
        """Stop fetching a partition."""

    def more(self) -> None:
        """Look again: a partition may accept more."""

    def fail(self, error: Exception) -> None:
        """End the copy with an error."""

    def fenced(self, place: TopicPartition, error: FencedError) -> None:
        """End the copy: another copier writes under a partition's PID."""


class PartitionCopy:
    """The copy of one partition.

    Parameters:
        hub: the copier.
        place: the source's topic and partition.
        gate: passed by all partitions that were assigned together, once each has been checked.

    Attributes:
        progress: for the copier's metrics.
        done: the checkpoint to commit; None: none yet.
        kept: the checkpoint committed last.
        stop_at: the source's end when the copy began; -1: not known yet.
    """

    def __init__(self, hub: Hub, place: TopicPartition, gate: asyncio.Barrier) -> None:
        self._hub: Final = hub
        self.place: Final = place
        self.progress: Final = PartitionProgress(place.topic, place.partition)
        self.done: CopyCheckpoint | None = None
        self.kept: CopyCheckpoint | None = None
        self.stop_at = -1
        self._topic = ""
        self._resuming: ResumeCheck
        self._gate: asyncio.Barrier | None = gate
        self._channel: Channel | None = None
        self._translator: BatchTranslator | None = None
        self._pending_bytes = 0
        self._ended_by: ProducerError | None = None
        self._over: Final = asyncio.Event()
        self._idle: Final = asyncio.Event()
        self._idle.set()
        self._lease: Lease | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the copy."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self, *, lost: bool) -> None:
        """Stop the copy.

        Parameters:
            lost: another copier may have the partition already; otherwise the responses to
                in-flight batches are awaited.
        """
        self._hub.leave(self)
        if not lost and self._channel is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), _LAST_RESPONSES_S)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._drop()

    @property
    def finished(self) -> bool:
        """Whether all records that the source had when the copy began are copied."""
        return self.done is not None and 0 <= self.stop_at <= self.done.offset

    # ------------------------------------------------------------------ the task

    async def _run(self) -> None:
        try:
            self._topic = await self._hub.prepare(*self.place)
            self._resuming = ResumeCheck(
                self._hub.settings, self._hub.source, self.place, self._hub.target, self._there,
                self._hub.cluster,
            )  # fmt: skip
            if self.stop_at < 0:
                self.stop_at = await self._hub.source.offset(self.place, LATEST, READ_COMMITTED)
            await self._take_up(await self._hub.saved(self.place))
            while True:
                await self._until_over()
                await self._go_on()
        except ReplacedError as error:
            _log.info("%s-%s: %s", *self.place, error)  # the group will revoke it
        except CopyError as error:
            self._hub.fail(error)
        except Exception as error:  # noqa: BLE001 - `Copier.run` raises it
            _log.exception("the copy of %s-%s broke", *self.place)
            self._hub.fail(error)

    async def _take_up(self, saved: Saved | None) -> None:
        """Resume from the checkpoint, or begin a new copy."""
        if saved is None:
            offset, at = await self._resuming.beginning(self._hub.copy_start)
            starting = self._hub.settings.start == LATEST
            await self._begin_anew(offset, at, starting=starting)
            return
        checkpoint = self._resuming.fitting(saved)
        checkpoint = checkpoint._replace(
            who=self._hub.copier_id, source=self._source_id or checkpoint.source
        )
        checkpoint = await self._resuming.within_source(checkpoint)
        lease = await self._hub.lease(self._topic, self.place.partition, checkpoint.pid)
        if lease is None:
            await self._carry(checkpoint)
            return
        checkpoint = await self._resuming.within_destination(checkpoint, lease)
        await self._all_fit()
        checkpoint = await self._save(checkpoint)
        self._begin(checkpoint, lease, generation_of(checkpoint, lease))

    async def _begin_anew(self, offset: int, at: int, *, starting: bool) -> None:
        """Continue under a new PID, which is committed before any batch is sent under it.

        Parameters:
            starting: whether the group's copy may not have begun.
        """
        self.done = None  # from now on the previous PID must not be committed
        await self._all_fit()
        lease = await self._hub.lease(self._topic, self.place.partition, -1)
        if lease is None:
            raise CopyError(f"no PID for {self._topic}-{self.place.partition}")
        checkpoint = CopyCheckpoint(
            offset, lease.pid, lease.generation, -1, offset, at, self._topic, self._hub.cluster,
            self._hub.copier_id, self._source_id, starting,
        )  # fmt: skip
        checkpoint = await self._save(checkpoint)
        self._begin(checkpoint, lease, lease.generation)

    async def _save(self, checkpoint: CopyCheckpoint) -> CopyCheckpoint:
        """Commit the checkpoint to begin with, and return it; wait until the group's copy begins.

        After this a partition without a checkpoint is new to the copy, so that must be durable
        before anything is copied.
        """
        await self._hub.save(self.place, checkpoint)
        if checkpoint.starting:
            await self._hub.copy_start.wait()
            checkpoint = checkpoint._replace(starting=False)
            await self._hub.save(self.place, checkpoint)
        return checkpoint

    async def _all_fit(self) -> None:
        """Wait until all partitions assigned together are checked: if one fails, none is copied."""
        gate, self._gate = self._gate, None
        if gate is not None:
            await gate.wait()

    async def _carry(self, checkpoint: CopyCheckpoint) -> None:
        """Continue under the next PID, after the records that the destination's log has."""
        found = await carry_over(
            self._hub.target, self._there, checkpoint, trusted=self._hub.settings.trust_checkpoint
        )
        self._hub.metrics.carried += 1
        _log.info("%s-%s: the lease of PID %s is over; it goes on at offset %s",
                  *self.place, checkpoint.pid, found.offset)  # fmt: skip
        await self._begin_anew(found.offset, found.end, starting=checkpoint.starting)

    def _begin(self, checkpoint: CopyCheckpoint, lease: Lease, generation: int) -> None:
        """Start to read and send."""
        self.done = self.kept = checkpoint
        self._lease = lease
        self._over.clear()
        self._ended_by = None
        place = f"{self.place.topic}-{self.place.partition} of the source"
        self._translator = BatchTranslator(place, checkpoint.offset)
        self._channel = self._hub.destination.channel(
            self._topic, self.place.partition, self._channel_ended
        )
        self._channel.begin(lease.pid, generation, lease.sequence_number)
        # Before the first fetch, only the source's end at the start is known.
        self.progress.end_offset = max(self.progress.end_offset, self.stop_at)
        self._update_progress()
        self._hub.read(self)

    async def _until_over(self) -> None:
        """Wait until the PID's lease has ended, or the server refuses its batches."""
        failures = 1
        while not self._over.is_set():
            lease = self._lease
            rest = _LEASE_BACKOFF.seconds(failures)
            left = lease.ends_at - time.monotonic() if lease is not None else rest
            with suppress(TimeoutError):
                timeout = None if left == float("inf") else max(left, rest)
                await asyncio.wait_for(self._over.wait(), timeout)
            if self._over.is_set() or self.done is None:
                return
            if left <= 0:  # in-flight batches keep a PID longer than its lease
                failures += 1
            self._lease = await self._hub.lease(self._topic, self.place.partition, self.done.pid)
            if self._lease is None:
                return

    async def _go_on(self) -> None:
        """Continue after the end of a lease."""
        ended_by, checkpoint = self._ended_by, self.done
        if checkpoint is None:
            raise CopyError("a copy ended that never began")
        if isinstance(ended_by, FencedError):
            self._hub.fenced(self.place, ended_by)
            raise ReplacedError(str(ended_by))
        self._hub.leave(self)
        self._drop()
        if ended_by is not None and not isinstance(ended_by, LeaseEndedError):
            raise CopyError(f"the destination refuses a batch: {ended_by}")
        place, failures = (self._topic, self.place.partition), 0
        while await self._hub.lease(*place, checkpoint.pid) is not None:
            failures += 1
            await asyncio.sleep(_LEASE_BACKOFF.seconds(failures))
        await self._carry(checkpoint)

    @property
    def _there(self) -> TopicPartition:
        return TopicPartition(self._topic, self.place.partition)

    @property
    def _source_id(self) -> str:
        return self._hub.source.topic_id(self.place.topic)

    # ------------------------------------------------------------------ called by the fetcher

    @property
    def topic_id(self) -> str:
        """The id of its topic when the copy began; empty: unknown."""
        return "" if self.done is None else self.done.source

    @property
    def wants(self) -> int:
        """The offset to fetch from; -1: no fetch now."""
        if self._translator is None or self._channel is None or not self._channel.alive:
            return -1
        if self._pending_bytes >= self._hub.settings.buffer_bytes or self._hub.memory.full:
            return -1
        return self._translator.position

    def came(self, offset: int, chunk: FetchedChunk) -> None:
        """Send the records that a fetch from an offset returned."""
        translator, channel = self._translator, self._channel
        if translator is None or channel is None or offset != translator.position:
            return  # the copy has moved since this fetch began
        try:
            for batch in translator.batches(chunk):
                self._weigh(batch.weight)
                self._idle.clear()
                channel.send(batch).add_done_callback(partial(self._answered, channel, batch))
        except CopyError as error:
            self._hub.fail(error)
            return
        except ProducerError:
            return  # the channel has ended, and has called `_channel_ended`
        self.progress.end_offset = chunk.end_offset
        self._update_progress()

    def out_of_range(self) -> None:
        """Find out why the source does not have the next offset."""
        self._hub.leave(self)
        self._hub.destination.spawn(self._look_for_range())

    async def _look_for_range(self) -> None:
        """Skip deleted records if the options allow that; else end the copy."""
        done, translator = self.done, self._translator
        if done is None or translator is None:
            return
        try:
            found = await self._resuming.within_source(done._replace(offset=translator.position))
        except CopyError as error:
            self._hub.fail(error)
            return
        if translator is self._translator:
            translator.skip_to(found.offset)
            self._hub.read(self)

    def failed(self, error: CopyError) -> None:
        """End the copy: the source refuses the fetch."""
        self._hub.fail(error)

    # ------------------------------------------------------------------ responses

    def _answered(
        self, channel: Channel, batch: CopiedBatch, future: "asyncio.Future[Sent]"
    ) -> None:
        if channel is not self._channel or future.cancelled() or future.exception() is not None:
            return  # `_channel_ended` gets the reason
        sent, done, metrics = future.result(), self.done, self._hub.metrics
        self._weigh(-batch.weight)
        metrics.records += batch.records
        metrics.batches += 1
        metrics.bytes += batch.source_bytes
        metrics.duplicates += batch.cut_off + len(batch.ids) * sent.duplicate
        if done is not None:
            at = sent.offset + len(batch.ids) if sent.offset >= 0 else done.at
            self.done = done._replace(
                offset=batch.ids[-1] + 1, sequence=batch.ids[-1], at=max(at, done.at),
                generation=done.generation if sent.duplicate else sent.generation,
            )  # fmt: skip
        if not self._pending_bytes:
            self._idle.set()
        self._update_progress()
        self._hub.more()

    def _update_progress(self) -> None:
        """Update checkpoint and progress; offset gaps after the last record count as copied."""
        if self.done is None or self._translator is None:
            return
        if not self._pending_bytes and self._translator.position > self.done.offset:
            self.done = self.done._replace(offset=self._translator.position)
        self.progress.offset, self.progress.pid = self.done.offset, self.done.pid

    def _weigh(self, more: int) -> None:
        self._pending_bytes += more
        self._hub.memory.used += more

    def _channel_ended(self, error: ProducerError) -> None:
        self._ended_by = error
        self._over.set()

    def _drop(self) -> None:
        """Give up in-flight batches: their records will be read again."""
        channel, self._channel, self._translator = self._channel, None, None
        self._weigh(-self._pending_bytes)
        self._idle.set()
        if channel is not None:
            channel.close()
