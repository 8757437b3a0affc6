"""A fault of kafkajs's own, shown here and with Apache Kafka: why its records have partitions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.clients.child import Child
from tests.clients.client import KAFKAJS, Producing
from tests.clients.writing import HANG_S, PARTITIONS
from tests.crash.readback import consume
from tests.crash.relay import Relay, Weather
from tests.crash.seeds import SOAK, new_random
from tests.servers.kafka import KafkaServer, unavailable_reason
from tests.servers.pidlease import PidleaseServer

_TOPIC = "t"
_COUNT = 20_000
_SERVERS = ("pidlease", "kafka")
pytestmark = pytest.mark.skipif(not SOAK, reason="about kafkajs, not about pidlease: make soak")


@pytest.mark.parametrize("kind", _SERVERS)
def test_a_retry_of_records_without_partition_is_refused(tmp_path: Path, kind: str) -> None:
    """The server is right to refuse it: these are other records under the old numbers."""
    with _server(tmp_path, kind, new_random(f"kafkajs-own-{kind}")) as relay:
        with _producer(relay, tmp_path, "--partition", "kafkajs") as child:
            assert child.process.wait(HANG_S) == 1
            assert "sequence number" in child.told()
        assert sum(relay.weather.done.values()) > 0
        numbers = _stored(relay)
        assert len(set(numbers)) == len(numbers) < _COUNT


@pytest.mark.parametrize("kind", _SERVERS)
def test_with_partitions_all_goes_well(tmp_path: Path, kind: str) -> None:
    with _server(tmp_path, kind, new_random(f"kafkajs-{kind}")) as relay:
        with _producer(relay, tmp_path) as child:
            child.finish(HANG_S)
        assert sum(relay.weather.done.values()) > 0
        assert sorted(_stored(relay)) == list(range(_COUNT))


@contextmanager
def _server(folder: Path, kind: str, random: Random) -> Iterator[Relay]:
    """A server behind a network that loses answers, with a topic."""
    missing = KAFKAJS.missing() or (unavailable_reason() if kind == "kafka" else None)
    if missing is not None:
        pytest.skip(missing)
    [port] = free_ports(1)
    told = f"{LOOPBACK}:{port}"  # what clients are told to connect to
    server: KafkaServer | PidleaseServer
    if kind == "kafka":
        server = KafkaServer(folder, overrides={"advertised.listeners": f"PLAINTEXT://{told}"})
    else:
        server = PidleaseServer(folder, settings={"kafka_advertise": told})
    relay = Relay(int(server.bootstrap.rpartition(":")[2]), Weather(random))
    relay.port, relay.bootstrap = port, told
    with relay, server:
        admin = AdminClient({"bootstrap.servers": told})
        admin.create_topics([NewTopic(_TOPIC, PARTITIONS)])[_TOPIC].result(HANG_S)
        relay.weather.faults_every = 10
        yield relay
        relay.weather.faults_every = 0


def _producer(relay: Relay, folder: Path, *more: str) -> Child:
    call = KAFKAJS.producer(Producing(relay.bootstrap, _TOPIC, "none", 0, _COUNT), folder)
    return Child.start("producer", [*call.command, *more], folder, call.env)


def _stored(relay: Relay) -> list[int]:
    values = (each.value for each in consume(relay.bootstrap, _TOPIC, PARTITIONS))
    return [int(value.split(b" ")[0].split(b".")[1]) for value in values]
