"""One connection to a broker: completes requests in the order in which they were sent.

Kafka handles one request of a connection at a time and responds in order, so a response belongs to
the oldest request in flight. Its correlation id must match. The sender of a request chooses the
id: the proxy forwards a client's request with the client's id.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

from typing_extensions import override

from pidlease.core.buffer import Buffer
from pidlease.kafka.api import CLIENT_ID, SENT_VERSIONS
from pidlease.kafka.client.settings import Address
from pidlease.kafka.client.socket_writer import SocketWriter
from pidlease.kafka.codec.primitives import INT32
from pidlease.kafka.errors import (
    UpstreamError,
    UpstreamLostError,
    UpstreamNonsenseError,
    UpstreamRefusedError,
)
from pidlease.observability.loggers import Logger
from pidlease.observability.repeated_lines import LINES

_LENGTH_BYTES: Final = 4
#: Where the correlation id is, in a request without its length.
_ID_AT: Final = 4
_FRAME_BYTES_MIN: Final = 4
#: A large response gets memory as it arrives: this much at first, then twice as much each time.
_AHEAD_BYTES: Final = 1 << 20
#: A response is large only if it has a large batch: Kafka returns at least one.
_FRAME_BYTES_MAX: Final = 2**31 - 1
_BUFFER_BYTES: Final = 64 << 10
#: The most bytes to hold back, so that one write sends several requests.
_HELD_BYTES_MAX: Final = 64 << 10
#: Up to here, copying the requests into one buffer costs less than handing over each part.
_COPIED_BYTES_MAX: Final = 8 << 10
#: How often to look for a late response, unless responses may take even less time.
_WATCH_SECONDS: Final = 1.0

_log = Logger(__name__)

#: Gets the response, from the correlation id on, or the reason why there is none.
OnResponse = Callable[[bytearray | UpstreamError], None]


class BrokerRequest:
    """A request in flight, which gets its response.

    Attributes:
        correlation_id: as in the request's bytes.
        latest: until when the response must come, by time.monotonic.
    """

    __slots__ = ("correlation_id", "latest")

    correlation_id: int
    latest: float

    def responded(self, response: bytearray | UpstreamError) -> None:
        """Take the response, from the correlation id on, or the reason why there is none.

        If there is none, the request may have had its effect.
        """
        raise NotImplementedError


class _CallbackRequest(BrokerRequest):
    """A request with a function that gets the response."""

    __slots__ = ("_on_response",)

    def __init__(self, on_response: OnResponse) -> None:
        self._on_response = on_response

    @override
    def responded(self, response: bytearray | UpstreamError) -> None:
        self._on_response(response)


#: A request, its bytes, and how long its response may take, as for `BrokerConnection.hold`.
_WaitingRequest = tuple[BrokerRequest, Sequence[Buffer], float]


class BrokerConnection(asyncio.BufferedProtocol):
    """Sends requests to a broker and completes their responses in order.

    Parameters:
        address: of the broker.
        seconds: how long a response may take, unless the request has its own limit.
        client_id: the name of this client in the broker's logs.
    """

    def __init__(self, address: Address, seconds: float, client_id: str = CLIENT_ID) -> None:
        self.address: Final = address
        self.client_id: Final = client_id
        #: The versions that the broker serves: API -> (lowest, highest).
        self.versions: dict[int, tuple[int, int]] = {}
        #: Whether no more requests should be sent for now: the socket accepts no more bytes, or the
        #: client logs in again.
        self.paused: bool = False
        #: Called when requests can be sent again, and when the connection has ended.
        self.on_change: Callable[[], None] | None = None
        #: Returns whether to read a large response of this size; if not, `read_on` follows. None:
        #: each is read.
        self.admits: Callable[[int], bool] | None = None
        #: The size of a large response that was not admitted yet; 0: there is none.
        self.announced: int = 0
        self._seconds = seconds
        #: Returns whether the process was suspended for long; None: `hold_back` was not called.
        self.suspended: Callable[[], bool] | None = None
        self._transport: asyncio.Transport | None = None
        #: What requests are written to: the transport or, after `hold_back`, the socket.
        self._writer: asyncio.WriteTransport | SocketWriter | None = None
        self._in_flight: deque[BrokerRequest] = deque()
        self._held: list[Buffer] = []
        self._held_bytes = 0
        self._buffer = bytearray(_BUFFER_BYTES)
        self._filled = 0
        self._frame: bytearray | None = None
        self._frame_size = 0
        self._error: UpstreamError | None = None
        self._watch: asyncio.TimerHandle | None = None
        #: The requests that wait for the end of `exclusive`; None: none have to wait.
        self._waiting: list[_WaitingRequest] | None = None
        self._full = False
        self._beside: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ sending

    @property
    def open(self) -> bool:
        """Whether requests can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def in_flight(self) -> int:
        """The number of requests without a response."""
        return len(self._in_flight)

    def send(self, parts: Sequence[Buffer], on_response: OnResponse, seconds: float = 0.0) -> None:
        """Send a request now.

        Parameters:
            parts: the request without its length; the first part holds the whole correlation id.
            on_response: gets the response, from the correlation id on, or the reason why there is
                none; then the request may have had its effect.
            seconds: how long the response may take; 0: as long as the connection allows.
        """
        request = _CallbackRequest(on_response)
        (request.correlation_id,) = INT32.unpack_from(parts[0], _ID_AT)
        self.hold(request, [INT32.pack(sum(map(len, parts))), *parts], seconds)
        self.flush()

    def hold(self, request: BrokerRequest, parts: Sequence[Buffer], seconds: float = 0.0) -> None:
        """Queue a request until `flush`, which sends it together with the following ones.

        Parameters:
            request: gets the response; its correlation id is set.
            parts: the request's bytes, with its length.
            seconds: how long the response may take; 0: as long as the connection allows.
        """
        if self._transport is None or self._transport.is_closing():
            request.responded(UpstreamLostError(f"{self}: not connected"))
            return
        if self._waiting is not None:
            self._waiting.append((request, parts, seconds))
            return
        request.latest = time.monotonic() + (seconds or self._seconds)
        self._in_flight.append(request)
        self._held += parts
        self._held_bytes += sum(map(len, parts))
        if self._held_bytes > _HELD_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Send the queued requests in one write: a write costs the same for one or many."""
        held, size = self._held, self._held_bytes
        if not held:
            return
        self._held, self._held_bytes = [], 0
        writer = self._writer
        if writer is None or self._transport is None or self._transport.is_closing():
            return
        if size <= _COPIED_BYTES_MAX:
            writer.write(b"".join(held))
        else:
            writer.writelines(held)

    async def ask(self, request: Buffer, seconds: float = 0.0) -> bytearray:
        """Send a request, and wait for the response.

        Raises:
            UpstreamError: there is none.
        """
        return await self.begin(request, seconds)

    def begin(self, request: Buffer, seconds: float = 0.0) -> asyncio.Future[bytearray]:
        """Send a request now, and return a future of the response; it may raise UpstreamError."""
        future: asyncio.Future[bytearray] = asyncio.get_running_loop().create_future()

        def on_response(response: bytearray | UpstreamError) -> None:
            if future.cancelled():
                return
            if isinstance(response, UpstreamError):
                future.set_exception(response)
                future.exception()  # the caller may have been cancelled
            else:
                future.set_result(response)

        self.send([request], on_response, seconds)
        return future

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Send only the requests of `ask_first` in this block; the others wait for its end.

        Between the steps of a login, a broker closes the connection at any other request.
        """
        self.flush()
        waiting: list[_WaitingRequest] = []
        self._waiting = waiting
        self.paused = True
        try:
            yield
        finally:
            self._waiting = None
            self.paused = self._full
            for request, parts, seconds in waiting:
                self.hold(request, parts, seconds)
            self.flush()
            self._changed()

    async def ask_first(self, request: Buffer) -> bytearray:
        """Send a request ahead of those that wait for `exclusive`, and wait for the response.

        Raises:
            UpstreamError: there is none.
        """
        waiting, self._waiting = self._waiting, None
        response = self.begin(request)
        self._waiting = waiting
        return await response

    def run_beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task until the connection ends."""
        if self._transport is None:
            work.close()
            return
        self._beside = asyncio.get_running_loop().create_task(work)

    @property
    def arriving(self) -> bool:
        """Whether a large response is being read."""
        return self._frame is not None

    @property
    def received(self) -> int:
        """How much of a large response is there, in bytes."""
        return self._filled

    def read_on(self) -> None:
        """Read the large response that was not admitted before."""
        size, self.announced = self.announced, 0
        if not size or self._transport is None or self._transport.is_closing():
            return
        for request in self._in_flight:
            request.latest = max(request.latest, time.monotonic() + self._seconds)
        self._begin_large(_LENGTH_BYTES, size)
        self._transport.resume_reading()

    def hold_back(self, suspended: Callable[[], bool]) -> None:
        """After a suspension, end the connection instead of sending what it could not send before.

        With TLS this changes nothing: only the transport encrypts.

        Parameters:
            suspended: returns whether nothing of before may be sent.
        """
        transport = self._transport
        if transport is None or transport.get_write_buffer_size():
            return  # the next call may find it empty
        if transport.get_extra_info("ssl_object") is None:
            fd = transport.get_extra_info("socket").fileno()
            try:
                self._writer = SocketWriter(fd, self, suspended, self._not_sent)
            except OSError:
                return  # no descriptor is free now
        self.suspended = suspended

    def _not_sent(self, error: OSError | None) -> None:
        """End the connection, because a part of what it should send is not sent."""
        why = "this server was suspended" if error is None else f"the connection ended: {error}"
        self.close(UpstreamLostError(f"{self}: {why}"))

    def close(self, error: UpstreamError | None = None) -> None:
        """End the connection at once; requests in flight fail with `error`."""
        self._error = self._error or error
        self._stop_writing()
        if self._transport is not None:
            self._transport.abort()

    def _stop_writing(self) -> None:
        if isinstance(self._writer, SocketWriter):
            self._writer.close()
        self._writer = None

    def __str__(self) -> str:
        return f"Kafka at {self.address[0]}:{self.address[1]}"

    # ------------------------------------------------------------------ called by asyncio

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's interface, but not its base class.
        self._transport = self._writer = cast(asyncio.Transport, transport)
        self._watch_responses()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._frame, self.announced = None, 0
        self._stop_writing()
        self.paused = self._full = False
        if self._watch is not None:
            self._watch.cancel()
        why = f": {exc}" if exc is not None else ""
        error = self._error or UpstreamLostError(f"{self}: the connection ended{why}")
        if self._beside is not None:
            self._beside.cancel()
        while self._in_flight:
            self._complete(self._in_flight.popleft(), error)
        self._changed()

    @override
    def pause_writing(self) -> None:
        self._full = self.paused = True

    @override
    def resume_writing(self) -> None:
        self._full = False
        if self._waiting is None:
            self.paused = False
            self._changed()

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        frame = self._frame
        if frame is None:
            return memoryview(self._buffer)[self._filled :]
        if self._filled == len(frame):
            # Not all at once: an invalid response may claim to have gigabytes.
            frame += bytes(min(self._frame_size, 2 * len(frame)) - len(frame))
        return memoryview(frame)[self._filled :]

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._frame is None:
            self._take_frames()
        elif self._filled == self._frame_size:
            frame, self._frame, self._filled = self._frame, None, 0
            self._complete_oldest(frame)

    @override
    def eof_received(self) -> bool:
        return False

    def _take_frames(self) -> None:
        at = 0
        while self._filled - at >= _LENGTH_BYTES:
            body = at + _LENGTH_BYTES
            size = int.from_bytes(self._buffer[at:body], "big", signed=True)
            if not _FRAME_BYTES_MIN <= size <= _FRAME_BYTES_MAX:
                self.close(UpstreamNonsenseError(f"{self}: a response of {size} bytes"))
                return
            if self._filled - body < size:
                if size > len(self._buffer) - _LENGTH_BYTES:
                    if self.admits is None or self.admits(size):
                        self._begin_large(body, size)
                        return
                    self._wait_for_memory(size)
                break
            if not self._complete_oldest(self._buffer[body : body + size]):
                return
            at = body + size
        self._buffer[: self._filled - at] = self._buffer[at : self._filled]
        self._filled -= at

    def _wait_for_memory(self, size: int) -> None:
        self.announced = size
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _begin_large(self, body: int, size: int) -> None:
        self._frame_size = size
        self._frame = bytearray(min(size, max(_AHEAD_BYTES, self._filled - body)))
        self._frame[: self._filled - body] = self._buffer[body : self._filled]
        self._filled -= body

    def _complete_oldest(self, frame: bytearray) -> bool:
        """Complete the oldest request; False: this is not its response; the connection ends."""
        in_flight = self._in_flight
        if not in_flight or in_flight[0].correlation_id != INT32.unpack_from(frame)[0]:
            error = UpstreamNonsenseError(f"{self}: a response to no request")
            if not in_flight:  # no request fails, so no other line reports it
                LINES.write(_log, "error", "a response of Kafka is invalid", str(self),
                            broker=str(self), error=str(error))  # fmt: skip
            self.close(error)
            return False
        self._complete(in_flight.popleft(), frame)
        return self._error is None

    def _complete(self, request: BrokerRequest, response: bytearray | UpstreamError) -> None:
        try:
            request.responded(response)
        except Exception:  # noqa: BLE001 - a bug of one receiver must not stop the others
            _log.exception("a response of Kafka could not be handled")

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _watch_responses(self) -> None:
        """Close the connection if a response is late: a broker may be gone without closing it."""
        late = self._in_flight and time.monotonic() > self._in_flight[0].latest
        if late and not self.announced:  # or it is this client that does not read
            # The senders may retry successfully, so only this line reports the late response.
            LINES.write(_log, "warning", "a connection to Kafka is closed: no response in time",
                        str(self), broker=str(self))  # fmt: skip
            self.close(UpstreamLostError(f"{self}: no response in time"))
            return
        seconds = min(_WATCH_SECONDS, self._seconds)
        self._watch = asyncio.get_running_loop().call_later(seconds, self._watch_responses)


def version_for(connection: BrokerConnection, api_key: int) -> int:
    """Return the highest version of an API that the broker serves and that is in SENT_VERSIONS.

    Raises:
        UpstreamRefusedError: there is none.
    """
    lowest, highest = connection.versions.get(api_key, (0, -1))
    own_lowest, own_highest = SENT_VERSIONS[api_key]
    version = min(highest, own_highest)
    if version < max(lowest, own_lowest):
        raise UpstreamRefusedError(
            f"{connection} serves versions {lowest} to {highest} of API {api_key}; {own_lowest} to"
            f" {own_highest} are supported here"
        )
    return version
