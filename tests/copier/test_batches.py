"""What the copier makes of a source's batches: the same records, whatever the batches were."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from pidlease.client.pending_batch import CODECS, SequenceRange
from pidlease.copier.batch_translator import BatchTranslator
from pidlease.copier.cluster_reader import FetchedChunk
from pidlease.copier.copied_batch import CopiedBatch, RecordWriter
from pidlease.copier.errors import CopyError
from pidlease.kafka.records.identity_header import Identity, decode_identity
from pidlease.kafka.records.record_batch import (
    ATTRIBUTES_AT,
    CODEC_BITS,
    check_from_client,
    check_intact,
    read_header,
)
from pidlease.kafka.records.record_batch import CODECS as RECORD_CODECS
from tests.copier.logs import Record, batch_of, marker, with_crc

PID = 1 << 48 | 7
NAME = "pidlease"

headers = st.lists(
    st.tuples(st.sampled_from(["a", NAME, "pidlease2", ""]), st.none() | st.binary(max_size=9)),
    max_size=3,
)
values = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.just(b"\x10pidlease"),
    st.binary(min_size=300, max_size=300),
)


class Log(NamedTuple):
    """A source's log."""

    data: bytes
    aborted: list[tuple[int, int]]
    records: list[Record]
    end: int


codecs = st.none() | st.sampled_from(sorted(CODECS))


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Batches with everything that a log may have between them, and in them."""
    offset = draw(st.integers(0, 50))
    data = b""
    aborted: list[tuple[int, int]] = []
    kept: list[Record] = []
    for _ in range(draw(st.integers(1, 6))):
        number = draw(st.integers(0, 2))  # a producer has one transaction behind the other
        offset += draw(st.sampled_from([0, 0, 0, 1, 70]))  # compacted away
        size = draw(st.sampled_from([0, 1, 2, 5, 60]))
        present = [
            place for place in range(size) if draw(st.integers(0, 9))
        ] if draw(st.booleans()) else list(range(size))  # fmt: skip
        append_time = draw(st.none() | st.just(777))
        records = [
            Record(
                offset + place,
                draw(st.integers(0, 2**40)),
                draw(values),
                draw(values),
                draw(headers),
            )
            for place in present
        ]
        fate = draw(st.sampled_from(["plain", "plain", "committed", "aborted"]))
        data += batch_of(
            offset, offset + max(size, 1) - 1, records, codec=draw(codecs),
            producer=number, transactional=fate != "plain", append_time=append_time,
        )  # fmt: skip
        if fate == "aborted":
            aborted.append((number, offset))
        else:
            kept += [
                each._replace(
                    timestamp=each.timestamp if append_time is None else append_time,
                    headers=[one for one in each.headers if one[0] != NAME],
                )
                for each in records
            ]
        offset += max(size, 1)
        if fate != "plain":
            data += marker(offset, number, commit=fate == "committed")
            offset += 1
    return Log(data, aborted, kept, offset)


def records_of(batch: CopiedBatch, first: int) -> Iterator[Record]:
    """What a destination gets, and would hand out, with the source's offsets."""
    data = bytes(batch.data)
    header = read_header(data)
    check_intact(header, data)
    check_from_client(header)
    assert header.producer_id == PID
    for place, record in enumerate(DefaultRecordBatch(data)):
        assert record.offset == place
        found = list(record.headers)
        if not place:
            name, value = found.pop(0)
            assert name == NAME
            assert decode_identity(value or b"") == Identity(PID, "", 3, first, batch.ids[-1])
        assert NAME not in dict(found)
        yield Record(batch.ids[place], record.timestamp, record.key, record.value, found)


def sealed(batch: CopiedBatch, first: int) -> CopiedBatch:
    """A batch under its numbers."""
    batch.seal(SequenceRange(PID, 3, first, batch.ids[-1], batch.ids[0]), None)
    return batch


@given(logs(), st.integers(0, 200))
def test_the_same_records_come_out(log: Log, skip: int) -> None:
    translator = BatchTranslator("t-0", skip)
    first = 0
    found: list[Record] = []
    for batch in translator.batches(FetchedChunk(log.data, log.aborted, log.end)):
        found += records_of(sealed(batch, first), first)
        first = batch.ids[-1] + 1
    assert found == [each for each in log.records if each.offset >= skip]
    assert translator.position == max(log.end, skip)


def test_a_transaction_after_an_aborted_one_of_the_same_producer_is_copied() -> None:
    dropped, kept = (Record(offset, 5, None, b"value", []) for offset in (0, 2))
    data = batch_of(0, 0, [dropped], producer=1, transactional=True) + marker(1, 1, commit=False)
    data += batch_of(2, 2, [kept], producer=1, transactional=True) + marker(3, 1, commit=True)
    batches = BatchTranslator("t-0", 0).batches(FetchedChunk(data, [(1, 0)], 4))
    assert [list(each.ids) for each in batches] == [[2]]


@given(logs(), st.data())
def test_what_the_destination_has_is_cut_off(log: Log, data: st.DataObject) -> None:
    for batch in BatchTranslator("t-0", 0).batches(FetchedChunk(log.data, log.aborted, log.end)):
        before = list(records_of(sealed(batch, batch.ids[0]), batch.ids[0]))
        if len(batch.ids) < 2:
            continue
        expected = data.draw(st.integers(batch.ids[0] + 1, batch.ids[-1]))
        assert batch.cut(expected, None, gaps=False) == []
        after = list(records_of(batch, expected))
        assert after == [each for each in before if each.offset >= expected]
        assert batch.cut_off == len(before) - len(after)


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_a_batch_goes_on_as_it_is(codec: str | None) -> None:
    """Its records' bytes are the source's, but for the header that was put in."""
    value = b"".join(b"%d" % number for number in range(40_000))
    records = [Record(9 + place, 5, b"k", value, [("h", b"1")]) for place in range(3)]
    source = batch_of(9, 11, records, codec=codec, producer=5, transactional=True)
    (batch,) = BatchTranslator("t-0", 0).batches(FetchedChunk(source, [], 12))
    assert list(batch.ids) == [9, 10, 11]
    assert list(records_of(sealed(batch, 0), 0)) == records
    header = read_header(batch.data)
    assert header.attributes & CODEC_BITS == read_header(source).attributes & CODEC_BITS
    if codec is None:
        assert len(batch.data) - len(source) < 100


