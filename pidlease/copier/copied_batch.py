"""Batches for the destination, made of the source's batches.

A batch of the source is copied as a whole, with one more header in its first record: there is no
work per record. Only small batches are joined; batches with offset gaps, or with records that are
not copied, are encoded again.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from crc32c import crc32c
from typing_extensions import override

from pidlease.client.pending_batch import CODECS, Futures, PendingBatch, SequenceRange
from pidlease.core.buffer import Buffer
from pidlease.kafka.records.identity_header import (
    HEADER_KEY,
    HEADER_NAME,
    Identity,
    encode_identity,
    to_headers,
)
from pidlease.kafka.records.record_batch import (
    CRC_AT,
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    BatchHeader,
    read_header,
    write_header,
)
from pidlease.kafka.records.varints import VarintReader, encode_varint

_UINT32: Final = struct.Struct(">I")
_DECODERS: Final = {
    "gzip": gzip_decode, "snappy": snappy_decode, "lz4": lz4_decode, "zstd": zstd_decode,
}  # fmt: skip
_NO_IDENTITY: Final = encode_identity(Identity(1, "", 0, 0, 0))
_KEY: Final = encode_varint(len(HEADER_KEY)) + HEADER_KEY
_HEADER_FRONT: Final = _KEY + encode_varint(len(_NO_IDENTITY))
#: No limit of a batch's size.
_ANY_SIZE: Final = 2**31 - 1
#: The timestamp of a record without one, and the highest.
_NO_TIMESTAMP: Final = -1
_TIMESTAMP_MAX: Final = 2**63 - 1


class CopiedRecords(NamedTuple):
    """The records of a batch for the destination.

    Attributes:
        payload: not compressed; the first record's first header is `pidlease`.
        identity_at: the position of that header's value, which is a placeholder.
        number: how many records.
    """

    payload: bytearray
    identity_at: int
    number: int
    base_timestamp: int
    max_timestamp: int


class CopiedBatch(PendingBatch):
    """A pending batch of records of the source.

    Parameters:
        offsets: each record's offset at the source; they rise.
        codec: of the batch; None: no compression.
        source_bytes: bytes of the source's batches that it copies.
        made_at: seconds of the monotonic clock.

    Attributes:
        records: how many records it had at first.
        cut_off: how many of those the destination had already.
        weight: its memory in bytes until it is acknowledged.
    """

    __slots__ = ("_codec", "_records", "cut_off", "records", "source_bytes", "weight")

    def __init__(
        self,
        records: CopiedRecords,
        offsets: Sequence[int],
        codec: str | None,
        source_bytes: int,
        made_at: float,
    ) -> None:
        self._records: CopiedRecords | None = records
        self._codec: Final = codec
        self.source_bytes: Final = source_bytes
        self.records: Final = len(offsets)
        self.cut_off = 0
        self.futures: Futures = []
        self.ids = cast(list[int], offsets)  # only read: no record is added to a copied batch
        self.cost = len(records.payload)
        self.weight: Final = max(self.cost, source_bytes)
        self.made_at = made_at
        self.data = bytearray()
        self.span: SequenceRange | None = None
        self.sends = 0
        self.repeats = []

    @override
    def seal(self, span: SequenceRange, codec: str | None) -> None:
        # The codec of the source's batch is kept.
        if self._records is None:
            raise ValueError("the batch is sealed")
        payload, at, count, base_timestamp, max_timestamp = self._records
        self._records = None
        identity = Identity(span.pid, "", span.generation, span.first, span.last)
        payload[at : at + len(_NO_IDENTITY)] = encode_identity(identity)
        number, stored = 0, bytes(payload)
        if self._codec is not None:
            number, compress = CODECS[self._codec]
            stored = compress(stored)
        data = bytearray(write_header(BatchHeader(
            0, HEADER_BYTES - LENGTH_PREFIX_BYTES + len(stored), -1, MAGIC, 0, number, count - 1,
            base_timestamp, max_timestamp, span.pid, span.generation & 0x7FFF,
            span.first & 0x7FFFFFFF, count,
        )))  # fmt: skip
        data += stored
        _UINT32.pack_into(data, CRC_AT, crc32c(memoryview(data)[CRC_FROM:]))
        self.span, self.data = span, data

    @override
    def drop_below(self, number: int) -> tuple[Futures, list[int]]:
        raise NotImplementedError("a copier's lease never asks for this")

    @override
    def cut(self, expected: int, codec: str | None, *, gaps: bool) -> Futures:
        # The one future of the batch completes with its rest.
        span = self.sealed
        gone = sum(offset < expected for offset in self.ids)
        writer = RecordWriter()
        for place, record in enumerate(DefaultRecordBatch(bytes(self.data))):
            if place >= gone:
                writer.add(record.timestamp, record.key, record.value, record.headers)
        self._records = writer.records()
        self.ids = self.ids[gone:]
        self.cut_off += gone
        self.seal(span._replace(first=expected, number=self.ids[0]), None)
        return []


class RecordWriter:
    """Encodes records one by one, without their header `pidlease`."""

    def __init__(self) -> None:
        self._builder: Final = DefaultRecordBatchBuilder(MAGIC, 0, 0, -1, -1, -1, _ANY_SIZE)
        #: Added to all timestamps that the builder gets.
        self._shift = 0
        self.count = 0

    def add(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:
        """Encode a record."""
        kept = [each for each in headers if each[0] != HEADER_NAME] if headers else []
        if not self.count:
            kept.insert(0, (HEADER_NAME, _NO_IDENTITY))
            # For aiokafka a first timestamp of -1 is none yet: the next one would replace it.
            self._shift = int(timestamp == _NO_TIMESTAMP)
        if self._shift:
            timestamp = min(timestamp, _TIMESTAMP_MAX - 1) + 1
        self._builder.append(self.count, timestamp, key, value, kept)
        self.count += 1

    def records(self) -> CopiedRecords:
        """Return the encoded records."""
        data = self._builder.build()
        header = read_header(data)
        payload = bytearray(memoryview(data)[HEADER_BYTES:])
        reader = VarintReader(payload)
        to_headers(reader)
        reader.varint()
        identity_at = reader.at + len(_HEADER_FRONT)
        # The records have only their distances from the base timestamp.
        times = header.base_timestamp - self._shift, header.max_timestamp - self._shift
        return CopiedRecords(payload, identity_at, self.count, *times)


def unpacked(header: BatchHeader, batch: Buffer) -> Buffer:
    """Return a batch's records, decompressed.

    Raises:
        ValueError: the codec cannot decompress them.
    """
    records = memoryview(batch)[HEADER_BYTES:]
    if not header.is_compressed:
        return records
    try:
        content: Buffer = _DECODERS[header.codec](bytes(records))
    except Exception as error:  # noqa: BLE001 - each codec has errors of its own
        raise ValueError(f"the records are no {header.codec}: {error}") from None
    return content


def with_identity(header: BatchHeader, records: Buffer) -> CopiedRecords | None:
    """Give a batch's records a new header `pidlease`, in place of one that they may have.

    Parameters:
        header: of a batch without offset gaps.
        records: not compressed.

    Returns:
        None: other records than the first seem to have such a header, too.

    Raises:
        ValueError: they are no records.
    """
    view = memoryview(records)
    reader = VarintReader(view)
    body, end = to_headers(reader)
    headers_at = reader.at
    kept: list[Buffer] = []
    count = reader.varint()
    for _ in range(count):
        begin = reader.at
        key = reader.take(reader.varint())
        reader.skip(max(reader.varint(), 0))
        if key != HEADER_KEY:
            kept.append(view[begin : reader.at])
    if reader.at != end:
        raise ValueError("the first record's length does not fit")
    rest = bytes(view[end:])
    if _KEY in rest:
        return None
    number = encode_varint(len(kept) + 1)
    middle = view[body:headers_at]
    size = len(middle) + len(number) + len(_HEADER_FRONT) + len(_NO_IDENTITY)
    size += sum(map(len, kept))
    payload = bytearray(b"".join((encode_varint(size), middle, number, _HEADER_FRONT)))
    identity_at = len(payload)
    payload += b"".join((_NO_IDENTITY, *kept, rest))
    times = header.base_timestamp, header.max_timestamp
    return CopiedRecords(payload, identity_at, header.records, *times)
