"""Streams in front of Kafka: Kafka has their records, and pidlease what else they remember."""

from __future__ import annotations

import json
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from tests.clients.install import node_missing
from tests.crash.readback import consume
from tests.crash.seeds import SOAK, new_random
from tests.kafka_backend import spoiling
from tests.kafka_backend.spoiling import Fault, Spoiler
from tests.kafka_listener.messages import PRODUCE
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until
from tests.streams.stream_client import CLOSE, JSON_TYPE, TEXT, numbered, read_all, read_json, send
from tests.streams.stream_programs import RESULT_FILE, run_suite

pytestmark = [needs_kafka, pytest.mark.kafka]


def test_a_stream_outlives_a_kill(kafka: KafkaServer, tmp_path: Path) -> None:
    name = f"s{uuid.uuid4().hex[:8]}"
    with in_front_of(kafka, tmp_path) as server:
        server.start()
        assert send(server, "PUT", name, "[0]", JSON_TYPE).status == 201
        for seq in (0, 1):
            assert send(server, "POST", name, str(seq + 1), JSON_TYPE | numbered(seq)).status == 200
        ordered = JSON_TYPE | {"Stream-Seq": "b"}
        assert send(server, "POST", name, "3", ordered).status == 204
        server.kill9()
        server.restart()
        assert send(server, "POST", name, "2", JSON_TYPE | numbered(1)).status == 204
        assert send(server, "POST", name, "3", ordered).code == "stream_seq_conflict"
        closed = send(server, "POST", name, "4", JSON_TYPE | CLOSE | numbered(2))
        assert closed.is_closed
        server.kill9()
        server.restart()
        assert send(server, "POST", name, "5", JSON_TYPE | numbered(3)).code == "stream_closed"
        assert send(server, "POST", name, "4", JSON_TYPE | CLOSE | numbered(2)).status == 204
        assert read_json(server, name) == [0, 1, 2, 3, 4]
        stored = consume(kafka.bootstrap, name, 1, markers=True)
        assert [json.loads(each.value) for each in stored] == [0, 1, 2, 3, 4]
        fork = {"Stream-Forked-From": f"/v1/stream/{name}"}
        assert send(server, "PUT", f"{name}/fork", b"", fork).status == 201
        assert send(server, "POST", f"{name}/fork", "5", JSON_TYPE).status == 204
        assert read_json(server, f"{name}/fork") == [0, 1, 2, 3, 4, 5]
        assert send(server, "DELETE", name).status == 204
        assert send(server, "HEAD", name).status == 410
        assert send(server, "DELETE", f"{name}/fork").status == 204
        until(lambda: send(server, "HEAD", name).status == 404, "the source to go")


def test_a_topic_that_was_just_made_becomes_the_stream(
    kafka: KafkaServer, server: PidleaseServer
) -> None:
    """As a kill between the two steps of a creation leaves it."""
    name = f"s{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(name, 1)])[name].result(WAIT_S)
    until(lambda: send(server, "PUT", name, "a", TEXT).status in (200, 201), "the stream")
    assert read_all(server, name) == b"a"
    resource = ConfigResource(ResourceType.TOPIC, name)
    configs = admin.describe_configs([resource])[resource].result(WAIT_S)
    assert {configs[each].value for each in ("retention.ms", "retention.bytes")} == {"-1"}


