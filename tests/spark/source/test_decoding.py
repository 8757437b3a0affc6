"""Records decoded by columns, against aiokafka's decoder."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from pidlease.kafka.records.record_batch import HEADER_BYTES, read_header
from pidlease.kafka.records.varints import VarintReader
from pidlease.spark.errors import ReadError
from pidlease.spark.reader import batch_columns as columns
from pidlease.spark.reader.log_parts import KafkaPart, StoredBatch
from pidlease.spark.reader.record_rows import records
from tests.copier.logs import Record, batch_of, with_crc
from tests.property.profile import examples

CODECS = (None, "gzip", "snappy", "lz4", "zstd")
_DAY_MS = 86_400_000

_content = st.one_of(
    st.none(), st.binary(max_size=20), st.binary(min_size=60, max_size=70),
    st.integers(100, 20_000).map(lambda size: b"x" * size),
)  # fmt: skip
_headers = st.lists(st.tuples(st.text(max_size=8), st.one_of(st.none(), st.binary(max_size=9))),
                    max_size=4)  # fmt: skip
#: Missing offsets, timestamps that may go back, by a lot.
_record = st.tuples(
    st.integers(1, 300), st.integers(-_DAY_MS, 30 * _DAY_MS), _content, _content, _headers
)
_batch = st.tuples(
    st.lists(_record, min_size=1, max_size=30),
    st.sampled_from(CODECS),
    st.one_of(st.none(), st.integers(0, 2**41)),
)


def part_of(start: int = 0, end: int = 2**63 - 1) -> KafkaPart:
    return KafkaPart("unused", "t", 0, start, end)


def written(drawn: Sequence[Any]) -> list[bytes]:
    """Batches, one after the other."""
    found, offset, time = [], 0, 1_700_000_000_000
    for rows, codec, append_time in drawn:
        base, made = offset, []
        for step, later, key, value, headers in rows:
            made.append(Record(offset, time + later, key, value, headers))
            offset += step
        found.append(batch_of(base, made[-1].offset, made, codec=codec, append_time=append_time))
    return found


def stored(batches: Sequence[bytes]) -> list[StoredBatch]:
    return [StoredBatch("", -1, read_header(each), memoryview(each)) for each in batches]


def ours(
    batches: Sequence[bytes], part: KafkaPart | None = None, *, fail: bool = True
) -> list[dict[str, Any]]:
    """Return rows with timestamps in microseconds: Python has no datetime for some."""
    found = records(part or part_of(), stored(batches), headers=True, fail_on_data_loss=fail)
    table = pa.Table.from_batches(list(found), columns.schema(headers=True))
    table.validate(full=True)
    times = table["timestamp"].cast(pa.int64())
    return list(table.set_column(5, "timestamp", times).to_pylist())


def theirs(batches: Sequence[bytes]) -> list[dict[str, Any]]:
    return [
        {
            "key": each.key, "value": each.value, "offset": each.offset,
            "timestamp": each.timestamp, "timestampType": each.timestamp_type,
            "headers": [{"key": key, "value": value} for key, value in each.headers] or None,
        }
        for batch in batches
        for each in DefaultRecordBatch(batch)
    ]  # fmt: skip


def by_the_book(batch: bytes) -> list[dict[str, Any]]:
    """One record after the other, as Kafka describes them.

    aiokafka reads a record's attributes as a varint; they are a byte.
    """
    header = read_header(batch)
    reader = VarintReader(batch[HEADER_BYTES:])
    found = []
    for _ in range(header.records):
        end = reader.varint() + reader.at
        reader.skip(1)
        time, offset = reader.varint(), reader.varint()
        key, value = _taken(reader), _taken(reader)
        pairs = [(_taken(reader), _taken(reader)) for _ in range(reader.varint())]
        assert reader.at == end
        found.append({
            "key": key, "value": value, "offset": header.base_offset + offset,
            "timestamp": _time(header.base_timestamp + time), "timestampType": 0,
            "headers": [
                {"key": (key or b"").decode(errors="replace"), "value": value}
                for key, value in pairs
            ] or None,
        })  # fmt: skip
    return found


def _taken(reader: VarintReader) -> bytes | None:
    size = reader.varint()
    return None if size == -1 else reader.take(size)


def comparable(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    names = ("key", "value", "offset", "timestampType", "headers")
    return [
        {name: row[name] for name in names} | {"timestamp": _ms(row["timestamp"])} for row in rows
    ]


def _ms(micros: int | None) -> int | None:
    return None if micros is None else micros // 1000


def _time(ms: int) -> int | None:
    """Return a timestamp in microseconds; None if it exceeds 64 bits."""
    ms = (ms + 2**63) % 2**64 - 2**63
    return ms if abs(ms) <= (2**63 - 1) // 1000 else None


@examples(50)
@given(st.lists(_batch, min_size=1, max_size=6))
def test_records_are_what_aiokafka_finds(drawn: list[Any]) -> None:
    batches = written(drawn)
    assert comparable(ours(batches)) == theirs(batches)


@examples(20)
@given(st.lists(_batch, min_size=1, max_size=4), st.data())
def test_a_part_has_the_records_between_its_offsets(drawn: list[Any], data: st.DataObject) -> None:
    batches = written(drawn)
    offsets = [row["offset"] for row in theirs(batches)]
    start = data.draw(st.integers(0, offsets[-1]))
    end = data.draw(st.integers(start, offsets[-1] + 1))
    found = [row["offset"] for row in ours(batches, part_of(start, end))]
    assert found == [offset for offset in offsets if start <= offset < end]


@examples(150)
@given(
    st.lists(_record, min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(1, 255)), min_size=1, max_size=3),
)
def test_broken_records_are_an_error_or_what_stands_there(
    rows: list[Any], changes: list[tuple[int, int]]
) -> None:
    (batch,) = written([(rows, None, None)])
    data = bytearray(batch)
    for at, bits in changes:
        data[HEADER_BYTES + at % (len(data) - HEADER_BYTES)] ^= bits
    broken = with_crc(data)
    if found := ours([broken], fail=False):
        assert comparable(found) == by_the_book(broken)
        return
    with pytest.raises(ReadError, match="t-0, offset 0"):
        ours([broken])


@pytest.mark.parametrize("records_said", [0, 1, 3, 2**31 - 1])
def test_another_number_of_records_than_there_are_is_an_error(records_said: int) -> None:
    data = bytearray(batch_of(0, 1, [Record(n, 0, None, b"v", []) for n in range(2)]))
    data[57:61] = records_said.to_bytes(4, "big")
    with pytest.raises(ReadError):
        ours([with_crc(data)])


@pytest.mark.parametrize("cut", [1, 2, 7])
def test_compressed_records_that_are_cut_off_are_an_error(cut: int) -> None:
    content = bytes(Random(1).randbytes(500))
    for codec in CODECS[1:]:
        batch = batch_of(0, 0, [Record(0, 0, None, content, [])], codec=codec)
        data = bytearray(batch[:-cut])
        data[8:12] = (len(data) - 12).to_bytes(4, "big")
        with pytest.raises(ReadError, match="offset 0"):
            ours([with_crc(data)])


def test_one_broken_batch_is_left_out_where_that_is_asked_for() -> None:
    batches = written([([(1, 0, b"k", b"v%d" % n, [])] * 3, None, None) for n in range(4)])
    data = bytearray(batches[1])
    data[HEADER_BYTES] = 0xFF
    batches[1] = with_crc(data)
    found = records(part_of(), stored(batches), headers=False, fail_on_data_loss=False)
    offsets = [row["offset"] for each in found for row in each.to_pylist()]
    assert offsets == [0, 1, 2, *range(6, 12)]


def test_batches_of_rows_are_bounded_by_rows_and_bytes() -> None:
    small = [Record(n, 0, None, b"", []) for n in range(100_000)]
    large = [Record(n, 0, None, bytes(300_000), []) for n in range(100_000, 100_100)]
    batches = [batch_of(0, 99_999, small), batch_of(100_000, 100_099, large, codec="zstd")]
    found = list(records(part_of(), stored(batches), headers=False, fail_on_data_loss=True))
    assert sum(each.num_rows for each in found) == 100_100
    assert max(each.num_rows for each in found) <= 65_000
    assert max(each.get_total_buffer_size() for each in found) <= 12 << 20


def test_a_header_key_that_is_no_text_is_replaced_as_in_java() -> None:
    batch = batch_of(0, 0, [Record(0, 0, None, b"v", [("kk", b"x")])])
    data = bytearray(batch)
    at = data.index(b"kk", HEADER_BYTES)
    data[at : at + 2] = b"\xff\xfe"
    (row,) = ours([with_crc(data)])
    assert row["headers"] == [{"key": "��", "value": b"x"}]


def test_a_time_beyond_what_spark_counts_is_none() -> None:
    batch = batch_of(0, 1, [Record(0, 2**62, None, b"", []), Record(1, 5, None, b"", [])])
    table = pa.Table.from_batches(
        list(records(part_of(), stored([batch]), headers=False, fail_on_data_loss=True))
    )
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [None, 5000]
