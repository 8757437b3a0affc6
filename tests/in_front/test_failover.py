"""Three brokers: one is killed, leaders move, the server is killed, the network loses things."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.client.loads import loads_for as leased_loads_for
from tests.crash.clients import Load
from tests.crash.lives import Retries, loads_for
from tests.crash.relay import Relay, Weather
from tests.crash.seeds import SOAK, new_random
from tests.in_front.loads import HttpLoad
from tests.in_front.test_kills import get_on, read_back
from tests.servers.kafka import KafkaCluster
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka

pytestmark = [
    needs_kafka, pytest.mark.kafka, pytest.mark.xdist_group("in-front"),
    pytest.mark.timeout(7200 if SOAK else 500),
]  # fmt: skip

PARTITIONS = 3
FAULTS = 60 if SOAK else 6
_WAIT_S = 120.0
#: What the server asks of a broker is given up soon here, so that much is in doubt.
_SETTINGS = {"log": "kafka", "log_level": "info", "snapshot_batches": "20",
             "upstream_timeout_seconds": "6"}  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with KafkaCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def make(cluster: KafkaCluster, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, PARTITIONS, 3, config=settings)])[topic].result(30)


def leaders(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    found = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return {number: each.leader for number, each in found.items()}


def in_sync(cluster: KafkaCluster, topic: str, replicas: int) -> None:
    """Wait until each partition has so many replicas in sync."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    deadline = time.monotonic() + _WAIT_S
    while True:
        found = admin.list_topics(topic, timeout=30).topics[topic].partitions.values()
        if found and all(len(each.isrs) == replicas for each in found):
            return
        assert time.monotonic() < deadline, [each.isrs for each in found]
        time.sleep(0.2)


def test_brokers_and_the_server_are_killed(cluster: KafkaCluster, tmp_path: Path) -> None:
    random = new_random("failover")
    topic, weather = "failover", Weather(random, faults_every=60, delay_s=0.004)
    make(cluster, topic, min_insync_replicas="2")
    server = PidleaseServer(tmp_path, start_timeout_s=_WAIT_S)
    done: Counter[str] = Counter()
    with Relay(server.kafka_port, weather) as relay:
        server.settings.update(
            {**_SETTINGS, "upstream": cluster.bootstrap, "kafka_advertise": relay.bootstrap}
        )
        retries = Retries(server)
        retries.new_life()
        try:
            server.start()
            leased = leased_loads_for(server, relay.bootstrap, topic, PARTITIONS, random)
            over_http = HttpLoad(server, topic, PARTITIONS, Random(random.random()))
            loads: list[Load] = [
                *loads_for(relay.bootstrap, topic, PARTITIONS, random), *leased, over_http,
            ]  # fmt: skip
            for load in loads:
                load.start()
            for number in range(FAULTS):
                get_on(loads, retries, _WAIT_S)
                time.sleep(random.random())
                if number % 2:
                    server.kill9()
                    retries.new_life()
                    server.start()
                    done["server killed"] += 1
                else:
                    done["leaders moved"] += _kill_a_broker(cluster, topic, random)
                    done["broker killed"] += 1
            get_on(loads, retries, _WAIT_S)
            weather.faults_every = 0
            stored = read_back(cluster.bootstrap, topic, PARTITIONS, loads, _WAIT_S)
            retries.look()
            log = server.log_text()
            print(f"{dict(done)}, {dict(weather.done)}, {len(stored)} records,"
                  f" {retries.total:.0f} duplicates")  # fmt: skip
            assert server.stop() == 0
        finally:
            server.kill9()
    assert done["leaders moved"] > 0
    assert weather.done["lose answer"] > 0
    assert "is to be taken again" in log, "no writer was ever in doubt"
    assert "Kafka did not take a batch" in log, "no batch of Kafka's clients was ever in doubt"
    assert retries.total > 0, "no retry was a duplicate"


def _kill_a_broker(cluster: KafkaCluster, topic: str, random: Random) -> int:
    """Kill one, wait until others lead what it led, and have it back; how many moved."""
    node = random.choice(cluster.nodes)
    led = [number for number, leader in leaders(cluster, topic).items() if leader == node.node_id]
    node.process.kill9()
    deadline = time.monotonic() + _WAIT_S
    while any(leaders(cluster, topic)[number] in (node.node_id, -1) for number in led):
        assert time.monotonic() < deadline, "nobody leads it"
        time.sleep(0.1)
    time.sleep(random.random() * 2)
    node.start()
    in_sync(cluster, topic, 3)
    return len(led)


def test_too_few_replicas(cluster: KafkaCluster, tmp_path: Path) -> None:
    """All three are asked for: nothing is stored while one is away, and nobody gives up."""
    topic = "all-three"
    make(cluster, topic, min_insync_replicas="3")
    with PidleaseServer(tmp_path, settings={**_SETTINGS, "upstream": cluster.bootstrap}) as server:
        random = new_random("too-few")
        leased = leased_loads_for(server, server.bootstrap, topic, PARTITIONS, random)
        over_http = HttpLoad(server, topic, PARTITIONS, Random(random.random()))
        plain, told = _producer(server)
        loads: list[Load] = [*leased, over_http]
        for load in loads:
            load.start()
        retries = Retries(server)
        retries.new_life()
        get_on(loads, retries, _WAIT_S)
        node = cluster.nodes[random.randrange(3)]
        node.process.kill9()
        in_sync(cluster, topic, 2)
        for number in range(30):
            plain.produce(topic, b"plain/%d/%d " % (number % PARTITIONS, number // PARTITIONS),
                          partition=number % PARTITIONS, on_delivery=told)  # fmt: skip
        plain.flush(3)
        before = sum(load.ledger.acknowledged_count for load in loads)
        time.sleep(1)
        assert sum(load.ledger.acknowledged_count for load in loads) == before
        assert len(plain) == 30
        node.start()
        in_sync(cluster, topic, 3)
        get_on(loads, retries, _WAIT_S)
        assert plain.flush(_WAIT_S) == 0
        stored = read_back(cluster.bootstrap, topic, PARTITIONS, loads, _WAIT_S)
        mine = [each.value for each in stored if each.value.startswith(b"plain")]
        assert sorted(mine) == sorted(
            b"plain/%d/%d " % (number % PARTITIONS, number // PARTITIONS) for number in range(30)
        )
        assert "NOT_ENOUGH_REPLICAS" in server.log_text()


def _producer(server: PidleaseServer) -> tuple[Producer, Any]:
    def told(error: Any, _: Any) -> None:
        assert error is None, error

    return Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True}), told
