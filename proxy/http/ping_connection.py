"""Pings another active server over a connection that is kept open.

A connection that closes shows the end of the other process at once, between two pings as well. A
second attempt follows, because a server closes connections when it stops or is started again.
"""

import asyncio
import re
import ssl
from http import HTTPStatus
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

import structlog
from pydantic import ValidationError
from typing_extensions import override

from pidlease.coordination.members import Member
from pidlease.core.liveness import SILENT_TICKS, TICK_SECONDS, PeerReport
from pidlease.engine.member_pings import PingOutcome
from pidlease.http_api.ping_messages import PING_PATH, PingAnswer
from pidlease.observability.repeated_lines import LINES, kind_of
from proxy.http.forwarding_headers import FORWARDED
from proxy.http.owner_requests import UNKNOWN_THERE, other_tls

#: So long after a closed or refused connection the second attempt is made.
_AGAIN_SECONDS: Final = 0.05
_SECONDS: Final = SILENT_TICKS * TICK_SECONDS
_ANSWER_BYTES_MAX: Final = 64 << 10
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d{1,5})\r\n", re.IGNORECASE)
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
#: The process is no member, or another one: nothing serves there.
_NOT_SERVING: Final = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.MISDIRECTED_REQUEST)


_log = structlog.get_logger(__name__)


class _StrangerError(OSError):
    """The member and this server do not know each other as servers."""


class _Answer(NamedTuple):
    """A response; an empty body: of another status than 200, or not readable."""

    status: int
    body: bytes = b""


class _Channel(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        #: Of the request in flight.
        self.answer: asyncio.Future[_Answer] | None = None
        self.lost: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        #: Why it is lost.
        self.ended: OSError = ConnectionResetError("the connection was closed")
        self._received = b""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is of no such class

    @override
    def data_received(self, data: bytes) -> None:
        self._received += data
        found = self._parse()
        if found is not None:
            self._received = b""
            if self.answer is not None and not self.answer.done():
                self.answer.set_result(found)

    def _parse(self) -> _Answer | None:
        """Return the response, if it is complete."""
        head, end, body = self._received.partition(_HEAD_END)
        if len(self._received) > _ANSWER_BYTES_MAX:
            return _Answer(0)
        if not end:
            return None
        status = _STATUS.match(head)
        if status is None:
            return _Answer(0)
        length = _LENGTH.search(head + b"\r\n")
        if int(status[1]) != HTTPStatus.OK or length is None:
            return _Answer(int(status[1]))
        return _Answer(HTTPStatus.OK, body) if len(body) >= int(length[1]) else None

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError):
            self.ended = exc  # the member's alert: it does not accept this server's certificate
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(self.ended)
        if not self.lost.done():
            self.lost.set_result(None)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class HttpPings:
    """Pings one member.

    Parameters:
        outcome: gets what became of pings.
        tls: of the connection; None: it has no TLS.
    """

    def __init__(
        self, member: Member, outcome: PingOutcome, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._member: Final = member
        self._tls: Final = tls
        self._outcome: Final = outcome
        self._version = -1
        self._topics = 0
        #: Whether a ping has followed a closed connection since `ping` was called.
        self._followed = False
        parts = urlsplit(member.http_url)
        self._host: Final = parts.hostname or ""
        self._port: Final = parts.port or 80
        self._head: Final = f"GET {PING_PATH}?to={member.node_id}&version="
        self._rest: Final = f" HTTP/1.1\r\nhost: {parts.netloc}\r\n{FORWARDED}: 1\r\n\r\n"
        self._channel: _Channel | None = None
        self._task: asyncio.Task[None] | None = None

    def ping(self, version: int, topics: int) -> None:
        """Ping the member, unless an earlier ping is in flight."""
        self._version, self._topics, self._followed = version, topics, False
        self._start()

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def close(self) -> None:
        """Close the connection."""
        if self._task is not None:
            self._task.cancel()
        self._leave()

    def _leave(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                found = await self._twice()
        except (_StrangerError, ssl.SSLError) as error:
            # It lives, so its slots do not move at once; but nothing can be sent to it.
            LINES.write(_log, "error", "a server and this one do not accept each other",
                        (self._member.server, str(error)), server=self._member.server,
                        http=self._member.http_url, reason=str(error))  # fmt: skip
            self._leave()
        except OSError:
            self._leave()  # silent
        except asyncio.CancelledError:
            self._leave()
            raise
        except Exception as error:  # noqa: BLE001 - a bug must not end the pings
            LINES.write(_log, "error", "a server could not be pinged", kind_of(error), error,
                        error=repr(error))  # fmt: skip
            self._leave()
        else:
            self._note(found)
        finally:
            self._task = None

    def _note(self, found: _Answer | None) -> None:
        if found is None:
            self._leave()
            self._outcome.refused()
            return
        if not found.body:
            self._leave()  # what follows on this connection is unknown
        try:
            answer = PingAnswer.model_validate_json(found.body) if found.body else None
        except ValidationError:
            answer = None
        self._outcome.answered(
            None
            if answer is None
            else PeerReport(
                answer.version, answer.silent, answer.returning, answer.abstains, answer.topics
            )
        )

    async def _twice(self) -> _Answer | None:
        """Return an answer; None: nothing serves at the address.

        Raises:
            OSError: it cannot be reached, for another reason.
        """
        if reason := other_tls(self._member, self._tls):
            raise _StrangerError(reason)
        for last in (False, True):
            try:
                found = await self._once()
                if found.status == HTTPStatus.UNAUTHORIZED:
                    raise _StrangerError(UNKNOWN_THERE)
                if found.status not in _NOT_SERVING:
                    return found
            except ConnectionError:
                pass
            self._leave()
            if not last:
                await asyncio.sleep(_AGAIN_SECONDS)
        return None

    async def _once(self) -> _Answer:
        channel = self._channel
        if channel is None or channel.lost.done():
            loop = asyncio.get_running_loop()
            _, channel = await loop.create_connection(
                _Channel, self._host, self._port, ssl=self._tls
            )
            self._channel = channel
            channel.lost.add_done_callback(self._on_lost)
        if channel.transport is None:
            raise AssertionError("the connection is made")
        if channel.lost.done():
            raise channel.ended
        channel.answer = asyncio.get_running_loop().create_future()
        news = f"{self._version}&topics={self._topics}"
        channel.transport.write(f"{self._head}{news}{self._rest}".encode())
        return await channel.answer

    def _on_lost(self, _: "asyncio.Future[None]") -> None:
        """Look at once whether the member has ended, if no ping is in flight."""
        channel = self._channel
        if channel is not None and channel.lost.done() and not self._followed:
            self._followed = True  # a server that closes each connection is not pinged in a loop
            self._start()
