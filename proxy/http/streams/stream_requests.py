"""The headers and queries of requests for streams."""

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote_to_bytes

from starlette.types import Scope

from pidlease.engine.stream_gate import Closing, StreamSend
from pidlease.http_api.record_messages import PRODUCER_EPOCH, PRODUCER_ID, PRODUCER_SEQ
from pidlease.storage.topics import stream_settings
from pidlease.storage.topics.stream_settings import STREAM_EXPIRES, STREAM_TTL, STREAM_TYPE
from proxy.http.record_responses import WrongTypeError
from proxy.http.request_batch import coding_of
from proxy.http.streams.stream_names import StreamNameError, topic_for
from proxy.http.streams.stream_offsets import BEGINNING, NOW, offset_of

NEXT_OFFSET: Final = "Stream-Next-Offset"
UP_TO_DATE: Final = "Stream-Up-To-Date"
CLOSED: Final = "Stream-Closed"
CURSOR: Final = "Stream-Cursor"
TTL: Final = "Stream-TTL"
EXPIRES_AT: Final = "Stream-Expires-At"
SEQ: Final = "Stream-Seq"
FORKED_FROM: Final = "Stream-Forked-From"
FORK_OFFSET: Final = "Stream-Fork-Offset"
FORK_SUB_OFFSET: Final = "Stream-Fork-Sub-Offset"
EXPECTED_SEQ: Final = "Producer-Expected-Seq"
RECEIVED_SEQ: Final = "Producer-Received-Seq"
DATA_ENCODING: Final = "Stream-SSE-Data-Encoding"

#: What web pages of other origins may send, and read.
REQUEST_HEADERS: Final = (
    "If-None-Match", CLOSED, TTL, EXPIRES_AT, SEQ, FORKED_FROM, FORK_OFFSET, FORK_SUB_OFFSET,
)  # fmt: skip
RESPONSE_HEADERS: Final = (
    "ETag", "Location", NEXT_OFFSET, UP_TO_DATE, CLOSED, CURSOR, TTL, EXPIRES_AT, DATA_ENCODING,
    PRODUCER_EPOCH, PRODUCER_SEQ, EXPECTED_SEQ, RECEIVED_SEQ,
)  # fmt: skip

_DEFAULT_TYPE: Final = "application/octet-stream"
_READ: Final = {
    name.lower().encode(): name
    for name in (
        "Content-Type", "Content-Encoding", "Content-Length", "If-None-Match", "Host", CLOSED, TTL,
        EXPIRES_AT, SEQ, FORKED_FROM, FORK_OFFSET, FORK_SUB_OFFSET, PRODUCER_ID, PRODUCER_EPOCH,
        PRODUCER_SEQ,
    )
}  # fmt: skip
_DIGITS_MAX: Final = 15
#: The first part of the paths of the protocol's subscriptions.
_RESERVED: Final = "__ds"
#: The longest Stream-Seq, in bytes.
_SEQ_BYTES_MAX: Final = 256

#: Cursors count intervals of this length since a fixed time (2024-10-09), as the protocol says.
_CURSOR_SECONDS: Final = 20
_CURSOR_EPOCH_SECONDS: Final = 1_728_432_000
_JITTER_SECONDS_MAX: Final = 3600
_CURSOR_DIGITS_MAX: Final = 18


class InvalidStreamError(Exception):
    """The path, a header or the query of a request is invalid.

    Attributes:
        field: which one.
    """

    def __init__(self, field: str, text: str) -> None:
        super().__init__(f"{field}: {text}")
        self.field: Final = field


