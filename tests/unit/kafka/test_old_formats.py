"""Messages of formats 0 and 1 as batches, written by aiokafka."""

import zlib
from contextlib import suppress
from random import Random

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from pidlease.kafka.codec.fetch import first_offset
from pidlease.kafka.records.batch_records import batches_in, records_in
from pidlease.kafka.records.old_formats import (
    OldFormatError,
    check_message,
    entries_in,
    has_old_format,
    in_current_format,
)
from pidlease.kafka.records.record_batch import CorruptBatchError
from tests.crash.seeds import new_random
from tests.sim.batches import make_batch

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3}
KINDS = [(magic, codec) for magic in (0, 1) for codec in CODECS if (magic, codec) != (0, "lz4")]


def message(magic: int, codec: int, offset: int, count: int) -> bytes:
    """One compressed message, or several that are not."""
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for each in range(count):
        relative = each if codec and magic == 1 else offset + each
        builder.append(relative, timestamp=1000 + each, key=b"k", value=b"%d" % (offset + each))
    data = bytearray(builder.build())
    if codec:
        data[:8] = (offset + count - 1).to_bytes(8, "big")
    return bytes(data)


def signed(data: bytearray) -> bytes:
    """A message with the CRC of its bytes."""
    data[12:16] = zlib.crc32(data[16:]).to_bytes(4, "big")
    return bytes(data)


def read(data: bytes) -> list[tuple[int, bytes, int]]:
    return [
        (record.offset, record.value, record.timestamp)
        for header, batch in batches_in(data)
        for record in records_in(header, batch)
    ]


@pytest.mark.parametrize(("magic", "codec"), KINDS)
def test_records_keep_offset_time_key_and_value(magic: int, codec: str) -> None:
    new = make_batch([b"new"])
    new[:8] = (1203).to_bytes(8, "big")
    data = message(magic, CODECS[codec], 3, 1200) + bytes(new) + message(magic, 0, 1204, 1)
    assert has_old_format(data)
    found = read(in_current_format(data, 0))
    assert [offset for offset, _, _ in found] == list(range(3, 1205))
    assert [value for offset, value, _ in found if offset != 1203] == [
        b"%d" % offset for offset in range(3, 1205) if offset != 1203
    ]
    times = [time for offset, _, time in found if offset < 1203]
    assert times == ([1000 + each for each in range(1200)] if magic else [-1] * 1200)
    assert first_offset(data) == 0, "it may begin anywhere before its own offset"
    cut = in_current_format(data[:-1], 0)
    assert read(cut)[-1][0] == 1203


def test_the_time_of_the_log_counts_for_all_records_of_a_message() -> None:
    data = bytearray(message(1, 1, 0, 3))
    data[17] |= 0x08
    data[18:26] = (1002).to_bytes(8, "big")
    assert [time for _, _, time in read(in_current_format(signed(data), 0))] == [1002] * 3


def test_a_message_that_cannot_be_read_is_named_in_its_turn() -> None:
    damaged = bytearray(message(1, 1, 2, 2))
    damaged[-1] ^= 1
    data = message(1, 0, 0, 2) + bytes(damaged) + message(1, 0, 4, 1)
    assert [offset for offset, _, _ in read(in_current_format(data, 0))] == [0, 1]
    with pytest.raises(OldFormatError, match="a message of format 1: its CRC") as refused:
        in_current_format(data[len(message(1, 0, 0, 2)) :], 2)
    assert (refused.value.offset, refused.value.next_offset) == (2, 4)
    assert [offset for offset, _, _ in read(in_current_format(data, 4))] == [4]


def test_lz4_of_format_0_is_named() -> None:
    data = bytearray(message(0, 1, 0, 2))
    data[17] = CODECS["lz4"]
    with pytest.raises(OldFormatError, match=r"format 0: lz4 .*KIP-57"):
        in_current_format(signed(data), 0)


@pytest.mark.parametrize("seed", range(20))
def test_damage_is_an_error_or_leaves_what_is_before_it(seed: int) -> None:
    random: Random = new_random(f"old-formats-{seed}")
    magic, codec = random.choice(KINDS)
    first = message(0, 0, 0, 1)
    data = first + message(magic, CODECS[codec] or 1, 1, 3)
    for _ in range(50):
        spoiled = bytearray(data)
        at = random.randrange(len(first) + 17, len(data))
        spoiled[at] ^= 1 << random.randrange(8)
        last = list(entries_in(spoiled))[-1]
        with pytest.raises(CorruptBatchError):
            check_message(spoiled[last.at :])
        # Whatever the CRC says, the content is checked as well.
        spoiled[last.at :] = signed(spoiled[last.at :])
        found = read(in_current_format(bytes(spoiled), 0))
        assert found[0] == (0, b"0", -1)
        with suppress(OldFormatError):
            in_current_format(bytes(spoiled), 1)
