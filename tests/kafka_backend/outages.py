"""Outages of Kafka, seen by clients straight to it and by clients behind pidlease at the same time.

Each client sends numbered records at a steady rate before, during and after the outage, with a
topic of one partition for each client. Then each topic is read straight from Kafka: which records
are in it twice, which in another order, and under how many epochs.
"""

import itertools
import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.crash.readback import consume
from tests.servers.kafka import KafkaServer
from tests.servers.kafka.install import java_command
from tests.servers.kafka.segments import dump_log_segments
from tests.servers.kafka.server import short_lived
from tests.servers.waiting import WAIT_S

RATE: Final = 100
_JOIN_S: Final = 400.0


class Seen(NamedTuple):
    """What became of one client's records.

    Attributes:
        acknowledged: records that the client reported as stored.
        failed: records that it reported as failed.
        twice: copies in the log beyond the first of each record.
        lost: acknowledged records that the log lacks.
        out_of_order: records whose first copy comes after that of a later record.
        raised: the highest epoch in the log.
        first_s: seconds from Kafka's return to the first acknowledgement; -1: there was none.
    """

    acknowledged: int
    failed: int
    twice: int
    lost: int
    out_of_order: int
    raised: int
    first_s: float


class OutageClient:
    """A client that sends numbered records to a topic of its own.

    Parameters:
        topic: with one partition.
        bootstrap: where it connects.
        timeout_ms: how long a record may take (message.timeout.ms, delivery.timeout.ms); 0: the
            client's default.
    """

    def __init__(self, topic: str, bootstrap: str, timeout_ms: int) -> None:
        self.topic = topic
        self.bootstrap = bootstrap
        self.timeout_ms = timeout_ms
        self.acknowledged: dict[int, float] = {}
        self.failed: set[int] = set()
        self.ending = threading.Event()

    def start(self) -> None:
        """Begin to send."""
        raise NotImplementedError

    def finish(self) -> None:
        """Send nothing new, and wait for the outcome of each record."""
        raise NotImplementedError

    def check(self, kafka: KafkaServer, back: float) -> Seen:
        """Read the topic, and compare it with what the client reported.

        Parameters:
            back: when Kafka was back, by time.monotonic.
        """
        stored = [int(each.value) for each in consume(kafka.bootstrap, self.topic, 1)]
        copies = Counter(stored)
        first = list(dict.fromkeys(stored))
        later = sum(1 for a, b in itertools.pairwise(first) if b < a)
        segments = sorted(kafka.partition_dir(self.topic).glob("*.log"))
        epochs = {batch.producer_epoch for batch in dump_log_segments(segments).batches}
        after = [at - back for at in self.acknowledged.values() if at >= back]
        return Seen(
            acknowledged=len(self.acknowledged),
            failed=len(self.failed),
            twice=sum(copies.values()) - len(copies),
            lost=len(self.acknowledged.keys() - copies.keys()),
            out_of_order=later,
            raised=max(epochs),
            first_s=min(after, default=-1.0),
        )


class LibrdkafkaOutage(OutageClient):
    """confluent-kafka."""

    def start(self) -> None:
        """See `OutageClient`."""
        timeout = {"message.timeout.ms": self.timeout_ms} if self.timeout_ms else {}
        self._producer = Producer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0,
             "queue.buffering.max.messages": 1_000_000, **timeout}
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run, name=self.topic, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        began, number = time.monotonic(), 0
        while not self.ending.is_set():
            while number < (time.monotonic() - began) * RATE:
                self._producer.produce(
                    self.topic, str(number).encode(), partition=0, on_delivery=self._delivered
                )
                number += 1
            self._producer.poll(0.01)
        self._producer.flush(_JOIN_S)

    def _delivered(self, error: KafkaError | None, sent: Message) -> None:
        number = int(sent.value() or b"-1")
        if error is None:
            self.acknowledged[number] = time.monotonic()
        else:
            self.failed.add(number)

    def finish(self) -> None:
        """See `OutageClient`."""
        self.ending.set()
        self._thread.join(_JOIN_S)
        assert not self._thread.is_alive(), f"{self.topic}: librdkafka does not end"


class JavaOutage(OutageClient):
    """Kafka's own client, by VerifiableProducer of Kafka's tools.

    Parameters:
        folder: for its settings.
    """

    def __init__(self, topic: str, bootstrap: str, timeout_ms: int, folder: Path) -> None:
        super().__init__(topic, bootstrap, timeout_ms)
        self._folder = folder

    def start(self) -> None:
        """See `OutageClient`."""
        settings: dict[str, Any] = {"enable.idempotence": "true", "retries": 2**31 - 1}
        if self.timeout_ms:
            # It must not be less than linger and the request's timeout together.
            settings |= {"delivery.timeout.ms": self.timeout_ms,
                         "request.timeout.ms": self.timeout_ms - 1000}  # fmt: skip
        config = self._folder / f"{self.topic}.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        silent = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
        self._process = subprocess.Popen(
            [
                *java_command("org.apache.kafka.tools.VerifiableProducer", *short_lived(), silent),
                *("--bootstrap-server", self.bootstrap, "--topic", self.topic),
                *("--throughput", str(RATE), "--producer.config", str(config)),
            ],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._read, name=self.topic, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if said["name"] == "producer_send_success":
                self.acknowledged[int(said["value"])] = time.monotonic()
            elif said["name"] == "producer_send_error":
                self.failed.add(int(said["value"]))

    def finish(self) -> None:
        """See `OutageClient`."""
        self._process.terminate()  # it flushes
        self._process.wait(_JOIN_S)
        self._thread.join(WAIT_S)


def create_topics(bootstrap: str, clients: Sequence[OutageClient]) -> None:
    """Create the topic of each client."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(each.topic, 1) for each in clients]
    for made in admin.create_topics(topics).values():
        made.result(WAIT_S)


@contextmanager
def outage(kafka: KafkaServer, seconds: float, *, killed: bool) -> Iterator[None]:
    """Let Kafka be away: killed and started again, or suspended."""
    if killed:
        kafka.process.kill9()
        time.sleep(seconds)
        yield
        kafka.start()
        return
    with kafka.process.stopped():
        time.sleep(seconds)
        yield


def measure(
    kafka: KafkaServer,
    clients: Sequence[OutageClient],
    seconds: float,
    *,
    killed: bool,
    after_s: float,
) -> dict[str, Seen]:
    """Run clients through an outage, and return what became of the records of each.

    Parameters:
        seconds: how long Kafka is away.
        killed: whether it is killed; if not, it is suspended.
        after_s: how long the clients go on after Kafka is back.
    """
    for each in clients:
        each.start()
    try:
        deadline = time.monotonic() + WAIT_S
        while any(len(each.acknowledged) < RATE for each in clients):
            assert time.monotonic() < deadline, {c.topic: len(c.acknowledged) for c in clients}
            time.sleep(0.05)
        with outage(kafka, seconds, killed=killed):
            pass
        back = time.monotonic()
        # Until each has an acknowledgement, and a while longer.
        deadline = back + _JOIN_S
        while any(max(c.acknowledged.values()) < back for c in clients):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        time.sleep(after_s)
    finally:
        for each in clients:
            each.finish()
    return {each.topic: each.check(kafka, back) for each in clients}
