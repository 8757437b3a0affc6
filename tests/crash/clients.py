"""Real producers that go on sending in threads of their own, whatever happens to the server.

Idempotent, with the pipelining that they come with. The loads of the tests set only backoffs, so
that a run of many crashes does not spend its time waiting, and timeouts longer than any run.
`make demo` runs the same clients with rows and settings of its own.
"""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from random import Random
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from confluent_kafka import KafkaError as LibrdkafkaError
from confluent_kafka import KafkaException, Message, Producer

from tests.crash.ledger import Ledger

_DELIVERY_MS = 3_600_000
_BACKLOG_MAX = 400
_PAUSE_S = 0.008


# It has much to say of a server that is away.
logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


class Books(Protocol):
    """The part of a ledger that a client needs. A record's identity is its key, or its value."""

    name: str
    failures: list[str]

    @property
    def given_count(self) -> int:
        """Records handed to the client."""

    @property
    def acknowledged_count(self) -> int:
        """Records that the client reported as delivered."""

    def delivered(self, identity: bytes, offset: int) -> None:
        """Note an acknowledgement; offset -1: a duplicate, its offset not known."""

    def failed(self, identity: bytes, reason: str) -> None:
        """Note a failed delivery."""


class Accounted(Protocol):
    """A client with a ledger."""

    @property
    def ledger(self) -> Books:
        """Its ledger."""


class ToSend(NamedTuple):
    """A record, and where it goes."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes


#: When the next burst may follow (`time.monotonic`), and records; they are noted as given when
#: they are taken from it.
Bursts = Iterator[tuple[float, Iterable[ToSend]]]
B = TypeVar("B", bound=Books)


class Load(Protocol):
    """A producer under way."""

    ledger: Ledger

    def start(self) -> None:
        """Begin to send."""

    def finish(self, timeout_s: float) -> None:
        """Send nothing new, and wait until everything was acknowledged."""


class ClientThread(Generic[B]):
    """Runs a client; an error of the thread becomes a failure in its ledger."""

    def __init__(self, ledger: B) -> None:
        self.ledger = ledger
        self.ending = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=ledger.name, daemon=True)

    def start(self) -> None:
        """See `Load`."""
        self._thread.start()

    def finish(self, timeout_s: float) -> None:
        """See `Load`."""
        self.ending.set()
        self.join(timeout_s)

    def join(self, timeout_s: float) -> None:
        """Wait until all that there was to send is acknowledged."""
        self._thread.join(timeout_s)
        counts = f"{self.ledger.acknowledged_count} of {self.ledger.given_count} acknowledged"
        assert not self._thread.is_alive(), f"{self.ledger.name} hangs: {counts}"
        assert not self.ledger.failures, (self.ledger.name, self.ledger.failures[:5])
        assert self.ledger.acknowledged_count == self.ledger.given_count, counts

    def _guarded(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - the ledger tells it
            self.ledger.failures.append(repr(error))

    def work(self) -> None:
        """The thread's."""
        raise NotImplementedError


class LibrdkafkaClient(ClientThread[B]):
    """confluent-kafka: up to five requests in flight, one for each batch."""

    def __init__(
        self, ledger: B, bursts: Bursts, bootstrap: str, settings: Mapping[str, Any]
    ) -> None:
        super().__init__(ledger)
        self._bursts = bursts
        self._stats = "{}"
        #: Topics and partitions that are sent to another broker than the leader for two reports: a
        #: leader that changes twice at once leaves librdkafka there (its issue 4976). The leader
        #: must change once more.
        self.astray: set[tuple[str, int]] = set()
        self._perhaps_astray: set[tuple[str, int]] = set()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "error_cb": self._on_error,
                "statistics.interval.ms": 5000,
                "stats_cb": self._on_stats,
                **settings,
            }
        )

    def work(self) -> None:
        """See `ClientThread`."""
        for due, burst in self._bursts:
            for record in burst:
                self._send(record)
            while True:
                left = due - time.monotonic()
                self._producer.poll(max(left, 0))  # also when the next burst is late
                if left <= 0:
                    break
            if self.ending.is_set():
                break
        self._producer.flush()

    def _send(self, record: ToSend) -> None:
        topic, partition, key, value = record
        identity = key or value
        report = partial(self._on_delivery, identity)
        try:
            self._producer.produce(topic, value, key, partition=partition, on_delivery=report)
        except (BufferError, KafkaException) as error:
            self.ledger.failed(identity, str(error))

    def _on_delivery(self, identity: bytes, error: LibrdkafkaError | None, sent: Message) -> None:
        offset = sent.offset()
        if error is not None:
            self.ledger.failed(identity, str(error))
        else:
            self.ledger.delivered(identity, -1 if offset is None or offset < 0 else offset)

    def _on_stats(self, stats: str) -> None:
        self._stats = stats
        now = {
            (topic, part["partition"])
            for topic, each in json.loads(stats).get("topics", {}).items()
            for part in each["partitions"].values()
            if part["partition"] >= 0 and part["leader"] >= 0 and part["broker"] != part["leader"]
        }
        self.astray, self._perhaps_astray = now & self._perhaps_astray, now

    def state(self) -> str:
        """What the client itself said last of its connections, and of its partitions' queues."""
        found = json.loads(self._stats)
        rows = [
            {name: value for name, value in each.items() if not isinstance(value, dict)}
            for each in (
                *found.get("brokers", {}).values(),
                *(
                    part
                    for topic in found.get("topics", {}).values()
                    for part in topic["partitions"].values()
                ),
            )
        ]
        return "\n".join(map(str, rows))

    def _on_error(self, error: LibrdkafkaError) -> None:
        if error.fatal():
            self.ledger.failures.append(f"fatal: {error}")


