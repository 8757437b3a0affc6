"""The format of the `pidlease` record header: the producer, if the batch header has no room.

It stands on the first record of each send under the policies strict, monotonic and epoch: their
numbers have 64 bits, and a partition's writer puts their batches into the log:

    version i8 = 1 | kind i8 | generation i64 | first i64 | last i64 | PID i64, or a name in UTF-8

Kind 1 brings a PID, kind 2 a producer id of policy epoch. Big-endian, as all of Kafka's numbers.
Version 2 stands in batches that hold several sends, which a server in front of Kafka joins; there
the number of records of this send, i32, follows `last`.
"""

import struct
from typing import Final, NamedTuple

from pidlease.core.buffer import Buffer
from pidlease.kafka.records import varints
from pidlease.kafka.records.varints import Reader

#: The key of the header. Users' own headers of that name are refused.
HEADER_NAME: Final = "pidlease"
HEADER_KEY: Final = HEADER_NAME.encode()
#: The longest producer id of policy epoch, in bytes.
NAME_BYTES_MAX: Final = 256

#: Headers of the first record that are looked at; ours is the first where a client of ours sends.
_HEADERS_MAX: Final = 100

_VERSION: Final = 1
_VERSION_JOINED: Final = 2
_PID: Final = 1
_NAME: Final = 2
_FRONT: Final = struct.Struct(">bbqqq")
_RECORDS: Final = struct.Struct(">i")
_NUMBER: Final = struct.Struct(">q")


class IdentityError(Exception):
    """A header `pidlease` that says nothing, or a batch without one where it must have one."""


class CutOffError(IdentityError):
    """The first record goes on after the bytes that are there."""


class Identity(NamedTuple):
    """The producer of a batch, and its sequence numbers.

    Attributes:
        pid: the PID; -1 where it is a name.
        name: the producer id of policy epoch; empty where it is a PID.
        generation: the producer's fence number.
        first: sequence of the first record,
        last: and of the last one: both in the producer's own numbering.
        records: how many records of the batch were sent so; 0: all of them.
    """

    pid: int
    name: str
    generation: int
    first: int
    last: int
    records: int = 0


def encode_identity(identity: Identity) -> bytes:
    """The value of the header.

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
    """Read the value of the header.

    Raises:
        IdentityError: it is none.
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
    """The header `pidlease` of the first record; None: it has none.

    Layout of a record: Kafka's DefaultRecord. Only its lengths are read; key and value are passed
    over.

    Parameters:
        records: the records of a batch, not compressed; a beginning of them will do.

    Raises:
        CutOffError: it ends before the record's headers do.
        IdentityError: what is there is no record.
    """
    try:
        return _identity_header(Reader(records))
    except varints.CutOffError:
        raise CutOffError("the first record is cut off") from None
    except ValueError:
        raise IdentityError("the first record cannot be read") from None


def to_headers(reader: Reader) -> tuple[int, int]:
    """Read on from a record's beginning to the number of its headers.

    Returns:
        Where the record begins after its length, and where it ends.

    Raises:
        CutOffError, ValueError: of `varints`: there is no such record.
    """
    length = reader.varint()
    begin = reader.at
    reader.skip(1)  # attributes
    reader.varint()  # timestamp
    reader.varint()  # offset
    reader.skip(max(reader.varint(), 0))
    reader.skip(max(reader.varint(), 0))
    return begin, begin + length


def _identity_header(reader: Reader) -> bytes | None:
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
