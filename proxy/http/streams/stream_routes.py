"""The routes of streams: create, append, close, read, describe and delete."""

import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.engine import Engine
from pidlease.engine.stream_gate import Closing, Refusal, StreamSend
from pidlease.engine.topic_admin import TopicAdmin
from pidlease.http_api.problems import Problem
from pidlease.http_api.record_messages import (
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PRODUCER_SEQ,
    READ_BYTES_DEFAULT,
)
from pidlease.kafka.records.identity_header import Identity
from pidlease.log.ports import ForwardingLog
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogError, OffsetRangeError
from pidlease.storage.topics.stream_settings import (
    STREAM_FORK,
    STREAM_INITIAL,
    STREAM_SOURCE,
    STREAM_SOURCE_ID,
    STREAM_TYPE,
    expires_ms,
    media_type,
)
from proxy.http.current_caller import CALLER, count_batch, note_change, require
from proxy.http.errors import NotReadyError, refusal
from proxy.http.openapi import refusals
from proxy.http.prepared_append import PreparedAppend
from proxy.http.record_responses import NoRoomError, UnreadableError, appended
from proxy.http.record_routes import RecordRoutes
from proxy.http.request_batch import CONTENT_LENGTH, by_headers
from proxy.http.request_memory import HeldBytes, HeldResponse, read_body
from proxy.http.streams.json_values import JsonValuesError, json_values
from proxy.http.streams.live_reads import (
    EventKey,
    EventStream,
    LiveReader,
    LiveReads,
    control_event,
    data_event,
    is_text,
    seconds_left,
)
from proxy.http.streams.stream_catalog import (
    DeletedStreamError,
    Stream,
    StreamCatalog,
    StreamConflictError,
    UnknownStreamError,
)
from proxy.http.streams.stream_offsets import offset_of, offset_text
from proxy.http.streams.stream_pages import StreamReads, Values
from proxy.http.streams.stream_requests import (
    CLOSED,
    CURSOR,
    EXPECTED_SEQ,
    EXPIRES_AT,
    FORK_OFFSET,
    FORK_SUB_OFFSET,
    FORKED_FROM,
    NEXT_OFFSET,
    RECEIVED_SEQ,
    TTL,
    UP_TO_DATE,
    InvalidStreamError,
    NewStream,
    StreamHeaders,
    StreamQuery,
    is_match,
    new_stream,
    next_cursor,
    stream_query,
    topic_of_request,
)
from proxy.security.acls import Operation, ResourceKind
from proxy.security.authorizer import Right

#: How long a connection with server-sent events lasts: then caches may join the next ones.
_EVENTS_SECONDS: Final = 60.0
_METHODS: Final = ("DELETE", "GET", "HEAD", "POST", "PUT")
#: Complete pages never change. Where clients log in, no cache may serve one with another's.
_CACHED: Final = "public, max-age=60, stale-while-revalidate=300"
_CACHED_BY_CLIENT: Final = "private, max-age=60, stale-while-revalidate=300"
_NOT_CACHED: Final = "no-store"
#: To be asked for again each time, with the ETag.
_ASKED_AGAIN: Final = "no-cache"
#: The headers of all responses: browsers neither guess a type, nor keep other origins out. And a
#: stream that a browser shows as a page runs no script: any client may have written it, and it
#: would act for the user of the browser.
SECURITY_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"cross-origin"),
    (b"content-security-policy", b"sandbox; default-src 'none'"),
)
#: What ends a stream of events; the client's next request gets the error.
_ENDS: Final = (
    LogError, NoRoomError, NotReadyError, OffsetRangeError, UnknownStreamError, UnreadableError,
)  # fmt: skip
_TRUE: Final = {CLOSED: "true"}
#: Begins the producer ids that the server itself uses; no client's id has such a character.
_OWN_MARK: Final = "\x1e"
#: The send that a stream is created with: the client repeats its PUT if it gets no response.
_CREATION: Final = "create"

_log = structlog.get_logger(__name__)


