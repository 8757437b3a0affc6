"""Active servers with several listeners: clients of each reach all partitions, by its addresses."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pidlease.testing.loopback_ports import LOOPBACK, adjacent_free_ports, free_ports
from tests.crash.seeds import SOAK
from tests.kafka_listener.client import WireClient
from tests.kafka_listener.messages import METADATA
from tests.secure.secured import PASSWORDS, scram, write_users
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.supervised import SupervisedServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until
from tests.servers.zookeeper import ZooKeeperServer

pytestmark = [needs_kafka, pytest.mark.kafka]

_PARTITIONS: Final = 6
_INTERNAL, _EXTERNAL = "INTERNAL", "EXTERNAL"
#: Not with TLS, whose certificates are tested elsewhere.
_PROTOCOLS: Final = {_INTERNAL: "PLAINTEXT", _EXTERNAL: "SASL_PLAINTEXT"}

_LISTENER_NOT_FOUND: Final = 72
_LEADER_NOT_AVAILABLE: Final = 5
#: COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR.
_LOADING: Final = (14, 15, 16)


def _client(name: str, port: int) -> dict[str, Any]:
    found = {"bootstrap.servers": f"{LOOPBACK}:{port}", "security.protocol": _PROTOCOLS[name]}
    if name == _EXTERNAL:
        found |= {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice",
                  "sasl.password": PASSWORDS["alice"]}  # fmt: skip
    return found


def _listeners(ports: dict[str, int]) -> dict[str, str]:
    return {
        "listeners": ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items()),
        "listener_security_protocol_map": ",".join(map(":".join, _PROTOCOLS.items())),
    }


class Pair:
    """Two servers with both listeners."""

    def __init__(self, kafka: KafkaServer, servers: list[PidleaseServer]) -> None:
        self.kafka = kafka
        self.servers = servers
        self.ports: list[dict[str, int]] = []
        for each in servers:
            ports = dict(zip(_PROTOCOLS, free_ports(len(_PROTOCOLS)), strict=True))
            self.ports.append(ports)
            each.settings = {**each.settings, **_listeners(ports)}
            write_users(each.data_dir, "alice")

    def ports_of(self, name: str) -> set[int]:
        return {each[name] for each in self.ports}

    def topic(self, name: str) -> str:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        admin.create_topics([NewTopic(name, _PARTITIONS)])[name].result(WAIT_S)
        return name


@pytest.fixture(params=["kafka", "zookeeper"] if SOAK else ["kafka"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """On a Kafka of its own: the other servers of this package have other coordinators."""
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaServer(tmp_path / "kafka"))
        settings = {
            "coordination": "kafka", "shared": "true", "upstream_metadata_seconds": "0.5",
            "log_level": "info",
        }  # fmt: skip
        if request.param == "zookeeper":
            zookeeper = stack.enter_context(ZooKeeperServer(tmp_path / "zookeeper"))
            settings |= {"coordination": "auto", "zookeeper": f"{zookeeper.hosts}/p"}
        servers = [
            stack.enter_context(in_front_of(kafka, tmp_path / name, **settings)) for name in "ab"
        ]
        found = Pair(kafka, servers)
        for each in servers:
            each.start()
        yield found


def _leader_ports(client: dict[str, Any], topic: str) -> set[int]:
    found = AdminClient(client).list_topics(topic, WAIT_S)
    leaders = {each.leader for each in found.topics[topic].partitions.values()}
    return {found.brokers[each].port for each in leaders if each in found.brokers}


def _until_led(client: dict[str, Any], topic: str, ports: set[int]) -> None:
    until(lambda: _leader_ports(client, topic) == ports, "each to lead some of the partitions")


def _produce_to_each_partition(client: dict[str, Any], topic: str) -> None:
    errors: list[Any] = []
    producer = Producer({**client, "enable.idempotence": True})
    for partition in range(_PARTITIONS):
        producer.produce(topic, b"x", partition=partition,
                         on_delivery=lambda error, _: errors.append(error))  # fmt: skip
    producer.flush(WAIT_S)
    assert errors == [None] * _PARTITIONS


def _coordinator_is_at(admin: AdminClient, ports: set[int]) -> bool:
    """Whether the coordinator is at one of these ports: a client asks either server for it."""
    try:
        group = admin.describe_consumer_groups(["g"])["g"].result(WAIT_S)
    except KafkaException as error:
        if error.args[0].code() not in _LOADING:
            raise
        return False
    assert group.coordinator.port in ports
    return True


@pytest.mark.timeout(600)
def test_clients_of_each_listener_reach_all_partitions(pair: Pair) -> None:
    topic = pair.topic("listeners")
    for name in _PROTOCOLS:
        for ports in pair.ports:
            client = _client(name, ports[name])
            _until_led(client, topic, pair.ports_of(name))
            _produce_to_each_partition(client, topic)
            admin = AdminClient(client)
            cluster = admin.describe_cluster().result(WAIT_S)
            assert {each.port for each in cluster.nodes} == pair.ports_of(name)
            # It forwards to the coordinator, as soon as Kafka has one.
            own = pair.ports_of(name)
            until(partial(_coordinator_is_at, admin, own), "the coordinator of a group")
    status, body = pair.servers[0].get("/v1/servers")
    assert status == 200
    shown = {each["kafka"] for each in json.loads(body)["servers"]}
    assert shown == {each.settings["listeners"] for each in pair.servers}


@pytest.mark.timeout(600)
async def test_a_member_without_names(pair: Pair) -> None:
    """As one of the version before: its only address counts for the default listener."""
    topic = pair.topic("without-names")
    other = pair.servers[1]
    assert other.stop() == 0
    other.restart({
        name: value for name, value in other.settings.items()
        if name not in ("listeners", "listener_security_protocol_map")
    })  # fmt: skip
    inside = _client(_INTERNAL, pair.ports[0][_INTERNAL])
    both = {pair.ports[0][_INTERNAL], other.kafka_port}
    _until_led(inside, topic, both)
    _produce_to_each_partition(inside, topic)
    at_the_other = {"bootstrap.servers": other.bootstrap}
    _until_led(at_the_other, topic, both)
    _produce_to_each_partition(at_the_other, topic)

    outside = _client(_EXTERNAL, pair.ports[0][_EXTERNAL])
    found = AdminClient(outside).list_topics(topic, WAIT_S)
    assert [each.port for each in found.brokers.values()] == [pair.ports[0][_EXTERNAL]]
    (own,) = found.brokers
    leaders = [each.leader for each in found.topics[topic].partitions.values()]
    assert set(leaders) == {own, -1}
    async with await WireClient.connect(LOOPBACK, pair.ports[0][_EXTERNAL]) as client:
        assert await scram(client, "alice", PASSWORDS["alice"]) == 0
        for version, code in ((5, _LEADER_NOT_AVAILABLE), (6, _LISTENER_NOT_FOUND)):
            body = await client.call(METADATA, version, topics=({"name": topic},))
            assert {int(each.error_code) for each in body.topics[0].partitions} == {0, code}


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    """The others of this package are shared by servers with other coordinators."""
    with KafkaServer(tmp_path / "kafka") as running:
        yield running


@pytest.mark.timeout(600)
def test_workers_have_ports_of_their_own_for_each(own_kafka: KafkaServer, tmp_path: Path) -> None:
    ports = {name: adjacent_free_ports(3)[0] for name in _PROTOCOLS}
    server = SupervisedServer(
        tmp_path / "server", 2, log="kafka", upstream=own_kafka.bootstrap, log_level="info",
        upstream_metadata_seconds="0.5", coordination="kafka", **_listeners(ports),
    )  # fmt: skip
    write_users(server.data_dir, "alice")
    topic = f"workers-listeners-{server.http_port}"
    admin = AdminClient({"bootstrap.servers": own_kafka.bootstrap})
    admin.create_topics([NewTopic(topic, _PARTITIONS)])[topic].result(WAIT_S)
    try:
        server.start()
        server.wait_complete()
        for name, port in ports.items():
            client = _client(name, port)
            _until_led(client, topic, {port + 1, port + 2})
            _produce_to_each_partition(client, topic)
        assert server.stop() == 0
    finally:
        server.kill9()
