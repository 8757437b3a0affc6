"""Policies of topics in front of Kafka: what they do, and that they are kept."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient

from tests.integration.test_topic_policies import patch, shown, topics
from tests.kafka_backend.test_clients import new_topic
from tests.kafka_backend.test_writer import post
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S
from tests.servers.zookeeper import ZooKeeperServer
from tests.servers.zookeeper.marks import needs_zookeeper

pytestmark = [needs_kafka, pytest.mark.kafka]

_SECONDS = WAIT_S


def produce(server: PidleaseServer, topic: str, **settings: str) -> int:
    """The code that an idempotent client of Kafka is told."""
    told: list[Any] = []
    producer = Producer(
        {"bootstrap.servers": server.bootstrap, "enable.idempotence": True, **settings}
    )
    if "transactional.id" in settings:
        producer.init_transactions(_SECONDS)
        producer.begin_transaction()
    producer.produce(topic, b"x", partition=0, on_delivery=lambda error, _: told.append(error))
    assert producer.flush(_SECONDS) == 0
    return 0 if told[0] is None else int(told[0].code())


def test_they_hold_and_are_kept(kafka: KafkaServer, tmp_path: Path) -> None:
    with in_front_of(kafka, tmp_path) as server:
        server.start()
        topic, other = new_topic(server, 1), new_topic(server, 1)
        path = f"/v1/topics/{topic}/settings"
        assert patch(server, path, {"pidlease.policies": "epoch"})[0] == 200
        assert topics(server, "set", "--all", "pidlease.initial=zero")[0] == 0

        def look() -> None:
            assert shown(server, topic)["pidlease.policies"] == ("epoch", "topic")
            assert shown(server, topic)["pidlease.initial"] == ("zero", "all topics")
            assert produce(server, topic) == KafkaError.POLICY_VIOLATION
            assert produce(server, other) == 0

        look()
        assert post(server, topic, b"0", "p", 0)[0] == 200
        server.kill9()
        server.start()
        look()
        assert post(server, topic, b"0", "p", 0)[1]["duplicate"]
        assert patch(server, path, {"pidlease.policies": None})[0] == 200
        assert produce(server, topic) == 0
        server.kill9()
        server.start()
        assert produce(server, topic) == 0


def test_transactions_keep_to_them(server: PidleaseServer) -> None:
    """Kafka validates them, and knows nothing of policies, and of the ends of streams."""
    topic, stream = new_topic(server, 1), new_topic(server, 1)
    settings = {"pidlease.stream.type": "text/plain"}
    assert patch(server, f"/v1/topics/{stream}/settings", settings)[0] == 200
    path = f"/v1/topics/{topic}/settings"
    for policies, code in (("strict", KafkaError.POLICY_VIOLATION), ("kafka", 0)):
        assert patch(server, path, {"pidlease.policies": policies})[0] == 200
        assert produce(server, topic, **{"transactional.id": f"{topic}-{policies}"}) == code
    code = produce(server, stream, **{"transactional.id": stream})
    assert code == KafkaError.POLICY_VIOLATION


def test_what_is_kafka_s_own_is_refused(server: PidleaseServer) -> None:
    topic = new_topic(server, 1)
    status, answer = patch(server, f"/v1/topics/{topic}/settings", {"retention.ms": "5"})
    assert status == 400
    assert "retention.ms is a setting of Kafka's" in str(answer)
    found = shown(server, topic)
    assert found.keys() == {"pidlease.deduplication", "pidlease.policies", "pidlease.initial"}


def test_another_topic_of_the_name_takes_all_again(server: PidleaseServer) -> None:
    topic = new_topic(server, 1)
    path = f"/v1/topics/{topic}/settings"
    assert patch(server, path, {"pidlease.policies": "strict"})[0] == 200
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.delete_topics([topic])[topic].result(_SECONDS)
    assert produce(server, topic) == 0  # it makes itself again


@needs_zookeeper
def test_whoever_serves_next_knows_them(kafka: KafkaServer, tmp_path: Path) -> None:
    """First from the directory, where there was no ZooKeeper yet; then from another server's."""
    with (
        ZooKeeperServer(tmp_path / "zookeeper") as zookeeper,
        in_front_of(kafka, tmp_path / "a") as first,
        in_front_of(kafka, tmp_path / "b") as second,
    ):
        first.start()
        topic = new_topic(first, 1)
        path = f"/v1/topics/{topic}/settings"
        assert patch(first, path, {"pidlease.policies": "strict"})[0] == 200
        first.kill9()
        shared = {"zookeeper": f"{zookeeper.hosts}/p", "zookeeper_session_seconds": "2"}
        for each in (first, second):
            each.settings.update(shared)
        first.start()
        assert shown(first, topic)["pidlease.policies"] == ("strict", "topic")
        assert patch(first, path, {"pidlease.policies": "monotonic"})[0] == 200
        first.kill9()
        second.start()
        assert shown(second, topic)["pidlease.policies"] == ("monotonic", "topic")
        assert produce(second, topic) == KafkaError.POLICY_VIOLATION
        assert second.stop() == 0