class StreamRoutes:
    """The routes of streams.

    Parameters:
        engine: returns the engine; None while there is none yet.
        topics: creates and deletes topics.
        records: appends records, with the memory for that.
        prefix: of the paths of streams.
        poll_seconds: how long a long poll waits.
    """

    def __init__(
        self,
        engine: Callable[[], Engine | None],
        topics: Callable[[], TopicAdmin | None],
        records: RecordRoutes,
        prefix: str,
        poll_seconds: float,
    ) -> None:
        self.catalog: Final = StreamCatalog(engine, topics)
        self.prefix: Final = prefix
        self._records: Final = records
        self._poll_seconds: Final = poll_seconds
        self._reads: Final = StreamReads(records.read_memory)
        self._live: Final = LiveReads()
        self.router: Final = APIRouter(tags=["streams"])
        self._by_method: Final = {
            "DELETE": self._delete,
            "GET": self._get,
            "HEAD": self._head,
            "POST": self._post,
            "PUT": self._put,
        }
        #: The path of the routes.
        self.path: Final = f"{prefix}/{{path:path}}"
        for method in _METHODS:
            self.router.add_api_route(
                self.path, self.serve, methods=[method],
                operation_id=f"{method.lower()}_stream", summary=_SUMMARIES[method],
                response_class=Response, responses=_RESPONSES[method],
                openapi_extra=_DESCRIPTIONS[method], status_code=_STATUS[method],
            )  # fmt: skip
        #: The route for the metrics.
        self.route: Final = self.router.routes[-1]

    def is_stream(self, path: str) -> bool:
        """Whether a path is a stream's."""
        return path.startswith(self.prefix + "/")

    def close(self) -> None:
        """End all reads that wait."""
        self._live.close()
        self.catalog.close()

    async def serve(self, request: Request) -> Response:
        """Serve a request for a stream."""
        name = topic_of_request(request.scope, self.prefix)
        try:
            return await self._by_method[request.method](request, name)
        except OffsetRangeError:
            text = "the records at this offset are deleted"
            return refusal(Problem.STREAM_TRUNCATED, text, "offset")

    # ------------------------------------------------------------------ PUT

    async def _put(self, request: Request, name: str) -> Response:
        headers = StreamHeaders(request.scope["headers"])
        wanted = new_stream(headers, self.prefix)
        if headers.get(FORKED_FROM) is not None and not wanted.source:
            raise UnknownStreamError(f"{FORKED_FROM} is the path of no stream")
        if wanted.source:
            require(Right(Operation.READ, ResourceKind.TOPIC, wanted.source))
        for each in filter(None, (name, wanted.source)):
            with suppress(UnknownStreamError, DeletedStreamError):
                await self.catalog.find(each)  # removes it if it has expired
        with HeldBytes(self._records.append_memory) as held:
            body = await self._body(request, headers, held)
            async with self.catalog.alone(name, *([wanted.source] if wanted.source else [])):
                existing = await self._existing(name)
                if existing is not None:
                    self._check_same(existing, wanted, closes=headers.closes)
                    tail = await existing.tail_now()
                    return self._created(request, existing, 200, tail)
                stream = await self._create(name, wanted, body, headers, held)
        return self._created(request, stream, 201, stream.tail)

    async def _existing(self, name: str) -> Stream | None:
        """Return a stream that exists; None: there is none, or it is not complete.

        Raises:
            StreamConflictError: it is deleted, and kept for its forks.
            NotOwnerError: another server serves it.
            LogError: the log cannot be read.
        """
        stream = self.catalog.topic_stream(name)
        if stream is None:
            return None
        if stream.config.deleted:
            raise StreamConflictError("the stream is deleted, and kept for its forks")
        stream.partition.check_owned()
        await stream.gate.known()
        return stream if stream.has_begun else None

    @staticmethod
    def _check_same(stream: Stream, wanted: NewStream, *, closes: bool) -> None:
        """Check that a stream is the one that a PUT asks for.

        Raises:
            StreamConflictError: it is not.
        """
        config = stream.config
        kind = wanted.content_type or ("" if wanted.source else "application/octet-stream")
        inherits = wanted.source and not wanted.ttl and not wanted.expires
        ttl = "" if config.ttl_seconds is None else str(config.ttl_seconds)
        expires = expires_ms(wanted.expires) if wanted.expires else None
        known_expires = expires_ms(config.expires) if config.expires else None
        same = {
            "Content-Type": not kind or media_type(kind) == config.media_type,
            TTL: bool(inherits) or wanted.ttl == ttl,
            EXPIRES_AT: bool(inherits) or expires == known_expires,
            CLOSED: closes == (stream.gate.closed is not None),
            FORKED_FROM: (wanted.source, wanted.fork) == (config.source, config.fork),
        }
        for field, is_same in same.items():
            if not is_same:
                raise StreamConflictError(f"the stream exists, with another {field}")

    async def _create(
        self, name: str, wanted: NewStream, body: bytearray, headers: StreamHeaders, held: HeldBytes
    ) -> Stream:
        """Create a stream, and append its first values."""
        inherited: dict[str, str] = {}
        settings: dict[str, str] = {}
        forked: list[bytes] = []
        if wanted.source:
            source = await self._source(wanted)
            inherited = source.topic.overrides
            base, forked = await self._fork_at(source, wanted)
            settings = {
                STREAM_SOURCE: wanted.source,
                STREAM_SOURCE_ID: source.topic.topic_id,
                STREAM_FORK: f"{base} {wanted.fork}",
            }
        settings |= wanted.settings(inherited)
        is_json = media_type(settings[STREAM_TYPE]) == "application/json"
        values = [*forked, *_values(body, is_json=is_json)]
        send = headers.send(has_data=bool(values))
        if values or send.closing is not Closing.NO:
            settings[STREAM_INITIAL] = "1"
            self.catalog.check_owner(name)
        left_over = self.catalog.topic_stream(name)
        if left_over is not None and not settings.items() <= left_over.topic.overrides.items():
            if not await self.catalog.is_empty(left_over):
                raise StreamConflictError("the stream exists, with other settings")
            await self.catalog.remove_alone(name)
            left_over = None
        stream = left_over or await self.catalog.create(name, settings)
        note_change("CREATE_TOPIC", f"TOPIC:{name}")
        if STREAM_INITIAL in settings:
            stream.partition.check_owned()
            identity = _identity_of_own(stream, _CREATION)
            outcome = await self._append(stream, lambda: values, len(body), send, identity, held)
            if outcome.status not in {Status.APPENDED, Status.DUPLICATE}:
                raise _NotAppendedError(appended(outcome, None))
        return stream

    async def _source(self, wanted: NewStream) -> Stream:
        """Return the stream to fork."""
        try:
            source = await self.catalog.find(wanted.source, removes=False)
        except DeletedStreamError as error:
            raise StreamConflictError(f"the stream to fork: {error}") from None
        kind = wanted.content_type
        if kind is not None and media_type(kind) != source.config.media_type:
            text = f"the stream to fork has another Content-Type, {source.config.content_type}"
            raise StreamConflictError(text)
        if not self.catalog.may_fork(source):
            raise StreamConflictError("the stream to fork is a fork of too many forks")
        return source

    async def _fork_at(self, source: Stream, wanted: NewStream) -> tuple[int, list[bytes]]:
        """Return where a fork begins, and what it has of the value there."""
        offset = tail = await source.tail_now()
        if wanted.fork_offset:
            offset = offset_of(wanted.fork_offset) or 0
            if offset > tail:
                raise InvalidStreamError(FORK_OFFSET, "is after the end of the stream")
        left = wanted.fork_sub_offset
        is_json = source.config.is_json
        beyond = InvalidStreamError(FORK_SUB_OFFSET, "is after the end of what can be inherited")
        while left:
            found = await self._page(source, offset, 1)
            if not found.values:
                raise beyond
            (value,) = found.values
            if not is_json and left > len(value):
                raise beyond
            if not is_json and left < len(value):
                return offset, [value[:left]]
            left = left - 1 if is_json else 0
            offset = found.next_offset
        return offset, []

    def _created(self, request: Request, stream: Stream, status: int, tail: int) -> Response:
        headers = {"Content-Type": stream.config.content_type, NEXT_OFFSET: offset_text(tail)}
        if stream.gate.closed is not None:
            headers |= _TRUE
        if status == 201:
            host = StreamHeaders(request.scope["headers"]).get("Host")
            path = request.scope["raw_path"].decode("ascii")
            headers["Location"] = f"{request.scope['scheme']}://{host}{path}" if host else path
        stream.gate.touch()
        return Response(status_code=status, headers=headers)

    # ------------------------------------------------------------------ POST

    async def _post(self, request: Request, name: str) -> Response:
        headers = StreamHeaders(request.scope["headers"])
        named = by_headers(headers.found)
        with HeldBytes(self._records.append_memory) as held:
            body = await self._body(request, headers, held)
            stream = await self.catalog.find(name)
            content = self._content(stream, headers, body)
            if isinstance(content, Response):
                return content
            values, send = content
            identity = named or _identity_of_close(stream, send)
            outcome = await self._append(stream, values, len(body), send, identity, held)
        return self._appended(stream, outcome, named, send)

    def prepare_now(self, scope: Mapping[str, Any], body: bytearray) -> PreparedAppend | None:
        """Prepare an append to a stream; None: it is refused, or needs a wait or another server.

        Parameters:
            scope: of a POST to a stream.

        Raises:
            RefusedError: the request is invalid.
            NotReadyError: the engine is recovering or stopping.
        """
        try:
            stream = self.catalog.find_now(topic_of_request(scope, self.prefix))
            if stream is None or stream.partition.gone:
                return None
            headers = StreamHeaders(scope["headers"])
            headers.check_body(body)
            named = by_headers(headers.found)
            content = self._content(stream, headers, body)
            if isinstance(content, Response):
                return None
            values, send = content
            identity = named or _identity_of_close(stream, send)
            data = self._records.maker.of_values_now(values, len(body), send.headers(), identity)
        except (InvalidStreamError, JsonValuesError):
            return None
        if data is None:
            return None
        respond = partial(self._secured, stream, named, send)
        return PreparedAppend(stream.partition, data, identity, respond, send=send)

    def _secured(
        self, stream: Stream, named: Identity | None, send: StreamSend, outcome: Outcome
    ) -> Response:
        response = self._appended(stream, outcome, named, send)
        response.raw_headers = [*response.raw_headers, *SECURITY_HEADERS]
        return response

    def _content(
        self, stream: Stream, headers: StreamHeaders, body: bytearray
    ) -> tuple[Callable[[], list[bytes]], StreamSend] | Response:
        """Return what makes the values of an append, and its send; or the refusal of its type.

        Raises:
            InvalidStreamError: the request is invalid.
        """
        send = headers.send(has_data=bool(body))
        if not body and send.closing is Closing.NO:
            raise InvalidStreamError("body", f"is empty; only with {CLOSED}: true it may be")
        if body:
            refused = self._check_type(stream, headers.get("Content-Type"))
            if refused is not None:
                return refused
        if not body:
            return (lambda: [b""]), send
        if stream.config.is_json:
            return partial(_some_values, body), send
        return (lambda: [bytes(body)]), send

    @staticmethod
    def _check_type(stream: Stream, content_type: str | None) -> Response | None:
        """Return the refusal of a body of another type than the stream's."""
        if not content_type:
            raise InvalidStreamError("Content-Type", "is missing")
        if media_type(content_type) == stream.config.media_type:
            return None
        if stream.gate.closed is not None:
            return _closed(stream)
        text = f"the stream's Content-Type is {stream.config.content_type}"
        return refusal(Problem.STREAM_TYPE_CONFLICT, text, "Content-Type")

    async def _append(
        self,
        stream: Stream,
        values: Callable[[], list[bytes]],
        size: int,
        send: StreamSend,
        identity: Identity | None,
        held: HeldBytes,
    ) -> Outcome:
        records = self._records
        if send.closing is Closing.ALONE:
            values = lambda: [b""]  # noqa: E731
        data = await records.maker.of_values(
            values, size, send.headers(), identity, records.service().engine.pool
        )
        held.more(len(data))
        count_batch(size, len(data))
        # The server may be stopping, or the topic deleted since.
        service = records.service()
        if stream.partition.gone:
            raise UnknownStreamError("there is no such stream")
        return await service.append(stream.partition, data, identity, send=send)

    def _appended(
        self, stream: Stream, outcome: Outcome, named: Identity | None, send: StreamSend
    ) -> Response:
        status, gate = outcome.status, stream.gate
        if status in (Status.APPENDED, Status.DUPLICATE):
            stream.gate.touch()
            is_new = status is Status.APPENDED
            headers = {NEXT_OFFSET: offset_text(stream.tail)}
            if gate.closed is not None:
                headers |= _TRUE
            if named is not None:
                headers |= {PRODUCER_EPOCH: str(named.generation),
                            PRODUCER_SEQ: str(self._highest(stream, named))}  # fmt: skip
            is_alone = send.closing is Closing.ALONE
            code = 200 if is_new and named is not None and not is_alone else 204
            return _Stored(code, headers)
        if send.refusal is Refusal.CLOSED:
            if send.closing is Closing.ALONE and named is None:
                headers = {NEXT_OFFSET: offset_text(stream.tail), **_TRUE}
                return Response(status_code=204, headers=headers)
            return _closed(stream)
        if send.refusal is Refusal.OUT_OF_ORDER:
            return refusal(Problem.STREAM_SEQ_CONFLICT, send.refusal.value, "Stream-Seq")
        if named is not None and status is Status.FENCED:
            numbers = {"current_epoch": outcome.generation}
            text = f"{PRODUCER_EPOCH} {outcome.generation} has been here"
            headers = {PRODUCER_EPOCH: str(outcome.generation)}
            return refusal(
                Problem.STREAM_PRODUCER_FENCED, text, PRODUCER_EPOCH,
                numbers=numbers, headers=headers,
            )  # fmt: skip
        if named is not None and status in (Status.GAP, Status.OVERLAP):
            return self._gap(stream, outcome, named)
        return appended(outcome, named)

    def _gap(self, stream: Stream, outcome: Outcome, named: Identity) -> Response:
        state = self._state(stream, named)
        if state is not None and named.generation > state[0]:
            text = f"a new {PRODUCER_EPOCH} begins with {PRODUCER_SEQ} 0"
            return refusal(Problem.INVALID_PRODUCER, text, PRODUCER_SEQ)
        headers = {EXPECTED_SEQ: str(outcome.expected), RECEIVED_SEQ: str(named.first)}
        return refusal(
            Problem.PRODUCER_SEQ_CONFLICT, f"sequence {outcome.expected} is expected here",
            PRODUCER_SEQ, numbers={"expected_seq": outcome.expected}, headers=headers,
        )  # fmt: skip

    def _highest(self, stream: Stream, named: Identity) -> int:
        """Return the highest sequence number of a producer in its epoch."""
        state = self._state(stream, named)
        return state[1] if state is not None and state[0] == named.generation else named.last

    @staticmethod
    def _state(stream: Stream, named: Identity) -> tuple[int, int] | None:
        """Return the epoch and the highest sequence number of a producer."""
        pid = stream.partition.names.find(named.name)
        state = None if pid is None else stream.partition.producer(pid)
        return None if state is None else (state.generation, state.high)

    # ------------------------------------------------------------------ HEAD, DELETE

    async def _head(self, _: Request, name: str) -> Response:
        stream = await self.catalog.find(name)
        config = stream.config
        headers = {
            "Content-Type": config.content_type,
            NEXT_OFFSET: offset_text(await stream.tail_now()),
            "Cache-Control": _NOT_CACHED,
        }
        if config.ttl_seconds is not None:
            headers[TTL] = str(config.ttl_seconds)
        if config.expires:
            headers[EXPIRES_AT] = config.expires
        if stream.gate.closed is not None:
            headers |= _TRUE
        return Response(headers=headers)

    async def _delete(self, _: Request, name: str) -> Response:
        await self.catalog.find(name)
        await self.catalog.remove(name)
        note_change("DELETE_TOPIC", f"TOPIC:{name}")
        return Response(status_code=204)

    # ------------------------------------------------------------------ GET

    async def _get(self, request: Request, name: str) -> Response:
        query = stream_query(request.scope)
        stream = await self.catalog.find(name)
        stream.gate.touch()
        offset = await self._offset_of(stream, query)
        held = HeldBytes(self._records.read_memory)
        try:
            if query.live == "sse":
                return self._events(request, stream, offset, query.cursor, held)
            if query.offset is None and not query.live:
                values = Values([], offset, offset)
            else:
                values = await self._page(stream, offset, READ_BYTES_DEFAULT, held.size)
                if query.live and not values.values:
                    values = await self._poll(request, stream, values, held.size)
            return self._read(request, stream, query, values, held)
        except BaseException:
            held.release()
            raise

    @staticmethod
    async def _offset_of(stream: Stream, query: StreamQuery) -> int:
        """Return the offset that a read begins at.

        Raises:
            InvalidStreamError: it is after the end of the stream.
            LogError: the log cannot be asked for its end.
        """
        if query.offset is None:
            return await stream.tail_now()
        offset = max(query.offset, 0)
        if offset <= stream.tail:
            return offset
        if stream.partition.log_is_shared:
            # There may be values that this server does not know, or markers after a close.
            _, end = await stream.partition.log_range()
            if end is not None and offset <= stream.config.base + end:
                return offset if stream.gate.closed is None else stream.tail
        raise InvalidStreamError("offset", "is after the end of the stream")

    async def _poll(self, request: Request, stream: Stream, values: Values, own: int) -> Values:
        """Wait for values; return those that came, or none."""
        latest = time.monotonic() + self._poll_seconds
        with self._live.reader(request, stream) as reader:
            while not stream.is_closed_at(values.next_offset) and not reader.is_over:
                offset = values.next_offset
                values = await self._page(stream, offset, READ_BYTES_DEFAULT, own)
                seconds = latest - time.monotonic()
                if values.values or seconds <= 0:
                    break
                await reader.wait(values.next_offset, seconds)
        stream.gate.touch()
        return values

    async def _page(self, stream: Stream, offset: int, bytes_max: int, own: int = 0) -> Values:
        if stream.partition.gone:
            raise UnknownStreamError("the stream was deleted")
        stream.partition.check_owned()
        await stream.gate.known()
        pool = self._records.service().engine.pool
        spans = self.catalog.spans(stream)
        is_json = stream.config.is_json
        return await self._reads.page(spans, offset, bytes_max, pool, own, is_json=is_json)

    def _read(
        self, request: Request, stream: Stream, query: StreamQuery, values: Values, held: HeldBytes
    ) -> Response:
        end, config = values.next_offset, stream.config
        up_to_date, closed = end >= values.end, stream.is_closed_at(end)
        headers = {NEXT_OFFSET: offset_text(end)}
        if up_to_date:
            headers[UP_TO_DATE] = "true"
        if closed:
            headers |= _TRUE
        if query.live and not closed:
            headers[CURSOR] = next_cursor(query.cursor)
        if query.live and not values.values:
            held.release()
            return Response(status_code=204, headers=headers | {"Cache-Control": _NOT_CACHED})
        is_passing = config.ttl_seconds is not None or bool(config.expires)
        cached = _ASKED_AGAIN
        # The cursor makes each live request another one.
        if not is_passing and (query.live or not up_to_date):
            cached = _CACHED if CALLER.get() is None else _CACHED_BY_CLIENT
        headers["Cache-Control"] = _NOT_CACHED if query.offset is None else cached
        if query.offset is not None:
            suffix = ":c" if closed else ""
            end_text = offset_text(end)
            etag = f'"{stream.topic.topic_id}:{query.text}:{end_text}{suffix}"'
            headers["ETag"] = etag
            if is_match(StreamHeaders(request.scope["headers"]), etag):
                held.release()
                return Response(status_code=304, headers=headers)
        if config.is_json:
            content = b"".join((b"[", b",".join(values.values), b"]"))
        else:
            content = b"".join(values.values)
        held.more(len(content))
        headers["Content-Type"] = config.content_type
        return HeldResponse(content, held, headers)

    def _events(
        self, request: Request, stream: Stream, offset: int, cursor: str, held: HeldBytes
    ) -> Response:
        kind = stream.config.media_type
        reader = self._live.reader(request, stream)
        events = self._each_event(reader, stream, offset, cursor, held)
        return EventStream(events, held, is_binary=not is_text(kind))

    async def _each_event(
        self, reader: LiveReader, stream: Stream, offset: int, cursor: str, held: HeldBytes
    ) -> AsyncIterator[bytes]:
        began, is_first = time.monotonic(), True
        kind = stream.config.media_type
        with reader:
            while not stream.partition.gone:
                try:
                    values = await self._page(stream, offset, READ_BYTES_DEFAULT, held.size)
                    begin, offset = offset, values.next_offset
                    up_to_date, closed = offset >= values.end, stream.is_closed_at(offset)
                    key = (stream.partition, kind, begin, offset, up_to_date, closed, cursor)
                    event = self._live.event(key, partial(_event, values, key))
                    size = len(event)
                    held.more(size)
                except _ENDS as error:
                    LINES.write(_log, "warning", "an event stream ends", kind_of(error),
                                topic=stream.topic.name, error=str(error))  # fmt: skip
                    return
                if values.values or is_first or closed:
                    yield event
                held.less(size)
                is_first = False
                if closed or (up_to_date and reader.is_over):
                    return
                if values.values and not closed:
                    await self._live.rest()
                if up_to_date or not values.values:
                    left = seconds_left(began, _EVENTS_SECONDS)
                    await reader.wait(offset, left)
                    stream.gate.touch()
                if reader.is_over or seconds_left(began, _EVENTS_SECONDS) <= 0:
                    return

    # ------------------------------------------------------------------ helpers

    async def _body(self, request: Request, headers: StreamHeaders, held: HeldBytes) -> bytearray:
        announced = headers.found.get(CONTENT_LENGTH, (b"",))[0]
        body = await read_body(request.receive, announced, self._records.bytes_max, held)
        headers.check_body(body)
        return body


