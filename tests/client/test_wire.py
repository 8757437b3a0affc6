"""Produce 8 by hand, against aiokafka's own description of it."""

import struct
from contextlib import suppress
from random import Random

import pytest
from aiokafka.protocol.produce import ProduceRequest_v8, ProduceResponse_v8

from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.codec.produce import (
    PartitionResponse,
    ProduceBatch,
    RecordError,
    read_produce_response,
    write_produce_request,
)
from pidlease.kafka.errors import UpstreamNonsenseError

BATCHES = [
    ProduceBatch(TopicPartition("a", 0), b"one"),
    ProduceBatch(TopicPartition("b\u00e4", 7), bytearray(b"two")),
    ProduceBatch(TopicPartition("a", 3), b""),
]


@pytest.mark.parametrize("client_id", ["pidlease", "\u00e4", ""])
def test_a_request_is_what_aiokafka_would_write(client_id: str) -> None:
    topics = [("a", [(0, b"one"), (3, b"")]), ("b\u00e4", [(7, b"two")])]
    theirs = ProduceRequest_v8(None, -1, 1234, topics)
    name = client_id.encode()
    header = struct.pack(f">hhih{len(name)}s", 0, 8, 77, len(name), name)
    ours = b"".join(write_produce_request(8, 77, 1234, BATCHES, client_id))
    assert ours == header + theirs.encode()


def _answer() -> bytes:
    topics = [
        ("a", [(0, 0, 55, -1, 3, [], None), (1, 45, -1, -1, 0, [(4, "x"), (5, None)], "expected")]),
        ("", []),
        ("b\u00e4", [(9, 0, 2**40, 5, 0, [], "duplicate")]),
    ]
    body: bytes = ProduceResponse_v8(topics, 0).encode()
    return b"head" + body


def test_an_answer_is_what_aiokafka_would_read() -> None:
    assert read_produce_response(8, _answer()) == {
        TopicPartition("a", 0): PartitionResponse(0, 55, 3),
        TopicPartition("a", 1): PartitionResponse(
            45, -1, 0, "expected", record_errors=(RecordError(4, "x"), RecordError(5, ""))
        ),
        TopicPartition("b\u00e4", 9): PartitionResponse(0, 2**40, 0, "duplicate", 5),
    }
    refused = read_produce_response(8, _answer())[TopicPartition("a", 1)]
    assert refused.reason == "expected; record 4: x; record 5: "


def test_what_is_no_answer_is_refused() -> None:
    body = _answer()
    for size in range(len(body)):
        with pytest.raises(UpstreamNonsenseError, match="invalid response to Produce"):
            read_produce_response(8, body[:size])
    random = Random(5)
    for _ in range(2000):
        wrong = bytearray(body)
        wrong[random.randrange(len(wrong))] = random.randrange(256)
        with suppress(UpstreamNonsenseError):
            read_produce_response(8, wrong)
