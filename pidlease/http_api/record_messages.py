"""The messages of the HTTP door about records, for the door and for clients."""

import base64
import binascii
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

from pidlease.http_api.lease_messages import Message
from pidlease.kafka.records.identity_header import HEADER_KEY

#: Records in one request.
RECORDS_MAX: Final = 10_000
#: The headers that identify a producer of policy epoch, and number its requests.
PRODUCER_ID: Final = "Producer-Id"
PRODUCER_EPOCH: Final = "Producer-Epoch"
PRODUCER_SEQ: Final = "Producer-Seq"
#: Producer-Epoch and Producer-Seq: numbers survive JSON up to here.
NUMBER_MAX: Final = 2**53 - 1
#: What one answer to a read holds of records, beyond the first one: unless it is asked for less,
READ_BYTES_DEFAULT: Final = 1 << 20
#: and at most.
READ_BYTES_MAX: Final = 4 << 20
#: How long a read may wait for records.
WAIT_MS_MAX: Final = 60_000
#: What a record counts beside its key, value and headers, so that empty ones come to an end, too.
RECORD_OVERHEAD_BYTES: Final = 64

_INT64_MAX: Final = 2**63 - 1
_RESERVED: Final = HEADER_KEY.decode()


# ---------------------------------------------------------------------- bytes in JSON


def _bytes_of(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        coded = value["base64"]
        try:
            return base64.b64decode(coded, validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise PydanticCustomError("base64", "what is under base64 is none") from None
    raise PydanticCustomError("content", 'is text, or {"base64": "..."}, or null')


def content_in_json(value: bytes | None) -> str | dict[str, str] | None:
    """Bytes as they are told in JSON: as text where they are UTF-8, else in base64."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


_FORMS: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string", "description": "text, in UTF-8"},
        {
            "type": "object",
            "properties": {"base64": {"type": "string", "contentEncoding": "base64"}},
            "required": ["base64"],
            "additionalProperties": False,
        },
        {"type": "null"},
    ]
}

#: A key or a value, the same in what is sent and in what is read.
Content = Annotated[
    bytes | None,
    PlainValidator(_bytes_of),
    PlainSerializer(content_in_json),
    WithJsonSchema(_FORMS),
]


def _digits(value: object) -> object:
    """A number in a URL: digits and nothing else, where int() would take signs and underscores."""
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit() and len(value) <= len(str(_INT64_MAX))):
            raise PydanticCustomError("digits", "is a number in digits, and nothing else")
        return int(value)
    return value


#: Of a number in a URL, behind its limits.
IN_DIGITS: Final = BeforeValidator(_digits)


# ---------------------------------------------------------------------- appending


class RecordHeader(Message):
    """A record's header."""

    key: str
    value: Content = None

    @field_validator("key")
    @classmethod
    def _is_free(cls, key: str) -> str:
        if key == _RESERVED:
            raise PydanticCustomError("reserved", "a header pidlease says who sent a batch")
        return key


class NewRecord(Message):
    """A record to be appended."""

    value: Content
    key: Content = None
    headers: list[RecordHeader] = Field(default_factory=list, fail_fast=True)
    timestamp_ms: Annotated[
        int | None, Field(ge=0, le=NUMBER_MAX, description="null: when it comes")
    ] = None


class AppendRequest(Message):
    """Records to be appended, all or none, as one batch.

    A producer that leased its PID says it here, with the numbers of its records; one that sends
    Producer-Id does not.
    """

    records: Annotated[list[NewRecord], Field(min_length=1, max_length=RECORDS_MAX, fail_fast=True)]
    pid: Annotated[int | None, Field(ge=1, le=NUMBER_MAX, description="as it was leased")] = None
    generation: Annotated[
        int | None, Field(ge=0, le=_INT64_MAX, description="as it was leased")
    ] = None
    first_sequence: Annotated[
        int | None, Field(ge=0, le=_INT64_MAX, description="sequence number of the first record")
    ] = None
    last_sequence: Annotated[
        int | None,
        Field(
            ge=0,
            le=_INT64_MAX,
            description="and of the last one: left out where each record has one number",
        ),
    ] = None


class AppendAnswer(Message):
    """The records are in the log."""

    offset: int | None = Field(
        description="of the first record; null: a duplicate so old that it is not known any more"
    )
    duplicate: bool = Field(description="whether they were there already")


class ConflictAnswer(Message):
    """What a producer says of itself does not fit what is known of it."""

    error: Literal["producer_seq_conflict", "producer_fenced"]
    message: str
    field: str = Field(description="the header, or the field of the body, that it is about")
    expected_seq: Annotated[
        int | None, Field(description="of producer_seq_conflict: what would be taken")
    ] = None
    current_epoch: Annotated[
        int | None, Field(description="of producer_fenced: the epoch, or generation, in the log")
    ] = None


# ---------------------------------------------------------------------- reading


class ReadQuery(Message):
    """Where to read, and how much."""

    offset: Annotated[
        int | None,
        Field(ge=0, le=_INT64_MAX, description="left out: the beginning of the log"),
        IN_DIGITS,
    ] = None
    max_bytes: Annotated[
        int,
        Field(ge=1, le=READ_BYTES_MAX, description="of records; but at least one, if there is one"),
        IN_DIGITS,
    ] = READ_BYTES_DEFAULT
    wait_ms: Annotated[
        int,
        Field(ge=0, le=WAIT_MS_MAX, description="how long to wait where there is none yet"),
        IN_DIGITS,
    ] = 0


class LoggedRecord(Message):
    """A record of the log."""

    offset: int
    timestamp_ms: int
    key: Content
    value: Content
    headers: list[RecordHeader]


class RecordsAnswer(Message):
    """Records, in the order of their offsets."""

    records: list[LoggedRecord]
    next_offset: int = Field(description="where to go on")
    log_start: int = Field(description="the first offset there is")
    log_end: int = Field(description="behind the last one")


class OutOfRangeAnswer(Message):
    """The log does not have the offset."""

    error: str
    field: Literal["offset"] = "offset"
    log_start: int
    log_end: int


class UnreadableAnswer(Message):
    """What stands at the offset cannot be told as records."""

    error: str
    field: Literal["offset"] = "offset"
    offset: int = Field(description="from here on")
    next_offset: int = Field(description="behind it, to go on without")