class _Stored(Response):
    """The response to an append, made by hand: the framework takes as long as the append."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        self.body = b""
        self.status_code = status
        self.background = None
        self.raw_headers = [
            (name.lower().encode(), value.encode()) for name, value in headers.items()
        ]
        if status != 204:
            self.raw_headers.append((CONTENT_LENGTH, b"0"))


class _NotAppendedError(Exception):
    """The first values of a stream could not be appended.

    Attributes:
        response: says why.
    """

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response: Final = response


def _event(values: Values, key: EventKey) -> bytes:
    """Return the event with values, if there are any, and the control event after it."""
    _, kind, _, offset, up_to_date, closed, cursor = key
    data = data_event(values.values, kind) if values.values else b""
    return data + control_event(offset, cursor, up_to_date=up_to_date, closed=closed)


def _closed(stream: Stream) -> Response:
    headers = {NEXT_OFFSET: offset_text(stream.tail), **_TRUE}
    return refusal(Problem.STREAM_CLOSED, "the stream is closed", headers=headers)


def _identity_of_own(stream: Stream, name: str) -> Identity | None:
    """Return the identity of a send that must be stored once, or in its order; None: it has none.

    The outcome of an append to Kafka may be unknown, and only batches with an identity, which go
    under the partition's writer, are looked for then.

    Parameters:
        name: of the send, among those to the stream.
    """
    if not isinstance(stream.partition.log, ForwardingLog):
        return None
    return Identity(-1, f"{_OWN_MARK}{stream.topic.topic_id}{name}", 0, 0, 0)


def _identity_of_close(stream: Stream, send: StreamSend) -> Identity | None:
    """Return the identity of a send that closes a stream, if its producer has none.

    An earlier append under the writer may have no outcome yet. The close must come after it, or in
    its place: its repetition would be a duplicate, which no reader of the stream sees.
    """
    if send.closing is Closing.NO:
        return None
    return _identity_of_own(stream, f"close {uuid.uuid4().hex}")


def _values(body: bytearray, *, is_json: bool) -> list[bytes]:
    if not body:
        return []
    return json_values(body) if is_json else [bytes(body)]


def _some_values(body: bytearray) -> list[bytes]:
    values = json_values(body)
    if not values:
        raise JsonValuesError("an empty array has nothing to append")
    return values


def add_stream_handlers(app: FastAPI) -> None:
    """Give the errors of these routes the common form."""
    kinds: Mapping[type[Exception], Problem] = {
        UnknownStreamError: Problem.UNKNOWN_STREAM,
        DeletedStreamError: Problem.STREAM_DELETED,
        StreamConflictError: Problem.STREAM_CONFLICT,
        InvalidStreamError: Problem.INVALID_STREAM,
        JsonValuesError: Problem.INVALID_JSON,
    }

    async def refused(_: Request, error: Exception) -> JSONResponse:
        field = error.field if isinstance(error, InvalidStreamError) else None
        field = "body" if isinstance(error, JsonValuesError) else field
        return refusal(kinds[type(error)], str(error), field)

    for kind in kinds:
        app.add_exception_handler(kind, refused)

    @app.exception_handler(_NotAppendedError)
    async def not_appended(_: Request, error: _NotAppendedError) -> Response:
        return error.response


# ---------------------------------------------------------------------- OpenAPI


def _header(name: str, text: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "schema": {"type": "string"},
            "description": text}  # fmt: skip


def _query(name: str, text: str) -> dict[str, Any]:
    return _header(name, text) | {"in": "query"}


_PATH_PARAMETER: Final = {
    "name": "path", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1},
    "description": "the path of the stream; may have slashes",
}  # fmt: skip
_BODY: Final = {
    "required": False,
    "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}},
}
_PRODUCER: Final = (
    _header(PRODUCER_ID, "the producer; the three headers come together"),
    _header(PRODUCER_EPOCH, "higher each time the producer restarts"),
    _header(PRODUCER_SEQ, "counts requests, from 0 in each epoch"),
)
_SUMMARIES: Final = {
    "PUT": "Create a stream, or a fork of one",
    "POST": "Append to a stream, or close it",
    "GET": "Read a stream",
    "HEAD": "Describe a stream",
    "DELETE": "Delete a stream",
}
_STATUS: Final = {"PUT": 201, "POST": 204, "GET": 200, "HEAD": 200, "DELETE": 204}
_DESCRIPTIONS: Final[Mapping[str, dict[str, Any]]] = {
    "PUT": {
        "parameters": [
            _PATH_PARAMETER,
            _header(CLOSED, "true: the body is all that the stream will ever have"),
            _header(TTL, "seconds after the last read or append until the stream expires"),
            _header(EXPIRES_AT, "when the stream expires (RFC 3339)"),
            _header(FORKED_FROM, "the path of the stream to fork, with its prefix"),
            _header(FORK_OFFSET, "where to fork it; default: its end"),
            _header(FORK_SUB_OFFSET, "JSON values, or bytes of the next value, to inherit beyond"),
        ],
        "requestBody": _BODY,
    },
    "POST": {
        "parameters": [
            _PATH_PARAMETER,
            _header(CLOSED, "true: close the stream, after the body if there is one"),
            _header("Stream-Seq", "is above the last one of the stream, compared as text"),
            *_PRODUCER,
        ],
        "requestBody": _BODY,
    },
    "GET": {
        "parameters": [
            _PATH_PARAMETER,
            _query("offset", "-1: the beginning; now: the end; otherwise as a response has it"),
            _query("live", "long-poll: wait for more; sse: server-sent events"),
            _query("cursor", "the last Stream-Cursor"),
            _header("If-None-Match", "the ETag of a former response"),
        ]
    },
    "HEAD": {"parameters": [_PATH_PARAMETER]},
    "DELETE": {"parameters": [_PATH_PARAMETER]},
}
_FOUND: Final = (
    Problem.INVALID_STREAM,
    Problem.UNKNOWN_STREAM,
    Problem.STREAM_DELETED,
    Problem.TOPIC_NOT_READY,
    Problem.LOG_UNREADABLE,
)
_APPENDS: Final = (
    Problem.INVALID_JSON,
    Problem.INVALID_BATCH,
    Problem.INCOMPLETE_BODY,
    Problem.UNSUPPORTED_BODY,
    Problem.POLICY_FORBIDDEN,
    Problem.KAFKA_FORBIDDEN,
    Problem.BODY_TOO_SLOW,
    Problem.BODY_TOO_LARGE,
    Problem.NOT_OWNER,
    Problem.APPEND_FAILED,
    Problem.PARTITION_STOPPED,
    Problem.OVERLOADED,
)
_CHANGES: Final = (
    Problem.INVALID_TOPIC,
    Problem.KAFKA_FORBIDDEN,
    Problem.KAFKA_UNAVAILABLE,
    Problem.OVERLOADED,
    Problem.NOT_STORED,
)
_RESPONSES: Final = {
    "PUT": {
        200: {"description": "The stream exists, as asked for"},
        **refusals(*_FOUND, *_APPENDS, *_CHANGES, Problem.STREAM_CONFLICT),
    },
    "POST": {
        200: {"description": "Appended for a producer that numbers its requests"},
        **refusals(
            *_FOUND, *_APPENDS, Problem.INVALID_PRODUCER, Problem.STREAM_PRODUCER_FENCED,
            Problem.STREAM_CLOSED, Problem.STREAM_TYPE_CONFLICT, Problem.STREAM_SEQ_CONFLICT,
            Problem.PRODUCER_SEQ_CONFLICT, Problem.NAMES_UNAVAILABLE, Problem.PIDS_UNAVAILABLE,
        ),
    },
    "GET": {
        204: {"description": "A long poll has ended without data"},
        304: {"description": "The response has the ETag of If-None-Match"},
        **refusals(
            *_FOUND, Problem.STREAM_TRUNCATED, Problem.UNREADABLE_RECORDS, Problem.LOG_DAMAGED,
            Problem.PARTITION_STOPPED, Problem.OVERLOADED,
        ),
    },
    "HEAD": refusals(*_FOUND),
    "DELETE": refusals(*_FOUND, *_CHANGES),
}  # fmt: skip
