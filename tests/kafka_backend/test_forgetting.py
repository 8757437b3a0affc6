"""Kafka forgets producers, and loses records; what it lost is not taken for stored."""

import asyncio
import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from pidlease.client import LeasedProducer
from tests.crash.readback import consume
from tests.kafka_backend.test_clients import new_topic
from tests.kafka_backend.test_writer import post
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S

pytestmark = [needs_kafka, pytest.mark.kafka]

_SECONDS = WAIT_S
_FORGETFUL = {
    "producer.id.expiration.ms": "2000",
    "producer.id.expiration.check.interval.ms": "300",
    "transactional.id.expiration.ms": "4000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
}


def test_kafka_forgets_who_has_not_written_for_a_while(tmp_path: Path) -> None:
    """Producers, and the transactional id of the writer: the next one has another producer id."""
    with (
        KafkaServer(tmp_path / "kafka", overrides=_FORGETFUL) as kafka,
        in_front_of(kafka, tmp_path / "server", log_level="info") as server,
    ):
        server.start()
        topic = new_topic(server, 1)
        due = asyncio.run(_over_a_while(server, topic))
        found = consume(kafka.bootstrap, topic, 1, markers=True)
        assert sorted(each.value for each in found) == sorted(due)
        for kind in (b"plain", b"leased", b"http"):
            mine = [each.value for each in found if each.value.startswith(kind)]
            assert mine == [each for each in due if each.startswith(kind)]
        taken = [line for line in server.log_text().splitlines() if "writer taken" in line]
        ids = {line.partition("pid=")[2].split()[0] for line in taken}
        assert len(ids) > 1, "the transactional id was never forgotten"
        server.kill9()
        server.start()
        url = f"{server.http_url}/v1/producers?name=p&topic={topic}"
        (known,) = json.loads(urllib.request.urlopen(url, timeout=_SECONDS).read())["producers"]
        assert known["sequence_number"] == 3, f"known under each of the ids: {known}"
        assert server.stop() == 0


async def _over_a_while(server: PidleaseServer, topic: str) -> list[bytes]:
    due: list[bytes] = []
    told: list[Any] = []
    plain = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
    where = {"bootstrap_servers": server.bootstrap, "leases": server.http_url}
    async with LeasedProducer(**where) as leased:  # type: ignore[arg-type]
        for number, rest in enumerate((0.0, 1.2, 3.0, 6.0)):
            await asyncio.sleep(rest)
            due += [b"plain%d" % number, b"leased%d" % number, b"http%d" % number]
            plain.produce(topic, due[-3], on_delivery=lambda error, _: told.append(error))
            assert await asyncio.to_thread(plain.flush, _SECONDS) == 0
            await leased.send_and_wait(topic, due[-2], partition=0)
            status, answer = await asyncio.to_thread(post, server, topic, due[-1], "p", number)
            assert (status, answer.get("duplicate")) == (200, False), answer
    assert told == [None] * 4
    return due


def test_kafka_loses_records(tmp_path: Path) -> None:
    """As after an unclean election: the end of its log is gone."""
    with _ten_records(tmp_path) as (kafka, server, topic):
        _lose_half(server, kafka, topic)
        for seq in range(5, 11):
            assert post(server, topic, b"%d" % seq, "p", seq)[0] == 200
        found = consume(kafka.bootstrap, topic, 1, markers=True)
        assert [each.value for each in found] == [b"%d" % seq for seq in range(11)]
        assert server.stop() == 0


def test_a_snapshot_from_before_a_loss_is_not_used(tmp_path: Path) -> None:
    """Once a crash after it brought back what was lost, and hid what had come since."""
    with _ten_records(tmp_path) as (kafka, server, topic):
        for _ in range(2):  # the second one's snapshot is up to the end of the log
            assert server.stop() == 0
            server.start()
        _lose_half(server, kafka, topic)
        assert post(server, topic, b"q", "q", 0)[0] == 200
        for seq in range(5, 20):  # the log is longer than it was
            assert post(server, topic, b"%d" % seq, "p", seq)[0] == 200
        server.kill9()
        server.start()
        assert post(server, topic, b"q", "q", 0)[1]["duplicate"]
        assert post(server, topic, b"20", "p", 20)[0] == 200
        found = [each.value for each in consume(kafka.bootstrap, topic, 1, markers=True)]
        before, after = range(5), range(5, 21)
        assert found == [*(b"%d" % n for n in before), b"q", *(b"%d" % n for n in after)]
        assert server.stop() == 0


@contextmanager
def _ten_records(folder: Path) -> Iterator[tuple[KafkaServer, PidleaseServer, str]]:
    """A server that runs, and the topic that a producer has sent ten records to."""
    with (
        KafkaServer(folder / "kafka") as kafka,
        in_front_of(kafka, folder / "server", log_level="info") as server,
    ):
        server.start()
        topic = new_topic(server, 1)
        for seq in range(10):
            assert post(server, topic, b"%d" % seq, "p", seq)[0] == 200
        yield kafka, server, topic


def _lose_half(server: PidleaseServer, kafka: KafkaServer, topic: str) -> None:
    """Cut the log after five records, and wait until the server has noticed."""
    kafka.process.kill9()
    (segment,) = kafka.partition_dir(topic).glob("*.log")
    content = segment.read_bytes()
    at = 0
    for _ in range(6):  # the marker, and five of them
        at += 12 + int.from_bytes(content[at + 8 : at + 12], "big")
    segment.write_bytes(content[:at])
    for each in kafka.partition_dir(topic).glob("*.snapshot"):
        each.unlink()
    kafka.start()
    deadline = time.monotonic() + 60
    while True:
        status, answer = post(server, topic, b"10", "p", 10)
        if status != 503:
            break
        assert time.monotonic() < deadline, answer
        time.sleep(0.2)
    assert (status, answer.get("expected_seq")) == (409, 5), answer  # what is lost is not stored
    assert "Kafka has lost records" in server.log_text()
