"""Batches as they stand in a Kafka log: with holes, markers, transactions, of any codec."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c

from pidlease.client.pending_batch import CODECS
from pidlease.kafka.records.record_batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_AT,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    PRODUCER_AT,
)

_LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x08, 0x10, 0x20
_RECORDS_AT = 57
_LAST_DELTA_AT = 23
_MAX_TIMESTAMP_AT = 35

Headers = list[tuple[str, bytes | None]]


class Record(NamedTuple):
    """A record of the source."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def batch_of(
    base: int,
    last: int,
    records: Sequence[Record],
    *,
    codec: str | None = None,
    producer: int = -1,
    transactional: bool = False,
    control: bool = False,
    append_time: int | None = None,
) -> bytes:
    """A batch with these offsets, of which some may be missing.

    Parameters:
        base: its first offset,
        last: and its last: there need be no records at either.
        append_time: the log's own timestamp; None: the records' are as they were sent.
    """
    builder = DefaultRecordBatchBuilder(MAGIC, 0, 0, -1, -1, -1, 2**31 - 1)
    for each in records:
        builder.append(each.offset - base, each.timestamp, each.key, each.value, list(each.headers))
    data = builder.build()
    attributes = _TRANSACTIONAL * transactional | _CONTROL * control
    if codec is not None:
        number, compress = CODECS[codec]
        data[HEADER_BYTES:] = compress(bytes(data[HEADER_BYTES:]))
        attributes |= number
    if append_time is not None:
        attributes |= _LOG_APPEND_TIME
        struct.pack_into(">q", data, _MAX_TIMESTAMP_AT, append_time)
    struct.pack_into(">q", data, 0, base)
    struct.pack_into(">i", data, LENGTH_AT, len(data) - LENGTH_PREFIX_BYTES)
    struct.pack_into(">h", data, ATTRIBUTES_AT, attributes)
    struct.pack_into(">i", data, _LAST_DELTA_AT, last - base)
    struct.pack_into(">qh", data, PRODUCER_AT, producer, 0)
    struct.pack_into(">i", data, _RECORDS_AT, len(records))
    return with_crc(data)


def with_crc(data: bytearray) -> bytes:
    """A batch that was changed, with the CRC that fits."""
    struct.pack_into(">I", data, CRC_AT, crc32c(memoryview(data)[CRC_FROM:]))
    return bytes(data)


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    """The end of a producer's transaction."""
    record = Record(offset, 0, struct.pack(">hh", 0, commit), b"\0" * 6, [])
    return batch_of(offset, offset, [record], producer=producer, transactional=True, control=True)
