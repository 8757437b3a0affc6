"""A topic that a broker does not show for a while, though it is there: no producer is forgotten."""

import asyncio
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from pidlease.kafka.client.all_topics_cluster import AllTopicsCluster
from pidlease.kafka.client.settings import UpstreamConfig
from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.kafka_backend.spoiling import Answer, Spoiler, Wire, without_anything, without_topics
from tests.kafka_backend.test_clients import new_topic
from tests.kafka_backend.test_writer import post
from tests.kafka_listener.messages import METADATA
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

pytestmark = [
    needs_kafka, pytest.mark.kafka,
    pytest.mark.timeout(900),
]  # fmt: skip

_PRODUCERS = 5
_SENT = 3


@pytest.mark.parametrize("blank", [False, True], ids=["without the topic", "blank"])
async def test_a_topic_is_gone_when_no_other_broker_knows_it_either(
    kafka: KafkaServer, server: PidleaseServer, *, blank: bool
) -> None:
    """The other one is the same here, by another address: what it tells there is not spoilt."""
    topic = new_topic(server, 2)
    with Spoiler(int(kafka.bootstrap.rpartition(":")[2]), Random(0)) as spoiler:
        port = int(spoiler.bootstrap.rpartition(":")[2])
        closed = (LOOPBACK, free_ports(1)[0])
        cluster = AllTopicsCluster(UpstreamConfig(((LOOPBACK, port), closed)))
        try:
            await cluster.start()
            led = cluster.view.topics[topic]
            hidden: list[bool] = []
            brokers = cluster.view.brokers
            hides = without_anything if blank else without_topics(topic)

            def hide(answer: Answer, random: Random) -> Wire | None:
                hidden.append(True)
                return hides(answer, random)

            spoiler.always[METADATA] = hide
            for _ in range(3):
                await cluster.refresh()
                assert cluster.view.topics[topic] == led
                assert cluster.view.brokers == brokers
            assert hidden
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
            await asyncio.to_thread(admin.delete_topics([topic])[topic].result, WAIT_S)
            while topic in cluster.view.topics:
                await cluster.refresh()
        finally:
            await cluster.close()


def test_a_topic_that_is_not_seen_for_a_while_keeps_its_producers(tmp_path: Path) -> None:
    """Once a bug: one look without it, and who had sent before the log's beginning was new."""
    kafka = KafkaServer(tmp_path / "kafka", listeners={"RELAYED": "PLAINTEXT"})
    with Spoiler(int(kafka.listeners["RELAYED"].rpartition(":")[2]), Random(0)) as spoiler:
        kafka.advertised["RELAYED"] = spoiler.bootstrap
        settings = {"upstream": spoiler.bootstrap, "upstream_metadata_seconds": "0.2",
                    "log_level": "info"}  # fmt: skip
        with kafka, in_front_of(kafka, tmp_path / "server", **settings) as server:
            server.start()
            topic = new_topic(server, 1)
            for sequence in range(_SENT):
                for name in range(_PRODUCERS):
                    assert post(server, topic, b"x", f"p{name}", sequence)[0] == 200
            end = [TopicPartition(topic, 0, -1)]  # all of it
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
            for removed in admin.delete_records(end).values():
                assert removed.result(WAIT_S).low_watermark > _SENT
            _hide(spoiler, server, topic)
            assert server.stop() == 0
            server.start()  # it does not see it, either
            _show(spoiler, server, topic)
            _check(server, topic, _SENT)
            _hide(spoiler, server, topic)
            _show(spoiler, server, topic)
            _check(server, topic, _SENT + 1)
            assert server.stop() == 0


def _hide(spoiler: Spoiler, server: PidleaseServer, topic: str) -> None:
    spoiler.always[METADATA] = without_topics(topic)
    until(lambda: post(server, topic, b"x", "other", 0)[0] == 404, "the topic to be gone")


def _show(spoiler: Spoiler, server: PidleaseServer, topic: str) -> None:
    assert post(server, topic, b"x", "other", 0)[0] == 404
    del spoiler.always[METADATA]
    until(lambda: post(server, topic, b"x", "new", 0)[0] == 200, "the topic to be seen again")


def _check(server: PidleaseServer, topic: str, due: int) -> None:
    for name in range(_PRODUCERS):
        status, answer = post(server, topic, b"x", f"p{name}", due - 1)
        assert (status, answer.get("duplicate")) == (200, True), answer
        status, answer = post(server, topic, b"x", f"p{name}", due)
        assert (status, answer.get("duplicate")) == (200, False), answer
