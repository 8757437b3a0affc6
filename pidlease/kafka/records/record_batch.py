"""Reads, checks and writes the header of Kafka's record batch v2; never reads the records.

Layout: Kafka's DefaultRecordBatch. The CRC-32C covers all bytes from the attributes on, so the base
offset and the leader epoch may be overwritten without a new CRC.
"""

import struct
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from crc32c import crc32c

from pidlease.core.buffer import Buffer
from pidlease.core.state import CRC_CODEC_FROM, UNKNOWN_CRC

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_PLACE: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_OFFSET_MAX: Final = 2**63 - 1

HEADER_BYTES: Final = _HEADER.size  # 61
#: The bytes before those that `batch_length` counts: the base offset and the length itself.
LENGTH_PREFIX_BYTES: Final = 12
_LEADER_EPOCH_AT: Final = 12
_LENGTH: Final = struct.Struct(">i")
#: No message of any format is shorter (LegacyRecord.RECORD_OVERHEAD_V0).
_LENGTH_MIN: Final = 14
#: The position of the batch length.
LENGTH_AT: Final = 8
#: The position of the CRC.
CRC_AT: Final = 17
_CRC: Final = struct.Struct(">I")
#: The position of the base and the maximum timestamp.
_TIMES_AT: Final = 27
_TIMES: Final = struct.Struct(">qq")
#: The position of producer id, producer epoch and base sequence.
PRODUCER_AT: Final = 43
#: The position of the attributes, where the bytes covered by the CRC begin.
CRC_FROM: Final = 21
#: A batch's base offset and length, and its last field, the number of its records.
_OFFSET_LENGTH_RECORDS: Final = struct.Struct(f">qi{HEADER_BYTES - LENGTH_PREFIX_BYTES - 4}xi")
ATTRIBUTES_AT: Final = CRC_FROM
MAGIC: Final = 2
#: Compression types by the low three attribute bits.
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

#: The attribute bits of the compression type.
CODEC_BITS: Final = 0x07
#: The bits of a CRC beside those of the codec.
_CRC_BITS: Final = (1 << CRC_CODEC_FROM) - 1
_LOG_APPEND_TIME_BIT: Final = 0x08
_TRANSACTIONAL_BIT: Final = 0x10
_CONTROL_BIT: Final = 0x20
#: Set by compaction, with a time in the place of the base timestamp (KIP-534).
_DELETE_HORIZON_BIT: Final = 0x40
#: The attribute bits that only a broker sets, or that need a broker with transactions.
_BROKERS_BITS: Final = _LOG_APPEND_TIME_BIT | _TRANSACTIONAL_BIT | _CONTROL_BIT
#: A record without key, value and headers: seven fields of a byte.
RECORD_BYTES_MIN: Final = 7
#: What is compressed may be larger than it is by a factor of 2^15; no format reaches that.
_COMPRESSED_BITS: Final = 15


class BatchHeader(NamedTuple):
    """The fields of the 61 bytes before the records, unchecked."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def size(self) -> int:
        """The size of the whole batch, in bytes."""
        return self.batch_length + LENGTH_PREFIX_BYTES

    @property
    def is_compressed(self) -> bool:
        """Whether the records are compressed."""
        return bool(self.attributes & CODEC_BITS)

    @property
    def is_control(self) -> bool:
        """Whether it is a control batch (a marker), without records of a producer."""
        return bool(self.attributes & _CONTROL_BIT)

    @property
    def is_transactional(self) -> bool:
        """Whether it is part of a transaction."""
        return bool(self.attributes & _TRANSACTIONAL_BIT)

    @property
    def is_log_append_time(self) -> bool:
        """Whether the log has set its own timestamp."""
        return bool(self.attributes & _LOG_APPEND_TIME_BIT)

    @property
    def codec(self) -> str:
        """The name of the records' compression type."""
        return CODECS[self.attributes & CODEC_BITS]

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.base_offset + self.last_offset_delta


