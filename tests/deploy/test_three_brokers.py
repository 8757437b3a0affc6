"""Three brokers and a ZooKeeper in containers, and pidlease in front: a broker is killed."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any, Final

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.client.loads import loads_for as leased_loads_for
from tests.crash.clients import Load
from tests.crash.lives import get_on, loads_for
from tests.crash.seeds import new_random
from tests.deploy.docker_daemon import (
    build_image,
    container,
    docker,
    docker_missing,
    java_image_missing,
    volume,
)
from tests.deploy.other_images import kafka_image, zookeeper_image
from tests.kafka_backend.loads import HttpLoad
from tests.kafka_backend.test_kills import read_back
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until
from tests.servers.zookeeper.marks import needs_zookeeper

_TOPIC: Final = "three-brokers"
_PARTITIONS: Final = 3
_BROKERS: Final = (1, 2, 3)

pytestmark = [
    needs_kafka,
    needs_zookeeper,
    pytest.mark.kafka,
    pytest.mark.skipif(java_image_missing() is not None, reason=str(java_image_missing())),
    pytest.mark.skipif(docker_missing() is not None, reason=str(docker_missing())),
]


class _Cluster:
    """The brokers and the ZooKeeper, in a network of their own.

    Attributes:
        bootstrap: addresses of the brokers on this machine.
        network: the name of the network, in which they are kafka1 to kafka3, and zookeeper.
    """

    def __init__(self, network: Network) -> None:
        ports = dict(zip(_BROKERS, free_ports(len(_BROKERS)), strict=True))
        self.network: Final = network.name
        self.bootstrap: Final = ",".join(f"{LOOPBACK}:{port}" for port in ports.values())
        self._admin: Final = AdminClient({"bootstrap.servers": self.bootstrap})
        image = kafka_image()
        self.brokers: Final = {
            number: _broker(image, number, port)
            .with_network(network)
            .with_network_aliases(f"kafka{number}")
            for number, port in ports.items()
        }
        self.zookeeper: Final = (
            DockerContainer(zookeeper_image())
            .with_network(network)
            .with_network_aliases("zookeeper")
        )

    def answers(self) -> bool:
        """Whether all brokers are there."""
        try:
            return len(self._admin.list_topics(timeout=5).brokers) == len(_BROKERS)
        except KafkaException:
            return False

    def make_topic(self) -> None:
        """Make the topic, with a replica on each broker."""
        config = {"min.insync.replicas": "2"}
        topic = NewTopic(_TOPIC, _PARTITIONS, len(_BROKERS), config=config)
        self._admin.create_topics([topic])[_TOPIC].result(WAIT_S)

    def leaders(self) -> dict[int, int]:
        """Return the leader of each partition."""
        found = self._admin.list_topics(_TOPIC, timeout=WAIT_S).topics[_TOPIC].partitions
        return {number: each.leader for number, each in found.items()}

    def in_sync(self) -> bool:
        """Whether each partition has all its replicas."""
        found = self._admin.list_topics(_TOPIC, timeout=WAIT_S).topics[_TOPIC].partitions
        return all(len(each.isrs) == len(_BROKERS) for each in found.values())

    def kill(self, number: int) -> None:
        """Kill a broker, and wait until others lead what it led."""
        led = [partition for partition, leader in self.leaders().items() if leader == number]
        assert led
        docker("kill", self.brokers[number].get_wrapped_container().id)

        def others_lead() -> bool:
            found = self.leaders()
            return all(found[partition] not in (number, -1) for partition in led)

        until(others_lead, "others to lead it", 0.2)

    def restart(self, number: int) -> None:
        """Start a broker that was killed, and wait until it has all records."""
        docker("start", self.brokers[number].get_wrapped_container().id)
        until(self.in_sync, "all replicas in sync", 0.5)


def _broker(image: str, number: int, port: int) -> DockerContainer:
    settings = {
        "node.id": number,
        "process.roles": "broker,controller",
        "listeners": "PLAINTEXT://0.0.0.0:9092,OUTSIDE://0.0.0.0:19092,CONTROLLER://0.0.0.0:9093",
        "advertised.listeners": f"PLAINTEXT://kafka{number}:9092,OUTSIDE://{LOOPBACK}:{port}",
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT"
        ),
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(f"{each}@kafka{each}:9093" for each in _BROKERS),
        "log.dirs": "/var/lib/kafka/data",
        "default.replication.factor": 3,
        "min.insync.replicas": 2,
        "offsets.topic.num.partitions": 3,
        "transaction.state.log.num.partitions": 3,
        # A broker that was killed is noticed soon.
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
    }
    found = DockerContainer(image)
    # `with_bind_ports` knows no address, and would bind all of this machine.
    ports: dict[str, Any] = found.ports
    ports["19092/tcp"] = (LOOPBACK, port)
    for name, value in settings.items():
        found = found.with_env(f"KAFKA_{name.upper().replace('.', '_')}", str(value))
    return found


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Cluster]:
    # Otherwise it wants an image of its own, which removes what a test leaves: ours leaves nothing.
    monkeypatch.setattr(testcontainers_config, "_ryuk_disabled", True)
    with Network() as network, ExitStack() as stack:
        found = _Cluster(network)
        for each in (found.zookeeper, *found.brokers.values()):
            stack.enter_context(_started(each))
        until(found.answers, "three brokers", 0.5)
        yield found


@contextmanager
def _started(each: DockerContainer) -> Iterator[None]:
    each.start()
    try:
        yield
    finally:
        each.stop(force=True, delete_volume=True)


def test_a_broker_is_killed_under_load(cluster: _Cluster) -> None:
    """Nothing that was acknowledged is lost, and nothing is there twice or in another order."""
    random = new_random("three-brokers")
    cluster.make_topic()
    settings = {
        "log": "kafka",
        "upstream": ",".join(f"kafka{number}:9092" for number in _BROKERS),
        "zookeeper": "zookeeper:2181",
        "upstream_timeout_seconds": "6",
    }
    options = [
        option
        for name, value in settings.items()
        for option in ("--env", f"PIDLEASE_{name.upper()}={value}")
    ]
    with (
        volume() as data,
        container(build_image(), data, "--network", cluster.network, *options) as server,
    ):
        server.wait_healthy()
        loads: list[Load] = [
            *loads_for(server.bootstrap, _TOPIC, _PARTITIONS, random),
            *leased_loads_for(server, server.bootstrap, _TOPIC, _PARTITIONS, random),
            HttpLoad(server, _TOPIC, _PARTITIONS, Random(random.random())),
        ]
        for load in loads:
            load.start()
        get_on(loads)
        for number in random.sample(sorted(set(cluster.leaders().values())), 1):
            cluster.kill(number)
            get_on(loads)
            cluster.restart(number)
            get_on(loads)
        stored = read_back(cluster.bootstrap, _TOPIC, _PARTITIONS, loads, WAIT_S)
        print(f"{len(stored)} records")
        assert server.stop(90) == 0
