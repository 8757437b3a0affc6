"""The two clients, as anyone would use them; only timeouts and backoffs are set.

Their pipelining is left as it comes: librdkafka has up to five requests in flight on a
connection; aiokafka one request, with a batch for each partition in it.
"""

import asyncio
import json
import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from deploy.demo.ledger import Ledger
from deploy.demo.rows import Record

#: Far longer than the server is ever down: no delivery may run out of time.
_DELIVERY_MS: Final = 300_000
#: How soon librdkafka tries again to connect; its default grows to ten seconds.
_RECONNECT_MS: Final = 500
#: Often, and out of step with the bursts: some of its reports must fall into one.
_REPORT_MS: Final = 7
#: A report of librdkafka older than this says nothing about now.
_FRESH_S: Final = 0.003
_POLL_S: Final = 0.005
_ABANDON_S: Final = 0.5


def log_into(path: Path) -> logging.Logger:
    """Let the clients write what they have to say into a file, from now on; for librdkafka.

    Parameters:
        path: the file.
    """
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    log = logging.getLogger("librdkafka")
    for each in (log, logging.getLogger("aiokafka")):
        for old in list(each.handlers):
            each.removeHandler(old)
            old.close()
        each.addHandler(handler)
        each.setLevel(logging.INFO)
        # A client that loses its server complains at length; here that is what is wanted.
        each.propagate = False
    return log


class Client(Protocol):
    """A producer with its books."""

    ledger: Ledger

    async def start(self) -> None:
        """Connect."""

    async def send(self, record: Record) -> None:
        """Hand it over; whether it arrived is in the ledger later."""

    def batches_in_flight(self) -> int:
        """Batches sent and not answered at this moment, by the client's own counter."""

    async def finish(self) -> None:
        """Wait until every record was reported on, and close."""

    async def abandon(self) -> None:
        """Close where the demo has failed: what was not delivered stays so."""


class LibrdkafkaClient:
    """confluent-kafka's Producer.

    Parameters:
        bootstrap: HOST:PORT of the server.
        log: where it says what it sees of the network.
    """

    def __init__(self, bootstrap: str, log: logging.Logger) -> None:
        self.ledger = Ledger("librdkafka")
        self._log = log
        self._in_flight = 0
        self._reported = 0.0
        self._finishing = False
        self._poller: asyncio.Task[None] | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": "demo-librdkafka",
                "enable.idempotence": True,
                "delivery.timeout.ms": _DELIVERY_MS,
                "reconnect.backoff.max.ms": _RECONNECT_MS,
                "statistics.interval.ms": _REPORT_MS,
                "stats_cb": self._on_statistics,
                "error_cb": self._on_error,
                "logger": log,
            }
        )

    async def start(self) -> None:
        """See `Client`."""
        self._poller = asyncio.create_task(self._poll())

    async def send(self, record: Record) -> None:
        """See `Client`."""
        self.ledger.give(record)
        try:
            self._producer.produce(
                record.topic,
                record.value,
                record.key,
                partition=record.partition,
                on_delivery=self._on_delivery,
            )
        except (BufferError, KafkaException) as error:
            self.ledger.failed(record.key, str(error))

    def batches_in_flight(self) -> int:
        """See `Client`. At least so many: it counts the partitions that have one in flight."""
        self._producer.poll(0)
        return self._in_flight if time.monotonic() - self._reported < _FRESH_S else 0

    async def finish(self) -> None:
        """See `Client`."""
        self._finishing = True
        if self._poller is not None:
            await self._poller

    async def abandon(self) -> None:
        """See `Client`."""
        if self._poller is not None:
            self._poller.cancel()

    async def _poll(self) -> None:
        while not self._finishing or len(self._producer):
            self._producer.poll(0)
            await asyncio.sleep(_POLL_S)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        key = message.key()
        if not isinstance(key, bytes):
            raise TypeError(f"a delivery report without its key: {key!r}")
        offset = message.offset()
        if error is not None:
            self.ledger.failed(key, str(error))
        else:
            self.ledger.delivered(key, -1 if offset is None else offset)

    def _on_statistics(self, text: str) -> None:
        report: dict[str, Any] = json.loads(text)
        self._in_flight = sum(
            1
            for topic in report["topics"].values()
            for partition in topic["partitions"].values()
            if partition["msgs_inflight"]
        )
        self._reported = time.monotonic()

    def _on_error(self, error: KafkaError) -> None:
        self._log.info("error event: %s", error)
        if error.fatal():
            self.ledger.failed(b"", f"fatal: {error}")


class AiokafkaClient:
    """aiokafka's AIOKafkaProducer.

    An idempotent one never gives up a batch that has a leader; its `request_timeout_ms` also
    limits how long `send` may wait for room while the server is down, so it is generous.

    Parameters:
        bootstrap: HOST:PORT of the server.
    """

    def __init__(self, bootstrap: str) -> None:
        self.ledger = Ledger("aiokafka")
        self._reports: set[asyncio.Task[None]] = set()
        self._producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            client_id="demo-aiokafka",
            enable_idempotence=True,
            request_timeout_ms=_DELIVERY_MS,
        )

    async def start(self) -> None:
        """See `Client`."""
        await self._producer.start()

    async def send(self, record: Record) -> None:
        """See `Client`."""
        self.ledger.give(record)
        try:
            report = await self._producer.send(
                record.topic, record.value, record.key, partition=record.partition
            )
        except AiokafkaError as error:
            self.ledger.failed(record.key, repr(error))
            return
        task = asyncio.create_task(self._wait(record.key, report))
        self._reports.add(task)
        task.add_done_callback(self._reports.discard)

    def batches_in_flight(self) -> int:
        """See `Client`.

        It publishes no statistics. Its sender keeps the partitions that have a batch in a request
        without an answer, one batch each; reading that changes nothing.
        """
        return len(self._producer._sender._muted_partitions)

    async def finish(self) -> None:
        """See `Client`."""
        await self._producer.flush()
        await asyncio.gather(*self._reports)
        await self._producer.stop()

    async def abandon(self) -> None:
        """See `Client`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._producer.stop(), _ABANDON_S)
        await self._producer.client.close()

    async def _wait(self, key: bytes, report: "asyncio.Future[Any]") -> None:
        try:
            metadata = await report
        except Exception as error:  # noqa: BLE001 - whatever it is, the delivery failed
            self.ledger.failed(key, repr(error))
        else:
            self.ledger.delivered(key, metadata.offset)
