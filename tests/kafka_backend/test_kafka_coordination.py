"""Servers that need nothing but Kafka: PIDs, names and the owner are in the topic `__pidlease`."""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from pidlease.kafka.client.transactions import SERVED_TOPIC
from tests.http_api.appending import JSON
from tests.http_api.lives import ask
from tests.kafka_backend.served_topic import delete_served_topic
from tests.kafka_backend.test_writer import post, topic_with
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

pytestmark = [needs_kafka, pytest.mark.kafka]

#: In front of Kafka this means Kafka.
IN_KAFKA = {"coordination": "auto", "log_level": "info"}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as running:
        yield running


def lease(server: PidleaseServer, topic: str, **fields: str) -> dict[str, Any]:
    body = json.dumps({"topic": topic, "partition": 0, **fields}).encode()
    status, answer = ask(server, "POST", "/v1/leases", body, JSON)
    assert status == 200, answer
    return answer


def number_of(pid: int) -> int:
    return pid & ((1 << 48) - 1)


def test_a_new_server_does_not_begin_beside_one_with_files(tmp_path: Path) -> None:
    """That one has served the cluster, and leases PIDs: by Kafka there is only an empty topic."""
    with (
        KafkaServer(tmp_path / "kafka") as kafka,
        in_front_of(kafka, tmp_path / "a", coordination="files") as in_files,
        in_front_of(kafka, tmp_path / "b", **IN_KAFKA) as new,
    ):
        in_files.start()
        topic = topic_with(in_files)
        leased = number_of(lease(in_files, topic)["pid"])
        new.launch()
        assert new.wait_exit(WAIT_S) == 2
        assert f"the topic {SERVED_TOPIC} has no rows" in new.log_text()
        assert number_of(lease(in_files, topic)["pid"]) == leased + 1
        # Another new one waits meanwhile; it goes on when the files have been moved.
        new.launch()
        until(lambda: "first server" in ready_reason(new), "it waits")
        assert in_files.stop() == 0
        in_files.restart({**in_files.settings, "coordination": "auto"})
        assert number_of(lease(in_files, topic)["pid"]) > 100
        until(lambda: "standing by" in ready_reason(new), "it stands by")
        assert new.metrics()['pidlease_coordinator_connected{coordinator="kafka"}'] == 1
        assert in_files.stop() == 0
        new.wait_ready(WAIT_S)
        assert number_of(lease(new, topic)["pid"]) > 200
        assert new.stop() == 0

    # Without any server before, the one that has noted that there is no topic begins.
    with (
        KafkaServer(tmp_path / "another") as kafka,
        in_front_of(kafka, tmp_path / "c", **IN_KAFKA) as new,
    ):
        sequence = new.data_dir / "sequence"
        new.launch()
        until((sequence / "kafka-begun").exists, "it has noted that there is no topic")
        new.kill9()
        new.start()
        assert new.stop() == 0


def ready_reason(server: PidleaseServer) -> str:
    try:
        return server.get("/readyz")[1]
    except OSError:  # it does not listen yet
        return ""


def test_a_server_whose_directory_is_lost_is_replaced(kafka: KafkaServer, tmp_path: Path) -> None:
    with in_front_of(kafka, tmp_path / "a", log_level="info") as in_files:
        in_files.start()
        topic = topic_with(in_files)
        for number in range(3):
            assert post(in_files, topic, b"x", "one", number)[1]["duplicate"] is False
        first = lease(in_files, topic, name="two")
        lease(in_files, topic)
        assert in_files.stop() == 0

    # What was in files is moved.
    with in_front_of(kafka, tmp_path / "a", **IN_KAFKA) as server:
        server.start()
        assert post(server, topic, b"x", "one", 2)[1]["duplicate"] is True
        assert post(server, topic, b"x", "one", 3)[1]["duplicate"] is False
        again = lease(server, topic, name="two")
        assert again["pid"] == first["pid"]
        assert again["generation"] > first["generation"]
        last = lease(server, topic)
        assert number_of(last["pid"]) > 100
        server.kill9()
    with in_front_of(kafka, tmp_path / "a") as in_files:
        in_files.launch()
        assert in_files.wait_exit() == 2
        assert "come from the Kafka cluster" in in_files.log_text()

    shutil.rmtree(tmp_path / "a")
    with in_front_of(kafka, tmp_path / "b", **IN_KAFKA) as server:
        server.launch()
        until(lambda: "standing by" in server.log_text(), "it waits for the former one")
        server.wait_ready(WAIT_S)
        assert server.metrics()['pidlease_coordinator_connected{coordinator="kafka"}'] == 1
        assert post(server, topic, b"x", "one", 3)[1]["duplicate"] is True
        assert post(server, topic, b"x", "one", 4)[1]["duplicate"] is False
        assert lease(server, topic, name="two")["generation"] > again["generation"]
        assert number_of(lease(server, topic)["pid"]) > number_of(last["pid"])
        # Nobody writes to the topic through the server.
        producer = Producer({"bootstrap.servers": server.bootstrap, "message.timeout.ms": 3000})
        errors: list[Any] = []
        producer.produce(SERVED_TOPIC, b"x", on_delivery=lambda error, _: errors.append(error))
        producer.flush(WAIT_S)
        assert errors[0] is not None
        assert post(server, SERVED_TOPIC, b"x", "one", 0)[0] >= 400
        assert server.stop() == 0
        assert "no snapshot at the stop" not in server.log_text()

    # The one before has said that it stops.
    with in_front_of(kafka, tmp_path / "c", **IN_KAFKA) as server:
        server.start()
        assert "standing by" not in server.log_text()
        assert number_of(lease(server, topic)["pid"]) > number_of(last["pid"]) + 100
        assert server.stop() == 0

    # A server with another coordinator would lease the same PIDs.
    with in_front_of(kafka, tmp_path / "d") as in_files:
        in_files.launch()
        assert in_files.wait_exit() == 2
        assert "the PIDs of this cluster are in its topic" in in_files.log_text()

    delete_served_topic(kafka)
    with in_front_of(kafka, tmp_path / "c", **IN_KAFKA) as server:
        server.launch()
        assert server.wait_exit() == 2
        assert f"come from the topic {SERVED_TOPIC} with the id" in server.log_text()


def test_a_copy_of_a_data_directory_ends_the_former_server(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    """Both would own the same partitions."""
    with ExitStack() as stack:
        first, other, copy = (
            stack.enter_context(in_front_of(kafka, tmp_path / name, **IN_KAFKA, shared="true"))
            for name in ("first", "other", "copy")
        )
        first.start()
        other.start()
        shutil.copytree(first.data_dir, copy.data_dir)
        copy.start()
        assert first.wait_exit(WAIT_S) == 2
        assert "uses this data directory or a copy of it" in first.log_text()
        assert [each.stop() for each in (copy, other)] == [0, 0]
