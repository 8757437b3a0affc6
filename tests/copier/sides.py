"""A source with real data, destinations, copiers as processes, and the comparison of both sides."""

import os
import sys
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from deploy.demo.rows import load_records
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.process import ServerProcess
from tests.servers.waiting import WAIT_S, until

PARTITIONS = 4
ROOT = Path(__file__).resolve().parents[2]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


class Row(NamedTuple):
    """A record as a consumer gets it, without the header `pidlease`."""

    timestamp: tuple[int, int]
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Filler:
    """Writes real data into a topic, for as long as it takes: through librdkafka, in a thread.

    Parameters:
        bootstrap: where.
        topic: the topic, which it makes.
        count: records at least: it goes on until it is told to finish.
        per_second: how many at most; 0: as fast as it goes.
    """

    def __init__(
        self, bootstrap: str, topic: str, count: int, random: Random, per_second: int = 0
    ) -> None:
        self.topic = topic
        self._count = count
        self._per_second = per_second
        self._random = Random(random.random())
        self._bootstrap = bootstrap
        self._last = threading.Event()
        self.failed: list[str] = []
        self.sent = 0
        self._thread = threading.Thread(target=self._run, name=f"filler {topic}", daemon=True)
        make_topic(bootstrap, topic)

    def start(self) -> "Filler":
        """Begin."""
        self._thread.start()
        return self

    @property
    def at_work(self) -> bool:
        """Whether it writes."""
        return self._thread.is_alive()

    def finish(self, seconds: float = WAIT_S) -> None:
        """Write no more than that, and wait until all is written."""
        self._last.set()
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the source was not filled in time"
        assert not self.failed, self.failed[:3]

    def _run(self) -> None:
        # Batches of all codecs, some of a record and some of hundreds.
        producers = [
            Producer({
                "bootstrap.servers": self._bootstrap, "compression.type": codec,
                "enable.idempotence": True, "linger.ms": linger, "message.timeout.ms": 0,
                "queue.buffering.max.messages": 20_000,
            })
            for codec, linger in zip(CODECS, (0, 5, 20, 50, 50), strict=True)
        ]  # fmt: skip
        rows = [row for rows in load_records().values() for row in rows]
        began = time.monotonic()
        while self.sent < self._count or not self._last.is_set():
            producer = self._random.choice(producers)
            for _ in range(self._random.choice((1, 20, 400))):
                row = rows[self.sent % len(rows)]
                self._produce(producer, row.partition, row.value)
                self.sent += 1
            producer.poll(0)
            while self._per_second and self.sent > (time.monotonic() - began) * self._per_second:
                for each in producers:
                    each.poll(0.005)
        for producer in producers:
            producer.flush()

    def _produce(self, producer: Producer, partition: int, value: bytes) -> None:
        number = self.sent
        while True:
            try:
                producer.produce(
                    self.topic, value if number % 50 else None, b"key-%d" % (number % 997),
                    partition, headers=[("n", b"%d" % number), ("empty", None)] * (number % 3),
                    on_delivery=self._delivered,
                )  # fmt: skip
            except BufferError:
                producer.poll(0.05)
            else:
                return

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self.failed.append(str(error))


def make_topic(bootstrap: str, topic: str, partitions: int = PARTITIONS, **config: str) -> None:
    """Make a topic, and wait until it is there."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(WAIT_S)
    until(lambda: topic in admin.list_topics(timeout=WAIT_S).topics, f"{topic} to be there")


def read_all(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> dict[int, list[Row]]:
    """What is committed in a topic, by somebody else's client."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "compare", "enable.auto.commit": False,
        "enable.partition.eof": True, "isolation.level": "read_committed",
    })  # fmt: skip
    found: dict[int, list[Row]] = {number: [] for number in range(partitions)}
    ended: set[int] = set()
    deadline = time.monotonic() + WAIT_S
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in found])
    try:
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"{topic} could not be read: {ended}"
            for message in consumer.consume(1000, 1.0):
                error, number = message.error(), message.partition() or 0
                if error is None:
                    found[number].append(_row(message))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended.add(number)
    finally:
        consumer.close()
    return found


def _row(message: Message) -> Row:
    headers: Any = message.headers() or ()
    kept = tuple(each for each in headers if each[0] != "pidlease")
    value: Any = message.value()
    key: Any = message.key()
    return Row(message.timestamp(), key, value, kept)


def check_same(source: KafkaServer, topic: str, server: PidleaseServer, copy: str) -> int:
    """Every record of the source once, as it was, in its order; how many there are."""
    expected = read_all(source.bootstrap, topic)
    found = read_all(server.bootstrap, copy)
    for number, rows in expected.items():
        for place, (one, other) in enumerate(zip(rows, found[number], strict=False)):
            assert one == other, f"{copy}-{number}, record {place}: {other} instead of {one}"
        assert len(found[number]) == len(rows), f"{copy}-{number}"
    return sum(map(len, expected.values()))


class CopyProcess:
    """`pidlease copy`, as a process.

    Parameters:
        folder: for its log.
        source: HOST:PORT of it.
        server: the destination.
        options: as on the command line.
    """

    def __init__(self, folder: Path, source: str, server: PidleaseServer, *options: str) -> None:
        self.process = ServerProcess("copier", folder / "copier.log", ROOT)
        self._folder = folder
        self._command = (
            sys.executable, "-m", "proxy", "copy", "--from", source, "--to", server.bootstrap,
            "--leases", server.http_url, *options,
        )  # fmt: skip

    def start(self) -> "CopyProcess":
        """Begin to copy."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.process.start(self._command, os.environ)
        return self

    def run(self, timeout_s: float = WAIT_S) -> int:
        """Copy, or compare, to the end; the exit code."""
        self.start()
        return self.process.wait_exit(timeout_s)

    def kill9(self) -> None:
        """End it at once."""
        self.process.kill9()

    def stopped(self) -> AbstractContextManager[None]:
        """It does nothing for a while, and does not know it."""
        return self.process.stopped()

    @property
    def text(self) -> str:
        """What it said."""
        return self.process.log_path.read_text()


def records_of(server: PidleaseServer) -> float:
    """How many records a destination has taken since it was started; 0 where it is away."""
    try:
        return server.metric("pidlease_appended_records_total")
    except (OSError, ValueError, KeyError):
        return 0


def more_arrived(server: PidleaseServer, least: int = 1) -> None:
    """Wait until the destination has taken more."""
    before = records_of(server)
    until(lambda: records_of(server) >= before + least, "records at the destination")