class StreamHeaders:
    """The headers of a request that streams know.

    Raises:
        InvalidStreamError: one is there twice.
    """

    __slots__ = ("found",)

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        self.found: Final[dict[bytes, list[bytes]]] = {}
        for name, value in raw:
            if name in _READ:
                self.found.setdefault(name, []).append(value)

    def get(self, name: str) -> str | None:
        """Return a header's value.

        Raises:
            InvalidStreamError: it is there twice.
        """
        values = self.found.get(name.lower().encode())
        if values is None:
            return None
        if len(values) > 1:
            raise InvalidStreamError(name, f"is there {len(values)} times")
        return values[0].decode("latin-1")

    def check_body(self, body: bytearray) -> None:
        """Check that a body is not compressed: the values of streams are its bytes.

        Raises:
            WrongTypeError: it is.
        """
        coding = coding_of(self.found)
        if body and coding:
            raise WrongTypeError(
                "Content-Encoding", f"{coding[:50]} is not supported here; send uncompressed"
            )

    @property
    def closes(self) -> bool:
        """Whether the request closes the stream."""
        return (self.get(CLOSED) or "").lower() == "true"

    def send(self, *, has_data: bool) -> StreamSend:
        """Return the send of an append.

        Parameters:
            has_data: whether it has values.

        Raises:
            InvalidStreamError: Stream-Seq is too long, or there twice.
        """
        order = self.get(SEQ)
        if order is not None and len(order) > _SEQ_BYTES_MAX:
            raise InvalidStreamError(SEQ, f"has {_SEQ_BYTES_MAX} bytes at most")
        closing = Closing.NO
        if self.closes:
            closing = Closing.WITH_DATA if has_data else Closing.ALONE
        return StreamSend(closing, None if order is None else order.encode("latin-1"))


class NewStream(NamedTuple):
    """The stream that a PUT asks for.

    Attributes:
        content_type: None: the request does not say it.
        ttl: the seconds in digits; empty: none.
        expires: as the request has it; empty: never.
        source: the topic of the stream to fork; empty: none.
        fork_offset: where to fork; empty: at the end.
        fork_sub_offset: how many values, or bytes of the next value, to inherit beyond.
    """

    content_type: str | None
    ttl: str
    expires: str
    source: str
    fork_offset: str
    fork_sub_offset: int

    @property
    def fork(self) -> str:
        """The offset and the sub-offset, as the setting has them."""
        return f"{self.fork_offset or '-'} {self.fork_sub_offset}" if self.source else ""

    def settings(self, inherited: dict[str, str]) -> dict[str, str]:
        """Return the settings of the stream's topic.

        Parameters:
            inherited: those of the stream that it is forked from.
        """
        found = {STREAM_TYPE: self.content_type or inherited.get(STREAM_TYPE, _DEFAULT_TYPE)}
        if self.ttl:
            found[STREAM_TTL] = self.ttl
        elif self.expires:
            found[STREAM_EXPIRES] = self.expires
        else:
            names = (STREAM_TTL, STREAM_EXPIRES)
            found |= {name: inherited[name] for name in names if name in inherited}
        return found


def new_stream(headers: StreamHeaders, prefix: str) -> NewStream:
    """Return the stream that a PUT asks for.

    Parameters:
        prefix: of the paths of streams.

    Raises:
        InvalidStreamError: a header is invalid.
    """
    content_type, ttl, expires = (
        headers.get("Content-Type"), headers.get(TTL), headers.get(EXPIRES_AT),
    )  # fmt: skip
    for field, setting, value in (
        ("Content-Type", STREAM_TYPE, content_type or None),
        (TTL, STREAM_TTL, ttl),
        (EXPIRES_AT, STREAM_EXPIRES, expires),
    ):
        if value is not None and not stream_settings.is_valid(setting, value):
            raise InvalidStreamError(field, f"cannot be {value[:100]!r}")
    if ttl is not None and expires is not None:
        raise InvalidStreamError(TTL, f"and {EXPIRES_AT} exclude each other")
    source, offset, sub = (
        headers.get(FORKED_FROM), headers.get(FORK_OFFSET), headers.get(FORK_SUB_OFFSET),
    )  # fmt: skip
    if source is None and (offset is not None or sub is not None):
        raise InvalidStreamError(FORKED_FROM, "is missing")
    if offset is not None and offset_of(offset) is None:
        raise InvalidStreamError(FORK_OFFSET, "is no offset of a stream")
    if sub is not None and not (sub.isascii() and sub.isdigit() and len(sub) <= _DIGITS_MAX):
        raise InvalidStreamError(FORK_SUB_OFFSET, "is a number in digits")
    if sub is not None and int(sub) and offset is None:
        raise InvalidStreamError(FORK_OFFSET, "is missing")
    topic = ""
    if source is not None:
        topic = topic_of_path(unquote_to_bytes(source), prefix, FORKED_FROM)
    return NewStream(
        content_type or None, ttl or "", expires or "", topic, offset or "", int(sub or 0)
    )


