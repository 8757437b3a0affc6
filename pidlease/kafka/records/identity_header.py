"""The record header `pidlease`, which identifies the producer of a batch.

Kafka's batch header has no room for it: policies strict, monotonic and epoch have 64-bit numbers,
and a partition's writer appends their batches. So the first record of each send has the header:

    version i8 = 1 | kind i8 | generation i64 | first i64 | last i64 | PID i64, or a name in UTF-8

Kind 1 has a PID, kind 2 a producer id of policy epoch. All numbers are big-endian, as in Kafka.
Version 2 is used in batches that a server joins from several sends, with Kafka as the log: the
number of records of the send, i32, follows `last`.
"""

import struct
from typing import Final, NamedTuple

from pidlease.core.buffer import Buffer
from pidlease.kafka.records import varints
from pidlease.kafka.records.varints import VarintReader

#: The header's key. Users' records must not have a header with this key.
HEADER_NAME: Final = "pidlease"
HEADER_KEY: Final = HEADER_NAME.encode()
#: The longest producer id of policy epoch, in bytes.
NAME_BYTES_MAX: Final = 256

#: Only so many headers of the first record are read; pidlease's own clients put this one first.
_HEADERS_MAX: Final = 100

_VERSION: Final = 1
_VERSION_JOINED: Final = 2
_PID: Final = 1
_NAME: Final = 2
_FRONT: Final = struct.Struct(">bbqqq")
_RECORDS: Final = struct.Struct(">i")
_NUMBER: Final = struct.Struct(">q")


class IdentityError(Exception):
    """The header is invalid, or a batch lacks it but must have it."""


class CutOffError(IdentityError):
    """The first record continues after the bytes that were given."""


class Identity(NamedTuple):
    """The producer of a send, and its sequence numbers.

    Attributes:
        pid: the PID; -1: the producer has a name instead.
        name: the producer id of policy epoch; empty: the producer has a PID.
        generation: the producer's fencing number.
        first: the sequence number of the first record.
        last: the sequence number of the last record.
        records: how many records of the batch belong to the send; 0: all.
    """

    pid: int
    name: str
    generation: int
    first: int
    last: int
    records: int = 0


def encode_identity(identity: Identity) -> bytes:
    """Return the header's value.

    Raises:
        ValueError: a number does not fit, or the name is empty or too long.
    """
    kind = _NAME if identity.name else _PID
    try:
        version = _VERSION_JOINED if identity.records else _VERSION
        front = _FRONT.pack(version, kind, identity.generation, identity.first, identity.last)
        front += _RECORDS.pack(identity.records) if identity.records else b""
        rest = identity.name.encode() if identity.name else _NUMBER.pack(identity.pid)
    except struct.error as error:
        raise ValueError(f"{identity}: {error}") from None
    if len(rest) > NAME_BYTES_MAX:
        raise ValueError(f"a producer id of {len(rest)} bytes; at most {NAME_BYTES_MAX}")
    return front + rest


def decode_identity(value: bytes) -> Identity:
    """Parse the header's value.

    Raises:
        IdentityError: it is invalid.
    """
    if len(value) <= _FRONT.size:
        raise IdentityError(f"a header pidlease of {len(value)} bytes is too short")
    version, kind, generation, first, last = _FRONT.unpack_from(value)
    if version not in (_VERSION, _VERSION_JOINED):
        raise IdentityError(f"a header pidlease of version {version}, which is not known")
    if generation < 0 or first < 0 or last < first:
        numbers = f"generation {generation}, sequences {first}..{last}"
        raise IdentityError(f"a header pidlease with {numbers}")
    rest, records = value[_FRONT.size :], 0
    if version == _VERSION_JOINED:
        if len(rest) <= _RECORDS.size:
            raise IdentityError(f"a header pidlease of {len(value)} bytes is too short")
        (records,) = _RECORDS.unpack_from(rest)
        rest = rest[_RECORDS.size :]
        if records < 1:
            raise IdentityError(f"a header pidlease of a send of {records} records")
    if kind == _PID:
        if len(rest) != _NUMBER.size:
            raise IdentityError(f"a header pidlease with a PID of {len(rest)} bytes")
        (pid,) = _NUMBER.unpack(rest)
        return Identity(pid, "", generation, first, last, records)
    if kind == _NAME:
        return Identity(-1, _name(rest), generation, first, last, records)
    raise IdentityError(f"a header pidlease of kind {kind}")


def _name(content: bytes) -> str:
    if len(content) > NAME_BYTES_MAX:
        raise IdentityError(f"a producer id of {len(content)} bytes; at most {NAME_BYTES_MAX}")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise IdentityError(f"a producer id that is no UTF-8: {error}") from None


# ---------------------------------------------------------------------- the first record


def identity_header(records: Buffer) -> bytes | None:
    """Return the value of the first record's header `pidlease`; None: it has none.

    A record's layout is in Kafka's DefaultRecord. Key and value are skipped by their lengths.

    Parameters:
        records: the records of a batch, uncompressed; the first bytes are sufficient.

    Raises:
        CutOffError: the bytes end before the record's headers do.
        IdentityError: the bytes are not a record.
    """
    try:
        return _identity_header(VarintReader(records))
    except varints.CutOffError:
        raise CutOffError("the first record is cut off") from None
    except ValueError:
        raise IdentityError("the first record cannot be read") from None


def to_headers(reader: VarintReader) -> tuple[int, int]:
    """Read a record from its beginning to the number of its headers.

    Returns:
        Where the record begins after its length, and where it ends.

    Raises:
        CutOffError, ValueError: of `varints`: the bytes are not a record.
    """
    length = reader.varint()
    begin = reader.at
    reader.skip(1)  # attributes
    reader.varint()  # timestamp
    reader.varint()  # offset
    reader.skip(max(reader.varint(), 0))
    reader.skip(max(reader.varint(), 0))
    return begin, begin + length


def _identity_header(reader: VarintReader) -> bytes | None:
    _, end = to_headers(reader)
    for _ in range(min(reader.varint(), _HEADERS_MAX)):
        key = reader.take(reader.varint())
        length = reader.varint()
        value = reader.take(max(length, 0))
        if reader.at > end:
            break
        if key == HEADER_KEY:
            if length < 0:
                raise IdentityError("a header pidlease without a value")
            return value
    if reader.at > end:
        raise IdentityError("the first record's headers go beyond its end")
    return None
