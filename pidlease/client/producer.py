"""The asyncio producer."""

import asyncio
from types import TracebackType
from typing import Final, Self, Unpack

from pidlease.client.batch import Headers, Sent
from pidlease.client.metrics import ProducerMetrics
from pidlease.client.pipeline import Pipeline
from pidlease.client.settings import ProducerOptions, RecordOptions, settings_of
from pidlease.storage.identity import HEADER_KEY

_HEADER: Final = HEADER_KEY.decode()
_NO_HEADERS: Final[Headers] = []
#: Of a record beside key, value and headers, and of a batch around it.
_FRAME_BYTES: Final = 200


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
        self._record_bytes_max: Final = self._settings.max_request_size - _FRAME_BYTES
        self._yielding = 0

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Find the cluster. No lease is asked for before the first record.

        Raises:
            ProducerError: no server answers.
        """
        await self._pipeline.start()

    async def stop(self, timeout_s: float | None = None) -> None:
        """Deliver what waits, and end.

        Parameters:
            timeout_s: how long that may take; what is left fails then. None: as long as each
                record has, `delivery_timeout_ms`.
        """
        await self._pipeline.stop(timeout_s)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    # ------------------------------------------------------------------ records

    async def send(  # noqa: PLR0913 - what a record has
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
            partition: None: by the key's murmur2 hash; without a key to one partition until it
                has got a batch, then to another (as Kafka's Java client does).
            headers: (key, value) each; `pidlease` is not yours to give.
            timestamp_ms: since 1970; None: now.
            sequence_id: the record's own number, above those of all records sent before it to
                this partition; all records of a partition bring one, or none does.

        Returns:
            A future: where the record stands, or a `ProducerError`.

        Raises:
            ValueError: the record, its partition, a header or its id is not possible.
            TypeError: key, value or a header is of another type.
            ProducerError: the producer takes no more records; the class says why.
        """
        self._pipeline.check()
        size = (len(value) if value is not None else 0) + (len(key) if key is not None else 0)
        if headers is None:
            headers = _NO_HEADERS
        else:
            headers = _checked(headers)
            size += sum(len(name) * 4 + len(text or b"") for name, text in headers)
        if size > self._record_bytes_max:
            raise ValueError(
                f"a record of {size} bytes; with max_request_size"
                f" {self._settings.max_request_size} it has at most {self._record_bytes_max}"
            )
        if timestamp_ms is not None and timestamp_ms < 0:
            raise ValueError(f"timestamp_ms {timestamp_ms} is below 0")
        if partition is None:
            partitioner = self._pipeline.partitioners.get(topic)
            if partitioner is None:
                partitioner = await self._pipeline.topic(topic)
            partition = partitioner.of(key, size)
        queue = self._partitions.get((topic, partition))
        if queue is None:
            queue = await self._pipeline.partition(topic, partition)
        if queue.closed or self._yielding:
            # It gathers faster than it sends: let answers come in, and other tasks run.
            await self._yield()
        if self._memory.full:
            await self._pipeline.room()
        # Nothing is awaited from here on: who is cancelled has not sent the record, and a session
        # that ended meanwhile takes none.
        self._pipeline.check()
        return queue.add(key, value, headers, timestamp_ms, sequence_id)

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

        Raises:
            ProducerError: the session is over; each record's future says what became of it.
        """
        await self._pipeline.flush()

    # ------------------------------------------------------------------ what is known

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


def _checked(headers: Headers) -> Headers:
    for name, _ in headers:
        if name == _HEADER:
            raise ValueError(f"the header {_HEADER} is the producer's own")
    return list(headers)
