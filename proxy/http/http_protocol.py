"""The HTTP/1.1 protocol of the HTTP port: uvicorn's over httptools, with nine corrections.

- uvicorn and httptools keep a head (the request line with the headers) of any length. Here it has
  a bound.
- httptools leaves blanks at the end of a header's value: a `Producer-Id` with one would be another
  producer. Here they are dropped (RFC 9110, section 5.5).
- httptools accepts a head without `Host`, or with two, and any transfer coding. Here such a request
  is refused (RFC 9112, sections 3.2 and 6.1).
- httptools drops the body of a request that offers another protocol, as the first request of Java's
  client offers HTTP/2. Here the offer is ignored (RFC 9110, section 7.8).
- uvicorn waits for a request, for the rest of its head, or for the rest of a body that it has
  responded to, for ever. Here a connection is closed.
- uvicorn refuses a malformed request at once, before it has served those that came before it on the
  connection. Here the refusal waits for their responses.
- uvicorn accepts any number of connections. Here they have a limit.
- uvicorn keeps all requests that arrive ahead of their turn, and reads on after each response. Here
  few of them are parsed at a time, and no more is read while there are some.
- uvicorn closes a connection as soon as its client has ended its side. Here the requests that have
  arrived whole get their responses first. A read that waits for records ends at once, for a client
  that closes its connection looks the same until something is sent. A connection with TLS is
  closed.

Small appends do without uvicorn's task for each request: they are submitted when their bodies have
arrived, also those that follow others that were, and their responses go in the order of requests.
"""

from asyncio import AbstractEventLoop, Task, TimerHandle, Transport, current_task
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import structlog
from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
)
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from pidlease.http_api.problems import Problem
from pidlease.observability.repeated_lines import LINES
from proxy.http.connection_limit import ConnectionLimit, PortConnections
from proxy.http.errors import refusal
from proxy.http.forwarding_headers import is_of_member
from proxy.http.immediate_appends import ImmediateAppends

#: The key of a client's certificate in the state of a request's scope.
PEER_CERTIFICATE: Final = "peer_certificate"
#: The longest head of a request, and the longest trailers, in bytes.
HEAD_BYTES_MAX: Final = 64 << 10
#: How long a connection stays open between requests. Most clients close theirs earlier, after 4 to
#: 60 seconds: a request that meets the close of its connection may have no response.
_IDLE_SECONDS: Final = 75
#: How long the first request may take to begin, and a head to arrive.
_HEAD_SECONDS: Final = 30
#: How many requests of one connection are submitted, and not answered. While more wait, no more is
#: parsed.
_SUBMITTED_MAX: Final = 64
#: The bytes that are parsed at a time: a short request takes 80 times its bytes.
_PARSED_BYTES: Final = 16 << 10
#: How long the protocol waits for a small body; then a task reads it, with its limit of time.
_BODY_SECONDS: Final = 0.02
#: How long a stop waits for an idle client to end TLS. One that does not read does not respond.
_TLS_END_SECONDS: Final = 0.5
#: A longer body that comes in parts is read by a task, which counts its memory as it arrives.
_BODY_BYTES_MAX: Final = 8 << 10
#: The transfer codings that a request may have.
_CODINGS: Final[tuple[list[bytes], ...]] = ([], [b"chunked"])
_TOO_MANY: Final[Any] = refusal(
    Problem.OVERLOADED, "there are too many connections; try again", headers={"Connection": "close"}
)

_log = structlog.get_logger(__name__)


def _refuse(detail: str, field: str) -> Response:
    """Return an application that refuses a request, and closes its connection."""
    return refusal(Problem.INVALID_REQUEST, detail, field, headers={"Connection": "close"})


