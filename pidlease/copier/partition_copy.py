"""The copy of one partition: where it goes on, under which PID, and how far it is.

What is saved says where it goes on. It reads and sends, and how far it is gets saved from time to
time. When its PID's lease is over, the destination's log says how far it is, and the next PID is
saved before anything is written under it.
"""

import asyncio
import logging
import time
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from aiokafka.structs import TopicPartition

from pidlease.client.errors import FencedError, LeaseEndedError, ProducerError
from pidlease.client.pending_batch import Sent
from pidlease.client.producer_memory import Memory
from pidlease.copier.batch_translator import BatchTranslator
from pidlease.copier.cluster_reader import LATEST, READ_COMMITTED, Asked, Chunk
from pidlease.copier.copied_batch import CopiedBatch
from pidlease.copier.copy_checkpoint import Checkpoint
from pidlease.copier.copy_metrics import CopyMetrics, PartitionProgress
from pidlease.copier.destination import Channel, Destination
from pidlease.copier.errors import CopyError
from pidlease.copier.group_membership import ReplacedError, Saved
from pidlease.copier.resume_position import ResumeCheck, carry_over, generation_of
from pidlease.copier.settings import CopySettings
from pidlease.core.lease import Lease

_log = logging.getLogger(__name__)

#: A lease is over at the server a little later than it said.
_LEASE_REST_S: Final = 0.5
_LEASE_REST_S_MAX: Final = 10.0
#: How long, at a rebalance, for answers of what is under way.
_LAST_ANSWERS_S: Final = 5.0


class Hub(Protocol):
    """What a partition sees of its copier."""

    @property
    def settings(self) -> CopySettings:
        """The copy's."""

    @property
    def metrics(self) -> CopyMetrics:
        """Its counters."""

    @property
    def destination(self) -> Destination:
        """The connections there."""

    @property
    def who(self) -> str:
        """What others are told of this copier."""

    @property
    def cluster(self) -> str:
        """Cluster id of the destination."""

    @property
    def memory(self) -> Memory:
        """What all partitions have read, and is not at the destination yet."""

    @property
    def source(self) -> Asked:
        """The source, to be asked."""

    @property
    def target(self) -> Asked:
        """The destination, to be asked."""

    async def prepare(self, topic: str, partition: int) -> str:
        """See to it that the destination has a partition; its topic there."""

    async def saved(self, place: TopicPartition) -> Saved | None:
        """What is saved."""

    async def save(self, place: TopicPartition, checkpoint: Checkpoint) -> None:
        """Save a checkpoint now."""

    async def lease(self, topic: str, partition: int, pid: int) -> Lease | None:
        """Lease a PID (-1), or ask for one; None: it is known no more."""

    def read(self, reader: "PartitionCopy") -> None:
        """Read for it from now on."""

    def leave(self, reader: "PartitionCopy") -> None:
        """Read for it no more."""

    def more(self) -> None:
        """Somebody takes more."""

    def fail(self, error: Exception) -> None:
        """The copy cannot go on."""

    def fenced(self, place: TopicPartition, error: FencedError) -> None:
        """Another copier writes under a partition's PID."""


