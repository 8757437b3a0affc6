"""The first start in front of a cluster does not read its logs; every later start does."""

import asyncio
import re
import shutil
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pidlease.kafka.client.topic_creation import RefusedChangeError
from pidlease.kafka.client.transactions import SERVED_TOPIC
from pidlease.kafka.error_codes import TOPIC_ALREADY_EXISTS, TOPIC_AUTHORIZATION_FAILED
from pidlease.kafka.errors import UpstreamLostError
from pidlease.log.kafka import kafka_journal
from pidlease.log.kafka.kafka_log_store import KafkaStore
from pidlease.storage.errors import DataFolderError
from tests.kafka_backend.served_topic import delete_served_topic, is_served
from tests.kafka_backend.test_writer import post
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

_FIRST = "first start: no server has served these logs"
_OLD = 5_000
_SENT = 3


@needs_kafka
@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_only_the_first_start_begins_at_the_ends(tmp_path: Path) -> None:
    with KafkaServer(tmp_path / "kafka") as kafka:
        _put_old_records(kafka)

        with in_front_of(kafka, tmp_path / "server", log_level="info") as server:
            server.start()
            assert _FIRST in server.log_text()
            # The snapshot comes at once: without it, the next start would read everything.
            until(lambda: any((tmp_path / "server").rglob("manifest.json")), "a snapshot")
            _send_twice(server, "one")
            server.kill9()
            server.restart()
            assert server.log_text().count(_FIRST) == 1
            _send_again(server, "one")
            server.kill9()
            # As a server of a version that did not mark the cluster would leave it.
            delete_served_topic(kafka)
            for snapshots in list((tmp_path / "server").rglob("snapshots")):
                shutil.rmtree(snapshots)
            server.restart()
            assert server.log_text().count(_FIRST) == 1
            _send_again(server, "one")
            assert is_served(kafka)
            server.kill9()

        # A server that has lost its directory reads the log, for Kafka knows that it was served.
        with in_front_of(kafka, tmp_path / "other", log_level="info") as server:
            server.start()
            assert _FIRST not in server.log_text()
        _, end = _range(kafka)
        assert end >= _OLD + _SENT


@needs_kafka
@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_several_servers_and_a_lost_directory_begin_where_the_first_one_did(tmp_path: Path) -> None:
    """None of them reads the old records."""
    with KafkaServer(tmp_path / "kafka") as kafka, ExitStack() as stack:
        _put_old_records(kafka)
        settings = {"coordination": "kafka", "shared": "true", "log_level": "info",
                    "upstream_metadata_seconds": "0.5"}  # fmt: skip
        servers = [
            stack.enter_context(in_front_of(kafka, tmp_path / name, **settings)) for name in "abc"
        ]
        for each in servers:
            each.launch()
        for each in servers:
            each.wait_ready(WAIT_S)
        assert sum(each.log_text().count(_FIRST) for each in servers) == 1
        for sequence in range(_SENT):  # the servers may not agree yet on the owner
            until(lambda: post(servers[0], "t", b"x", "one", sequence)[0] == 200, "stored")  # noqa: B023
        replayed = [_replayed(each) for each in servers]
        assert max(replayed) < _OLD, replayed
        for each in servers:
            assert each.stop() == 0
        # As one with a new directory.
        late = stack.enter_context(in_front_of(kafka, tmp_path / "late", **settings))
        late.start()
        assert _SENT <= _replayed(late) < _OLD
        until(lambda: post(late, "t", b"x", "one", 0)[0] == 200, "the late one to own it")
        _send_again(late, "one")
        assert late.stop() == 0


def _put_old_records(kafka: KafkaServer) -> None:
    """Straight to Kafka, before any server."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(WAIT_S)
    straight = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    for number in range(_OLD):
        straight.produce("t", b"old/%d" % number, partition=0)
    assert straight.flush(WAIT_S) == 0


def _replayed(server: PidleaseServer) -> int:
    """How many offsets a start has read."""
    found = re.search(r"offsets_read=(\d+)", server.log_text())
    assert found is not None, server.log_text()
    return int(found[1])


def _send_twice(server: PidleaseServer, name: str) -> None:
    for sequence in range(_SENT):
        status, answer = post(server, "t", b"x", name, sequence)
        assert (status, answer.get("duplicate")) == (200, False)
    _send_again(server, name)


def _send_again(server: PidleaseServer, name: str) -> None:
    for sequence in range(_SENT):
        status, answer = post(server, "t", b"x", name, sequence)
        assert (status, answer.get("duplicate")) == (200, True)
        assert answer["offset"] >= _OLD


def _range(kafka: KafkaServer) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "g"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition("t", 0), WAIT_S)
        return low, high
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("error", "first"),
    [
        (None, True),
        (RefusedChangeError(TOPIC_ALREADY_EXISTS, "it exists"), False),
        (RefusedChangeError(TOPIC_AUTHORIZATION_FAILED, "not allowed"), False),
    ],
    ids=["created", "exists", "refused"],
)
async def test_logs_count_as_served_unless_the_mark_was_made(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, *, first: bool
) -> None:
    created: list[str] = []

    async def create(_: object, topic: str, *args: object, **settings: object) -> None:
        created.append(topic)
        if error is not None:
            raise error

    monkeypatch.setattr(kafka_journal, "create_topic", create)
    assert await asyncio.to_thread(_store().is_first_service) is first
    assert created == [SERVED_TOPIC]


async def test_an_unknown_outcome_is_no_first_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def create(*_: object, **settings: object) -> None:
        raise UpstreamLostError("the connection was lost")

    monkeypatch.setattr(kafka_journal, "create_topic", create)
    with pytest.raises(DataFolderError, match=SERVED_TOPIC):
        await asyncio.to_thread(_store().is_first_service)


async def test_a_marked_cluster_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_journal, "create_topic", None)  # a call would fail
    assert not await asyncio.to_thread(_store(SERVED_TOPIC).is_first_service)


def _store(*topics: str) -> KafkaStore:
    view = SimpleNamespace(topics=dict.fromkeys(topics), brokers={0: ("h", 1)})
    cluster = SimpleNamespace(view=view)
    unused = cast("Any", None)
    return KafkaStore(cast("Any", SimpleNamespace(cluster=cluster)), unused, unused, unused)
