"""Converts messages of formats 0 and 1, which topics from before Kafka 0.11 have, to batches.

Brokers before 4.0 also write them where a topic's `message.format.version` says so, and any broker
returns them as they are. They have no producer and no headers. Source: Kafka's LegacyRecord and
AbstractLegacyRecordBatch; KIP-31 and KIP-32 for format 1.
"""

import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from typing import Final, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from pidlease.core.buffer import Buffer
from pidlease.kafka.records.batch_records import UndecodableError, unpack_all
from pidlease.kafka.records.identity_header import IdentityError
from pidlease.kafka.records.record_batch import (
    CODEC_BITS,
    CODECS,
    LENGTH_PREFIX_BYTES,
    MAGIC,
    CorruptBatchError,
)

#: What all formats have in common: offset, length of the rest, and the format.
_ENTRY: Final = struct.Struct(">qi4xb")
#: The CRC-32 of all bytes after it.
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 12
_FORMAT_AT: Final = 16
_ATTRIBUTES_AT: Final = 17
_TIMESTAMP: Final = struct.Struct(">q")
_TIMESTAMP_AT: Final = 18
_LENGTH: Final = struct.Struct(">i")
#: The length of the shortest message: it has neither key nor value.
_LENGTH_MIN: Final = 14
_LOG_APPEND_TIME_BIT: Final = 0x08
_NO_TIMESTAMP: Final = -1
#: The most messages that become one batch.
_JOINED_MAX: Final = 500
_BATCH_BYTES_MAX: Final = 1 << 30
_LZ4: Final = "lz4"


