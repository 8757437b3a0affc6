"""The HTTP/1.1 protocol of the HTTP port: uvicorn's over httptools, with three corrections.

- uvicorn and httptools keep a head (the request line with the headers) of any length. Here it has
  a bound.
- httptools drops the body of a request that offers another protocol, as the first request of Java's
  client offers HTTP/2. Here h11 serves such a connection, by HTTP/1.1.
- uvicorn refuses a malformed request at once, before it has served those that came before it on the
  connection. Here the refusal waits for their responses.
"""

from asyncio import AbstractEventLoop, Transport
from typing import Any, Final

import structlog
from httptools import HttpParserError, HttpParserUpgrade
from starlette.types import ASGIApp
from typing_extensions import override
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from pidlease.observability.repeated_lines import LINES

#: The key of a client's certificate in the state of a request's scope.
PEER_CERTIFICATE: Final = "peer_certificate"
#: The longest head of a request, and the longest trailers, in bytes.
HEAD_BYTES_MAX: Final = 64 << 10

_log = structlog.get_logger(__name__)


class HttpProtocol(HttpToolsProtocol):
    """Serves HTTP/1.1 on one connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        #: The bytes since the end of the last head, or the last part of a body.
        self._head_bytes = 0
        #: The request that is answered next.
        self._served: RequestResponseCycle | None = None
        #: The request that is being received; None: its head is not complete.
        self._received: RequestResponseCycle | None = None
        #: The refusal of the malformed request that is the last of this connection.
        self._refusal: str | None = None

    @override
    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self.app_state = {**self.app_state, PEER_CERTIFICATE: certificate}

    @override
    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._head_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._continue_by_h11(data[upgrade.args[0] :])
        except HttpParserError as error:
            LINES.write(_log, "warning", "connection closed: malformed HTTP request", str(error),
                        client=str(self.client), error=str(error))  # fmt: skip
            self.send_400_response(f"The request is no HTTP/1.1: {error}")
        if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response(
                f"The request line and headers have more than {HEAD_BYTES_MAX} bytes."
            )

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
        super().on_response_complete()
        served = self._served
        if (
            self._refusal is not None
            and (served is None or served.response_complete)
            and not self.transport.is_closing()
        ):
            super().send_400_response(self._refusal)

    @override
    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._served = cycle
        super()._start_asgi_task(cycle, app)

    def _continue_by_h11(self, rest: bytes) -> None:
        """Let h11 serve this connection from the current request on.

        Parameters:
            rest: what came after the request's head.
        """
        self._head_bytes = 0
        if self.pipeline or not getattr(self.cycle, "response_complete", True):
            # Its response would come after, or within, the one of this request.
            self.transport.close()
            return
        self.connections.discard(self)
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/1.1\r\n"]
        for name, value in self.headers:
            head += (name, b": ", value, b"\r\n")
        protocol = H11Protocol(self.config, self.server_state, self.app_state, self.loop)
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        protocol.data_received(b"".join((*head, b"\r\n", rest)))

    @override
    def _should_upgrade(self) -> bool:
        return True  # so no request that offers another protocol is served here

    @override
    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self._received = self.cycle

    @override
    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        self._head_bytes = 0
        self._received = None
        super().on_message_complete()


def http_config(app: ASGIApp, stop_seconds: int | None = None) -> Config:
    """Return the configuration of uvicorn for an application.

    Parameters:
        stop_seconds: how long a stop waits for requests; None: until they are done.
    """
    return Config(
        app, http=HttpProtocol, ws="none", log_config=None, access_log=False, lifespan="off",
        proxy_headers=False, timeout_graceful_shutdown=stop_seconds,
    )  # fmt: skip
