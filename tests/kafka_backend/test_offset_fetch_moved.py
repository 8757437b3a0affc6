"""A broker that coordinates a group no more answers OffsetFetch: the next one is asked.

librdkafka never sends the request again after that answer, and its consumer reads nothing from then
on (its issue 5586).
"""

import struct
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, Producer

from pidlease.kafka.api import API_OFFSET_FETCH
from proxy.kafka.forwarded.offset_fetch_moves import has_moved
from tests.kafka_backend.between import Between
from tests.kafka_backend.test_clients import new_topic
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

_HEAD = struct.Struct(">hhi")
_NOT_COORDINATOR = 16
_GROUP = "moved"


def _answer(version: int, code: int, topics: bytes | None = None) -> bytes:
    """What follows the correlation id in an answer without topics."""
    error = struct.pack(">h", code)
    if version >= 8:
        group = bytes([len(_GROUP) + 1]) + _GROUP.encode()
        return b"\0" + bytes(4) + b"\2" + group + (topics or b"\1") + error + b"\0\0"
    if version >= 6:
        return b"\0" + bytes(4) + (topics or b"\1") + error + b"\0"
    throttle = bytes(4) if version >= 3 else b""
    return throttle + (topics or bytes(4)) + error


@pytest.mark.parametrize("version", range(2, 10))
def test_answers_that_say_so(version: int) -> None:
    def moved(body: bytes) -> bool:
        return has_moved(version, bytearray(b"\0\0\0\7" + body))

    assert moved(_answer(version, _NOT_COORDINATOR))
    assert moved(_answer(version, 15))
    for code in (0, 14, 25, 113):
        assert not moved(_answer(version, code))
    one = b"\2\2t\2" if version >= 6 else struct.pack(">ih1si", 1, 1, b"t", 0)
    assert not moved(_answer(version, _NOT_COORDINATOR, one))
    for length in range(len(_answer(version, 0)) - 2):
        assert not moved(_answer(version, _NOT_COORDINATOR)[: length // 2])


def test_versions_without_such_an_error() -> None:
    for version in (0, 1):
        assert not has_moved(version, bytearray(b"\0\0\0\7" + _answer(2, _NOT_COORDINATOR)))


@needs_kafka
@pytest.mark.kafka
@pytest.mark.parametrize("times", [1, 3])
def test_a_consumer_reads_on(between: Between, times: int) -> None:
    topic = new_topic(between.server, 1)
    producer = Producer({"bootstrap.servers": between.server.bootstrap})
    producer.produce(topic, b"x")
    assert producer.flush(WAIT_S) == 0
    before = between.spoiler.withheld
    for _ in range(times):
        between.spoiler.withhold(API_OFFSET_FETCH, _moved())
    consumer = Consumer({
        "bootstrap.servers": between.server.bootstrap, "group.id": _GROUP,
        "auto.offset.reset": "earliest",
    })  # fmt: skip
    consumer.subscribe([topic])
    until(lambda: (found := consumer.poll(0.1)) is not None and not found.error(), "a record")
    consumer.close()
    assert between.spoiler.withheld == before + times


def _moved() -> Callable[[bytes], bytes]:
    def answer(request: bytes) -> bytes:
        _, version, correlation = _HEAD.unpack_from(request)
        return struct.pack(">i", correlation) + _answer(version, _NOT_COORDINATOR)

    return answer
