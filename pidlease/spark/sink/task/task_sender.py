"""A task's rows, sent to the destination and waited for."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa

from pidlease.client.errors import FencedError, LeaseEndedError, ProducerError
from pidlease.client.pending_batch import Sent
from pidlease.client.settings import ProducerSettings
from pidlease.copier.copied_batch import CopiedBatch
from pidlease.copier.destination import Channel, Destination
from pidlease.spark.errors import SinkError, SinkFencedError
from pidlease.spark.sink.run_state import Chain, Place, Source
from pidlease.spark.sink.task.record_encoder import Encoder
from pidlease.spark.sink.task.row_numbers import Numbering, Rows

#: What is on its way, and not answered.
_PENDING_BYTES: Final = 16 << 20
#: What a batch takes of memory beside its bytes.
_BATCH_BYTES: Final = 4 << 10
_REST_S: Final = 0.5
_LOOK_S: Final = 1.0
_NOTHING: Final = Chain(0, 0)


@dataclass(slots=True)
class Told:
    """What a task has sent.

    Attributes:
        source: the partition whose rows it had; None: it had none.
        sent: rows that are there now,
        duplicates: and those of them that had been there before.
        chains: how far each partition of the destination is,
        ends: and the first offset behind what is there.
    """

    source: Place | None = None
    sent: int = 0
    duplicates: int = 0
    chains: dict[Place, Chain] = field(default_factory=dict)
    ends: dict[Place, int] = field(default_factory=dict)


class Sending:
    """Sends a task's rows.

    Parameters:
        producer: how the destination is reached.
        delivery_s: how long it may go without an answer.
        sources: what the driver knows of the source's partitions.
        numbering, encoder: of this task.
    """

    def __init__(
        self,
        producer: ProducerSettings,
        delivery_s: float,
        sources: Mapping[Place, Source],
        numbering: Numbering,
        encoder: Encoder,
    ) -> None:
        self._producer: Final = producer
        self._delivery_s: Final = delivery_s
        self._sources: Final = sources
        self._numbering: Final = numbering
        self._encoder: Final = encoder
        self._told: Final = Told()
        self._pending: set[asyncio.Future[Sent]] = set()
        self._pending_bytes = 0
        self._channels: dict[Place, Channel] = {}
        self._ended: ProducerError | None = None
        self._moved: Final = asyncio.Event()
        self._destination: Destination

    async def run(self, batches: Iterator[pa.RecordBatch]) -> Told:
        """Send all rows; returns when all are there.

        Raises:
            SinkError: they cannot be sent.
        """
        self._destination = Destination(self._producer)
        try:
            await self._start()
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                for rows in self._numbering.rows(batch):
                    await self._send(rows)
            await self._wait(0)
        except ProducerError as error:
            raise _reason(error) from None
        finally:
            for channel in self._channels.values():
                channel.close()
            await self._destination.close()
        self._told.source = self._numbering.source
        return self._told

    async def _start(self) -> None:
        """Connect; a server that is started again is waited for."""
        give_up = time.monotonic() + self._delivery_s
        while True:
            try:
                return await self._destination.start()
            except ProducerError:
                if time.monotonic() > give_up:
                    raise
            await asyncio.sleep(_REST_S)

    async def _send(self, rows: Rows) -> None:
        source = self._numbering.source
        if source is None:
            raise SinkError("rows without a source")
        known = self._sources[source]
        channel = self._channels.get(rows.there) or self._channel(rows.there, known)
        rows = self._without_stored(rows, known)
        for batch in self._encoder.batches(rows):
            await self._wait(_PENDING_BYTES)
            self._pending_bytes += batch.weight + _BATCH_BYTES
            future = channel.send(batch)
            future.add_done_callback(partial(self._answered, rows.there, batch))
            self._pending.add(future)
            await asyncio.sleep(0)  # answers come meanwhile

    def _without_stored(self, rows: Rows, known: Source) -> Rows:
        """Without what was there when the run began, or from the batch before."""
        stored = known.chains.get(rows.there, _NOTHING).stored
        gone = int((rows.numbers < stored).sum())
        if not gone:
            return rows
        self._told.sent += gone
        self._told.duplicates += gone
        picks = None if rows.picks is None else rows.picks[gone:]
        batch = rows.batch.slice(gone) if picks is None else rows.batch
        return Rows(rows.there, rows.numbers[gone:], batch, picks)

    def _channel(self, there: Place, known: Source) -> Channel:
        if there not in known.chains:
            raise SinkError(
                f"a row goes to {there}, which the destination had not when the query was started:"
                " its column partition is wrong, or the topic has grown and the query must be"
                " started again"
            )
        channel = self._destination.channel(*there, self._end)
        channel.begin(known.pid, known.generation, known.chains[there].first)
        self._channels[there] = channel
        return channel

    def _end(self, error: ProducerError) -> None:
        self._ended = error
        self._moved.set()

    async def _wait(self, most: int) -> None:
        """Wait until no more than so many bytes are on their way.

        Raises:
            SinkError: the destination does not answer.
            ProducerError: it refuses.
        """
        asked = time.monotonic()
        while self._pending_bytes > most or (self._pending and not most):
            left, before = asked + self._delivery_s - time.monotonic(), self._pending_bytes
            self._check()
            if left <= 0:
                raise SinkError(
                    f"the destination has stored nothing for {self._delivery_s:.0f} s"
                    " (deliveryTimeoutMs); what was sent may or may not be there, and a restart"
                    " tells"
                )
            self._moved.clear()
            try:
                await asyncio.wait_for(self._moved.wait(), min(left, _LOOK_S))
            except TimeoutError:
                continue
            if self._pending_bytes < before:
                asked = time.monotonic()
        self._check()

    def _check(self) -> None:
        self._destination.check()
        if self._ended is not None:
            raise self._ended

    def _answered(self, there: Place, batch: CopiedBatch, future: "asyncio.Future[Sent]") -> None:
        self._moved.set()
        if future.cancelled() or future.exception() is not None:
            return  # the channel tells why
        self._pending.discard(future)
        self._pending_bytes -= batch.weight + _BATCH_BYTES
        sent, told = future.result(), self._told
        told.sent += batch.records
        told.duplicates += batch.cut_off + len(batch.ids) * sent.duplicate
        behind = batch.ids[-1] + 1
        told.chains[there] = Chain(behind, behind)
        if sent.offset >= 0:
            told.ends[there] = max(told.ends.get(there, 0), sent.offset + len(batch.ids))


def _reason(error: ProducerError) -> SinkError:
    if isinstance(error, FencedError):
        return SinkFencedError(f"another run of this query has taken over: {error}")
    if isinstance(error, LeaseEndedError):
        return SinkError(
            f"the lease has ended in the middle of a micro-batch: {error}; start again"
        )
    return SinkError(str(error))