def comparable_crc(header: BatchHeader, crc: int) -> int:
    """Return a batch's CRC in the form in which it is compared with that of a duplicate (ADR 21).

    Its highest bits are the codec, because Kafka compresses a batch anew where `compression.type`
    is another codec. Batches of different codecs are not compared (`core.state.differ`).

    Parameters:
        header: the batch's header, of a client or of the log.
        crc: of the batch.

    Returns:
        UNKNOWN_CRC: the log has rewritten the batch. It has set its own time, or compaction has
        removed records, or has noted when it may remove others.
    """
    attributes = header.attributes
    if (
        attributes & (_LOG_APPEND_TIME_BIT | _DELETE_HORIZON_BIT)
        or header.records != header.last_offset_delta + 1
    ):
        return UNKNOWN_CRC
    return crc & _CRC_BITS | (attributes & CODEC_BITS) << CRC_CODEC_FROM


#: Makes a NamedTuple from its fields without a call of a Python function.
_new_tuple: Final[Callable[[type[BatchHeader], tuple[int, ...]], BatchHeader]] = tuple.__new__


class CorruptBatchError(Exception):
    """The bytes are not an intact batch: truncated, of another format, or changed in transit."""


class InvalidBatchError(Exception):
    """The batch is intact, but clients may not send such a batch."""


def read_header(data: Buffer, at: int = 0) -> BatchHeader:
    """Read a header, unchecked.

    Raises:
        CorruptBatchError: there are not enough bytes.
    """
    try:
        return BatchHeader._make(_HEADER.unpack_from(data, at))
    except struct.error:
        raise CorruptBatchError(
            f"{len(data) - at} bytes are too few for a batch header of {HEADER_BYTES}"
        ) from None


def read_from_client(data: Buffer) -> BatchHeader | None:
    """Read the header of a client's batch; None: `check_intact` or `check_from_client` raises.

    This does all their checks in one function, because it runs for every batch.
    """
    try:
        header = _new_tuple(BatchHeader, _HEADER.unpack_from(data))
    except struct.error:
        return None
    _, length, _, magic, crc, attributes, delta, _, _, _, _, _, records = header
    if (
        magic != MAGIC
        or length + LENGTH_PREFIX_BYTES != len(data)
        or records < 1
        or records != delta + 1
        or attributes & _BROKERS_BITS
        or attributes & CODEC_BITS >= len(CODECS)
        or records * RECORD_BYTES_MIN > len(data) << (attributes & CODEC_BITS and _COMPRESSED_BITS)
        or crc32c(memoryview(data)[CRC_FROM:]) != crc
    ):
        return None
    return header


def no_batch(data: Buffer) -> str:
    """Return why bytes hold no whole batch of format 2; empty: they do, if perhaps a damaged one.

    As Kafka's ByteBufferLogInputStream and ProduceRequest.validateRecords decide it: what ends too
    early is no batch, and only a length or a CRC that is wrong is damage.

    Parameters:
        data: a partition's records in a Produce of version 3 or above.
    """
    size = len(data)
    if size < LENGTH_PREFIX_BYTES:
        return f"{size} bytes are no batch" if size else "no batch at all"
    (length,) = _LENGTH.unpack_from(data, LENGTH_AT)
    if length < _LENGTH_MIN:
        return ""
    due = length + LENGTH_PREFIX_BYTES
    if size < max(due, CRC_AT):
        return f"a batch of {due} bytes, cut off after {size}"
    magic = memoryview(data)[CRC_AT - 1]
    return f"record format {magic}; only {MAGIC} is taken" if magic < MAGIC else ""


class WholeBatches(NamedTuple):
    """The whole batches at the beginning of a part of a log.

    Attributes:
        size: in bytes.
        batches: their number.
        records: the number of their records.
        end_offset: the offset after their last record; -1: there is no whole batch.
    """

    size: int
    batches: int
    records: int
    end_offset: int