class PartitionCopy:
    """See the module's text.

    Parameters:
        hub: the copier.
        place: the source's topic and partition.
        gate: passed by all partitions that came together, when each is found to fit.

    Attributes:
        progress: for whoever looks.
        done: what may be saved; None: nothing yet.
        kept: what was saved last.
        stop_at: the source's end when this began; -1: not known yet.
    """

    def __init__(self, hub: Hub, place: TopicPartition, gate: asyncio.Barrier) -> None:
        self._hub: Final = hub
        self.place: Final = place
        self.progress: Final = PartitionProgress(place.topic, place.partition)
        self.done: Checkpoint | None = None
        self.kept: Checkpoint | None = None
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
        """Begin."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self, *, lost: bool) -> None:
        """Copy no more of it.

        Parameters:
            lost: it is somebody else's already; otherwise answers of what is under way are awaited.
        """
        self._hub.leave(self)
        if not lost and self._channel is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), _LAST_ANSWERS_S)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._drop()

    @property
    def finished(self) -> bool:
        """Whether all is copied that was there when it began."""
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
            _log.info("%s-%s: %s", *self.place, error)  # it will be revoked
        except CopyError as error:
            self._hub.fail(error)
        except Exception as error:  # noqa: BLE001 - told to whoever waits for the copy
            _log.exception("the copy of %s-%s broke", *self.place)
            self._hub.fail(error)

    async def _take_up(self, saved: Saved | None) -> None:
        """Begin where the copy is, or at the beginning."""
        if saved is None:
            await self._begin_anew(*await self._resuming.beginning())
            return
        checkpoint = self._resuming.fitting(saved)._replace(who=self._hub.who)
        checkpoint = await self._resuming.within_source(checkpoint)
        lease = await self._hub.lease(self._topic, self.place.partition, checkpoint.pid)
        if lease is None:
            await self._carry(checkpoint)
            return
        checkpoint = await self._resuming.within_destination(checkpoint, lease)
        await self._all_fit()
        await self._hub.save(self.place, checkpoint)
        self._begin(checkpoint, lease, generation_of(checkpoint, lease))

    async def _begin_anew(self, offset: int, at: int) -> None:
        """Go on under a new PID, which is saved before anything is written under it."""
        self.done = None  # from now on nobody is to save the PID before
        await self._all_fit()
        lease = await self._hub.lease(self._topic, self.place.partition, -1)
        if lease is None:
            raise CopyError(f"no PID for {self._topic}-{self.place.partition}")
        checkpoint = Checkpoint(
            offset, lease.pid, lease.generation, -1, offset, at, self._topic, self._hub.cluster,
            self._hub.who,
        )  # fmt: skip
        await self._hub.save(self.place, checkpoint)
        self._begin(checkpoint, lease, lease.generation)

    async def _all_fit(self) -> None:
        """Wait for the partitions that came together: one that does not fit ends the copier."""
        gate, self._gate = self._gate, None
        if gate is not None:
            await gate.wait()

    async def _carry(self, checkpoint: Checkpoint) -> None:
        """Go on under the next PID, behind what the destination's log has of this one."""
        found = await carry_over(
            self._hub.target, self._there, checkpoint, trusted=self._hub.settings.trust_checkpoint
        )
        self._hub.metrics.carried += 1
        _log.info("%s-%s: the lease of PID %s is over; it goes on at offset %s",
                  *self.place, checkpoint.pid, found.offset)  # fmt: skip
        await self._begin_anew(found.offset, found.end)

    def _begin(self, checkpoint: Checkpoint, lease: Lease, generation: int) -> None:
        """Read and send."""
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
        self._tell()
        self._hub.read(self)

    async def _until_over(self) -> None:
        """Wait until the server knows the PID no more, or takes nothing more under it."""
        rest = _LEASE_REST_S
        while not self._over.is_set():
            lease = self._lease
            left = lease.ends_at - time.monotonic() if lease is not None else rest
            with suppress(TimeoutError):
                timeout = None if left == float("inf") else max(left, rest)
                await asyncio.wait_for(self._over.wait(), timeout)
            if self._over.is_set() or self.done is None:
                return
            if left <= 0:  # with batches under way a PID stays longer than its lease
                rest = min(rest * 2, _LEASE_REST_S_MAX)
            self._lease = await self._hub.lease(self._topic, self.place.partition, self.done.pid)
            if self._lease is None:
                return

    async def _go_on(self) -> None:
        """Behind the end of a lease."""
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
        place, rest = (self._topic, self.place.partition), _LEASE_REST_S
        while await self._hub.lease(*place, checkpoint.pid) is not None:
            await asyncio.sleep(rest)
            rest = min(rest * 2, _LEASE_REST_S_MAX)
        await self._carry(checkpoint)

    @property
    def _there(self) -> TopicPartition:
        return TopicPartition(self._topic, self.place.partition)

    # ------------------------------------------------------------------ asked by the fetcher

    @property
    def wants(self) -> int:
        """See `fetching.Reading`."""
        if self._translator is None or self._channel is None or not self._channel.alive:
            return -1
        if self._pending_bytes >= self._hub.settings.buffer_bytes or self._hub.memory.full:
            return -1
        return self._translator.position

    def came(self, offset: int, chunk: Chunk) -> None:
        """See `fetching.Reading`."""
        translator, channel = self._translator, self._channel
        if translator is None or channel is None or offset != translator.position:
            return  # it was asked for before the copy went on elsewhere
        try:
            for batch in translator.batches(chunk):
                self._weigh(batch.weight)
                self._idle.clear()
                channel.send(batch).add_done_callback(partial(self._answered, channel, batch))
        except CopyError as error:
            self._hub.fail(error)
            return
        except ProducerError:
            return  # it has ended meanwhile, and is told so
        self.progress.end_offset = chunk.end_offset
        self._tell()

    def out_of_range(self) -> None:
        """See `fetching.Reading`."""
        self._hub.leave(self)
        self._hub.destination.spawn(self._look_for_range())

    async def _look_for_range(self) -> None:
        """The source lacks what comes next: say why, or go on behind it."""
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
        """See `fetching.Reading`."""
        self._hub.fail(error)

    # ------------------------------------------------------------------ answers

    def _answered(
        self, channel: Channel, batch: CopiedBatch, future: "asyncio.Future[Sent]"
    ) -> None:
        if channel is not self._channel or future.cancelled() or future.exception() is not None:
            return  # the channel tells why
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
        self._tell()
        self._hub.more()

    def _tell(self) -> None:
        """What is done, holes behind the last record included."""
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
        """Give up what is under way: it is read again."""
        channel, self._channel, self._translator = self._channel, None, None
        self._weigh(-self._pending_bytes)
        self._idle.set()
        if channel is not None:
            channel.close()
