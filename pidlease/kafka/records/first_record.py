"""Finds the header `pidlease` in a batch's first record.

Of a compressed batch only as much is decompressed as needed, and never more than a limit: some
kilobytes may decompress to any size.
"""

import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

import cramjam

from pidlease.core.buffer import Buffer
from pidlease.kafka.records.identity_header import (
    CutOffError,
    Identity,
    IdentityError,
    decode_identity,
    identity_header,
)
from pidlease.kafka.records.record_batch import HEADER_BYTES, BatchHeader

#: The most bytes to decompress: the longest first record, headers included.
UNPACKED_MAX: Final = 16 << 20
#: The bytes to decompress first: sufficient for most batches, within some tens of microseconds.
_FIRST_TRY: Final = 8 << 10

#: Precedes the blocks of xerial's framing, which Java clients use for snappy: a magic number, its
#: version, and the lowest compatible version. Each block follows its length.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_FRONT: Final = 16
_BLOCK: Final = struct.Struct(">i")
#: Determines how many parts of a compressed batch are read at most: one for this many bytes.
_PART_BYTES: Final = 512
#: zlib's parameter for gzip's framing.
_GZIP: Final = 16 + zlib.MAX_WBITS

_Unpack = Callable[[Buffer, bytearray], Any]


def find_identity(
    header: BatchHeader, data: Buffer, unpacked_max: int = UNPACKED_MAX
) -> Identity | None:
    """Find the producer of a batch, in its first record.

    Parameters:
        data: the batch, intact.
        unpacked_max: the most bytes to decompress.

    Returns:
        None: the first record has no header `pidlease`.

    Raises:
        TooLongError: the first record's headers are beyond `unpacked_max`.
        IdentityError: the first record cannot be read, or the header is invalid.
    """
    records = memoryview(data)[HEADER_BYTES:]
    if not header.is_compressed:
        value = identity_header(records)
        return None if value is None else decode_identity(value)
    size = min(_FIRST_TRY, unpacked_max)
    while True:
        beginning = unpack(header.codec, records, size, unpacked_max)
        try:
            value = identity_header(beginning)
        except CutOffError:
            if len(beginning) < size:
                raise
            if size >= unpacked_max:
                raise TooLongError(
                    f"the first record is longer than {unpacked_max} bytes, unpacked"
                ) from None
            size = min(size * 16, unpacked_max)
            continue
        return None if value is None else decode_identity(value)


class TooLongError(IdentityError):
    """More bytes would have to be decompressed than allowed."""


def unpack(codec: str, records: memoryview, size: int, limit: int) -> Buffer:
    """Decompress the beginning of a batch's records.

    Parameters:
        codec: one of `record_batch.CODECS`.
        records: the compressed records.
        size: the bytes needed.
        limit: the most bytes to decompress at once.

    Returns:
        At least `size` bytes, or fewer if there are no more. If the data is broken after the
        beginning, the last of them may be zeros.

    Raises:
        TooLongError: more than `limit` bytes would have to be decompressed.
        IdentityError: the records were not compressed by this codec.
    """
    try:
        if codec == "snappy":
            return _unpack_snappy(records, size, limit)
        if codec == "gzip":
            return _unpack_gzip(records, size, limit)
        return _unpack_into(_INTO[codec], records, size)
    except (cramjam.DecompressionError, zlib.error) as error:
        raise IdentityError(f"the records are no {codec}: {error}") from None


_INTO: Final[dict[str, _Unpack]] = {
    "lz4": cramjam.lz4.decompress_into,
    "zstd": cramjam.zstd.decompress_into,
}


def _unpack_into(unpack: _Unpack, records: Buffer, size: int) -> Buffer:
    out = bytearray(size)
    try:
        count = unpack(records, out)
    except cramjam.DecompressionError:
        # Either there is more than fits, or the rest is broken; which one is unknown. It does not
        # matter as long as the first record can be read.
        return out
    return memoryview(out)[:count]


def _unpack_gzip(records: memoryview, size: int, limit: int) -> Buffer:
    """Decompress gzip by zlib, counting members: there may be any number of empty ones."""
    out = b""
    rest: Buffer = records
    for _ in range(_parts_max(limit)):
        unpacker = zlib.decompressobj(_GZIP)
        out += unpacker.decompress(rest, size - len(out))
        rest = memoryview(rest)[len(rest) - len(unpacker.unused_data) :]
        if len(out) >= size or not unpacker.eof or not len(rest):
            return out
    raise TooLongError(f"more than {_parts_max(limit)} gzip members before the first record ends")


def _parts_max(limit: int) -> int:
    """Return how many members, or blocks, may precede the end of the first record."""
    return max(limit // _PART_BYTES, 1)


def _unpack_snappy(records: memoryview, size: int, limit: int) -> Buffer:
    if bytes(records[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _unpack_block(records, limit)
    out = bytearray()
    at = _XERIAL_FRONT
    for _ in range(_parts_max(limit)):
        if len(out) >= size or at + _BLOCK.size > len(records):
            return out
        (length,) = _BLOCK.unpack_from(records, at)
        at += _BLOCK.size
        if not 0 < length <= len(records) - at:
            raise IdentityError(f"a snappy block of {length} bytes, where {len(records) - at} are")
        out += _unpack_block(records[at : at + length], limit)
        at += length
    raise TooLongError(f"more than {_parts_max(limit)} snappy blocks before the first record ends")


def _unpack_block(block: memoryview, limit: int) -> Buffer:
    """Decompress a block of raw snappy, which begins with its decompressed length."""
    length = cramjam.snappy.decompress_raw_len(block)
    if length > limit:
        raise TooLongError(f"a snappy block that unpacks to {length} bytes; at most {limit}")
    out = bytearray(length)
    count = cramjam.snappy.decompress_raw_into(block, out)
    return memoryview(out)[:count]
