"""Records are removed in Kafka before a snapshot has their producers; then the server is killed.

Kafka's own producer states survive that. Producers continue: what was removed shows no gap.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.crash.seeds import SOAK, new_random
from tests.http_api.appending import producer
from tests.kafka_backend.new_topics import create_topic
from tests.kafka_backend.repeatable import append_until_taken
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S

pytestmark = [needs_kafka, pytest.mark.kafka, pytest.mark.timeout(7200 if SOAK else 900)]

_ROUNDS: Final = 20 if SOAK else 2


@contextmanager
def _with_snapshot(kafka: KafkaServer, folder: Path) -> Iterator[tuple[PidleaseServer, str]]:
    """A server with a topic; only a stop takes a snapshot."""
    settings = {"snapshot_seconds": "3600", "snapshot_batches": "1000000000", "log_level": "info"}
    with in_front_of(kafka, folder, **settings) as server:
        server.start()
        topic = f"d{uuid.uuid4().hex[:8]}"
        create_topic(kafka.bootstrap, NewTopic(topic, 1))
        yield server, topic
        assert server.stop() == 0


def _remove_all(kafka: KafkaServer, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    removed = admin.delete_records([TopicPartition(topic, 0, -1)])
    (done,) = removed.values()
    return int(done.result(WAIT_S).low_watermark)


@pytest.mark.parametrize("number", range(_ROUNDS))
def test_an_http_producer_goes_on(kafka: KafkaServer, tmp_path: Path, number: int) -> None:
    random = new_random(f"removed-http-{number}")
    first, end = random.randrange(1, 10), random.randrange(11, 20)
    with _with_snapshot(kafka, tmp_path) as (server, topic):

        def send(seq: int) -> bool:
            answer = append_until_taken(server, topic, 0, b"%d" % seq, producer("p", 0, seq))
            return bool(answer["duplicate"])

        for seq in range(first):
            assert not send(seq)
        assert server.stop() == 0
        server.start()
        for seq in range(first, end):
            assert not send(seq)
        assert _remove_all(kafka, topic) >= end
        server.kill9()
        server.start()
        assert not send(end)
        for seq in (random.randrange(first), end):
            assert send(seq), "what is known is a duplicate"
        assert not send(end + 1)
        assert server.stop() == 0
        server.start()
        assert not send(end + 2), "a second start knows the hole, too"
        assert send(end + 1)


@pytest.mark.parametrize("number", range(_ROUNDS))
def test_a_kafka_client_goes_on(kafka: KafkaServer, tmp_path: Path, number: int) -> None:
    """librdkafka takes a gap for fatal."""
    random = new_random(f"removed-kafka-{number}")
    with _with_snapshot(kafka, tmp_path) as (server, topic):
        failed: list[KafkaError | None] = []
        client = Producer(
            {"bootstrap.servers": server.bootstrap, "enable.idempotence": True, "linger.ms": 0}
        )
        at = 0

        def send(count: int) -> None:
            nonlocal at
            for _ in range(count):
                client.produce(topic, b"%d" % at, partition=0, on_delivery=_note)
                assert client.flush(WAIT_S) == 0
                at += 1

        def _note(error: KafkaError | None, _: Any) -> None:
            failed.append(error)

        send(random.randrange(1, 10))
        assert server.stop() == 0
        server.start()
        send(random.randrange(1, 10))
        assert _remove_all(kafka, topic) >= at
        server.kill9()
        server.start()
        send(random.randrange(2, 5))
        assert failed == [None] * at
        server.kill9()
        server.start()
        send(2)
        assert failed == [None] * at
