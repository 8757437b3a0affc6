"""Decodes the records of batches; decompresses them up to a limit."""

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final

from aiokafka.record.default_records import DefaultRecordBatch

from pidlease.core.buffer import Buffer
from pidlease.kafka.records import first_record
from pidlease.kafka.records.identity_header import IdentityError
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

#: The largest size that a batch may decompress to, in bytes.
UNPACKED_MAX: Final = 16 << 20
#: The size to try first.
_FIRST_TRY: Final = 256 << 10
#: Follows the batches: the parser, in C, reads one number beyond the end of a broken batch.
_PADDING: Final = bytes(32)
#: The most to decode on the event loop: it takes a millisecond.
_INLINE_BYTES: Final = 32 << 10
_INLINE_RECORDS: Final = 100
#: The most records that are decoded once and kept.
_KEPT_RECORDS: Final = 1000

_ATTRIBUTES: Final = struct.Struct(">h")
_LENGTH: Final = struct.Struct(">i")


class UndecodableError(Exception):
    """A batch, or the rest of it, cannot be read."""


def batches_in(data: bytes) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the complete batches in some bytes of a log, with their headers."""
    padded = memoryview(data + _PADDING)
    at = 0
    while at + HEADER_BYTES <= len(data):
        header = read_header(data, at)
        if at + header.size > len(data):
            return
        yield header, padded[at : at + header.size]
        at += max(header.size, HEADER_BYTES)


def records_in(header: BatchHeader, batch: memoryview) -> Iterable[Any]:
    """Return all records of a batch from `batches_in`; none of a control batch.

    All are decoded before the first is returned: of a damaged batch there are none.

    Raises:
        UndecodableError: the batch is damaged.
    """
    if header.is_control:
        return ()
    try:
        check_intact(header, batch)
        plain = _unpacked(header, batch) if header.is_compressed else batch
        if header.records <= _KEPT_RECORDS:
            return list(DefaultRecordBatch(plain))
        # A batch may have millions of records, too many to keep. A loop in Python lets other
        # threads run meanwhile.
        for _ in DefaultRecordBatch(plain):
            pass
    except UndecodableError:
        raise
    except (CorruptBatchError, IdentityError) as error:
        raise UndecodableError(str(error)) from None
    except Exception as error:  # noqa: BLE001 - the producer wrote anything
        raise _not_as_many(header, error) from None
    decoder: Iterable[Any] = DefaultRecordBatch(plain)
    return decoder


def decoded(header: BatchHeader, batch: Buffer) -> Iterator[Any]:
    """Yield the records of an intact batch, of any size without compression.

    Raises:
        UndecodableError: they cannot be decoded, or their number is not that of the header. Some
            may have been returned.
    """
    padded = bytearray(batch)
    padded += _PADDING
    try:
        yield from DefaultRecordBatch(memoryview(padded)[: len(batch)])
    except Exception as error:  # noqa: BLE001 - the producer wrote anything
        raise _not_as_many(header, error) from None


def _not_as_many(header: BatchHeader, error: Exception) -> UndecodableError:
    return UndecodableError(f"there are no {header.records} records ({error!r})")


def _unpacked(header: BatchHeader, batch: memoryview) -> memoryview:
    """Return a decompressed batch; its CRC is not updated."""
    records = unpack_all(header.codec, batch[HEADER_BYTES:])
    plain = bytearray(batch[:HEADER_BYTES])
    plain += records
    plain += _PADDING
    _ATTRIBUTES.pack_into(plain, ATTRIBUTES_AT, header.attributes & ~CODEC_BITS)
    size = HEADER_BYTES + len(records)
    _LENGTH.pack_into(plain, LENGTH_AT, size - LENGTH_PREFIX_BYTES)
    return memoryview(plain)[:size]


def unpack_all(codec: str, records: memoryview) -> Buffer:
    """Decompress records, up to a limit.

    Parameters:
        codec: one of `record_batch.CODECS`, but the first.

    Raises:
        UndecodableError: they are too large.
        IdentityError: they were not compressed by this codec.
    """
    size = _FIRST_TRY
    while True:
        # Ask for one byte more than allowed: then the records are too large.
        found = first_record.unpack(codec, records, min(size, UNPACKED_MAX) + 1, UNPACKED_MAX)
        if len(found) <= min(size, UNPACKED_MAX):
            return found
        if size >= UNPACKED_MAX:
            raise UndecodableError(f"they unpack to more than {UNPACKED_MAX} bytes, or are damaged")
        size *= 8


def is_small(data: bytes) -> bool:
    """Whether some batches are few enough to decode them on the event loop."""
    if len(data) > _INLINE_BYTES:
        return False
    at = records = 0
    while at + HEADER_BYTES <= len(data):
        header = read_header(data, at)
        records += header.records
        if header.is_compressed or records > _INLINE_RECORDS:
            return False
        at += max(header.size, HEADER_BYTES)
    return True
