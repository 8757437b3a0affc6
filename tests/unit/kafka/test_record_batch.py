"""Record batch headers, with aiokafka's builder as the oracle."""

from random import Random

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from pidlease.core.state import UNKNOWN_CRC, differ
from pidlease.engine.batch_identity import batch_of
from pidlease.kafka.records.record_batch import (
    CODECS,
    HEADER_BYTES,
    CorruptBatchError,
    InvalidBatchError,
    check_from_client,
    check_intact,
    place,
    read_from_client,
    read_header,
    whole_batches,
)
from tests.kafka_listener.batches import batch, changed
from tests.sim.batches import make_batch, read_records

CRC_FROM = 21


def build(random: Random) -> tuple[bytearray, dict[str, int]]:
    """A batch, and what it must say."""
    pid, epoch = random.randrange(2**53), random.randrange(2**15)
    sequence, records = random.randrange(2**31), random.randint(1, 30)
    codec = random.choice([0, 1, 4])
    times = [random.randrange(2**42) for _ in range(records)]
    builder = DefaultRecordBatchBuilder(2, codec, 0, pid, epoch, sequence, 1 << 30)
    for index, time_ms in enumerate(times):
        value = random.randbytes(random.randint(0, 200))
        builder.append(index, time_ms, random.choice([None, b"k"]), value, [("h", b"x")])
    expected = {
        "magic": 2,
        "base_offset": 0,
        "last_offset_delta": records - 1,
        "base_timestamp": times[0],
        "max_timestamp": max(times),
        "producer_id": pid,
        "producer_epoch": epoch,
        "base_sequence": sequence,
        "records": records,
    }
    return bytearray(builder.build()), expected


@pytest.mark.parametrize("seed", range(50))
def test_a_header_says_what_aiokafka_wrote(seed: int) -> None:
    data, expected = build(Random(seed))
    header = read_header(data)
    assert {name: getattr(header, name) for name in expected} == expected
    assert header.size == len(data)
    assert header.last_offset == expected["records"] - 1
    check_intact(header, data)
    check_from_client(header)
    padded = b"\xff" * 7 + bytes(data)
    assert read_header(padded, 7) == header


@pytest.mark.parametrize("seed", range(10))
def test_a_placed_batch_is_read_by_aiokafka_at_its_offset(seed: int) -> None:
    random = Random(seed)
    data, expected = build(random)
    offset = random.randrange(2**62)
    for target in (data, memoryview(data)):
        place(target, offset)
        header = read_header(data)
        check_intact(header, data)
        assert (header.base_offset, header.leader_epoch) == (offset, 0)
    batch = DefaultRecordBatch(bytes(data))
    assert batch.validate_crc()
    assert [record.offset for record in batch] == [offset + n for n in range(expected["records"])]


def test_any_flipped_bit_behind_the_crc_is_noticed_and_so_are_magic_and_length() -> None:
    data = make_batch([b"some value"], pid=5, epoch=1, first=7)
    for position in range(8, len(data)):
        if 12 <= position < 16:
            continue  # the leader epoch, which nobody reads
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            with pytest.raises(CorruptBatchError):
                check_intact(read_header(flipped), flipped)


def test_a_batch_cut_anywhere_is_noticed() -> None:
    data = make_batch([b"some value", b"other"])
    for size in range(len(data)):
        with pytest.raises(CorruptBatchError):
            check_intact(read_header(data[:size]), data[:size])
    with pytest.raises(CorruptBatchError):
        check_intact(read_header(data), data + b"\0")
    with pytest.raises(CorruptBatchError, match="60 bytes are too few"):
        read_header(data[: HEADER_BYTES - 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"records": 0}, "do not fit"),
        ({"records": -1}, "do not fit"),
        ({"records": 3}, "do not fit"),
        ({"last_offset_delta": -1, "records": 0}, "do not fit"),
        ({"last_offset_delta": 5}, "do not fit"),
        ({"last_offset_delta": 99, "records": 100}, "100 records do not fit 7[0-9] bytes"),
        ({"last_offset_delta": 2**31 - 2, "records": 2**31 - 1}, "do not fit 7[0-9] bytes"),
        (
            {"last_offset_delta": 2**31 - 2, "records": 2**31 - 1, "attributes": 1},
            "do not fit 7[0-9] bytes",
        ),
        ({"attributes": 0x20}, "control"),
        ({"attributes": 0x10}, "transactional"),
        ({"attributes": 5}, "compression type 5"),
        ({"attributes": 7}, "compression type 7"),
    ],
)
def test_what_a_client_may_not_say(change: dict[str, int], message: str) -> None:
    header = read_header(make_batch([b"a", b"b"]))
    check_from_client(header)
    with pytest.raises(InvalidBatchError, match=message):
        check_from_client(header._replace(**change))