def test_nothing_that_was_acknowledged_is_after_a_close(
    kafka: KafkaServer, server: PidleaseServer
) -> None:
    """Once a close without a producer overtook appends under the writer: no reader saw them."""
    writers = 8
    for _ in range(20):
        name = f"s{uuid.uuid4().hex[:8]}"
        assert send(server, "PUT", name, b"", JSON_TYPE).status == 201
        begin = threading.Barrier(writers + 1)

        def append(number: int) -> list[int]:
            begin.wait()  # noqa: B023
            stored = []
            for seq in range(20):
                producer = numbered(seq, name=str(number)) if number % 2 else {}
                value = number * 100 + seq
                reply = send(server, "POST", name, str(value), JSON_TYPE | producer)  # noqa: B023
                if reply.status not in {200, 204}:
                    break
                stored.append(value)
            return stored

        with ThreadPoolExecutor(writers) as threads:
            stored = [threads.submit(append, number) for number in range(writers)]
            begin.wait()
            time.sleep(0.03)
            assert send(server, "POST", name, b"", CLOSE).status == 204
            acknowledged = sorted(value for each in stored for value in each.result())
        assert sorted(read_json(server, name)) == acknowledged
        last = consume(kafka.bootstrap, name, 1, markers=True)[-1]
        assert last.value == b"", "the close is the last record"


def test_stream_seq_is_in_order_in_kafka(kafka: KafkaServer, server: PidleaseServer) -> None:
    name = f"s{uuid.uuid4().hex[:8]}"
    assert send(server, "PUT", name, b"", JSON_TYPE).status == 201
    orders = iter(range(100, 400))

    def append(number: int) -> None:
        for seq in range(20):
            order = next(orders)
            producer = numbered(seq, name=str(number)) if number % 2 else {}
            headers = JSON_TYPE | {"Stream-Seq": str(order)} | producer
            status = send(server, "POST", name, str(order), headers).status
            assert status in {200, 204, 409}
            if status == 409 and producer:
                return

    with ThreadPoolExecutor(8) as threads:
        for each in [threads.submit(append, number) for number in range(8)]:
            each.result()
    found = [int(each.value) for each in consume(kafka.bootstrap, name, 1, markers=True)]
    assert len(found) > 10
    assert found == sorted(found)


@pytest.mark.parametrize("close", [{}, CLOSE], ids=["open", "closed"])
def test_values_of_a_put_are_stored_once(tmp_path: Path, close: dict[str, str]) -> None:
    """Once the repeated PUT stored them again, if Kafka's response to the first was lost."""
    kafka = KafkaServer(tmp_path / "kafka", listeners={"RELAYED": "PLAINTEXT"})
    port = int(kafka.listeners["RELAYED"].rpartition(":")[2])
    with Spoiler(port, new_random("puts")) as spoiler:
        kafka.advertised["RELAYED"] = spoiler.bootstrap
        settings = {"upstream": spoiler.bootstrap, "log_level": "info"}
        with kafka, in_front_of(kafka, tmp_path / "server", **settings) as server:
            server.start()
            for number in range(8):
                fault = Fault("lost", PRODUCE, spoiling.lost)
                spoiler.arm(fault)
                name = f"s{number}"
                statuses: list[int] = []
                while not statuses or statuses[-1] >= 500:
                    statuses.append(send(server, "PUT", name, "[1, 2]", JSON_TYPE | close).status)
                assert statuses[-1] in (200, 201), statuses
                assert len(spoiler.struck) == number + 1, "or nothing is tried"
                assert read_json(server, name) == [1, 2]
                assert len(consume(kafka.bootstrap, name, 1, markers=True)) == 2
                assert send(server, "HEAD", name).is_closed is bool(close)


@pytest.mark.skipif(not SOAK, reason="takes minutes: make soak")
@pytest.mark.timeout(3600)
def test_the_official_suite_in_front_of_kafka(kafka: KafkaServer, tmp_path: Path) -> None:
    if missing := node_missing():
        pytest.skip(missing)
    expected = json.loads(RESULT_FILE.read_text())
    settings = {"cors_origins": "*", "stream_poll_seconds": "1"}
    with in_front_of(kafka, tmp_path, **settings) as server:
        server.start()
        found = run_suite(server.leases, tmp_path, 3000)
    failed = sorted(expected["failed_in_front_of_kafka"])
    assert found.failed == failed, (found.failed, "\n".join(found.texts))
