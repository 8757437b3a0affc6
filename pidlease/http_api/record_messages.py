"""The messages of the HTTP listener about records, for servers and clients."""

import base64
import binascii
from typing import Annotated, Any, Final

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import PydanticCustomError

from pidlease.http_api.lease_messages import Message
from pidlease.kafka.records.identity_header import HEADER_KEY

#: The most records in one request.
RECORDS_MAX: Final = 10_000
#: The headers that identify a producer of policy epoch, and number its requests.
PRODUCER_ID: Final = "Producer-Id"
PRODUCER_EPOCH: Final = "Producer-Epoch"
PRODUCER_SEQ: Final = "Producer-Seq"
#: The header of a request that is to be stored once (draft-ietf-httpapi-idempotency-key-header).
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
#: The largest Producer-Epoch and Producer-Seq: the largest number that survives JSON.
NUMBER_MAX: Final = 2**53 - 1
#: The bytes of records in one response to a read, beyond the first record: by default,
READ_BYTES_DEFAULT: Final = 1 << 20
#: and at most.
READ_BYTES_MAX: Final = 4 << 20
#: The longest that a read may wait for records.
WAIT_MS_MAX: Final = 60_000
#: What a record counts beside its key, value and headers: a page of empty records has an end.
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
            raise PydanticCustomError("base64", "the value of base64 is no base64") from None
    raise PydanticCustomError("content", 'is text, or {"base64": "..."}, or null')


def content_in_json(value: bytes | None) -> str | dict[str, str] | None:
    """Return bytes as JSON has them: text if they are UTF-8, otherwise base64."""
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

#: A key or a value, the same in requests and responses.
Content = Annotated[
    bytes | None,
    PlainValidator(_bytes_of),
    PlainSerializer(content_in_json),
    WithJsonSchema(_FORMS),
]


def _digits(value: object) -> object:
    """Parse a number in a URL: digits only; int() would accept signs and underscores."""
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit() and len(value) <= len(str(_INT64_MAX))):
            raise PydanticCustomError("digits", "is a number in digits, and nothing else")
        return int(value)
    return value


#: Annotates a number in a URL, after its limits.
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
            raise PydanticCustomError(
                "reserved", "the header pidlease is reserved: it names the producer"
            )
        return key


class NewRecord(Message):
    """A record to be appended."""

    value: Content
    key: Content = None
    headers: list[RecordHeader] = Field(default_factory=list, fail_fast=True)
    timestamp_ms: Annotated[
        int | None,
        Field(
            ge=-_INT64_MAX - 1,
            le=_INT64_MAX,
            description="null: the time of the append; -1: the record has none",
        ),
    ] = None


class AppendRequest(Message):
    """Records to append, all or none, as one batch.

    A producer with a leased PID identifies itself here, with the sequence numbers of its records.
    A producer that sends the header Producer-Id does not.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"records": [{"key": "a", "value": "tea"}]}]}
    )

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
            description="of the last record; left out: each record has one number",
        ),
    ] = None


class AppendAnswer(Message):
    """The records are in the log."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"offset": 0, "duplicate": False}]})

    offset: int | None = Field(
        description="of the first record; null: a duplicate so old that its offset is unknown"
    )
    duplicate: bool = Field(description="whether they were in the log already")


class AppendByKeyAnswer(AppendAnswer):
    """The records are in the log, in the partition of their key."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"offset": 0, "duplicate": False, "partition": 2}]}
    )

    partition: int = Field(description="of the records")


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
        Field(
            ge=1,
            le=READ_BYTES_MAX,
            description="of records, but at least one if there is one",
        ),
        IN_DIGITS,
    ] = READ_BYTES_DEFAULT
    wait_ms: Annotated[
        int,
        Field(ge=0, le=WAIT_MS_MAX, description="how long to wait if there is no record yet"),
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
    next_offset: int = Field(description="where to continue")
    log_start: int = Field(description="the first offset in the log")
    log_end: int = Field(description="the offset after the last record that may be read")
