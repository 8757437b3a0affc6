"""Several sends in one batch: what a log takes one batch at a time of, and small ones are many.

Each send keeps its `pidlease` header on its first record; it says of how many records the send is
(`identity`, version 2). The records are written anew, by aiokafka, so only small sends are joined.
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

#: Larger sends go alone.
SEND_BYTES_MAX: Final = 4 << 10
#: How much goes into one batch, of bytes and of sends: a millisecond's work.
JOINED_BYTES_MAX: Final = 64 << 10
JOINED_SENDS_MAX: Final = 200

_KEY: Final = HEADER_KEY.decode()
_NO_CODEC: Final = 0


def can_join(header: BatchHeader) -> bool:
    """Whether a send is one that goes well with others."""
    return header.size <= SEND_BYTES_MAX and not header.is_compressed


def join(sends: Sequence[Buffer]) -> bytearray | None:
    """One batch of several sends; None: one of them cannot be taken apart.

    Parameters:
        sends: batches of the log's own records, intact, each with its identity.
    """
    builder: Any = DefaultRecordBatchBuilder(MAGIC, _NO_CODEC, 0, -1, -1, -1, 2 * JOINED_BYTES_MAX)
    place = 0
    for data in sends:
        try:
            records = list(DefaultRecordBatch(bytes(data)))
            headers = [
                _with_count(records[0].headers, len(records)),
                *(r.headers for r in records[1:]),
            ]
        except Exception:  # noqa: BLE001 - whatever aiokafka cannot read: it goes as it came
            return None
        for record, its in zip(records, headers, strict=True):
            if builder.append(place, record.timestamp, record.key, record.value, its) is None:
                return None
            place += 1
    joined: bytearray = builder.build()
    return joined


def _with_count(headers: Sequence[tuple[str, bytes | None]], records: int) -> list[Any]:
    """The first record's headers, that say of how many records the send is.

    Raises:
        IdentityError: there is no identity.
    """
    place, identity = _identity(headers)
    counted: list[Any] = list(headers)
    counted[place] = (_KEY, encode_identity(identity._replace(records=records)))
    return counted


def parted(logged: LoggedBatch, data: Buffer) -> Iterator[LoggedBatch]:
    """The sends that a batch of the log holds.

    Parameters:
        logged: the batch.
        data: all of it.

    Raises:
        UnidentifiedBatchError: one of them does not name its producer.
    """
    header, identity = logged
    if identity is None or not identity.records:
        yield logged
        return
    try:
        records = list(DefaultRecordBatch(bytes(data)))
        place = 0
        while place < len(records):
            _, found = _identity(records[place].headers)
            if not 0 < found.records <= len(records) - place:
                raise IdentityError(f"a send of {found.records} records")  # noqa: TRY301
            yield LoggedBatch(_part(header, place, found.records), found)
            place += found.records
    except Exception as error:
        raise UnidentifiedBatchError(f"offset {header.base_offset}: {error}") from error


def _identity(headers: Sequence[tuple[str, bytes | None]]) -> tuple[int, Identity]:
    """Where among a record's headers the identity stands, and what it says.

    Raises:
        IdentityError: there is none.
    """
    for place, (key, value) in enumerate(headers):
        if key == _KEY and value is not None:
            return place, decode_identity(value)
    raise IdentityError("a send without a header pidlease")


def _part(header: BatchHeader, place: int, records: int) -> BatchHeader:
    """What the header of a part would be; its bytes are not what they were."""
    return header._replace(
        base_offset=header.base_offset + place,
        last_offset_delta=records - 1,
        records=records,
        crc=UNKNOWN_CRC,
    )
