"""Kafka is upgraded and rolled back, broker by broker, while the server in front of it serves.

What the server advertises is what all live brokers serve, so that no client sends a request that
the broker in charge of it does not know.
"""

import asyncio
import threading
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer
from confluent_kafka.cimpl import NewTopic
from typing_extensions import override

from pidlease.testing.loopback_ports import LOOPBACK
from proxy.kafka.served_versions import Versions, advertised, forwarded_versions
from tests.crash.lives import Retries
from tests.crash.seeds import SOAK, new_random
from tests.kafka_backend.cluster import SETTINGS, in_sync, make
from tests.kafka_backend.loads import all_loads
from tests.kafka_backend.new_topics import create_topic
from tests.kafka_backend.test_kills import get_on, read_back
from tests.kafka_listener.client import WireClient
from tests.servers.kafka import KafkaCluster, KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

pytestmark = [
    needs_kafka, pytest.mark.kafka,
    pytest.mark.timeout(7200 if SOAK else 900),
]  # fmt: skip

#: Its highest OffsetCommit is 8; that of the version in pom.xml is 9, and clients use it.
_OLD: Final = "3.6.2"
_OFFSET_COMMIT: Final = 8
_PARTITIONS: Final = 3
#: How often all brokers are upgraded and rolled back under load.
_ROUNDS: Final = 5


class Group(threading.Thread):
    """A consumer group of one member, which commits each record that it has read."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.ending = threading.Event()
        #: How many commits succeeded.
        self.commits = 0
        #: Why others did not.
        self.failures: list[str] = []
        self._consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": f"{topic}-group",
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
        })  # fmt: skip
        self._consumer.subscribe([topic])

    @override
    def run(self) -> None:
        while not self.ending.is_set():
            found = self._consumer.poll(0.2)
            if found is not None and not found.error():
                self._commit(found)
        self._consumer.close()

    def _commit(self, read: Message) -> None:
        """Commit a record.

        librdkafka repeats a request as it is after its connection was closed, some times: a commit
        fails if its version is not served any more. The next one has another version.
        """
        while not self.ending.is_set():
            try:
                self._consumer.commit(message=read, asynchronous=False)
            except KafkaException as error:
                self.failures.append(str(error))
            else:
                self.commits += 1
                return

    def finish(self) -> None:
        """End it, and wait for its end."""
        self.ending.set()
        self.join(WAIT_S)
        print(f"{self.commits} commits; failed: {self.failures}")
        assert not self.is_alive()


def _api_versions(bootstrap: str) -> Versions:
    async def ask() -> Versions:
        async with await WireClient.connect(LOOPBACK, int(bootstrap.rpartition(":")[2])) as client:
            answer = await client.call(18, 0)
            return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}

    return asyncio.run(ask())


def _follows(server: PidleaseServer, brokers: list[KafkaServer]) -> None:
    """Wait until the server advertises what all these brokers serve."""
    served = [forwarded_versions(_api_versions(each.bootstrap)) for each in brokers]
    due = {
        key: (max(each[key][0] for each in served), min(each[key][1] for each in served))
        for key in set.intersection(*(set(each) for each in served))
    }
    until(lambda: _api_versions(server.bootstrap) == advertised(due), f"versions {due}")


def _produce(server: PidleaseServer, topic: str) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
    producer.produce(topic, b"record")
    assert producer.flush(WAIT_S) == 0


def test_an_upgrade_and_a_rollback_are_followed(tmp_path: Path) -> None:
    """One broker. The clients are those of before: they have to learn the versions again."""
    topic = "rolled"
    with (
        KafkaServer(tmp_path / "kafka", version=_OLD) as kafka,
        in_front_of(kafka, tmp_path / "server") as server,
    ):
        server.start()
        create_topic(server.bootstrap, NewTopic(topic, 1))
        group = Group(server.bootstrap, topic)
        group.start()
        for version, commits_by in ((_OLD, 8), ("", 9), (_OLD, 8)):
            if kafka.version != version:
                kafka.stop()
                kafka.version = version
                kafka.start()
            _follows(server, [kafka])
            assert _api_versions(server.bootstrap)[_OFFSET_COMMIT][1] == commits_by
            before = group.commits
            _produce(server, topic)
            until(partial(_more, group, before), f"a commit by {commits_by}")
        group.finish()
        assert server.stop() == 0


@pytest.mark.skipif(not SOAK, reason="takes minutes: make soak")
def test_a_mixed_cluster_is_upgraded_and_rolled_back_under_load(tmp_path: Path) -> None:
    random, topic = new_random("rolling"), "rolling"
    with (
        KafkaCluster(tmp_path / "kafka", version=_OLD) as cluster,
        PidleaseServer(
            tmp_path / "server", settings={**SETTINGS, "upstream": cluster.bootstrap}
        ) as server,
    ):
        make(cluster, topic, _PARTITIONS, min_insync_replicas="2")
        retries = Retries(server)
        retries.new_life()
        loads = all_loads(server.bootstrap, server, server, topic, _PARTITIONS, random)
        group = Group(server.bootstrap, topic)
        group.start()
        for version in ("", _OLD) * _ROUNDS:
            for node in random.sample(cluster.nodes, len(cluster.nodes)):
                if random.randrange(2):
                    node.stop()
                else:
                    node.process.kill9()
                node.version = version
                node.start()
                in_sync(cluster, topic, 3)
                _follows(server, cluster.nodes)
                before = group.commits
                get_on(loads, retries, WAIT_S)
                until(partial(_more, group, before), "a commit")
        stored = read_back(cluster.bootstrap, topic, _PARTITIONS, loads, WAIT_S)
        print(f"{len(stored)} records, {retries.total:.0f} duplicates")
        group.finish()
        assert server.stop() == 0


def _more(group: Group, before: int) -> bool:
    return group.commits > before
