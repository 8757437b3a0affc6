"""A group's coordinator is killed while its last records are read: what was read is committed."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tests.crash.seeds import SOAK, new_random
from tests.kafka_backend.cluster import SETTINGS, in_sync, make
from tests.kafka_backend.test_tools import _committed
from tests.servers.kafka import KafkaCluster, KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S

pytestmark = [
    needs_kafka, pytest.mark.kafka,
    pytest.mark.timeout(3600 if SOAK else 900),
]  # fmt: skip

_PARTITIONS = 3
_COUNT = 300
_BATCH = 40
_TURNS = 20 if SOAK else 1
#: What a broker that has just become the coordinator answers: bare Kafka's members see it, too.
_PASSING = {"COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"}


class _Member:
    """Reads records, and commits after each batch, as long as that fails."""

    def __init__(self, bootstrap: str, group: str, protocol: str, topic: str) -> None:
        self.read: set[tuple[int | None, int | None]] = set()
        self.errors: Counter[str] = Counter()
        self.slowest_s = 0.0
        self._consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": group, "group.protocol": protocol,
            "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 0,
        })  # fmt: skip
        self._consumer.subscribe([topic])
        self.thread = threading.Thread(target=self._work, daemon=True)

    def _work(self) -> None:
        while len(self.read) < _COUNT:
            found = [each for each in self._consumer.consume(_BATCH, 0.1) if each.error() is None]
            if found:
                self.read |= {(each.partition(), each.offset()) for each in found}
                began = time.monotonic()
                while not self._commit():
                    pass
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        self._consumer.close()

    def _commit(self) -> bool:
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as error:
            name = error.args[0].name()
            self.errors[name] += 1
            return name not in _PASSING
        return True


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_coordinator_is_killed(cluster: KafkaCluster, tmp_path: Path, protocol: str) -> None:
    """Once a bug: librdkafka lost its requests again and again, and gave the last commit up."""
    random = new_random(f"coordinator-{protocol}")
    with PidleaseServer(tmp_path, settings={**SETTINGS, "upstream": cluster.bootstrap}) as server:
        for turn in range(_TURNS):
            topic = group = f"coordinated-{protocol}-{turn}"
            make(cluster, topic, _PARTITIONS, min_insync_replicas="2")
            member = _Member(server.bootstrap, group, protocol, topic)
            member.thread.start()
            kill_at = _COUNT - random.randrange(1, 2 * _BATCH)
            with ThreadPoolExecutor(1) as pool:
                killing = pool.submit(_kill_the_coordinator, cluster, group, member, kill_at)
                _produce(cluster.bootstrap, topic)
                member.thread.join(WAIT_S)
                killed = killing.result(2 * WAIT_S)
            assert not member.thread.is_alive(), f"{len(member.read)} read, {member.errors}"
            killed.start()
            in_sync(cluster, topic, 3)
            print(f"slowest commit {member.slowest_s:.1f} s, errors {dict(member.errors)}")
            assert not member.errors.keys() - _PASSING
            assert len(member.read) == _COUNT
            assert _committed_in_all(cluster, group, topic) == _COUNT
        assert server.stop() == 0


def _committed_in_all(cluster: KafkaCluster, group: str, topic: str) -> int:
    """As the coordinator says, when it has settled down."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return sum(_committed(cluster.bootstrap, group, topic, _PARTITIONS))
        except KafkaException as error:
            if error.args[0].name() not in _PASSING or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _produce(bootstrap: str, topic: str) -> None:
    """Straight to Kafka: what is tested is how they are read."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True,
                         "linger.ms": 5, "log_level": 0})  # fmt: skip
    for number in range(_COUNT):
        producer.produce(topic, b"%d" % number, partition=number % _PARTITIONS)
        producer.poll(0.01)
    assert producer.flush(WAIT_S) == 0


def _kill_the_coordinator(
    cluster: KafkaCluster, group: str, member: _Member, at: int
) -> KafkaServer:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    while len(member.read) < at and member.thread.is_alive():
        time.sleep(0.005)
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            found = admin.describe_consumer_groups([group])[group].result(WAIT_S)
            break
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    port = found.coordinator.port
    node = next(each for each in cluster.nodes if each.bootstrap.endswith(f":{port}"))
    node.process.kill9()
    return node
