"""Batches of the log made into JSON, record by record.

Kafka clients compress their batches, and what a small one unpacks to is bounded by nothing: so it
is unpacked up to a limit, and one that goes beyond is told, with where to go on without it.
"""

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch

from pidlease.core.buffer import Buffer
from pidlease.http_api.record_messages import RECORD_OVERHEAD_BYTES, content_in_json
from pidlease.kafka.records import first_record
from pidlease.kafka.records.identity_header import HEADER_KEY, IdentityError
from pidlease.kafka.records.record_batch import (
    ATTRIBUTES_AT,
    CODEC_BITS,
    HEADER_BYTES,
    LENGTH_AT,
    LENGTH_PREFIX_BYTES,
    BatchHeader,
    CorruptBatchError,
    check_intact,
    read_header,
)

#: What a batch may unpack to.
UNPACKED_MAX: Final = 16 << 20
#: What is tried at first.
_FIRST_TRY: Final = 256 << 10

#: Behind each batch: the parser, which is in C, reads a number on beyond the end of what is broken.
_PADDING: Final = bytes(32)

_OURS: Final = HEADER_KEY.decode()
_ATTRIBUTES: Final = struct.Struct(">h")
_LENGTH: Final = struct.Struct(">i")

_encode: Final[Callable[[object], str]] = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":")
).encode


class UnreadableError(Exception):
    """What stands at an offset cannot be told as records.

    Attributes:
        offset: from here on.
        next_offset: behind it.
    """

    def __init__(self, offset: int, next_offset: int, reason: str) -> None:
        super().__init__(
            f"offsets {offset} to {next_offset - 1} cannot be told: {reason};"
            f" go on at {next_offset}"
        )
        self.offset = offset
        self.next_offset = next_offset


class Page(NamedTuple):
    """Some records.

    Attributes:
        records: each as JSON, with commas in between.
        next_offset: behind the last one.
    """

    records: bytes
    next_offset: int


def page_of(data: bytes, offset: int, bytes_max: int) -> Page:
    """The records of batches, from an offset on. May take long.

    Parameters:
        data: batches as they stand in the log; the last may be cut off.
        offset: of the first record, within the first batch.
        bytes_max: of records; but at least one.

    Raises:
        UnreadableError: what stands at the offset cannot be told.
    """
    records: list[str] = []
    left = bytes_max
    for header, batch in _batches(data):
        try:
            for record in _records(header, batch):
                at = record.offset
                if at < offset:
                    continue
                if left <= 0:
                    return _page(records, offset)
                text, size = _told(at, record)
                records.append(text)
                offset = at + 1
                left -= size
        except _CannotError as error:
            if records:
                break  # it is told to who goes on from there
            raise UnreadableError(offset, header.last_offset + 1, str(error)) from None
        offset = header.last_offset + 1
        if left <= 0:
            break
    return _page(records, offset)


def _page(records: list[str], next_offset: int) -> Page:
    return Page(",".join(records).encode(), next_offset)


class _CannotError(Exception):
    """A batch, or the rest of it, cannot be told."""


def _batches(data: bytes) -> Iterator[tuple[BatchHeader, memoryview]]:
    padded = memoryview(data + _PADDING)
    at = 0
    while at + HEADER_BYTES <= len(data):
        header = read_header(data, at)
        if at + header.size > len(data):
            return
        yield header, padded[at : at + header.size]
        at += header.size


def _records(header: BatchHeader, batch: memoryview) -> Iterator[Any]:
    """All records of a batch.

    Raises:
        _CannotError: what is there is none.
    """
    if header.is_control:
        return
    try:
        check_intact(header, batch)
        yield from DefaultRecordBatch(_unpacked(header, batch) if header.is_compressed else batch)
    except _CannotError:
        raise
    except (CorruptBatchError, IdentityError) as error:
        raise _CannotError(str(error)) from None
    except Exception as error:  # noqa: BLE001 - what stands there is the producer's affair
        raise _CannotError(f"there are no {header.records} records ({error!r})") from None


def _unpacked(header: BatchHeader, batch: memoryview) -> memoryview:
    """A batch as it would be without compression (its CRC is left as it was)."""
    records = _whole(header.codec, batch[HEADER_BYTES:])
    plain = bytearray(batch[:HEADER_BYTES])
    plain += records
    plain += _PADDING
    _ATTRIBUTES.pack_into(plain, ATTRIBUTES_AT, header.attributes & ~CODEC_BITS)
    size = HEADER_BYTES + len(records)
    _LENGTH.pack_into(plain, LENGTH_AT, size - LENGTH_PREFIX_BYTES)
    return memoryview(plain)[:size]


def _whole(codec: str, records: memoryview) -> Buffer:
    size = _FIRST_TRY
    while True:
        # One byte more than may be: so what just fits is told from what does not.
        found = first_record.unpack(codec, records, min(size, UNPACKED_MAX) + 1, UNPACKED_MAX)
        if len(found) <= min(size, UNPACKED_MAX):
            return found
        if size >= UNPACKED_MAX:
            raise _CannotError(f"they unpack to more than {UNPACKED_MAX} bytes, or are damaged")
        size *= 8


def _told(offset: int, record: Any) -> tuple[str, int]:  # noqa: ANN401 - aiokafka's, in C
    """A record as JSON, and what it counts."""
    key, value = record.key, record.value
    size = RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    headers = []
    for name, content in record.headers:
        size += len(name) + len(content or b"")
        if name != _OURS:
            headers.append({"key": name, "value": content_in_json(content)})
    told = {
        "offset": offset,
        "timestamp_ms": -1 if record.timestamp is None else record.timestamp,
        "key": content_in_json(key),
        "value": content_in_json(value),
        "headers": headers,
    }
    return _encode(told), size
