"""A batch on the wire: its numbers, its header `pidlease`, what a cut leaves of it."""

import asyncio
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from pidlease.client.pending_batch import CODECS, Headers, PendingBatch, SequenceRange
from pidlease.kafka.records.identity_header import HEADER_KEY, Identity, decode_identity

PID = (1 << 48) + 7
ALL_CODECS = [None, *CODECS]


def made(
    values: list[bytes], codec: str | None = None, *, ids: list[int] | None = None, first: int = 0,
    number: int | None = None, headers: Headers | None = None, generation: int = 2**40 + 5,
) -> PendingBatch:  # fmt: skip
    batch = PendingBatch(1 << 20, 0.0)
    loop = asyncio.new_event_loop()
    for place, value in enumerate(values):
        assert batch.append(b"key", value, headers or [], 1_700_000_000_000 + place)
        batch.futures.append(loop.create_future())
    loop.close()
    start = first if number is None else number
    batch.ids = ids or []
    last = ids[-1] if ids else start + len(values) - 1
    batch.seal(SequenceRange(PID, generation, first, last, start), codec)
    return batch


def read(batch: PendingBatch) -> tuple[Any, list[Any]]:
    reader: Any = DefaultRecordBatch(bytes(batch.data))
    assert reader.validate_crc()
    return reader, list(reader)


def identity_of(records: list[Any]) -> Identity:
    name, value = records[0].headers[0]
    assert name == HEADER_KEY.decode()
    assert not any(name == HEADER_KEY.decode() for each in records[1:] for name, _ in each.headers)
    return decode_identity(value)


@pytest.mark.parametrize("codec", ALL_CODECS)
@pytest.mark.parametrize("user_headers", [0, 1, 62, 63, 64, 200])
def test_the_first_record_has_the_identity(codec: str | None, user_headers: int) -> None:
    # A value that looks like the header does not lead it astray.
    fake = b"\x10pidlease\x44" + b"x" * 34
    headers: Headers = [(f"h{n}", fake if n % 2 else None) for n in range(user_headers)]
    batch = made([fake, b"", b"three"], codec, first=2**33, headers=headers)
    reader, records = read(batch)
    assert identity_of(records) == Identity(PID, "", 2**40 + 5, 2**33, 2**33 + 2)
    assert (reader.producer_id, reader.producer_epoch, reader.base_sequence) == (PID, 5, 0)
    assert reader.compression_type == (0 if codec is None else CODECS[codec][0])
    assert [each.value for each in records] == [fake, b"", b"three"]
    assert [each.headers[not place :] for place, each in enumerate(records)] == [headers] * 3
    assert {each.key for each in records} == {b"key"}
    assert records[2].timestamp == 1_700_000_000_002


def test_the_same_records_give_the_same_bytes() -> None:
    assert made([b"a", b"b"], "zstd").data == made([b"a", b"b"], "zstd").data


@pytest.mark.parametrize("codec", ALL_CODECS)
@pytest.mark.parametrize("gaps", [False, True])
def test_a_cut_leaves_the_rest_as_it_was(codec: str | None, gaps: bool) -> None:
    headers: Headers = [("own", b"1"), ("none", None)]
    batch = made([b"%d" % n for n in range(10)], codec, first=100, headers=headers)
    futures = list(batch.futures)
    gone = batch.cut(104, codec, gaps=gaps)
    assert gone == futures[:4]
    assert batch.futures == futures[4:]
    assert batch.sealed == SequenceRange(PID, 2**40 + 5, 104, 109, 104)
    assert list(batch.numbers) == [104, 105, 106, 107, 108, 109]
    reader, records = read(batch)
    assert identity_of(records) == Identity(PID, "", 2**40 + 5, 104, 109)
    assert [each.value for each in records] == [b"%d" % n for n in range(4, 10)]
    assert [each.headers[not place :] for place, each in enumerate(records)] == [headers] * 6
    assert [each.timestamp - 1_700_000_000_000 for each in records] == list(range(4, 10))
    assert reader.compression_type == (0 if codec is None else CODECS[codec][0])


def test_a_cut_by_ids_with_gaps() -> None:
    batch = made([b"3", b"7", b"8", b"20"], ids=[3, 7, 8, 20], first=3)
    assert len(batch.cut(10, None, gaps=True)) == 3
    assert batch.sealed == SequenceRange(PID, 2**40 + 5, 20, 20, 20)
    assert batch.ids == [20]


def test_a_cut_of_a_chained_range_begins_where_the_log_ends() -> None:
    batch = made([b"7", b"8", b"20"], ids=[7, 8, 20], first=0)
    assert len(batch.cut(10, None, gaps=False)) == 2
    assert batch.sealed == SequenceRange(PID, 2**40 + 5, 10, 20, 20)


def test_a_cut_before_the_first_record_of_a_chained_range() -> None:
    """A name's first batch under a new PID covers numbers that have no records."""
    batch = made([b"a", b"b"], first=0, number=50)
    assert batch.cut(20, None, gaps=False) == []
    assert batch.sealed == SequenceRange(PID, 2**40 + 5, 20, 51, 50)
    _, records = read(batch)
    assert [each.value for each in records] == [b"a", b"b"]
    assert identity_of(records)[3:5] == (20, 51)


def test_it_is_full_at_its_size_but_one_record_always_fits() -> None:
    batch = PendingBatch(1000, 0.0)
    assert batch.append(None, b"x" * 5000, [], None) > 5000
    batch.futures.append(asyncio.new_event_loop().create_future())
    assert batch.append(None, b"", [], None) == 0


@pytest.mark.parametrize("wrong", ["text", 5, ["x"]])
def test_a_record_of_another_type_changes_nothing(wrong: Any) -> None:
    batch = PendingBatch(1000, 0.0)
    loop = asyncio.new_event_loop()
    for _ in range(2):
        with pytest.raises(TypeError):
            batch.append(None, wrong, [], 5)
        with pytest.raises(TypeError):
            batch.append(None, b"", [("name", wrong)], 5)
        assert batch.append(None, b"good", [], 5)
        batch.futures.append(loop.create_future())
    batch.seal(SequenceRange(PID, 1, 0, 1, 0), None)
    assert [each.value for each in read(batch)[1]] == [b"good", b"good"]
