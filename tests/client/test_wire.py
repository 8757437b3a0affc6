"""Produce 8 by hand, against aiokafka's own description of it."""

from contextlib import suppress
from io import BytesIO
from random import Random

import pytest
from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.produce import ProduceRequest_v8, ProduceResponse_v8

from pidlease.client.produce_messages import (
    BatchResult,
    PartitionBatch,
    ProduceRequestV8,
    ProduceResponseV8,
)

PARTS = [
    PartitionBatch("a", 0, b"one"),
    PartitionBatch("b\u00e4", 7, bytearray(b"two")),
    PartitionBatch("a", 3, b""),
]


def test_a_request_is_what_aiokafka_would_write() -> None:
    topics = [("a", [(0, b"one"), (3, b"")]), ("b\u00e4", [(7, b"two")])]
    theirs = ProduceRequest_v8(None, -1, 1234, topics)
    assert ProduceRequestV8(PARTS, 1234).encode() == theirs.encode()


@pytest.mark.parametrize("versions", [{}, {0: (0, 7)}, {0: (9, 11)}, {1: (0, 20)}])
def test_a_server_that_does_not_take_it(versions: dict[int, tuple[int, int]]) -> None:
    with pytest.raises(IncompatibleBrokerVersion):
        ProduceRequestV8(PARTS, 1).prepare(versions)
    ProduceRequestV8(PARTS, 1).prepare({0: (3, 11)})


def _answer() -> bytes:
    topics = [
        ("a", [(0, 0, 55, -1, 3, [], None), (1, 45, -1, -1, 0, [(4, "x"), (5, None)], "expected")]),
        ("", []),
        ("b\u00e4", [(9, 0, 2**40, 5, 0, [], "duplicate")]),
    ]
    body: bytes = ProduceResponse_v8(topics, 0).encode()
    return body


def test_an_answer_is_what_aiokafka_would_read() -> None:
    stream = BytesIO(b"head" + _answer())
    stream.read(4)
    assert ProduceResponseV8.decode(stream).parts == [
        BatchResult("a", 0, 0, 55, ""),
        BatchResult("a", 1, 45, -1, "expected"),
        BatchResult("b\u00e4", 9, 0, 2**40, "duplicate"),
    ]


def test_what_is_no_answer_is_refused() -> None:
    body = _answer()[:-4]  # what says how long the client was held up is not read
    for size in range(len(body)):
        with pytest.raises(ValueError, match="not a Produce response"):
            ProduceResponseV8.decode(BytesIO(body[:size]))
    random = Random(5)
    for _ in range(2000):
        wrong = bytearray(body)
        wrong[random.randrange(len(wrong))] = random.randrange(256)
        with suppress(ValueError):
            ProduceResponseV8.decode(BytesIO(wrong))