class AiokafkaClient(ClientThread[B]):
    """aiokafka: one request in flight, with a batch for each partition in it."""

    def __init__(self, ledger: B, bursts: Bursts, bootstrap: str, **settings: Any) -> None:
        super().__init__(ledger)
        self._bursts = bursts
        self._settings = {"bootstrap_servers": bootstrap, "enable_idempotence": True, **settings}
        self.producer: AIOKafkaProducer | None = None

    def work(self) -> None:
        """See `ClientThread`."""
        asyncio.run(self._work())

    async def _work(self) -> None:
        self.producer = producer = await self._connected()
        for due, burst in self._bursts:
            for record in burst:
                await self._send(producer, record)
            await asyncio.sleep(due - time.monotonic())
            if self.ending.is_set():
                break
        await producer.flush()
        await asyncio.sleep(0)  # the callbacks of the last ones
        await producer.stop()

    async def _connected(self) -> AIOKafkaProducer:
        """A producer; it cannot be made while the server is away, and asks only once."""
        while True:
            producer = AIOKafkaProducer(**self._settings)
            try:
                await producer.start()
            except KafkaError:
                await producer.stop()
                await asyncio.sleep(_PAUSE_S)
            else:
                return producer

    async def _send(self, producer: AIOKafkaProducer, record: ToSend) -> None:
        topic, partition, key, value = record
        identity = key or value
        try:
            future = await producer.send(topic, value, key, partition=partition)
        except KafkaError as error:
            self.ledger.failed(identity, repr(error))
        else:
            future.add_done_callback(partial(self._report, identity))

    def _report(self, identity: bytes, done: "asyncio.Future[Any]") -> None:
        if done.cancelled() or done.exception() is not None:
            self.ledger.failed(identity, repr(done))
        else:
            self.ledger.delivered(identity, done.result().offset)


class LibrdkafkaLoad(LibrdkafkaClient[Ledger]):
    """Random records for the partitions of a topic."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, random: Random, name: str = "librdkafka",
        settings: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        ledger = Ledger(name)
        super().__init__(
            ledger, _random_bursts(ledger, topic, partitions, random, 12), bootstrap,
            {
                "delivery.timeout.ms": _DELIVERY_MS, "linger.ms": 2, "batch.num.messages": 8,
                "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20, "retry.backoff.max.ms": 100,
                "topic.metadata.refresh.fast.interval.ms": 50, "log_level": 0,
                **(settings or {}),
            },
        )  # fmt: skip


class AiokafkaLoad(AiokafkaClient[Ledger]):
    """The same."""

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, random: Random, name: str = "aiokafka"
    ) -> None:
        ledger = Ledger(name)
        super().__init__(
            ledger, _random_bursts(ledger, topic, partitions, random, 6), bootstrap,
            request_timeout_ms=_DELIVERY_MS, retry_backoff_ms=30, linger_ms=2, max_batch_size=1200,
        )  # fmt: skip


def _random_bursts(
    ledger: Ledger, topic: str, partitions: int, random: Random, most: int
) -> Bursts:
    def next_record() -> ToSend:
        partition = random.randrange(partitions)
        return ToSend(topic, partition, None, ledger.next(partition, random))

    while True:
        room = _BACKLOG_MAX - (ledger.given_count - ledger.acknowledged_count)
        burst = (next_record() for _ in range(min(room, random.randint(1, most))))
        yield time.monotonic() + _PAUSE_S * (1 + random.random()), burst
