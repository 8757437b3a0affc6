"""A producer that leases from the pidlease in front of Kafka does not send to Kafka itself."""

import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewTopic

from pidlease.client import BlockingProducer, LeaseRefusedError, ProducerError
from pidlease.copier import Copier, CopyError, CopySettings
from tests.kafka_backend.new_topics import create_topic
from tests.kafka_backend.test_clients import new_topic
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S

#: One Kafka for all of them, so one worker.
pytestmark = [needs_kafka, pytest.mark.kafka]


def test_a_producer_refuses_kafka(kafka: KafkaServer, server: PidleaseServer) -> None:
    with (
        pytest.raises(ProducerError, match=rf"Kafka at {kafka.bootstrap} is not pidlease"),
        BlockingProducer(bootstrap_servers=kafka.bootstrap, leases=server.http_url),
    ):
        pass


def test_both_addresses_in_front_of_kafka(server: PidleaseServer) -> None:
    topic = new_topic(server)
    with BlockingProducer(bootstrap_servers=server.bootstrap, leases=server.http_url) as producer:
        assert producer.send_and_wait(topic, b"x").sequence == 0


def test_leases_of_another_pidlease(server: PidleaseServer, tmp_path: Path) -> None:
    topic = new_topic(server)
    with PidleaseServer(tmp_path / "other") as other:
        with (
            pytest.raises(LeaseRefusedError, match=r"there is no topic .*; cluster .* has it: is"),
            BlockingProducer(bootstrap_servers=server.bootstrap, leases=other.http_url) as producer,
        ):
            producer.send_and_wait(topic, b"x")
        create_topic(other.bootstrap, NewTopic(topic, 3))
        with (
            pytest.raises(LeaseRefusedError, match=r"leases for cluster .*, but the bootstrap"),
            BlockingProducer(bootstrap_servers=server.bootstrap, leases=other.http_url) as producer,
        ):
            producer.send_and_wait(topic, b"x")


async def test_a_copier_refuses_kafka(kafka: KafkaServer, server: PidleaseServer) -> None:
    topic = new_topic(server)
    settings = CopySettings(
        source=kafka.bootstrap, destination=kafka.bootstrap, leases=server.http_url, group="g",
        topics=[topic], rename="{topic}-copy", once=True,
    )  # fmt: skip
    with pytest.raises(CopyError, match=r"the destination .* is not pidlease"):
        await Copier(settings).run()


def test_the_command_refuses_kafka(kafka: KafkaServer, server: PidleaseServer) -> None:
    topic = new_topic(server)
    command = [sys.executable, "-m", "proxy", "produce", topic, "--servers", kafka.bootstrap,
               "--url", server.http_url]  # fmt: skip
    ended = subprocess.run(
        command, input="x\n", capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"pidlease: Kafka at {kafka.bootstrap} is not pidlease: ")
    assert line.endswith("(its --kafka-listen) as bootstrap server")
