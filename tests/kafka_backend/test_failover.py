"""Three brokers: one is killed, leaders move, the server is killed, the network loses things."""

import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.client.loads import loads_for as leased_loads_for
from tests.crash.clients import Load
from tests.crash.lives import Retries, loads_for, rounds
from tests.crash.relay import Weather
from tests.crash.seeds import SOAK, new_random
from tests.kafka_backend.cluster import SETTINGS, behind_a_relay, in_sync, kill_a_broker, make
from tests.kafka_backend.loads import HttpLoad
from tests.kafka_backend.test_kills import BATCH_IN_DOUBT, WRITER_IN_DOUBT, get_on, read_back
from tests.servers.kafka import KafkaCluster
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S

pytestmark = [
    needs_kafka, pytest.mark.kafka,
    pytest.mark.timeout(7200 if SOAK else 900),
]  # fmt: skip

PARTITIONS = 3
#: At least; and as many as it takes until each kind of doubt has come.
FAULTS = 60 if SOAK else 4


def test_brokers_and_the_server_are_killed(cluster: KafkaCluster, tmp_path: Path) -> None:
    random = new_random("failover")
    topic, weather = "failover", Weather(random, faults_every=60, delay_s=0.004)
    make(cluster, topic, PARTITIONS, min_insync_replicas="2")
    done: Counter[str] = Counter()
    with behind_a_relay(cluster, tmp_path, weather) as (server, relay):
        retries = Retries(server)
        retries.new_life()
        server.start()
        leased = leased_loads_for(server, relay.bootstrap, topic, PARTITIONS, random)
        over_http = HttpLoad(server, topic, PARTITIONS, Random(random.random()))
        loads: list[Load] = [
            *loads_for(relay.bootstrap, topic, PARTITIONS, random), *leased, over_http,
        ]  # fmt: skip
        for load in loads:
            load.start()

        def happened() -> bool:
            retries.look()
            log = server.log_text()
            doubts = WRITER_IN_DOUBT in log and BATCH_IN_DOUBT in log
            return doubts and retries.total > 0 and weather.done["lose answer"] > 0

        for number in rounds(FAULTS, happened):
            get_on(loads, retries, WAIT_S)
            time.sleep(random.random())
            if number % 2:
                server.kill9()
                retries.new_life()
                server.start()
                done["server killed"] += 1
            else:
                done["leaders moved"] += kill_a_broker(cluster, topic, random)
                done["broker killed"] += 1
        get_on(loads, retries, WAIT_S)
        weather.faults_every = 0
        stored = read_back(cluster.bootstrap, topic, PARTITIONS, loads, WAIT_S)
        retries.look()
        log = server.log_text()
        print(f"{dict(done)}, {dict(weather.done)}, {len(stored)} records,"
              f" {retries.total:.0f} duplicates")  # fmt: skip
        assert server.stop() == 0
    assert done["leaders moved"] > 0
    assert weather.done["lose answer"] > 0
    assert WRITER_IN_DOUBT in log, "no writer was ever in doubt"
    assert BATCH_IN_DOUBT in log, "no batch of Kafka's clients was ever in doubt"
    assert retries.total > 0, "no retry was a duplicate"


def test_too_few_replicas(cluster: KafkaCluster, tmp_path: Path) -> None:
    """All three are asked for: nothing is stored while one is away, and nobody gives up."""
    topic = "all-three"
    make(cluster, topic, PARTITIONS, min_insync_replicas="3")
    with PidleaseServer(tmp_path, settings={**SETTINGS, "upstream": cluster.bootstrap}) as server:
        random = new_random("too-few")
        leased = leased_loads_for(server, server.bootstrap, topic, PARTITIONS, random)
        over_http = HttpLoad(server, topic, PARTITIONS, Random(random.random()))
        plain, told = _producer(server)
        loads: list[Load] = [*leased, over_http]
        for load in loads:
            load.start()
        retries = Retries(server)
        retries.new_life()
        get_on(loads, retries, WAIT_S)
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
        get_on(loads, retries, WAIT_S)
        assert plain.flush(WAIT_S) == 0
        stored = read_back(cluster.bootstrap, topic, PARTITIONS, loads, WAIT_S)
        mine = [each.value for each in stored if each.value.startswith(b"plain")]
        assert sorted(mine) == sorted(
            b"plain/%d/%d " % (number % PARTITIONS, number // PARTITIONS) for number in range(30)
        )
        assert "NOT_ENOUGH_REPLICAS" in server.log_text()


def _producer(server: PidleaseServer) -> tuple[Producer, Any]:
    def told(error: Any, _: Any) -> None:
        assert error is None, error

    return Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True}), told
