"""What tests do with three brokers, and with a server and a network in front of them."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Final

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._metadata import PartitionMetadata
from confluent_kafka.cimpl import NewTopic

from tests.crash.relay import Relay, Weather
from tests.kafka_listener.client import WireClient
from tests.servers.kafka import KafkaCluster, KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S, until

#: What the server asks of a broker is given up soon here, so that much is in doubt.
SETTINGS: Final = {"log": "kafka", "log_level": "info", "snapshot_batches": "20",
                   "upstream_timeout_seconds": "6"}  # fmt: skip
_ALTER_PARTITION_REASSIGNMENTS: Final = 45


@contextmanager
def behind_a_relay(
    cluster: KafkaCluster, folder: Path, weather: Weather
) -> Iterator[tuple[PidleaseServer, Relay]]:
    """A server that is not started yet, and the network that its clients reach it by."""
    server = PidleaseServer(folder, start_timeout_s=WAIT_S)
    with Relay(server.kafka_port, weather) as relay:
        server.settings.update(
            {**SETTINGS, "upstream": cluster.bootstrap, "kafka_advertise": relay.bootstrap}
        )
        try:
            yield server, relay
        finally:
            server.kill9()


def make(cluster: KafkaCluster, topic: str, partitions: int, **config: str) -> None:
    """A topic with a replica on each broker."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, 3, config=settings)])[topic].result(WAIT_S)


def leaders(cluster: KafkaCluster, topic: str) -> dict[int, int]:
    """Of each partition."""
    return {number: each.leader for number, each in _partitions(cluster, topic).items()}


def in_sync(cluster: KafkaCluster, topic: str, replicas: int) -> None:
    """Wait until each partition has so many replicas in sync."""

    def all_are() -> bool:
        found = _partitions(cluster, topic).values()
        return bool(found) and all(len(each.isrs) == replicas for each in found)

    until(all_are, f"{replicas} replicas in sync")


def kill_a_broker(cluster: KafkaCluster, topic: str, random: Random) -> int:
    """Kill one, wait until others lead what it led, and have it back; how many moved."""
    node = a_leader(cluster, topic, random)
    led = [number for number, leader in leaders(cluster, topic).items() if leader == node.node_id]
    node.process.kill9()

    def others_lead() -> bool:
        found = leaders(cluster, topic)
        return all(found[number] not in (node.node_id, -1) for number in led)

    until(others_lead, "others to lead it")
    time.sleep(random.random() * 2)
    node.start()
    in_sync(cluster, topic, 3)
    return len(led)


def move_leaders(cluster: KafkaCluster, topic: str) -> int:
    """Let another replica be preferred for each partition, and elect it; how many moved."""
    before = _partitions(cluster, topic)
    # In a circle: replicas stay where they are, and the next one is the first of them.
    wanted = {
        number: [*each.replicas[1:], each.replicas[0]] for number, each in sorted(before.items())
    }
    asyncio.run(_reassign(cluster.nodes[0], topic, wanted))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    places = [TopicPartition(topic, number) for number in wanted]
    admin.elect_leaders(ElectionType.PREFERRED, places).result(WAIT_S)
    due = {number: replicas[0] for number, replicas in wanted.items()}
    until(lambda: leaders(cluster, topic) == due, f"leaders {due}")
    return sum(each.leader != due[number] for number, each in before.items())


def a_leader(cluster: KafkaCluster, topic: str, random: Random) -> KafkaServer:
    """One of the brokers that lead something."""
    number = random.choice(sorted(set(leaders(cluster, topic).values())))
    return next(node for node in cluster.nodes if node.node_id == number)


def _partitions(cluster: KafkaCluster, topic: str) -> dict[int, PartitionMetadata]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    return admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions


async def _reassign(node: KafkaServer, topic: str, replicas: dict[int, list[int]]) -> None:
    host, port = node.bootstrap.split(":")
    partitions = [{"partition_index": number, "replicas": each}
                  for number, each in replicas.items()]  # fmt: skip
    async with await WireClient.connect(host, int(port)) as client:
        answer = await client.call(
            _ALTER_PARTITION_REASSIGNMENTS, 0, timeout=timedelta(seconds=30),
            topics=[{"name": topic, "partitions": partitions}],
        )  # fmt: skip
    codes = [each.error_code for found in answer.responses for each in found.partitions]
    assert (answer.error_code, codes) == (0, [0] * len(replicas)), answer
