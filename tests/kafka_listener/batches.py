"""Record batches as clients make them, and as they should not."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c

from pidlease.kafka.records.identity_header import Identity, encode_identity

CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
#: Where the fields of the header stand, and how they are packed.
FIELDS: Final = {
    "base_offset": (0, ">q"),
    "batch_length": (8, ">i"),
    "leader_epoch": (12, ">i"),
    "magic": (16, ">b"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "records": (57, ">i"),
}
NOW_MS: Final = 1_700_000_000_000


@dataclass(frozen=True)
class Record:
    """A record as it was read back."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def batch(
    values: Sequence[bytes | None],
    pid: int = -1,
    epoch: int = -1,
    first: int = -1,
    *,
    codec: int = 0,
    timestamp: int = NOW_MS,
) -> bytes:
    """A batch of records with these values, under a producer id."""
    builder: Any = DefaultRecordBatchBuilder(2, codec, 0, pid, epoch, first, 1 << 30)
    for place, value in enumerate(values):
        assert builder.append(place, timestamp + place, None, value, [])
    return bytes(builder.build())


def identified(
    values: Sequence[bytes | None],
    identity: Identity,
    *,
    codec: int = 0,
    key: bytes | None = None,
    header: tuple[str, bytes | None] | None = None,
) -> bytes:
    """A batch as a client of ours makes it: the first record says who sends it.

    Parameters:
        values: of its records.
        identity: whose it is; the batch header has as much of it as it has room for.
        codec: how it is compressed.
        key: of its first record.
        header: in the place of the header that says so.
    """
    pid, _, generation, first = identity[:4]
    told = header or ("pidlease", encode_identity(identity))
    builder: Any = DefaultRecordBatchBuilder(
        2, codec, 0, pid, generation & 0x7FFF, first & 0x7FFFFFFF, 1 << 30
    )
    for place, value in enumerate(values):
        headers = [] if place else [told]
        assert builder.append(place, NOW_MS + place, None if place else key, value, headers)
    return bytes(builder.build())


def changed(data: bytes, *, fix_crc: bool = True, **fields: int) -> bytes:
    """A batch with other values in its header."""
    copy = bytearray(data)
    for name, value in fields.items():
        at, kind = FIELDS[name]
        struct.pack_into(kind, copy, at, value)
    if fix_crc:
        struct.pack_into(">I", copy, CRC_AT, crc32c(memoryview(copy)[ATTRIBUTES_AT:]))
    return bytes(copy)


def sequenced(data: bytes, pid: int, epoch: int, first: int) -> bytes:
    """A batch under another identity."""
    return changed(data, producer_id=pid, producer_epoch=epoch, base_sequence=first)


def records_of(data: bytes) -> list[Record]:
    """All records of whole batches; a batch that is cut off at the end is left out."""
    found: list[Record] = []
    for whole in batches_of(data):
        reader: Any = DefaultRecordBatch(whole)
        assert reader.validate_crc()
        found += [
            Record(each.offset, each.timestamp, each.key, each.value, tuple(each.headers))
            for each in reader
        ]
    return found


def batches_of(data: bytes) -> list[bytes]:
    """The whole batches in an answer to a Fetch."""
    found = []
    at = 0
    while at + 12 <= len(data):
        size = struct.unpack_from(">i", data, at + 8)[0] + 12
        if at + size > len(data):
            break
        found.append(data[at : at + size])
        at += size
    return found