class _Flow(FlowControl):
    """Reads no more while requests wait that have arrived."""

    def __init__(self, transport: Transport, is_full: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._is_full: Final = is_full

    @override
    def resume_reading(self) -> None:
        if self.read_paused and not self._is_full():
            super().resume_reading()


class HttpProtocol(HttpToolsProtocol):
    """Serves HTTP/1.1 on one connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
        *,
        immediate: ImmediateAppends | None = None,
        port: PortConnections | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        #: The bytes since the end of the last head, or the last part of a body.
        self._head_bytes = 0
        #: What has arrived and is not parsed: too many requests wait.
        self._unparsed: memoryview | bytes = b""
        #: Whether the client has ended its side of the connection.
        self._is_half_closed = False
        #: The request that is answered next.
        self._served: RequestResponseCycle | None = None
        #: The request that is being received; None: its head is not complete.
        self._received: RequestResponseCycle | None = None
        self._immediate: Final = immediate
        self._port: Final = port
        #: The request that is answered next, if no task has been started: its body is arriving.
        self._arriving: tuple[RequestResponseCycle, Any] | None = None
        self._body_timer: TimerHandle | None = None
        #: The requests submitted, in their order; None: there is no response yet.
        self._submitted: dict[RequestResponseCycle, Response | None] = {}
        #: Whether the responses that are ready will be sent.
        self._sends_soon = False
        #: The first request that cannot be submitted before its turn.
        self._waiting: RequestResponseCycle | None = None
        #: The refusal of the malformed request that is the last of this connection.
        self._refusal: str | None = None
        self._head_timer: TimerHandle | None = None
        #: Waits for the TLS handshake; None: the handshake is over, or there is none.
        self._accepting: Task[Any] | None = current_task()
        if port is not None:
            if self._accepting is not None:
                self._accepting.add_done_callback(self._accepted)
            if not port.opened(self):
                self.give_way()

    def _accepted(self, _: Task[Any]) -> None:
        if self._port is not None and self.transport is None:
            self._port.closed(self)  # its handshake has failed

    @override
    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport, self._is_full)
        self._accepting = None
        if self._port is not None and self not in self._port.connections:
            transport.abort()  # it was refused, or gave way
            return
        self._head_timer = self.loop.call_later(_HEAD_SECONDS, self._head_is_late)
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self.app_state = {**self.app_state, PEER_CERTIFICATE: certificate}

    def _is_full(self) -> bool:
        """Whether too many requests wait to have more of them parsed."""
        return bool(self._unparsed) or len(self.pipeline) > _SUBMITTED_MAX

    @override
    def data_received(self, data: bytes) -> None:
        if self._unparsed:
            self._unparsed = b"".join((self._unparsed, data))  # some transports had it already
        elif len(data) <= _PARSED_BYTES and not self.pipeline:
            self._take(data)
        else:
            self._take_parts(data)

    def _take_parts(self, data: memoryview | bytes) -> None:
        """Parse what has arrived, as long as few requests wait."""
        data = memoryview(data)
        for at in range(0, len(data), _PARSED_BYTES):
            if self._is_full():
                self._unparsed = data[at:]
                self.flow.pause_reading()
                return
            self._take(data[at : at + _PARSED_BYTES])

    def _take_rest(self) -> None:
        """Go on with what has arrived."""
        rest, self._unparsed = self._unparsed, b""
        if self.transport.is_closing():
            return
        self._take_parts(rest)
        self.flow.resume_reading()
        if self._has_ended():
            self._end()

    @override
    def eof_received(self) -> bool:  # type: ignore[override]
        """Note that the client sends no more; True: it still gets responses."""
        if self.scheme == "https":
            return False  # TLS connections are closed anyway, and True is logged as a mistake
        self._is_half_closed = True
        if self._has_ended():
            self._end()
        return not self.transport.is_closing()

    def _has_ended(self) -> bool:
        """Whether all that the client has sent is parsed, and no more comes."""
        return self._is_half_closed and not self._unparsed

    def _end(self) -> None:
        """Close the connection once all its requests have their responses."""
        self._start_arriving()
        if self._refusal is None:  # it closes the connection
            super().shutdown()
        if self._served is not None:
            self._served.message_event.set()  # it may wait for more of its body, or for the end

    def _take(self, data: memoryview | bytes) -> None:
        """Parse what has arrived, if nothing before it was refused."""
        if self._refusal is not None or self.transport.is_closing():
            return
        self._head_bytes += len(data)
        try:
            self._parse(data)
        except HttpParserCallbackError:
            raise  # an error of this server
        except HttpParserError as error:
            LINES.write(_log, "warning", "connection closed: malformed HTTP request", str(error),
                        client=str(self.client), error=str(error))  # fmt: skip
            self.send_400_response(f"The request is no HTTP/1.1: {error}")
        if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response(
                f"The request line and headers have more than {HEAD_BYTES_MAX} bytes."
            )
        if self._head_bytes and self._received is None and self._head_timer is None:
            self._unset_keepalive_if_required()
            self._head_timer = self.loop.call_later(_HEAD_SECONDS, self._head_is_late)

    def _parse(self, data: memoryview | bytes) -> None:
        """Parse what has arrived, and ignore offers of other protocols.

        Raises:
            HttpParserError: a request is malformed.
        """
        rest: bytes | memoryview = data
        while True:
            try:
                self.parser.feed_data(rest)
            except HttpParserUpgrade as upgrade:
                if self.parser.get_method() == b"CONNECT":
                    self.send_400_response("CONNECT is for proxies, and this server is none.")
                    return
                rest = memoryview(rest)[upgrade.args[0] :]
                self._parse_without_offer()
            else:
                return

    def _parse_without_offer(self) -> None:
        """Parse the last head again as if it offered no other protocol: its body follows."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        head = [method, b" ", self.url, f" HTTP/{version}\r\n".encode()]
        for name, value in self.headers:
            if name != b"upgrade":
                head += (name, b": ", value, b"\r\n")
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's has
        self.parser.feed_data(b"".join((*head, b"\r\n")))

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.transport.is_closing() or self._refusal is not None:
            return
        if self.flow.read_paused:  # this server has not read it
            self._head_timer = self.loop.call_later(_HEAD_SECONDS, self._head_is_late)
        elif self._head_bytes:
            self.send_400_response(f"The request's head did not arrive within {_HEAD_SECONDS} s.")
        else:
            self.transport.close()

    def _end_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        self._head_timer = None

    @override
    def send_400_response(self, msg: str) -> None:
        received, served = self._received, self._served
        if received is not None and received.response_started:
            self.transport.close()  # a second response would be one of no request
            return
        if self.pipeline and self.pipeline[0][0] is received:
            self.pipeline.popleft()
        if not self.pipeline and (served in (None, received) or served.response_complete):
            super().send_400_response(msg)
        else:
            self._refusal = msg  # after the responses to the requests before it

    @override
    def on_response_complete(self) -> None:
        is_last = not self.pipeline
        super().on_response_complete()
        if self._unparsed and len(self.pipeline) == _SUBMITTED_MAX:
            self.loop.call_soon(self._take_rest)
        if is_last and self._port is not None and not self.transport.is_closing():
            self._port.rested(self)
        served = self._served
        if (
            self._refusal is not None
            and (served is None or served.response_complete)
            and not self.transport.is_closing()
        ):
            super().send_400_response(self._refusal)

    def is_of_member(self) -> bool:
        """Whether the last request is one by which another active server stays a member."""
        last: RequestResponseCycle | None = self.cycle
        return last is not None and is_of_member(last.scope)

    def give_way(self) -> bool:
        """End the connection while it is idle; False: the client has not read its last response."""
        if self.transport is None:
            if self._accepting is not None:
                self._accepting.cancel()
            return True
        is_read = self.transport.get_write_buffer_size() == 0
        self.shutdown()
        return is_read

    @override
    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing() and self.transport.get_extra_info("ssl_object") is not None:
            self.loop.call_later(_TLS_END_SECONDS, self._end_tls)

    def _end_tls(self) -> None:
        """Close the connection without the client, if it has all responses."""
        if self.transport.get_write_buffer_size() == 0:
            self.transport.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head_timer()
        if self._port is not None:
            self._port.closed(self)
        self._start_arriving()  # its task ends when it finds the connection closed
        super().connection_lost(exc)

    @override
    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Serve a request: it is its turn."""
        self._served = cycle
        if self._port is not None and not self._port.began(self):
            super()._start_asgi_task(cycle, _TOO_MANY)
        elif app is not self.config.loaded_app:  # it is refused
            super()._start_asgi_task(cycle, app)
        elif cycle in self._submitted:
            self._send_soon()
        elif (
            cycle.more_body
            and self._immediate is not None
            and self._immediate.serves(cycle.scope)
            and not cycle.waiting_for_100_continue
        ):
            self._arriving = cycle, app
            self._body_timer = self.loop.call_later(_BODY_SECONDS, self._start_arriving)
        elif not cycle.more_body and self._submit(cycle):
            self._submit_next()
        else:
            self._start_task(cycle, app)

    def _start_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:
        called: Any = partial(self._call, cycle, app)
        super()._start_asgi_task(cycle, called)

    def _call(
        self, cycle: RequestResponseCycle, app: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> Awaitable[None]:
        """Call an application; once the client has ended its side, receiving says so.

        A response is still sent then. The client may have closed the connection.
        """
        is_whole = False  # whether the application has the body

        async def received() -> Message:
            nonlocal is_whole
            if not self._has_ended() or not (is_whole or cycle.more_body):
                message = await receive()
                if not self._has_ended() or not (is_whole or cycle.more_body):
                    is_whole = not message.get("more_body", False)
                    return message
            return {"type": "http.disconnect"}

        return app(scope, received, send)

    def _start_arriving(self) -> None:
        """Serve the request that is arriving, if there is one."""
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None
        if self._arriving is not None:
            (cycle, app), self._arriving = self._arriving, None
            if cycle.more_body or not self._submit(cycle):
                self._start_task(cycle, app)

    def _submit(self, cycle: RequestResponseCycle) -> bool:
        """Submit a request that has arrived whole; False: a task must serve it, in its turn."""
        scope, immediate = cycle.scope, self._immediate
        if immediate is None or self.flow.write_paused:
            return False
        self._submitted[cycle] = None
        try:
            done = immediate.submit(scope, cycle.body, partial(self._respond, cycle))
        except BaseException:
            self.transport.close()  # a bug; its batch may be in the log, so nothing else serves it
            raise
        if not done:
            del self._submitted[cycle]
        return done

    def _submit_next(self) -> None:
        """Submit the requests after the served one, if it was submitted, in their order."""
        if self._served not in self._submitted:
            return
        while len(self._submitted) <= min(len(self.pipeline), _SUBMITTED_MAX):
            cycle, app = self.pipeline[-len(self._submitted)]
            if cycle.more_body or cycle is self._waiting:
                return
            if app is not self.config.loaded_app or not self._submit(cycle):
                self._waiting = cycle

    def _respond(self, cycle: RequestResponseCycle, response: Response) -> None:
        """Send the response to a request that was submitted, in its turn."""
        self._submitted[cycle] = response
        if cycle is self._served:
            self._send_soon()

    def _send_soon(self) -> None:
        """Send what is ready: not from within the engine, which goes on with other producers."""
        if not self._sends_soon:
            self._sends_soon = True
            self.loop.call_soon(self._send_ready)

    def _send_ready(self) -> None:
        """Send the responses that are ready, in their order, and submit further requests."""
        sent = 0
        try:
            while (served := self._served) is not None and sent < _SUBMITTED_MAX:
                response = self._submitted.get(served)
                if response is None:
                    break
                self._send(served, response)  # it is the next one's turn then
                sent += 1
        finally:
            self._sends_soon = False
        if sent == _SUBMITTED_MAX:
            self._send_soon()  # other connections come first
        self._submit_next()

    def _send(self, cycle: RequestResponseCycle, response: Response) -> None:
        del self._submitted[cycle]
        cycle.response_started = cycle.response_complete = True
        if self.transport.is_closing():
            return
        parts: list[Any] = [STATUS_LINE[response.status_code]]
        for name, value in (*cycle.default_headers, *response.raw_headers):
            parts += (name, b": ", value, b"\r\n")
        if (b"connection", b"close") in response.raw_headers:
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            parts.append(b"connection: close\r\n")
        parts += (b"\r\n", response.body)
        self.transport.write(b"".join(parts))
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()

    @override
    def _should_upgrade(self) -> bool:
        return True  # so no request is served before its offer is removed

    @override
    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        self._unset_keepalive_if_required()
        if self._head_timer is not None:  # most have none: the head came at once
            self._end_head_timer()
        # In place: the request's scope has this list already.
        self.headers[:] = [(name, value.rstrip(b" \t")) for name, value in self.headers]
        before, app = self.cycle, self.app
        refusing: Any = self._refusing()
        self.app = app if refusing is None else refusing
        super().on_headers_complete()
        self.app = app
        if self.cycle is not before:
            self._received = self.cycle

    def _refusing(self) -> Response | None:
        """Return an application that refuses the head that has arrived; None: it is valid."""
        hosts = 0
        codings: list[bytes] = []
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding":
                codings.append(value.lower())
        if codings not in _CODINGS:
            return _refuse("the only transfer coding is chunked", "Transfer-Encoding")
        if hosts != 1 and self.parser.get_http_version() != "1.0":
            return _refuse("each request has one Host", "Host")
        return None

    @override
    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)
        if self._arriving is not None and len(self.cycle.body) > _BODY_BYTES_MAX:
            self._start_arriving()

    @override
    def on_message_complete(self) -> None:
        self._head_bytes = 0
        cycle, self._received = self._received, None
        super().on_message_complete()
        if self._arriving is not None and self._arriving[0] is cycle:
            self._start_arriving()
        else:
            self._submit_next()


def http_config(
    app: ASGIApp,
    stop_seconds: int | None = None,
    immediate: ImmediateAppends | None = None,
    limit: ConnectionLimit | None = None,
) -> Config:
    """Return the configuration of uvicorn for an application.

    Parameters:
        stop_seconds: how long a stop waits for requests; None: until they are done.
        immediate: serves appends without the application; None: it serves all.
        limit: of the connections, to which this adds a port; None: there is none.
    """
    port = None if limit is None else limit.add_port()
    protocol: Any = partial(HttpProtocol, immediate=immediate, port=port)
    return Config(
        app, http=protocol, ws="none", log_config=None, access_log=False, lifespan="off",
        proxy_headers=False, timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=stop_seconds,
    )  # fmt: skip
