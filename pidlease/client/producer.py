"""The asyncio producer."""

import asyncio
import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self, Unpack

from pidlease.client.metrics import ProducerMetrics
from pidlease.client.pending_batch import Headers, Sent
from pidlease.client.pipeline import Pipeline
from pidlease.client.record_arguments import (
    check_sequence_id,
    check_size,
    check_timestamp,
    checked_headers,
    octets,
    record_bytes_max,
    size_of_headers,
)
from pidlease.client.settings import ProducerOptions, RecordOptions, settings_of

_log = logging.getLogger(__name__)

_NO_HEADERS: Final[Headers] = []


class LeasedProducer:
    """Sends records exactly once, under a PID that was leased for it.

        async with LeasedProducer(bootstrap_servers="127.0.0.1:9092",
                                  leases="http://127.0.0.1:8080") as producer:
            sent = await producer.send_and_wait("orders", b"...")

    One event loop uses it, the one that it was started in. Records of one partition are stored in
    the order of `send`. What was sent and has no answer is sent again, with the same numbers, over
    as many connections as it takes; before the lease ends another PID takes over.

    Parameters:
        options: see `Settings`; `bootstrap_servers` and `leases` must be given.

    Raises:
        ValueError: an option makes no sense.
    """

    def __init__(self, **options: Unpack[ProducerOptions]) -> None:
        self._settings: Final = settings_of(options)
        self._pipeline: Final = Pipeline(self._settings)
        self._memory: Final = self._pipeline.memory
        self._partitions: Final = self._pipeline.partitions
        self._record_bytes_max: Final = record_bytes_max(self._settings.max_request_size)
        self._yielding = 0
        self._in_block = False

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Find the cluster. No lease is asked for before the first record.

        Raises:
            ProducerError: no server answers.
        """
        await self._pipeline.start()

    async def stop(self, timeout_s: float | None = None) -> None:
        """Deliver what waits, and end.

        Records that fail are logged and counted; only their futures raise. Call `flush` before,
        or use `async with`, to be told of them.

        Parameters:
            timeout_s: how long that may take; what is left fails then. None: as long as each
                record has, `delivery_timeout_ms`.
        """
        await self._pipeline.stop(timeout_s)
        if not self._in_block:
            self._pipeline.unseen.take()  # or asyncio would log each of them

    async def __aenter__(self) -> Self:
        await self.start()
        self._in_block = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.stop()
        except Exception:
            if error is None:
                raise
            _log.exception("a producer could not be stopped as it should be")
        failed = self._pipeline.unseen.take()
        if error is None and failed is not None:
            raise failed

    # ------------------------------------------------------------------ records

    async def send(  # noqa: C901, PLR0912, PLR0913 - what a record has, without further calls
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        sequence_id: int | None = None,
    ) -> asyncio.Future[Sent]:
        """Take a record. Waits only for room in the buffer, and for a topic's first metadata.

        Parameters:
            topic: where it goes;
            value: bytes, a bytearray or a memoryview; None: Kafka's tombstone,
            key: likewise; None: it has none,
            partition: None: by the key's murmur2 hash; without a key to one partition until it
                has got a batch, then to another (as Kafka's Java client does).
            headers: (key, value) each; `pidlease` is not yours to give.
            timestamp_ms: since 1970; None: now.
            sequence_id: the record's own number, above those of all records sent before it to
                this partition (policy monotonic: one that is not above is a duplicate); all
                records of a partition bring one, or none does.

        Returns:
            A future: where the record stands, or a `ProducerError`.

        Raises:
            ValueError: the record, its topic's name, its partition, a header or its id is not
                possible. The record has taken no number.
            TypeError: one of them is of another type.
            ProducerError: the topic does not exist, or the producer takes no more records; the
                class says why.
        """
        pipeline = self._pipeline
        try:
            pipeline.check()
            if value.__class__ is not bytes:
                value = octets(value, "value")
            size = len(value) if value is not None else 0
            if key is not None:
                key = octets(key, "key") or b""
                size += len(key)
            if headers is None:
                headers = _NO_HEADERS
            else:
                headers = checked_headers(headers)
                size += size_of_headers(headers)
            if size > self._record_bytes_max:
                check_size(size, self._record_bytes_max)
            if timestamp_ms is not None or sequence_id is not None:
                check_timestamp(timestamp_ms)
                check_sequence_id(sequence_id)
            if partition is None:
                partitioner = pipeline.partitioners.get(topic) or await pipeline.topic(topic)
                partition = partitioner.of(key, size)
            queue = self._partitions.get((topic, partition))
            if queue is None:
                queue = await pipeline.partition(topic, partition)
            if queue.closed or self._yielding:
                # It gathers faster than it sends: let answers come in, and other tasks run.
                await self._yield()
            if self._memory.full:
                await pipeline.room()
            # Nothing is awaited from here on: who is cancelled has not sent the record, and a
            # session that ended meanwhile takes none.
            pipeline.check()
            return queue.add(key, value, headers, timestamp_ms, sequence_id)
        except Exception as error:
            pipeline.metrics.failed(error, 1)
            raise

    async def _yield(self) -> None:
        """Let others run. Who comes meanwhile does so too, or it would overtake this record."""
        self._yielding += 1
        try:
            await asyncio.sleep(0)
        finally:
            self._yielding -= 1

    async def send_and_wait(
        self, topic: str, value: bytes | None = None, **options: Unpack[RecordOptions]
    ) -> Sent:
        """Send a record and wait until it stands in the log; see `send`."""
        return await (await self.send(topic, value, **options))

    async def flush(self) -> None:
        """Wait until all that was sent so far stands in the log, or has failed.

        A future was looked at when it was awaited, or asked for `result()` or `exception()`, also
        by its callback, or was cancelled.

        Raises:
            ProducerError: a record has failed since the last `flush`, and nobody has looked at its
                future; or the session is over. Each record's future says what became of it.
        """
        await self._pipeline.flush(self._pipeline.unseen)

    # ------------------------------------------------------------------ what is known

    async def partitions_for(self, topic: str) -> Sequence[int]:
        """The partitions of a topic.

        Raises:
            TypeError, ValueError: it is not a topic's name.
            ProducerError: there is no such topic, or the producer takes no more records.
        """
        self._pipeline.check()
        partitioners = self._pipeline.partitioners
        return (partitioners.get(topic) or await self._pipeline.topic(topic)).partitions

    async def lease(self, topic: str, partition: int) -> None:
        """Lease for a partition before its first record, to know `last_sequence_id`.

        Raises:
            ValueError: there is no such partition.
            ProducerError: there is no lease.
        """
        queue = await self._pipeline.partition(topic, partition)
        await self._pipeline.lease(queue)

    def last_sequence_id(self, topic: str, partition: int) -> int:
        """The highest number known to stand in the log, of this producer or, with a name, of the
        one before it; -1: none is, or the partition has no lease yet (see `lease`).
        """
        queue = self._partitions.get((topic, partition))
        return queue.acknowledged if queue is not None else -1

    @property
    def producer_name(self) -> str | None:
        """The name that it was given."""
        return self._settings.name

    @property
    def pid(self) -> int:
        """The PID that it writes under; -1: none yet."""
        return self._pipeline.session.pid

    @property
    def metrics(self) -> ProducerMetrics:
        """Plain counters, as they are now."""
        return self._pipeline.read_metrics()
