"""Topics over HTTP in front of Kafka: Kafka creates and deletes them."""

import json
import uuid
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.http_api.appending import JSON, path_of
from tests.http_api.lives import ask
from tests.kafka_backend.test_writer import post
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

pytestmark = [needs_kafka, pytest.mark.kafka]


def create(server: PidleaseServer, **body: Any) -> tuple[int, dict[str, Any]]:
    return ask(server, "POST", "/v1/topics", json.dumps(body).encode(), JSON)


def partitions(kafka: KafkaServer) -> dict[str, int]:
    found = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=WAIT_S).topics
    return {name: len(topic.partitions) for name, topic in found.items()}


def test_kafka_creates_and_deletes_it(kafka: KafkaServer, server: PidleaseServer) -> None:
    name = f"made-{uuid.uuid4().hex[:8]}"
    status, answer = create(server, name=name, partitions=3, settings={"retention.ms": "86400000"})
    assert (status, answer["partitions"]) == (201, 3), answer
    assert partitions(kafka)[name] == 3
    assert post(server, name, b"0", "p", 0)[0] == 200, "it can be used at once"
    status, answer = create(server, name=name)
    assert (status, answer["code"]) == (409, "topic_exists")
    assert ask(server, "DELETE", f"/v1/topics/{name}")[0] == 204
    assert ask(server, "GET", f"/v1/topics/{name}")[0] == 404
    until(lambda: name not in partitions(kafka), "Kafka to delete the topic")
    assert ask(server, "DELETE", f"/v1/topics/{name}")[0] == 404


def test_offsets_are_kafkas(kafka: KafkaServer, server: PidleaseServer) -> None:
    """Also of records that others append and delete in Kafka, past this server."""
    name = f"offsets-{uuid.uuid4().hex[:8]}"
    assert create(server, name=name)[0] == 201
    assert post(server, name, b"0", "p", 0)[0] == 200
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    for number in range(9):
        producer.produce(name, b"%d" % number)
    assert producer.flush(WAIT_S) == 0
    status, answer = ask(server, "GET", f"/v1/topics/{name}/partitions")
    (row,) = answer["partitions"]
    assert (status, row["log_start"], row["reason"]) == (200, 0, "")
    end = row["log_end"]
    assert end >= 10, "markers of the writer count"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.delete_records([TopicPartition(name, 0, 4)]).values():
        future.result(WAIT_S)
    (row,) = ask(server, "GET", f"/v1/topics/{name}/partitions")[1]["partitions"]
    assert row == {"partition": 0, "log_start": 4, "log_end": end, "reason": ""}


def test_what_kafka_refuses(server: PidleaseServer) -> None:
    status, answer = create(server, name="bad", settings={"retention.ms": "soon"})
    assert (status, answer["code"], answer["field"]) == (400, "invalid_topic", "settings")
    status, answer = create(server, name="a b")
    assert (status, answer["code"], answer["field"]) == (400, "invalid_topic", "name")


def test_an_append_creates_its_topic(kafka: KafkaServer, server: PidleaseServer) -> None:
    name = f"used-{uuid.uuid4().hex[:8]}"
    assert ask(server, "GET", path_of(name, 0))[0] == 404
    until(lambda: post(server, name, b"0", "p", 0)[0] == 200, "the topic")
    assert name in partitions(kafka)
    assert post(server, name, b"0", "p", 0)[1]["duplicate"]
