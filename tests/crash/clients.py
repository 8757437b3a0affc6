"""Real producers that go on sending in threads of their own, whatever happens to the server.

Idempotent, with the pipelining that they come with. Set are only backoffs, so that a run of
many crashes does not spend its time waiting, and timeouts longer than any run.
"""

import asyncio
import logging
import threading
from random import Random
from typing import Any, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from confluent_kafka import KafkaError as LibrdkafkaError
from confluent_kafka import Message, Producer

from tests.crash.ledger import Ledger

_DELIVERY_MS = 3_600_000
_BACKLOG_MAX = 400
_PAUSE_S = 0.008


# It has much to say of a server that is away.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


class Load(Protocol):
    """A producer under way."""

    ledger: Ledger

    def start(self) -> None:
        """Begin to send."""

    def finish(self, timeout_s: float) -> None:
        """Send nothing new, and wait until everything was acknowledged."""


class _Thread:
    """A thread whose error comes out where it is waited for."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.ending = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=ledger.name, daemon=True)

    def start(self) -> None:
        """See `Load`."""
        self._thread.start()

    def finish(self, timeout_s: float) -> None:
        """See `Load`."""
        self.ending.set()
        self._thread.join(timeout_s)
        given = sum(self.ledger.given.values())
        assert not self._thread.is_alive(), (
            f"{self.ledger.name} hangs: {self.ledger.acknowledged_count} of {given} acknowledged"
        )
        assert not self.ledger.failures, (self.ledger.name, self.ledger.failures[:5])
        assert self.ledger.acknowledged_count == given

    def _guarded(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - the ledger tells it
            self.ledger.failures.append(repr(error))

    def work(self) -> None:
        """The thread's."""
        raise NotImplementedError


class LibrdkafkaLoad(_Thread):
    """confluent-kafka: up to five requests in flight, one for each batch."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, random: Random, name: str = "librdkafka"
    ) -> None:
        super().__init__(Ledger(name))
        self._topic = topic
        self._partitions = partitions
        self._random = random
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "delivery.timeout.ms": _DELIVERY_MS,
                "linger.ms": 2,
                "batch.num.messages": 8,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "log_level": 0,
                "error_cb": self._on_error,
            }
        )

    def work(self) -> None:
        """See `_Thread`."""
        while not self.ending.is_set():
            room = _BACKLOG_MAX - len(self._producer)
            for _ in range(min(room, self._random.randint(1, 12))):
                partition = self._random.randrange(self._partitions)
                value = self.ledger.next(partition, self._random)
                self._producer.produce(
                    self._topic, value, partition=partition, on_delivery=self._on_delivery
                )
            self._producer.poll(_PAUSE_S)
            self.ending.wait(_PAUSE_S * self._random.random())
        self._producer.flush()

    def _on_delivery(self, error: LibrdkafkaError | None, message: Message) -> None:
        value, offset = message.value(), message.offset()
        assert isinstance(value, bytes)
        if error is not None:
            self.ledger.failures.append(f"{value[:40]!r}: {error}")
        else:
            self.ledger.delivered(value, -1 if offset is None or offset < 0 else offset)

    def _on_error(self, error: LibrdkafkaError) -> None:
        if error.fatal():
            self.ledger.failures.append(f"fatal: {error}")


class AiokafkaLoad(_Thread):
    """aiokafka: one request in flight, with a batch for each partition in it."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, random: Random, name: str = "aiokafka"
    ) -> None:
        super().__init__(Ledger(name))
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._random = random
        self._open = 0

    def work(self) -> None:
        """See `_Thread`."""
        asyncio.run(self._work())

    async def _work(self) -> None:
        producer = await self._connected()
        while not self.ending.is_set():
            if self._open < _BACKLOG_MAX:
                for _ in range(self._random.randint(1, 6)):
                    await self._send(producer)
            await asyncio.sleep(_PAUSE_S * (1 + self._random.random()))
        await producer.flush()
        await asyncio.sleep(0)  # the callbacks of the last ones
        await producer.stop()

    async def _connected(self) -> AIOKafkaProducer:
        """A producer; it cannot be made while the server is away, and asks only once."""
        while True:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                enable_idempotence=True,
                request_timeout_ms=_DELIVERY_MS,
                retry_backoff_ms=30,
                linger_ms=2,
                max_batch_size=1200,
            )
            try:
                await producer.start()
            except KafkaError:
                await producer.stop()
                await asyncio.sleep(_PAUSE_S)
            else:
                return producer

    async def _send(self, producer: AIOKafkaProducer) -> None:
        partition = self._random.randrange(self._partitions)
        value = self.ledger.next(partition, self._random)
        future = await producer.send(self._topic, value, partition=partition)
        self._open += 1

        def report(done: "asyncio.Future[Any]") -> None:
            self._open -= 1
            if done.cancelled() or done.exception() is not None:
                self.ledger.failures.append(f"{value[:40]!r}: {done!r}")
            else:
                self.ledger.delivered(value, done.result().offset)

        future.add_done_callback(report)
