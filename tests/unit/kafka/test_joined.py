"""Several sends in one batch, and what is read of them again."""

from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from pidlease.core.pid import Policy, make_pid
from pidlease.core.state import UNKNOWN_CRC
from pidlease.engine.batch_identity import batch_of
from pidlease.kafka.records.identity_header import Identity, encode_identity
from pidlease.kafka.records.joined_batch import JOINED_SENDS_MAX, can_join, join
from pidlease.kafka.records.record_batch import (
    BatchHeader,
    check_intact,
    comparable_crc,
    read_header,
)
from pidlease.kafka.records.writer_batch import (
    LoggedBatch,
    Writer,
    crc_of_send,
    logged,
    stamp,
    under_writer,
)
from pidlease.log.kafka.kafka_partition_log import sends_of

WRITER = Writer(4711, 3)
PID = make_pid(Policy.STRICT, 7)


def send(identity: Identity | None, *values: bytes, codec: int = 0, time_ms: int = 5000,
         headers: list[tuple[str, bytes | None]] | None = None) -> bytearray:  # fmt: skip
    builder: Any = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    own = headers or []
    for place, value in enumerate(values):
        told = [] if place or identity is None else [("pidlease", encode_identity(identity))]
        assert builder.append(place, time_ms + place, b"k", value, [*told, *own])
    return bytearray(builder.build())


def read(data: bytearray, writers: set[int] | None = None) -> list[LoggedBatch]:
    known = {WRITER.pid} if writers is None else writers
    return sends_of(read_header(data), memoryview(data), known)


def stamped(data: bytearray) -> BatchHeader:
    return stamp(read_header(data), data, WRITER, 17)


SENDS = [
    (Identity(PID, "", 2, 0, 2), (b"a", b"b", b"c")),
    (Identity(-1, "web", 4, 9, 9), (b"", b"x")),
    (Identity(PID, "", 2, 3, 2**40), (b"d",)),
]


def test_what_was_joined_is_read_as_it_was_sent() -> None:
    data = join([send(identity, *values, headers=[("h", None)]) for identity, values in SENDS])
    assert data is not None
    stamped(data)
    check_intact(read_header(data), data)
    records = list(DefaultRecordBatch(bytes(data)))
    assert [each.value for each in records] == [value for _, values in SENDS for value in values]
    assert [each.timestamp for each in records] == [5000, 5001, 5002, 5000, 5001, 5000]
    assert all(each.key == b"k" and ("h", None) in each.headers for each in records)
    found = read(data)
    assert [(each.identity, each.header.base_offset, each.header.records) for each in found] == [
        (identity._replace(records=len(values)), offset, len(values))
        for (identity, values), offset in zip(SENDS, (0, 3, 5), strict=True)
    ]
    assert [each.header.last_offset for each in found] == [2, 4, 5]
    assert {each.header.crc for each in found} == {UNKNOWN_CRC}


@pytest.mark.parametrize("codec", [0, 1, 3, 4])
def test_a_send_by_itself_has_the_crc_that_it_is_judged_by(codec: int) -> None:
    identity, values = SENDS[0]
    data = send(identity, *values, codec=codec)
    judged = under_writer(read_header(data), data)
    assert can_join(judged) == (not codec)
    due = comparable_crc(judged, judged.crc)
    stamped(data)
    (found,) = read(data)
    assert (found.identity, found.header.crc) == (identity, due)
    assert found.header.producer_id == WRITER.pid


def crc_after(data: bytearray, *, over_kafka: bool) -> int:
    """What a send is compared by in a replay."""
    if over_kafka:
        stamped(data)
        (found,) = read(data)
    else:
        header = under_writer(read_header(data), data)
        found = logged(header, memoryview(data))
    return found.header.crc


@pytest.mark.parametrize("codec", [0, 3, 4])
def test_records_of_one_time_are_compared_without_it(codec: int) -> None:
    identity = Identity(PID, "", 2, 0, 0)
    first = send(identity, b"a", codec=codec)
    header = under_writer(read_header(first), first)
    at_the_append = crc_of_send(header, first)
    assert at_the_append != header.crc
    for time_ms in (5000, 9000):
        for over_kafka in (False, True):
            again = send(identity, b"a", codec=codec, time_ms=time_ms)
            assert crc_after(again, over_kafka=over_kafka) == at_the_append
    other = send(identity, b"b", codec=codec)
    assert crc_after(other, over_kafka=False) != at_the_append


@pytest.mark.parametrize("over_kafka", [False, True])
def test_records_of_several_times_are_compared_with_them(over_kafka: bool) -> None:
    identity, values = SENDS[0]
    data = send(identity, *values)
    at_the_append = crc_of_send(under_writer(read_header(data), data), data)
    assert crc_after(data, over_kafka=over_kafka) == at_the_append
    later = send(identity, *values, time_ms=5001)
    assert crc_after(later, over_kafka=over_kafka) != at_the_append


def test_kafka_s_own_time_leaves_nothing_to_compare() -> None:
    """With message.timestamp.type=LogAppendTime Kafka writes a time and a CRC of its own."""
    plain = send(None, b"a")
    for data in (send(SENDS[0][0], b"a", b"b", b"c"), plain):
        stamped(data)
        assert {each.header.crc for each in read(data, {1})} != {UNKNOWN_CRC}
        data[22] |= 0x08
        header = read_header(data)
        for writers in ({1}, {WRITER.pid} if data is not plain else {1}):
            found = sends_of(header, memoryview(data), writers)
            crcs = {each.header.crc if each.identity else batch_of(each.header).crc
                    for each in found}  # fmt: skip
            assert crcs == {UNKNOWN_CRC}


def test_others_are_not_believed() -> None:
    data = send(*SENDS[0][:1], b"x")
    stamped(data)
    assert [each.identity for each in read(data, {1, 2})] == [None]


def test_a_writer_s_batch_that_says_nothing_is_nobody_s() -> None:
    data = send(None, b"x")
    stamped(data)
    assert [each.identity for each in read(data)] == [None]


@pytest.mark.parametrize("records", [5, 2**31 - 1])
def test_a_send_that_would_be_longer_than_its_batch_is_nobody_s(records: int) -> None:
    data = send(SENDS[0][0]._replace(records=records), b"x", b"y")
    stamped(data)
    assert [each.identity for each in read(data)] == [None]


def test_what_cannot_be_taken_apart_goes_as_it_came() -> None:
    good = send(*SENDS[0][:1], b"x")
    assert join([good, send(None, b"x")]) is None
    assert join([good, good[:-1]]) is None


def test_a_first_record_without_a_timestamp_is_not_joined() -> None:
    """aiokafka would give it the timestamp of the next record."""
    (first, values), (second, others), _ = SENDS
    without = [send(first, *values[:1], time_ms=-1), send(second, *others)]
    assert join(without) is None
    joined = join(without[::-1])
    assert joined is not None
    assert [each.timestamp for each in DefaultRecordBatch(bytes(joined))] == [5000, 5001, -1]


def test_large_ones_are_not_joined() -> None:
    data = send(SENDS[0][0], b"x" * 5000)
    assert not can_join(read_header(data))
    many = [send(SENDS[0][0], b"x" * 3000)] * JOINED_SENDS_MAX
    assert join(many) is None, "the room is bounded whatever is asked"