def topic_of_request(scope: Mapping[str, Any], prefix: str) -> str:
    """Return the topic of the stream that a request is about; empty: its path is no stream's.

    Not by `path` of the scope: it has one and the same character for each byte that is no UTF-8.

    Raises:
        InvalidStreamError: no stream can have the path.
    """
    return topic_of_path(unquote_to_bytes(scope["raw_path"]), prefix)


def topic_of_path(path: bytes, prefix: str, field: str = "path") -> str:
    """Return the topic of the stream with a path; empty: the path is no stream's.

    Parameters:
        path: decoded, with the prefix.
        prefix: of the paths of streams.
        field: to name in an error.

    Raises:
        InvalidStreamError: no stream can have the path.
    """
    try:
        text = path.decode()
    except UnicodeDecodeError:
        raise InvalidStreamError(field, "is no UTF-8") from None
    if not text.startswith(f"{prefix}/"):
        return ""
    stream = text[len(prefix) + 1 :]
    if stream.partition("/")[0] == _RESERVED:
        raise InvalidStreamError(
            field, f"begins with {_RESERVED}, which is for subscriptions; they are not served"
        )
    try:
        return topic_for(stream)
    except StreamNameError as error:
        raise InvalidStreamError(field, str(error)) from None


class StreamQuery(NamedTuple):
    """What a GET asks for.

    Attributes:
        offset: -1: the beginning; None: the end at the time of the request.
        text: the offset as the request has it.
        live: empty, `long-poll` or `sse`.
        cursor: the last one that the client got; empty: none.
    """

    offset: int | None
    text: str
    live: str
    cursor: str


def stream_query(scope: Scope) -> StreamQuery:
    """Return what a GET asks for.

    Raises:
        InvalidStreamError: a parameter is invalid, or missing.
    """
    found = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    live = _one(found.get("live", ()), "live") or ""
    if live not in ("", "long-poll", "sse"):
        raise InvalidStreamError("live", "is long-poll or sse")
    text = _one(found.get("offset", ()), "offset")
    if text is None and live:
        raise InvalidStreamError("offset", f"is missing; live={live} needs it")
    cursor = (found.get("cursor") or [""])[0]
    if text is None or text == BEGINNING:
        return StreamQuery(-1, BEGINNING, live, cursor)
    if text == NOW:
        return StreamQuery(None, NOW, live, cursor)
    offset = offset_of(text)
    if offset is None:
        raise InvalidStreamError("offset", "is no offset of a stream")
    return StreamQuery(offset, text, live, cursor)


def _one(values: Sequence[str], name: str) -> str | None:
    if len(values) > 1:
        raise InvalidStreamError(name, f"is there {len(values)} times")
    return values[0] if values else None


def next_cursor(given: str) -> str:
    """Return the cursor of a response: never one that the client has had.

    Parameters:
        given: the last one that the client got; empty: none.
    """
    now = int(time.time() - _CURSOR_EPOCH_SECONDS) // _CURSOR_SECONDS
    if not (given.isascii() and given.isdigit() and len(given) <= _CURSOR_DIGITS_MAX):
        return str(now)
    if int(given) < now:
        return str(now)
    jitter = random.randint(1, _JITTER_SECONDS_MAX)  # noqa: S311 - no secret
    return str(int(given) + max(1, jitter // _CURSOR_SECONDS))


def is_match(headers: StreamHeaders, etag: str) -> bool:
    """Whether If-None-Match names an ETag."""
    given = b",".join(headers.found.get(b"if-none-match", ())).decode("latin-1")
    return any(each.strip().removeprefix("W/") == etag for each in given.split(","))
