"""The asyncio producer."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType
from typing import Final, Self, Unpack

from pidlease.client.errors import ProducerError
from pidlease.client.failure_report import results_of
from pidlease.client.metrics import ProducerMetrics
from pidlease.client.pending_batch import Headers, Sent
from pidlease.client.pipeline import Pipeline
from pidlease.client.record_arguments import KeyOf, check_record, record_bytes_max, serialized
from pidlease.client.settings import ProducerOptions, RecordOptions, settings_of

#: The most unacknowledged records of `send_each`.
UNACKNOWLEDGED_MAX: Final = 10_000

_log = logging.getLogger(__name__)


class LeasedProducer:
    """Sends records exactly once, under a PID that it leases.

    Use it only in the event loop in which it was started. Records of one partition are stored in
    the order of `send`. A batch without a response is sent again with the same sequence numbers,
    over a new connection if needed. Before the lease ends, the producer leases another PID.

    ```python
    import asyncio

    from pidlease.client import LeasedProducer

    async def main() -> None:
        async with LeasedProducer(
            bootstrap_servers="127.0.0.1:9092", leases="http://127.0.0.1:8080"
        ) as producer:
            sent = await producer.send_and_wait("orders", b"tea", key=b"table 4")
            print(sent.partition, sent.offset, sent.sequence)

    asyncio.run(main())
    ```

    Parameters:
        options: those of `ProducerSettings`; `bootstrap_servers` and `leases` are required.

    Raises:
        ValueError: an option is invalid.
    """

    def __init__(self, **options: Unpack[ProducerOptions]) -> None:
        self._settings: Final = settings_of(options)
        self._pipeline: Final = Pipeline(self._settings)
        self._memory: Final = self._pipeline.memory
        self._partitions: Final = self._pipeline.partitions
        self._record_bytes_max: Final = record_bytes_max(self._settings.max_request_size)
        self._serializes: Final = bool(
            self._settings.value_serializer or self._settings.key_serializer
        )
        self._yielding = 0
        self._in_block = False

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Connect to the cluster. The first lease is requested with the first record.

        Raises:
            ProducerError: no server responds.
        """
        await self._pipeline.start()

    async def stop(self, timeout_s: float | None = None) -> None:
        """Deliver all pending records, and end.

        Records that fail are logged and counted; only their futures raise. Call `flush` first, or
        use `async with`, to get an error for them.

        Parameters:
            timeout_s: how long this may take; then the rest fails. None: `delivery_timeout_ms`.
        """
        await self._pipeline.stop(timeout_s)
        if not self._in_block:
            self._pipeline.unseen.take()  # asyncio would log each of them

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
            _log.exception("stopping a producer failed")
        failed = self._pipeline.unseen.take()
        if error is None and failed is not None:
            raise failed

    # ------------------------------------------------------------------ records

    async def send(  # noqa: PLR0913 - what a record has
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        partition: int | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        sequence_id: int | None = None,
    ) -> asyncio.Future[Sent]:
        """Accept a record. Waits only for room in the buffer, and for a topic's first metadata.

        Parameters:
            value: bytes, a bytearray or a memoryview, or the argument of `value_serializer`; None:
                Kafka's tombstone.
            key: likewise, of `key_serializer`; None: no key.
            partition: None: by the key's murmur2 hash; without a key, one partition until it has
                got a batch, then another (as Kafka's Java client does).
            headers: (key, value) each; the key `pidlease` is reserved.
            timestamp_ms: since 1970; None: now.
            sequence_id: the record's own sequence number, above those of all records sent before
                to this partition (policy monotonic: a lower one makes it a duplicate); all records
                of a partition have one, or none has.

        Returns:
            A future of the record's place in the log; it fails with a `ProducerError`.

        Raises:
            ValueError: the record, its topic's name, its partition, a header or its id is invalid.
                The record has taken no sequence number.
            TypeError: one of them has the wrong type.
            ProducerError: the topic does not exist, or the producer accepts no more records; the
                class says why.
        """
        pipeline = self._pipeline
        try:
            pipeline.check()
            if self._serializes:
                value = serialized(self._settings.value_serializer, value, "value")
                key = serialized(self._settings.key_serializer, key, "key")
            data, key_data, headers, size = check_record(
                value, key, headers, timestamp_ms, sequence_id, self._record_bytes_max
            )
            if pipeline.waiting:
                await pipeline.topic(topic)  # calls that wait for it must not be overtaken
            if partition is None:
                partitioner = pipeline.partitioners.get(topic) or await pipeline.topic(topic)
                partition = partitioner.of(key_data, size)
            queue = self._partitions.get((topic, partition))
            if queue is None:
                queue = await pipeline.partition(topic, partition)
            if queue.closed or self._yielding:
                # Records come faster than they are sent: let responses and other tasks run.
                await self._yield()
            if self._memory.full:
                await pipeline.room()
            # Nothing is awaited from here on: a cancelled caller has not sent the record, and a
            # session that has ended meanwhile accepts none.
            pipeline.check()
            return queue.add(key_data, data, headers, timestamp_ms, sequence_id)
        except Exception as error:
            pipeline.metrics.failed(error, 1)
            raise

    async def _yield(self) -> None:
        """Let other tasks run. Calls of `send` meanwhile yield too: they must not overtake."""
        self._yielding += 1
        try:
            await asyncio.sleep(0)
        finally:
            self._yielding -= 1

    async def send_and_wait(
        self, topic: str, value: object = None, **options: Unpack[RecordOptions]
    ) -> Sent:
        """Send a record and wait until it is in the log; the parameters are those of `send`."""
        return await (await self.send(topic, value, **options))

    async def send_many(
        self,
        topic: str,
        values: Iterable[object],
        *,
        key_of: KeyOf | None = None,
        partition: int | None = None,
    ) -> list[Sent]:
        """Send records and wait until all are in the log.

        For results one by one, and for more records than results fit into memory, use `send_each`.

        Parameters:
            values: of the records, in their order.
            key_of: returns the key of a value; None: no keys.
            partition: of all records; None: as of `send`.

        Returns:
            The records' places in the log, in the order of the values.

        Raises:
            ProducerError: a record has failed; a note counts them. Each record has its outcome.
            ValueError, TypeError: a record is invalid. The preceding ones are sent.
        """
        futures: list[asyncio.Future[Sent]] = []
        for value in values:
            key = key_of(value) if key_of is not None else None
            futures.append(await self.send(topic, value, key=key, partition=partition))
        if futures:
            await asyncio.wait(futures)
        return results_of(futures)

    async def send_each(
        self,
        topic: str,
        values: Iterable[object],
        *,
        key_of: KeyOf | None = None,
        partition: int | None = None,
    ) -> AsyncIterator[Sent]:
        """Send records, and yield the results one by one while later records are sent.

            async for sent in producer.send_each("lines", file):
                bar.update(sent.offset)

        At most `UNACKNOWLEDGED_MAX` results are kept: a value is taken when there is room for its
        result. If the loop ends early, the records already taken are stored all the same; `flush`
        waits for them.

        Parameters:
            values: of the records, in their order.
            key_of: returns the key of a value; None: no keys.
            partition: of all records; None: as of `send`.

        Yields:
            The records' places in the log, in the order of the values.

        Raises:
            ProducerError: the next record has failed. Later ones that were taken have their own
                outcomes; `flush` reports failures among them.
            ValueError, TypeError: the next record is invalid; no later one was taken.
        """
        waiting: deque[asyncio.Future[Sent]] = deque()
        refused: Exception | None = None
        for value in values:
            key = key_of(value) if key_of is not None else None
            try:
                waiting.append(await self.send(topic, value, key=key, partition=partition))
            except (ProducerError, ValueError, TypeError) as error:
                refused = error
                break
            while waiting and (len(waiting) >= UNACKNOWLEDGED_MAX or waiting[0].done()):
                yield await waiting.popleft()
        while waiting:
            yield await waiting.popleft()
        if refused is not None:
            raise refused

    async def flush(self) -> None:
        """Wait until all records sent so far are in the log, or have failed.

        The application has seen a failure when it awaited the future, called its `result()` or
        `exception()`, also in a callback, or cancelled it.

        Raises:
            ProducerError: a record has failed since the last `flush`, and the application has not
                seen that; or the session is over. Each record's future has its outcome.
        """
        await self._pipeline.flush(self._pipeline.unseen)

    # ------------------------------------------------------------------ state

    async def partitions_for(self, topic: str) -> Sequence[int]:
        """Return the partitions of a topic.

        Raises:
            TypeError, ValueError: it is not a topic's name.
            ProducerError: there is no such topic, or the producer accepts no more records.
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
        """Return the highest sequence number known to be in the log; -1: none is.

        Records of the name's previous producers count. It is -1 before a lease: call `lease` first.
        """
        queue = self._partitions.get((topic, partition))
        return queue.acknowledged if queue is not None else -1

    @property
    def producer_name(self) -> str | None:
        """The producer's name."""
        return self._settings.name

    @property
    def pid(self) -> int:
        """The current PID; -1: none yet."""
        return self._pipeline.session.pid

    @property
    def metrics(self) -> ProducerMetrics:
        """The counters, as they are now."""
        return self._pipeline.read_metrics()