class OldFormatError(Exception):
    """A message of an old format cannot be read.

    Attributes:
        offset: the first offset that cannot be read.
        next_offset: the offset after the message.
    """

    def __init__(self, offset: int, next_offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset: Final = offset
        self.next_offset: Final = next_offset


class Entry(NamedTuple):
    """A batch, or a message of an old format, among the bytes of a log.

    Attributes:
        at: its position.
        after: the position after it.
        offset: its base offset; of an old message, the offset of the last record in it.
        is_old: whether it is of an old format.
    """

    at: int
    after: int
    offset: int
    is_old: bool


class _Message(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def entries_in(data: Buffer) -> Iterator[Entry]:
    """Yield the whole batches and messages of any format, unchecked.

    Raises:
        CorruptBatchError: the bytes at the next position are neither.
    """
    at, size = 0, len(data)
    while at + _ENTRY.size <= size:
        offset, length, kind = _ENTRY.unpack_from(data, at)
        if length < _LENGTH_MIN:
            raise CorruptBatchError(f"at byte {at}, a length of {length}")
        after = at + LENGTH_PREFIX_BYTES + length
        if after > size:
            return
        yield Entry(at, after, offset, 0 <= kind < MAGIC)
        at = after


def check_message(entry: Buffer) -> None:
    """Check that a message of an old format is intact.

    Raises:
        CorruptBatchError: it is not.
    """
    (crc,) = _CRC.unpack_from(entry, _CRC_AT)
    found = zlib.crc32(memoryview(entry)[_FORMAT_AT:])
    if found != crc:
        raise CorruptBatchError(f"its CRC is {found:#010x}, and it says {crc:#010x}")


def has_old_format(data: Buffer) -> bool:
    """Return whether there is a message of an old format among some whole batches."""
    at, last, unpack = 0, len(data) - _ENTRY.size, _ENTRY.unpack_from
    while at <= last:  # not by `entries_in`: this runs for each batch
        _, length, kind = unpack(data, at)
        if kind < MAGIC:
            return bool(length >= _LENGTH_MIN and kind >= 0)
        at += LENGTH_PREFIX_BYTES + max(length, 0)
    return False


def in_current_format(data: bytes, offset: int) -> bytes:
    """Return batches of format 2 with the records of some bytes of a log. May take long.

    Parameters:
        data: batches and messages of any format; the last one may be cut off.
        offset: what is before it is not needed. If a later message cannot be read, what is returned
            ends before it.

    Raises:
        OldFormatError: the message at the offset cannot be read.
    """
    if not has_old_format(data):
        return data
    view = memoryview(data)
    parts: list[Buffer] = []
    messages: list[_Message] = []
    following = offset
    end = 0
    for entry in _entries_before_damage(data):
        end = entry.after
        if not entry.is_old:
            parts += (*_batches_of(messages), view[entry.at : entry.after])
            messages.clear()
            continue
        if entry.offset < following:
            continue
        try:
            messages += _messages_of(view[entry.at : entry.after])
        except (CorruptBatchError, UndecodableError, IdentityError) as error:
            if parts or messages:
                return b"".join((*parts, *_batches_of(messages)))
            kind = data[entry.at + _FORMAT_AT]
            reason = f"a message of format {kind}: {error}"
            raise OldFormatError(following, entry.offset + 1, reason) from None
        following = entry.offset + 1
    return b"".join((*parts, *_batches_of(messages), view[end:]))


def _entries_before_damage(data: bytes) -> list[Entry]:
    """Return the entries at the beginning; the reader of the rest finds what is wrong with it."""
    found = []
    with suppress(CorruptBatchError):
        for entry in entries_in(data):
            found.append(entry)  # noqa: PERF402 - those before the error count
    return found


def _batches_of(messages: list[_Message]) -> Iterator[bytes]:
    # The builder takes its base timestamp from the first message that has one.
    runs = (list(run) for _, run in groupby(messages, lambda each: each.timestamp < 0))
    for some in (
        run[at : at + _JOINED_MAX] for run in runs for at in range(0, len(run), _JOINED_MAX)
    ):
        builder = DefaultRecordBatchBuilder(
            magic=MAGIC, compression_type=0, is_transactional=False, producer_id=-1,
            producer_epoch=-1, base_sequence=-1, batch_size=_BATCH_BYTES_MAX,
        )  # fmt: skip
        base = some[0].offset
        for offset, timestamp, key, value in some:
            builder.append(offset - base, timestamp, key, value, [])
        batch = builder.build()
        _TIMESTAMP.pack_into(batch, 0, base)  # the offset; the CRC does not cover it
        yield bytes(batch)


def _messages_of(entry: memoryview) -> list[_Message]:
    """Return the records of a message: one, or those that are compressed in its value.

    Raises:
        CorruptBatchError: its CRC is wrong, or that of one of them.
        UndecodableError: it is damaged, or they are.
        IdentityError: they were not compressed by its codec.
    """
    offset, _, kind = _ENTRY.unpack_from(entry)
    attributes = entry[_ATTRIBUTES_AT]
    message = _message(entry)
    codec = CODECS[attributes & CODEC_BITS] if attributes & CODEC_BITS < len(CODECS) else "unknown"
    if codec == CODECS[0]:
        return [message]
    if codec not in CODECS[1:4]:
        raise UndecodableError(f"it has no such compression ({attributes & CODEC_BITS})")
    if codec == _LZ4 and kind == 0:
        raise UndecodableError(
            "lz4 of format 0 has a wrong checksum (KIP-57), which only old clients of Kafka write"
        )
    if message.value is None:
        raise UndecodableError("it is compressed, and has no value")
    inner = memoryview(bytes(unpack_all(codec, memoryview(message.value))))
    found = [(inner[each.at : each.after], each) for each in entries_in(inner)]
    if not found or found[-1][1].after != len(inner):
        raise UndecodableError("what is compressed in it is no message, or cut off")
    # KIP-31: in format 1 the offsets within count from the first one, and it has the last one's.
    base = offset - found[-1][1].offset if kind == 1 else 0
    messages = []
    for part, _ in found:
        if part[_FORMAT_AT] != kind or part[_ATTRIBUTES_AT] & CODEC_BITS:
            raise UndecodableError("what is compressed in it is of another format, or compressed")
        one = _message(part)
        is_append_time = kind == 1 and attributes & _LOG_APPEND_TIME_BIT
        time_ms = message.timestamp if is_append_time else one.timestamp
        messages.append(one._replace(offset=base + one.offset, timestamp=time_ms))
    return messages


def _message(entry: memoryview) -> _Message:
    """Read a message as it is, checked.

    Raises:
        CorruptBatchError: its CRC is wrong.
        UndecodableError: its fields do not fit it.
    """
    offset, _, kind = _ENTRY.unpack_from(entry)
    check_message(entry)
    timestamp, at = _NO_TIMESTAMP, _TIMESTAMP_AT
    try:
        if kind == 1:
            (timestamp,) = _TIMESTAMP.unpack_from(entry, at)
            at += _TIMESTAMP.size
        key, at = _content(entry, at)
        value, at = _content(entry, at)
    except struct.error as error:
        raise UndecodableError(f"it is too short ({error})") from None
    if at != len(entry):
        raise UndecodableError("its key and its value do not fit its length")
    return _Message(offset, timestamp, key, value)


def _content(entry: memoryview, at: int) -> tuple[bytes | None, int]:
    (length,) = _LENGTH.unpack_from(entry, at)
    at += _LENGTH.size
    if length < 0:
        return None, at
    return bytes(entry[at : at + length]), at + length
