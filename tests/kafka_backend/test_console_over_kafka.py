"""What operators look at in front of Kafka: its brokers, and the writers of partitions."""

import uuid
from typing import Any

import pytest

from tests.http_api.lives import ask
from tests.kafka_backend.test_topics_over_http import create
from tests.kafka_backend.test_writer import post
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import until

pytestmark = [needs_kafka, pytest.mark.kafka]


def test_brokers_and_writers(kafka: KafkaServer, server: PidleaseServer) -> None:
    name = f"console-{uuid.uuid4().hex[:8]}"

    def row() -> dict[str, Any]:
        (found,) = ask(server, "GET", f"/v1/partitions?search={name}")[1]["partitions"]
        return dict(found)

    assert create(server, name=name)[0] == 201
    assert (row()["state"], row()["writer"]) == ("serving", "")
    for number in range(3):
        assert post(server, name, b"x", name, number)[0] == 200
    assert post(server, name, b"x", name, 9)[0] == 409

    found = row()
    assert (found["owner"], found["producers"], found["size_bytes"]) == ("this server", 1, None)
    assert " epoch " in found["writer"], "the writer's PID and epoch at Kafka"
    assert found["log_end"] >= 3

    outcomes = ask(server, "GET", "/v1/outcomes")[1]
    assert [each["address"] for each in outcomes["brokers"]] == [kafka.bootstrap]
    until(
        lambda: ask(server, "GET", "/v1/outcomes")[1]["brokers"][0]["connected"],
        "a connection for short requests",
    )
    status, offset = ask(server, "GET", f"/v1/topics/{name}/partitions/0/offset?timestamp_ms=0")
    assert (status, offset["offset"] is not None) == (200, True)
    refusals = ask(server, "GET", f"/v1/refusals?topic={name}")[1]
    assert [each["kind"] for each in refusals["refusals"]] == ["gap"]
    (state,) = ask(server, "GET", f"/v1/producers/-1?name={name}")[1]["partitions"]
    assert (state["last_sequence"], len(state["batches"])) == (2, 3)