def test_the_smallest_records_and_compressed_ones_fit() -> None:
    data = bytes(batch([None] * 1000))
    assert read_from_client(data) == read_header(data)
    check_from_client(read_header(data))
    more = changed(data, last_offset_delta=1500, records=1501)
    assert read_from_client(more) is None
    assert read_from_client(changed(more, attributes=4)) is not None
    # Once 62 bytes took all the offsets of a segment, so each such batch made three files.
    endless = changed(data, last_offset_delta=2**31 - 2, records=2**31 - 1)
    assert read_from_client(changed(endless, attributes=4)) is None


@pytest.mark.parametrize("magic", [0, 1, 3, 127, 255])
def test_other_formats_are_refused(magic: int) -> None:
    data = make_batch()
    data[16] = magic
    with pytest.raises(CorruptBatchError, match="record format"):
        check_intact(read_header(data), data)


def test_the_records_come_back_by_the_tests_own_reader() -> None:
    data = make_batch([b"a", b"b"], pid=9, epoch=1, first=40, timestamps=[5, 4], compression=1)
    place(data, 100)
    assert [tuple(record) for record in read_records(bytes(data))] == [
        (100, b"a", 5, 9, 1, 40),
        (101, b"b", 4, 9, 1, 41),
    ]


def test_whole_batches_are_counted_and_a_cut_one_is_not() -> None:
    parts = [make_batch([b"a", b"b"]), make_batch([b"c"]), make_batch([b"d"] * 3)]
    offset = 0
    for part in parts:
        place(part, offset)
        offset += read_header(part).records
    data = b"".join(parts)
    two = len(parts[0]) + len(parts[1])
    assert whole_batches(data) == (len(data), 3, 6, 6)
    for cut in range(1, len(parts[2]) + 1):
        assert whole_batches(data[:-cut]) == (two, 2, 3, 3)
    assert whole_batches(data[: len(parts[0]) - 1]) == (0, 0, 0, -1)
    assert whole_batches(b"") == (0, 0, 0, -1)
    assert [whole_batches(data, before).end_offset for before in range(5)] == [-1, 2, 2, 3, 6]
    assert whole_batches(data, batches_max=2) == (two, 2, 3, 3)


@pytest.mark.parametrize("codec", range(len(CODECS)))
def test_a_retry_is_compared_with_what_the_log_kept(codec: int) -> None:
    sent = read_header(changed(batch([b"one", b"two"], 2 << 48 | 1, 0, 0), attributes=codec))
    other = sent._replace(crc=sent.crc ^ 0x80)
    mine = batch_of(sent).crc
    assert not differ(mine, batch_of(sent).crc)
    assert differ(mine, batch_of(other).crc)
    rewritten = {
        "compressed anew": other._replace(attributes=(codec + 1) % len(CODECS)),
        "its own time": other._replace(attributes=codec | 0x08),
        "when tombstones go": other._replace(attributes=codec | 0x40),
        "compacted": other._replace(records=1),
        "all records removed": other._replace(records=0),
    }
    for how, header in rewritten.items():
        assert not differ(mine, batch_of(header).crc), how
        assert not differ(batch_of(header).crc, mine), how


def test_no_codec_has_the_bits_of_an_unknown_crc() -> None:
    assert not any(differ(UNKNOWN_CRC, codec) for codec in range(len(CODECS)))
