"""Kafka elects a leader that was not in sync: what it has lost is not taken for stored.

Records are acknowledged by a leader alone, which is lost then; a replica without them leads. The
log grows beyond the offset that the server had applied, so that its end shows nothing.
"""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.crash.readback import consume
from tests.crash.seeds import SOAK, new_random
from tests.kafka_backend.cluster import SETTINGS, in_sync, leaders
from tests.kafka_backend.repeatable import (
    append_until_taken,
    repeatable,
    resume_at,
    send_named,
)
from tests.servers.kafka import KafkaCluster, KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

pytestmark = [needs_kafka, pytest.mark.kafka, pytest.mark.timeout(7200 if SOAK else 900)]

_LOST: Final = 10
_ROUNDS: Final = 10 if SOAK else 1
#: The metadata are not refreshed by themselves.
_NEVER: Final = "3600"
Requests = list[tuple[bytes, dict[str, Any]]]


@pytest.fixture(scope="module")
def unsafe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three brokers."""
    with KafkaCluster(tmp_path_factory.mktemp("unsafe")) as running:
        yield running


def _topic(cluster: KafkaCluster, random: Random) -> tuple[str, KafkaServer, KafkaServer]:
    """Make a topic that may lose records; return it, its leader, and its other replica."""
    topic = f"u{uuid.uuid4().hex[:8]}"
    leader, other = random.sample(cluster.nodes, 2)
    config = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic(topic, 1, replica_assignment=[[leader.node_id, other.node_id]], config=config)
    admin.create_topics([new])[topic].result(WAIT_S)
    until(lambda: leaders(cluster, topic) == {0: leader.node_id}, "its leader")
    return topic, leader, other


def _send(server: PidleaseServer, topic: str, requests: Requests, *, again: bool) -> None:
    for content, headers in requests:
        answer = append_until_taken(server, topic, 0, content, headers)
        assert answer["duplicate"] is again, content


def _lose(cluster: KafkaCluster, topic: str, leader: KafkaServer, other: KafkaServer) -> None:
    """Lose the leader, let the other replica lead, and let the log grow."""
    end = _end(cluster, topic)
    leader.process.kill9()
    other.start()
    until(lambda: leaders(cluster, topic) == {0: other.node_id}, "an unclean election")
    assert _end(cluster, topic) < end, "nothing was lost"
    plain = Producer({"bootstrap.servers": cluster.bootstrap})
    for _ in range(2 * end):
        plain.produce(topic, b"other", partition=0)
    assert plain.flush(WAIT_S) == 0
    assert _end(cluster, topic) > end


def _end(cluster: KafkaCluster, topic: str) -> int:
    stored = consume(cluster.bootstrap, topic, 1, markers=True)
    return stored[-1].offset + 1 if stored else 0


@pytest.mark.parametrize("restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("number", range(_ROUNDS))
def test_what_was_lost_is_stored_again(
    unsafe: KafkaCluster, tmp_path: Path, number: int, *, restarted: bool
) -> None:
    random = new_random(f"unclean-{number}")
    topic, leader, other = _topic(unsafe, random)
    settings = {**SETTINGS, "upstream": unsafe.bootstrap, "upstream_metadata_seconds": _NEVER}
    with PidleaseServer(tmp_path, settings=settings, start_timeout_s=WAIT_S) as server:
        kept, lost = list(repeatable("kept", 5)), list(repeatable("lost", _LOST))
        _send(server, topic, kept, again=False)
        other.process.kill9()
        in_sync(unsafe, topic, 1)
        _send(server, topic, lost, again=False)
        asyncio.run(send_named(server, topic, "n", 0, _LOST))
        _send(server, topic, random.sample(lost, 3), again=True)
        if restarted:
            assert server.stop() == 0
            _lose(unsafe, topic, leader, other)
            server.start()
        else:
            _lose(unsafe, topic, leader, other)
        if random.random() < 0.5:
            assert asyncio.run(resume_at(server, topic, "n", 0)) == 0
        _send(server, topic, random.sample(kept, 3), again=True)
        _send(server, topic, lost, again=False)
        _send(server, topic, random.sample(lost, 3), again=True)
        assert asyncio.run(resume_at(server, topic, "n", 0)) == 0
        leader.start()
        in_sync(unsafe, topic, 2)
        stored = [each.value for each in consume(unsafe.bootstrap, topic, 1, markers=True)]
        mine = [each for each in stored if each != b"other"]
        assert mine == [content for content, _ in (*kept, *lost)]
        log = server.log_text()
        assert ("Kafka has lost records before their offset" if restarted
                else "a partition of Kafka was cut") in log  # fmt: skip
        assert server.stop() == 0
