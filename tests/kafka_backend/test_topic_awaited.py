"""A topic of Kafka's that cannot be read when the server starts: it exists, and is waited for."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import TopicMetadata
from confluent_kafka.cimpl import NewTopic

from tests.client.loads import LeasedLoad
from tests.crash.clients import Load
from tests.crash.lives import Retries
from tests.crash.readback import consume
from tests.crash.seeds import new_random
from tests.http_api.appending import RAW, path_of, producer
from tests.http_api.lives import ask
from tests.kafka_backend.cluster import SETTINGS, leaders
from tests.kafka_backend.loads import HttpLoad
from tests.kafka_backend.test_kills import get_on
from tests.servers.kafka import KafkaCluster, KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

pytestmark = [
    needs_kafka, pytest.mark.kafka,
    pytest.mark.timeout(900),
]  # fmt: skip

PARTITIONS = 3
TOPIC = "awaited"
_REFRESH_S = 3.0


@contextmanager
def _dead(node: KafkaServer, cluster: KafkaCluster) -> Iterator[None]:
    node.process.kill9()
    try:
        until(lambda: set(leaders(cluster, TOPIC).values()) == {-1}, "no leader")
        yield
    finally:
        node.start()


def test_a_topic_without_leaders_at_the_start_is_there_and_awaited(
    cluster: KafkaCluster, tmp_path: Path
) -> None:
    """Once a bug: it was unknown, and librdkafka gave up at once what it had for its partitions."""
    node = cluster.nodes[-1]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    replicas = [[node.node_id]] * PARTITIONS
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, replica_assignment=replicas)])[TOPIC].result(
        WAIT_S
    )
    with PidleaseServer(tmp_path, settings={**SETTINGS, "upstream": cluster.bootstrap}) as server:
        failed: list[KafkaError] = []
        client = Producer(
            {"bootstrap.servers": server.bootstrap, "enable.idempotence": True,
             "topic.metadata.refresh.interval.ms": 500}
        )  # fmt: skip

        def told(error: KafkaError | None, _: Any) -> None:
            if error is not None:
                failed.append(error)

        def send(first: int, end: int) -> None:
            for number in range(first, end):
                client.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS,
                               on_delivery=told)  # fmt: skip

        random = new_random("awaited")
        loads: list[Load] = [
            LeasedLoad(server, TOPIC, PARTITIONS, Random(random.random()), "strict"),
            HttpLoad(server, TOPIC, PARTITIONS, Random(random.random())),
        ]
        retries = Retries(server)
        retries.new_life()
        for load in loads:
            load.start()
        get_on(loads, retries, WAIT_S)
        send(0, PARTITIONS)
        assert client.flush(WAIT_S) == 0
        server.kill9()
        with _dead(node, cluster):
            server.start()
            send(PARTITIONS, 10 * PARTITIONS)
            assert client.flush(_REFRESH_S) == 9 * PARTITIONS
            _check_told(server)
        until(lambda: not _topic(server).error and _led(server), "the topic to be read")
        assert client.flush(WAIT_S) == 0
        assert not failed, failed[:3]
        retries.new_life()
        get_on(loads, retries, WAIT_S)
        for load in loads:
            load.finish(WAIT_S)
        stored = consume(cluster.bootstrap, TOPIC, PARTITIONS, markers=True)
        mine = [int(each.value) for each in stored if each.value.isdigit()]
        assert sorted(mine) == list(range(10 * PARTITIONS))
        for load in loads:
            load.ledger.check([each for each in stored if not each.value.isdigit()])
        assert server.stop() == 0


def _topic(server: PidleaseServer) -> TopicMetadata:
    return AdminClient({"bootstrap.servers": server.bootstrap}).list_topics(TOPIC, 10).topics[TOPIC]


def _led(server: PidleaseServer) -> bool:
    return all(each.leader != -1 for each in _topic(server).partitions.values())


def _check_told(server: PidleaseServer) -> None:
    """What each door says of it."""
    found = _topic(server)
    assert found.error is None
    assert sorted(found.partitions) == list(range(PARTITIONS))
    codes = {each.error and each.error.code() for each in found.partitions.values()}
    assert codes == {KafkaError.LEADER_NOT_AVAILABLE}
    every = AdminClient({"bootstrap.servers": server.bootstrap}).list_topics(timeout=WAIT_S).topics
    assert len(every[TOPIC].partitions) == PARTITIONS
    assert server.metric("pidlease_topics_awaited") == 1
    status, answer = ask(server, "POST", path_of(TOPIC), b"x", {**RAW, **producer("p", 0, 0)})
    assert status == 503, answer
    assert "cannot be read yet" in answer["error"]