def test_small_batches_are_joined() -> None:
    source = b"".join(
        batch_of(number, number, [Record(number, number, None, b"v", [])]) for number in range(500)
    )
    (batch,) = BatchTranslator("t-0", 0).batches(FetchedChunk(source, [], 500))
    assert batch.ids == list(range(500))
    assert batch.source_bytes == len(source)


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_joined_batches_are_bounded_by_what_they_hold(codec: str | None) -> None:
    """Of records that compress well, one joined batch had more than a hundred megabytes."""
    records = [Record(offset, 5, None, bytes(7000), []) for offset in range(40)]
    source = b"".join(batch_of(each.offset, each.offset, [each], codec=codec) for each in records)
    batches = list(BatchTranslator("t-0", 0).batches(FetchedChunk(source, [], 40)))
    assert [len(each.ids) for each in batches] == [18, 18, 4]
    assert max(each.cost for each in batches) <= 128 << 10


def test_a_small_batch_that_holds_much_is_copied_by_itself() -> None:
    records = [Record(offset, 5, None, bytes(200_000 * (offset == 1)), []) for offset in range(4)]
    source = b"".join(batch_of(each.offset, each.offset, [each], codec="zstd") for each in records)
    batches = list(BatchTranslator("t-0", 0).batches(FetchedChunk(source, [], 4)))
    assert [list(each.ids) for each in batches] == [[0], [1], [2, 3]]


def test_records_without_a_timestamp_are_joined() -> None:
    """aiokafka gave those at the beginning of a batch the first timestamp that followed."""
    records = [
        Record(offset, time, None, b"v", []) for offset, time in enumerate((-1, -1, 1000, -1, 2000))
    ]
    source = b"".join(batch_of(each.offset, each.offset, [each]) for each in records)
    (batch,) = BatchTranslator("t-0", 0).batches(FetchedChunk(source, [], 5))
    assert list(records_of(sealed(batch, 0), 0)) == records
    header = read_header(batch.data)
    assert (header.base_timestamp, header.max_timestamp) == (-1, 2000)
    assert batch.cut(3, None, gaps=False) == []
    assert list(records_of(batch, 3)) == records[3:]


@pytest.mark.parametrize("times", [(-1,), (-1, -1), (5, -1), (-1, 2**62), (-1, -5, 3), (-5, -1, 3)])
def test_records_keep_their_timestamps(times: tuple[int, ...]) -> None:
    writer = RecordWriter()
    for time in times:
        writer.add(time, None, b"v", [])
    batch = sealed(CopiedBatch(writer.records(), range(len(times)), None, 1, 0.0), 0)
    assert [each.timestamp for each in records_of(batch, 0)] == list(times)
    header = read_header(batch.data)
    assert (header.base_timestamp, header.max_timestamp) == (times[0], max(times))


def test_a_batch_that_is_cut_off_comes_again() -> None:
    source = batch_of(0, 0, [Record(0, 0, None, b"v", [])])
    other = batch_of(1, 1, [Record(1, 0, None, b"w", [])])
    translator = BatchTranslator("t-0", 0)
    (batch,) = translator.batches(FetchedChunk(source + other[:-1], [], 2))
    assert (list(batch.ids), translator.position) == ([0], 1)
    assert list(translator.batches(FetchedChunk(b"", [], 2))) == []
    assert translator.position == 1


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "CRC is"),
        (lambda data: data[:16] + b"\1" + data[17:], "record format 1"),
        (lambda data: data[:16] + b"\0" + data[17:40], ""),
    ],
)
def test_what_is_not_intact_ends_the_copy(spoil: Callable[[bytes], bytes], said: str) -> None:
    source = spoil(batch_of(0, 0, [Record(0, 0, None, b"v" * 30, [])]))
    translator = BatchTranslator("orders-3 of the source", 0)
    if said:
        with pytest.raises(CopyError, match=f"orders-3 of the source, offset 0: .*{said}"):
            list(translator.batches(FetchedChunk(source, [], 1)))
    else:
        assert list(translator.batches(FetchedChunk(source, [], 1))) == []


def test_a_first_record_that_is_none_ends_the_copy() -> None:
    """The CRC fits, and what it covers is nonsense."""
    source = bytearray(batch_of(0, 0, [Record(0, 0, None, b"v" * 9000, [])]))
    source[61] = 3
    with pytest.raises(CopyError, match="its records cannot be read"):
        list(BatchTranslator("t-0", 0).batches(FetchedChunk(with_crc(source), [], 1)))


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("size", [30, 9000], ids=["joined", "whole"])
def test_records_that_no_codec_reads_end_the_copy(codec: str, size: int) -> None:
    """The header names a codec that did not write them."""
    source = bytearray(batch_of(0, 0, [Record(0, 0, None, b"v" * size, [])]))
    source[ATTRIBUTES_AT + 1] |= RECORD_CODECS.index(codec)
    with pytest.raises(CopyError, match="t-0, offset 0: its records cannot be read"):
        list(BatchTranslator("t-0", 0).batches(FetchedChunk(with_crc(source), [], 1)))
