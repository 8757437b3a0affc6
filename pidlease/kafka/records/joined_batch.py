"""Joins several small sends into one batch, for a log that is slow for many small batches.

Each send keeps the header `pidlease` on its first record, with the send's number of records
(`identity_header`, version 2). aiokafka encodes the records again, so only small sends are joined.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from pidlease.core.buffer import Buffer
from pidlease.core.state import UNKNOWN_CRC
from pidlease.kafka.records.identity_header import (
    HEADER_KEY,
    Identity,
    IdentityError,
    decode_identity,
    encode_identity,
)
from pidlease.kafka.records.record_batch import MAGIC, BatchHeader
from pidlease.kafka.records.writer_batch import LoggedBatch
from pidlease.storage.errors import UnidentifiedBatchError

#: Larger sends are not joined.
SEND_BYTES_MAX: Final = 4 << 10
#: Limits of one joined batch, in bytes and in sends: about a millisecond's work.
JOINED_BYTES_MAX: Final = 64 << 10
JOINED_SENDS_MAX: Final = 200

_KEY: Final = HEADER_KEY.decode()
_NO_CODEC: Final = 0
_NO_TIMESTAMP: Final = -1


def can_join(header: BatchHeader) -> bool:
    """Return whether to join a send with others."""
    return header.size <= SEND_BYTES_MAX and not header.is_compressed


def join(sends: Sequence[Buffer]) -> bytearray | None:
    """Join sends into one batch; None: they cannot be joined, or one of them not be decoded.

    Parameters:
        sends: intact batches, each with its identity.
    """
    builder: Any = DefaultRecordBatchBuilder(MAGIC, _NO_CODEC, 0, -1, -1, -1, 2 * JOINED_BYTES_MAX)
    index = 0
    for data in sends:
        try:
            records = list(DefaultRecordBatch(bytes(data)))
            headers = [
                _with_count(records[0].headers, len(records)),
                *(r.headers for r in records[1:]),
            ]
        except Exception:  # noqa: BLE001 - aiokafka cannot read it: it is sent as it is
            return None
        if not index and records[0].timestamp == _NO_TIMESTAMP:
            return None  # for aiokafka it is none yet: the next one would replace it
        for record, its in zip(records, headers, strict=True):
            if builder.append(index, record.timestamp, record.key, record.value, its) is None:
                return None
            index += 1
    joined: bytearray = builder.build()
    return joined


def _with_count(headers: Sequence[tuple[str, bytes | None]], records: int) -> list[Any]:
    """Return the first record's headers, with the send's number of records in the identity.

    Raises:
        IdentityError: there is no identity.
    """
    index, identity = _identity(headers)
    counted: list[Any] = list(headers)
    counted[index] = (_KEY, encode_identity(identity._replace(records=records)))
    return counted


def parted(logged: LoggedBatch, data: Buffer) -> Iterator[LoggedBatch]:
    """Split a batch of the log into its sends.

    Parameters:
        data: the whole batch, encoded.

    Raises:
        UnidentifiedBatchError: a send does not name its producer.
    """
    header, first = logged
    if first is None or not first.records:
        yield logged
        return
    try:
        records = list(DefaultRecordBatch(bytes(data)))
        index = 0
        while index < len(records):
            _, identity = _identity(records[index].headers)
            if not 0 < identity.records <= len(records) - index:
                raise IdentityError(f"a send of {identity.records} records")  # noqa: TRY301
            yield LoggedBatch(_part(header, index, identity.records), identity)
            index += identity.records
    except Exception as error:
        raise UnidentifiedBatchError(f"offset {header.base_offset}: {error}") from error


def _identity(headers: Sequence[tuple[str, bytes | None]]) -> tuple[int, Identity]:
    """Return the index of the identity among a record's headers, and the identity.

    Raises:
        IdentityError: there is none.
    """
    for index, (key, value) in enumerate(headers):
        if key == _KEY and value is not None:
            return index, decode_identity(value)
    raise IdentityError("a send without a header pidlease")


def _part(header: BatchHeader, index: int, records: int) -> BatchHeader:
    """Return the header that a send would have as a batch; its original bytes are lost."""
    return header._replace(
        base_offset=header.base_offset + index,
        last_offset_delta=records - 1,
        records=records,
        crc=UNKNOWN_CRC,
    )
