"""What Kafka does not let this server do is told to clients, and everything else goes on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic

from pidlease.kafka.client.transactions import SERVED_TOPIC
from tests.kafka_backend.test_writer import post
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, not_started
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

pytestmark = [needs_kafka, pytest.mark.kafka]

_SECONDS = WAIT_S
_NOT_AUTHORIZED = 29
TOPICS = ("may", "may-not", "no-writer")
_JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' username="x" password="x" user_limited="secret";'
)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A Kafka that lets a server do little."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "listener.name.limited.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.limited.plain.sasl.jaas.config": _JAAS,
    }
    folder = tmp_path_factory.mktemp("kafka")
    listeners = {"LIMITED": "SASL_PLAINTEXT"}
    with KafkaServer(folder, overrides=settings, listeners=listeners) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for made in admin.create_topics([NewTopic(each, 1) for each in TOPICS]).values():
            made.result(_SECONDS)
        cluster = admin.list_topics(timeout=_SECONDS).cluster_id
        for done in admin.create_acls(_rights(str(cluster))).values():
            done.result(_SECONDS)
        yield kafka


@pytest.fixture(scope="module")
def server(
    upstream: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PidleaseServer]:
    own = {"log": "kafka", "upstream": upstream.listeners["LIMITED"], "upstream_sasl": "PLAIN",
           "upstream_username": "limited", "upstream_password": "secret"}  # fmt: skip
    with PidleaseServer(tmp_path_factory.mktemp("server"), settings=own) as running:
        yield running
        assert running.stop() == 0


def _right(kind: Any, name: str, operation: Any, pattern: Any) -> AclBinding:
    return AclBinding(kind, name, pattern, "User:limited", "*", operation, AclPermissionType.ALLOW)


def _rights(cluster: str) -> list[AclBinding]:
    literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    topic, own = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
    own_ids = f"pidlease/{cluster}/may"  # of "may-not" as well
    return [
        _right(ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE, literal),
        _right(ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE_CONFIGS, literal),
        _right(topic, "*", AclOperation.READ, literal),
        _right(topic, "*", AclOperation.DESCRIBE_CONFIGS, literal),
        _right(topic, "may", AclOperation.WRITE, literal),
        _right(topic, "no-writer", AclOperation.WRITE, literal),
        _right(own, own_ids, AclOperation.WRITE, prefixed),
        _right(own, own_ids, AclOperation.DESCRIBE, prefixed),
    ]


def delivery(server: PidleaseServer, topic: str) -> Any:
    """What a producer of Kafka's is told."""
    told: list[Any] = []
    producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
    producer.produce(topic, b"x", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(_SECONDS) == 0
    return told[0]


def test_what_it_may(server: PidleaseServer) -> None:
    assert delivery(server, "may") is None
    assert post(server, "may", b"x", "p", 0) == (200, {"offset": 2, "duplicate": False})


def test_a_topic_that_it_may_not_write(server: PidleaseServer) -> None:
    error = delivery(server, "may-not")
    assert error is not None
    assert error.code() == _NOT_AUTHORIZED
    status, answer = post(server, "may-not", b"x", "p", 0)
    assert (status, "allow Write on the topic" in answer["error"]) == (403, True), answer
    test_what_is_known_stays(server)


def test_a_writer_that_it_may_not_be(server: PidleaseServer) -> None:
    assert delivery(server, "no-writer") is None
    status, answer = post(server, "no-writer", b"x", "p", 0)
    assert (status, "transactional ids pidlease/" in answer["error"]) == (403, True), answer
    test_what_is_known_stays(server)


def test_what_is_known_stays(server: PidleaseServer) -> None:
    status, answer = post(server, "may", b"x", "q", 0)
    assert (status, answer["offset"] > 0) == (200, True)


def test_what_the_coordinator_needs_is_named(
    upstream: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    """Kafka is the coordinator by default; the server waits, and goes on as rights are added."""
    admin = AdminClient({"bootstrap.servers": upstream.bootstrap})
    cluster = str(admin.list_topics(timeout=_SECONDS).cluster_id)
    settings = {**server.settings, "coordination": "auto", "log_level": "info"}
    with not_started(tmp_path, **settings) as other:

        def waits_for(text: str) -> None:
            until(lambda: text in other.get("/readyz")[1], f"{text!r} in /readyz")

        other.launch()
        until(lambda: "standing by" in other.log_text(), "it listens")
        waits_for("__pidlease cannot be created: Authorization failed")
        topic = NewTopic(SERVED_TOPIC, 1, 1, config={"cleanup.policy": "compact"})
        admin.create_topics([topic])[SERVED_TOPIC].result(_SECONDS)
        waits_for("transactional_id_authorization_failed")
        writer = f"pidlease/{cluster}/{SERVED_TOPIC}"
        for kind, name, text in (
            (ResourceType.TRANSACTIONAL_ID, writer, "TOPIC_AUTHORIZATION_FAILED"),
            (ResourceType.TOPIC, SERVED_TOPIC, '"ready"'),
        ):
            right = _right(kind, name, AclOperation.WRITE, ResourcePatternType.PREFIXED)
            admin.create_acls([right])[right].result(_SECONDS)
            waits_for(text)
        assert other.metrics()['pidlease_coordinator_connected{coordinator="kafka"}'] == 1
        assert other.stop() == 0
