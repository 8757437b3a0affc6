"""What Kafka does not let this server do is told to clients, and everything else goes on."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic

from tests.kafka_backend.test_writer import post
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S

pytestmark = [needs_kafka, pytest.mark.kafka]

_SECONDS = WAIT_S
_NOT_AUTHORIZED = 29
TOPICS = ("may", "may-not", "no-writer")
_JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required"
    ' username="x" password="x" user_limited="secret";'
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PidleaseServer]:
    """In front of a Kafka that lets it do little."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "listener.name.limited.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.limited.plain.sasl.jaas.config": _JAAS,
    }
    folder = tmp_path_factory.mktemp("rights")
    listeners = {"LIMITED": "SASL_PLAINTEXT"}
    with KafkaServer(folder / "kafka", overrides=settings, listeners=listeners) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for made in admin.create_topics([NewTopic(each, 1) for each in TOPICS]).values():
            made.result(_SECONDS)
        cluster = admin.list_topics(timeout=_SECONDS).cluster_id
        for done in admin.create_acls(_rights(str(cluster))).values():
            done.result(_SECONDS)
        own = {"log": "kafka", "upstream": kafka.listeners["LIMITED"], "upstream_sasl": "PLAIN",
               "upstream_username": "limited", "upstream_password": "secret"}  # fmt: skip
        with PidleaseServer(folder / "server", settings=own) as running:
            yield running
            assert running.stop() == 0


def _rights(cluster: str) -> list[AclBinding]:
    def right(kind: Any, name: str, operation: Any, pattern: Any) -> AclBinding:
        return AclBinding(
            kind, name, pattern, "User:limited", "*", operation, AclPermissionType.ALLOW
        )

    literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    topic, own = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
    own_ids = f"pidlease/{cluster}/may"  # of "may-not" as well
    return [
        right(ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE, literal),
        right(ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE_CONFIGS, literal),
        right(topic, "*", AclOperation.READ, literal),
        right(topic, "*", AclOperation.DESCRIBE_CONFIGS, literal),
        right(topic, "may", AclOperation.WRITE, literal),
        right(topic, "no-writer", AclOperation.WRITE, literal),
        right(own, own_ids, AclOperation.WRITE, prefixed),
        right(own, own_ids, AclOperation.DESCRIBE, prefixed),
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
