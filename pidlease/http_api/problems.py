"""The errors of the HTTP API: their codes, and their form as a problem document (RFC 9457)."""

import enum
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

#: The media type of an error.
MEDIA_TYPE: Final = "application/problem+json"
_TYPE_PREFIX: Final = "urn:pidlease:error:"


@enum.unique
class Problem(enum.Enum):
    """The kinds of errors, each with its HTTP status and its title.

    Codes and statuses are stable: clients act on them. The documentation lists them all.
    """

    INVALID_REQUEST = 400, "The request is invalid"
    INVALID_JSON = 400, "The body is not JSON"
    INVALID_SETTING = 400, "The setting or its value is invalid"
    INVALID_TOPIC = 400, "The topic's name, partitions or settings are invalid"
    INVALID_NAME = 400, "The producer's name is invalid"
    INVALID_PRODUCER = 400, "The fields that identify the producer are invalid"
    INVALID_IDEMPOTENCY_KEY = 400, "Idempotency-Key is invalid"
    INVALID_BATCH = 400, "The records are invalid"
    INCOMPLETE_BODY = 400, "The body ended too early"
    NAME_REQUIRED = 400, "A lease of this policy needs a name"
    WRONG_POLICY = 400, "The PID has another policy"
    INVALID_STREAM = 400, "The stream's path, headers or query are invalid"
    LOGIN_REQUIRED = 401, "The request needs a login"
    NOT_AUTHORIZED = 403, "The client has no right to this"
    POLICY_FORBIDDEN = 403, "The topic does not allow this policy"
    KAFKA_FORBIDDEN = 403, "Kafka does not allow this server to do that"
    STREAM_PRODUCER_FENCED = 403, "A newer producer writes to the stream"
    NOT_FOUND = 404, "The path does not exist"
    UNKNOWN_TOPIC = 404, "The topic does not exist"
    UNKNOWN_PARTITION = 404, "The partition does not exist"
    UNKNOWN_NAME = 404, "The name has no lease"
    UNKNOWN_STREAM = 404, "The stream does not exist"
    UNKNOWN_SERVER = 404, "No active server has this node id"
    METHOD_NOT_ALLOWED = 405, "The path does not support the method"
    BODY_TOO_SLOW = 408, "The body did not arrive in time"
    TOPIC_EXISTS = 409, "The topic exists"
    NAME_CONFLICT = 409, "The name has a PID of another policy"
    NAME_TAKEN = 409, "The name was granted to another producer"
    PRODUCER_SEQ_CONFLICT = 409, "The sequence number is not the expected one"
    PRODUCER_FENCED = 409, "A newer producer has taken over"
    IDEMPOTENCY_KEY_IN_USE = 409, "A request with this Idempotency-Key is in flight"
    STREAM_CONFLICT = 409, "Another stream has the path, or the stream cannot be forked so"
    STREAM_CLOSED = 409, "The stream is closed"
    STREAM_TYPE_CONFLICT = 409, "The content type is not the stream's"
    NOT_SHARED = 409, "The server shares no cluster with others"
    LAST_SERVER = 409, "No other server could own the slots"
    STREAM_SEQ_CONFLICT = 409, "Stream-Seq is not above the last one"
    UNKNOWN_PID = 410, "The PID is not leased"
    STREAM_DELETED = 410, "The stream is deleted, and kept for its forks"
    STREAM_TRUNCATED = 410, "The stream does not have the offset any more"
    BODY_TOO_LARGE = 413, "The body or its batch is too large"
    UNSUPPORTED_BODY = 415, "The type of the body is not supported"
    OFFSET_OUT_OF_RANGE = 416, "The log does not have the offset"
    NOT_OWNER = 421, "Another server serves this Kafka cluster"
    IDEMPOTENCY_KEY_REUSED = 422, "The Idempotency-Key was used for another request"
    UNREADABLE_RECORDS = 422, "The batch cannot be read as records"
    QUOTA_EXCEEDED = 429, "The client has used more than its quota"
    INTERNAL_ERROR = 500, "The server failed"
    LOG_DAMAGED = 500, "The log is damaged there"
    NOT_READY = 503, "The server is not ready"
    TOPIC_NOT_READY = 503, "The topic cannot be read yet"
    PARTITION_STOPPED = 503, "The partition is stopped"
    LOG_UNREADABLE = 503, "The log cannot be read now"
    NOT_STORED = 503, "The change could not be stored"
    KAFKA_UNAVAILABLE = 503, "Kafka has not confirmed the change"
    APPEND_FAILED = 503, "The records were not stored, or their outcome is unknown"
    IDEMPOTENCY_KEYS_FULL = 503, "All idempotency keys are in use"
    OVERLOADED = 503, "Too much is in flight"
    NAME_BUSY = 503, "The name is being leased"
    NAMES_UNAVAILABLE = 503, "The names cannot be read or stored now"
    PIDS_UNAVAILABLE = 503, "No PID can be leased now"
    COORDINATOR_UNAVAILABLE = 503, "The coordinator cannot be asked now"
    SERVER_UNREACHABLE = 503, "The other server has not answered"

    @property
    def code(self) -> str:
        """What clients compare."""
        return self.name.lower()

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.value[0]

    @property
    def title(self) -> str:
        """The kind of error in words, always the same."""
        return self.value[1]

    @property
    def type(self) -> str:
        """The kind of error as a URI, which leads nowhere."""
        return _TYPE_PREFIX + self.code


class ProblemAnswer(BaseModel):
    """Why a request failed, as a problem document (RFC 9457). Clients ignore unknown fields."""

    model_config = ConfigDict(strict=True, frozen=True)

    type: str = Field(description="the code as a URI")
    title: str = Field(description="the kind of error; the same for each code")
    status: int = Field(description="the HTTP status")
    detail: str = Field(description="what was wrong, and what to do")
    code: str = Field(description="the kind of error; stable")
    field: Annotated[
        str | None, Field(description="the part of the request that is invalid; null: none")
    ] = None
    expected_seq: Annotated[
        int | None, Field(description="with producer_seq_conflict: the expected sequence number")
    ] = None
    current_epoch: Annotated[
        int | None, Field(description="with producer_fenced: the newest epoch, stored or granted")
    ] = None
    offset: Annotated[
        int | None, Field(description="with unreadable_records: the first unreadable offset")
    ] = None
    next_offset: Annotated[
        int | None, Field(description="with unreadable_records: where to continue without them")
    ] = None
    log_start: Annotated[
        int | None, Field(description="with offset_out_of_range: the first offset in the log")
    ] = None
    log_end: Annotated[
        int | None, Field(description="with offset_out_of_range: the offset after the last record")
    ] = None
    error: Annotated[
        str,
        Field(
            deprecated=True,
            description="as `detail`; with producer_seq_conflict and producer_fenced as `code`",
        ),
    ]
    message: Annotated[
        str | None,
        Field(
            deprecated=True,
            description="as `detail`, with producer_seq_conflict and producer_fenced",
        ),
    ] = None
