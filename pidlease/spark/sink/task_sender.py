"""Sending a task's rows to the destination, until all are acknowledged."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from pidlease.client.errors import FencedError, LeaseEndedError, ProducerError
from pidlease.client.pending_batch import Sent
from pidlease.client.settings import ProducerSettings
from pidlease.copier.copied_batch import CopiedBatch
from pidlease.copier.destination import Channel, Destination
from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.errors import SinkError, SinkFencedError
from pidlease.spark.sink.row_batches import NumberedRows, RecordEncoder, RowNumbering
from pidlease.spark.sink.run_state import Chain, SourceProducer

#: Limit of in-flight batches, in bytes before compression.
_PENDING_BYTES: Final = 16 << 20
#: Memory of a batch besides its records.
_BATCH_BYTES: Final = 4 << 10
_REST_S: Final = 0.5
_LOOK_S: Final = 1.0
_EMPTY: Final = Chain(0, 0)


@dataclass
class TaskResult(WriterCommitMessage):
    """What a task has sent; Spark carries it to the driver.

    Attributes:
        source: the partition of the task's rows; None: the task had no rows.
        sent: rows that are stored at the destination.
        duplicates: those of them that were stored before.
        chains: the new state of each destination partition.
        ends: the log end offset of each destination partition, as far as known.
    """

    source: TopicPartition | None = None
    sent: int = 0
    duplicates: int = 0
    chains: dict[TopicPartition, Chain] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)


class TaskSender:
    """Sends a task's rows.

    Parameters:
        producer: the settings of the connection to the destination.
        delivery_s: the task fails after this time without progress.
        sources: the driver's state of the source partitions.
        numbering: assigns the rows' sequence numbers.
        encoder: makes the rows' batches.
    """

    def __init__(
        self,
        producer: ProducerSettings,
        delivery_s: float,
        sources: Mapping[TopicPartition, SourceProducer],
        numbering: RowNumbering,
        encoder: RecordEncoder,
    ) -> None:
        self._producer: Final = producer
        self._delivery_s: Final = delivery_s
        self._sources: Final = sources
        self._numbering: Final = numbering
        self._encoder: Final = encoder
        self._result: Final = TaskResult()
        self._pending: set[asyncio.Future[Sent]] = set()
        self._pending_bytes = 0
        self._channels: dict[TopicPartition, Channel] = {}
        self._ended: ProducerError | None = None
        self._moved: Final = asyncio.Event()
        self._destination: Destination

    async def run(self, batches: Iterator[pa.RecordBatch]) -> TaskResult:
        """Send all rows; return when all are acknowledged.

        Raises:
            SinkError: the rows cannot be sent.
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
        self._result.source = self._numbering.source
        return self._result

    async def _start(self) -> None:
        """Connect; retry while a server restarts."""
        give_up = time.monotonic() + self._delivery_s
        while True:
            try:
                return await self._destination.start()
            except ProducerError:
                if time.monotonic() > give_up:
                    raise
            await asyncio.sleep(_REST_S)

    async def _send(self, rows: NumberedRows) -> None:
        source = self._numbering.source
        if source is None:
            raise SinkError("rows without a source")
        known = self._sources[source]
        destination = rows.destination
        channel = self._channels.get(destination) or self._channel(destination, known)
        for batch in self._encoder.batches(self._without_stored(rows, known)):
            await self._wait(_PENDING_BYTES)
            self._pending_bytes += batch.weight + _BATCH_BYTES
            future = channel.send(batch)
            future.add_done_callback(partial(self._acknowledged, destination, batch))
            self._pending.add(future)
            await asyncio.sleep(0)  # let responses arrive

    def _without_stored(self, rows: NumberedRows, known: SourceProducer) -> NumberedRows:
        """Drop rows that were stored before the run began, or before its last micro-batch."""
        stored = known.chains.get(rows.destination, _EMPTY).stored
        dropped = int((rows.numbers < stored).sum())
        if not dropped:
            return rows
        self._result.sent += dropped
        self._result.duplicates += dropped
        picks = None if rows.picks is None else rows.picks[dropped:]
        batch = rows.batch.slice(dropped) if picks is None else rows.batch
        return NumberedRows(rows.destination, rows.numbers[dropped:], batch, picks)

    def _channel(self, destination: TopicPartition, known: SourceProducer) -> Channel:
        if destination not in known.chains:
            raise SinkError(
                f"a row goes to {destination}, which did not exist when the query was started: its"
                " column partition is wrong, or the topic has grown and the query must be started"
                " again"
            )
        channel = self._destination.channel(*destination, self._end)
        channel.begin(known.pid, known.generation, known.chains[destination].first)
        self._channels[destination] = channel
        return channel

    def _end(self, error: ProducerError) -> None:
        self._ended = error
        self._moved.set()

    async def _wait(self, most: int) -> None:
        """Wait until at most so many bytes are in flight.

        Raises:
            SinkError: the destination does not respond.
            ProducerError: the destination has refused a batch.
        """
        progressed = time.monotonic()
        while self._pending_bytes > most or (self._pending and not most):
            left, before = progressed + self._delivery_s - time.monotonic(), self._pending_bytes
            self._check()
            if left <= 0:
                raise SinkError(
                    f"the destination has stored nothing for {self._delivery_s:.0f} s"
                    " (deliveryTimeoutMs); the outcome of what was sent is unknown, and a restart"
                    " finds it out"
                )
            self._moved.clear()
            try:
                await asyncio.wait_for(self._moved.wait(), min(left, _LOOK_S))
            except TimeoutError:
                continue
            if self._pending_bytes < before:
                progressed = time.monotonic()
        self._check()

    def _check(self) -> None:
        self._destination.check()
        if self._ended is not None:
            raise self._ended

    def _acknowledged(
        self, destination: TopicPartition, batch: CopiedBatch, future: "asyncio.Future[Sent]"
    ) -> None:
        self._moved.set()
        if future.cancelled() or future.exception() is not None:
            return  # the channel reports the error to `_end`
        self._pending.discard(future)
        self._pending_bytes -= batch.weight + _BATCH_BYTES
        sent, result = future.result(), self._result
        result.sent += batch.records
        result.duplicates += batch.cut_off + len(batch.ids) * sent.duplicate
        following = batch.ids[-1] + 1
        result.chains[destination] = Chain(following, following)
        if sent.offset >= 0:
            result.ends[destination] = max(
                result.ends.get(destination, 0), sent.offset + len(batch.ids)
            )


def _reason(error: ProducerError) -> SinkError:
    if isinstance(error, FencedError):
        return SinkFencedError(
            f"another run of this query has taken over: {error}; if there is none, a renewal of"
            " this run's leases had no response: start the query again"
        )
    if isinstance(error, LeaseEndedError):
        return SinkError(
            f"the lease has ended in the middle of a micro-batch: {error}; start again"
        )
    return SinkError(str(error))