def whole_batches(
    data: Buffer, before: int = _OFFSET_MAX, batches_max: int = sys.maxsize
) -> WholeBatches:
    """Return the size and the counts of the whole batches in a part of a log, by their headers.

    The headers are not checked.

    Parameters:
        before: end at the first batch with this base offset, or a higher one.
        batches_max: end after so many batches.
    """
    at = batches = records = 0
    last, size, end = -1, len(data), len(data) - HEADER_BYTES
    unpack = _OFFSET_LENGTH_RECORDS.unpack_from
    while at <= end and batches < batches_max:
        offset, length, count = unpack(data, at)
        following = at + max(length, 0) + LENGTH_PREFIX_BYTES
        if following > size or offset >= before:
            break
        at, last = following, at
        batches += 1
        records += count
    end_offset = read_header(data, last).last_offset + 1 if batches else -1
    return WholeBatches(at, batches, records, end_offset)


def write_header(header: BatchHeader) -> bytes:
    """Encode a header, unchecked."""
    return _HEADER.pack(*header)


def write_empty_batch(header: BatchHeader) -> bytes:
    """Encode a batch with the offsets and the producer of another one, but without records."""
    length = HEADER_BYTES - LENGTH_PREFIX_BYTES
    attributes = header.attributes & ~CODEC_BITS
    empty = header._replace(batch_length=length, attributes=attributes, records=0)
    crc = crc32c(write_header(empty)[CRC_FROM:])
    return write_header(empty._replace(crc=crc))


def check_intact(header: BatchHeader, data: Buffer) -> None:
    """Check that `data` is exactly the batch of its header.

    Raises:
        CorruptBatchError: the length, the format or the CRC is wrong.
    """
    if header.magic != MAGIC:
        raise CorruptBatchError(f"record format {header.magic}; only {MAGIC} is understood")
    if header.size != len(data) or header.size < HEADER_BYTES:
        raise CorruptBatchError(f"batch says {header.size} bytes, and has {len(data)}")
    found = crc32c(memoryview(data)[CRC_FROM:])
    if found != header.crc:
        raise CorruptBatchError(f"CRC is {found:#010x}, the header says {header.crc:#010x}")


def check_from_client(header: BatchHeader) -> None:
    """Check the header of a client's batch as a broker does (Kafka's LogValidator).

    A broker also walks through the records, which costs time for each. Here they are not read.

    Raises:
        InvalidBatchError: a log must not contain such a batch.
    """
    if header.records < 1 or header.records != header.last_offset_delta + 1:
        raise InvalidBatchError(
            f"{header.records} records do not fit a last offset delta of {header.last_offset_delta}"
        )
    attributes = header.attributes
    bits = attributes & CODEC_BITS and _COMPRESSED_BITS
    if header.records * RECORD_BYTES_MIN > header.size << bits:
        # The log assigns as many offsets as the header says, and a segment has 2^31 of them.
        raise InvalidBatchError(f"{header.records} records do not fit {header.size} bytes")
    if attributes & _CONTROL_BIT:
        raise InvalidBatchError("control batches are the broker's own")
    if header.is_transactional:
        raise InvalidBatchError("transactional batches are not served")
    if attributes & _LOG_APPEND_TIME_BIT:
        raise InvalidBatchError("only a broker marks timestamps as the log's own")
    if attributes & CODEC_BITS >= len(CODECS):
        raise InvalidBatchError(f"compression type {attributes & CODEC_BITS} is not known")


def set_times(data: bytearray, base: int, maximum: int) -> None:
    """Set a batch's base and maximum timestamp, with a new CRC; the records have differences."""
    _TIMES.pack_into(data, _TIMES_AT, base, maximum)
    _CRC.pack_into(data, CRC_AT, crc32c(memoryview(data)[CRC_FROM:]))


def place(data: bytearray | memoryview, offset: int) -> None:
    """Set a batch's base offset to the one that the log assigns, and its leader epoch to 0."""
    _PLACE.pack_into(data, 0, offset)
    _LEADER_EPOCH.pack_into(data, _LEADER_EPOCH_AT, 0)
