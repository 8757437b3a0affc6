"""A real Kafka starts here, takes and gives back records, and its own files read back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.servers import java
from tests.servers.kafka import (
    KafkaServer,
    dump_log_segments,
    segments,
    unavailable_reason,
)
from tests.servers.waiting import WAIT_S

_TOPIC = "plain"
_COUNT = 500
_REASON = unavailable_reason()
needs_kafka = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first segment of a partition that a real Kafka wrote and closed."""
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as kafka:
        _produce(kafka.bootstrap)
        assert _consume(kafka.bootstrap) == [b"value %d" % n for n in range(_COUNT)]
    return kafka.partition_dir(_TOPIC) / "00000000000000000000.log"


def _produce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for n in range(_COUNT):
        producer.produce(_TOPIC, b"value %d" % n, key=b"key", headers=[("a", b"1"), ("b", b"2")])
    assert producer.flush(WAIT_S) == 0


def _consume(bootstrap: str) -> list[bytes | None]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([_TOPIC])
    try:
        messages = consumer.consume(_COUNT, timeout=WAIT_S)
    finally:
        consumer.close()
    assert all(message.error() is None for message in messages)
    return [message.value() for message in messages]


@needs_kafka
@pytest.mark.kafka
def test_kafkas_own_segment_reads_back(segment: Path) -> None:
    indexes = [segment.with_suffix(".index"), segment.with_suffix(".timeindex")]

    dump = dump_log_segments([segment, *indexes])

    assert dump.problems == []
    assert list(dump.files) == [segment, *indexes]
    assert [record.offset for record in dump.records] == list(range(_COUNT))
    assert [record.sequence for record in dump.records] == list(range(_COUNT))
    assert {record.header_keys for record in dump.records} == {("a", "b")}
    assert dump.batches[-1].last_sequence == _COUNT - 1
    assert dump.files[indexes[1]].time_index[-1][1] == _COUNT - 1


@needs_kafka
@pytest.mark.kafka
def test_damage_is_a_problem_although_the_tool_exits_with_0(segment: Path, tmp_path: Path) -> None:
    damaged = tmp_path / segment.name
    shutil.copy(segment, damaged)
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content + b"torn")

    dump = dump_log_segments([damaged])

    assert [batch.valid for batch in dump.batches][-1] is False
    assert len(dump.problems) == 2
    assert "is not valid" in dump.problems[0]
    assert "Found 4 invalid bytes at the end" in dump.problems[1]


@needs_kafka
@pytest.mark.kafka
def test_an_index_that_points_elsewhere_is_a_problem(segment: Path, tmp_path: Path) -> None:
    moved = tmp_path / segment.name
    shutil.copy(segment, moved)
    # An entry must carry the last offset of the batch at its position.
    moved.with_suffix(".index").write_bytes((7).to_bytes(4, "big") + (0).to_bytes(4, "big"))

    dump = dump_log_segments([moved.with_suffix(".index")])

    assert any("Mismatches in" in problem for problem in dump.problems)


def test_a_line_of_no_known_kind_is_a_problem() -> None:
    assert segments.parse_dump("Dumping /x.log\nLog starting offset: 0\n", "", 0).problems == []
    assert segments.parse_dump("Dumping /x.log\nwhat is this\n", "", 0).problems
    assert segments.parse_dump("", "  Index offset: 1, log offset: 2\n", 0).problems
    assert segments.parse_dump("", "", 1).problems


def test_without_java_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_candidates", list)
    java.find_java.cache_clear()
    try:
        assert "openjdk-17" in str(unavailable_reason())
    finally:
        java.find_java.cache_clear()


def test_without_maven_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(java, "_BUILD", tmp_path)
    monkeypatch.setattr(java, "find_java", lambda: Path("java"))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert "apt-get install maven" in str(unavailable_reason())
