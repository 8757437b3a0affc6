"""One connection to a broker: requests out, answers in, in the same order.

Kafka works on one request of a connection at a time, and answers in order; so an answer belongs to
the oldest request that has none. The correlation id has to agree; it is whatever
the request's sender put there: a client's request goes on as it came.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

import structlog
from typing_extensions import override

from pidlease.core.buffer import Buffer
from pidlease.kafka.api import SENT_VERSIONS
from pidlease.kafka.client.settings import Address
from pidlease.kafka.errors import (
    UpstreamError,
    UpstreamLostError,
    UpstreamNonsenseError,
    UpstreamRefusedError,
)
from pidlease.observability.repeated_lines import LINES

_LENGTH_BYTES: Final = 4
#: The correlation id, in a request and in an answer.
_ID: Final = slice(4, 8)
_ANSWER_ID: Final = slice(0, 4)
_FRAME_BYTES_MIN: Final = 4
#: A large answer gets memory as it comes: so much ahead, or as much again.
_AHEAD_BYTES: Final = 1 << 20
#: An answer is larger only where a single batch is: Kafka gives at least one.
_FRAME_BYTES_MAX: Final = 2**31 - 1
_BUFFER_BYTES: Final = 64 << 10
#: The most bytes that are held back, to go out with the requests that follow.
_HELD_BYTES_MAX: Final = 64 << 10
#: How often it is looked whether an answer is late.
_WATCH_SECONDS: Final = 1.0

_log = structlog.get_logger(__name__)

#: Gets the response, from the correlation id on, or the reason why there is none.
Answered = Callable[[bytearray | UpstreamError], None]


class _Waiting(NamedTuple):
    correlation_id: bytes
    latest: float
    answered: Answered


class BrokerConnection(asyncio.BufferedProtocol):
    """Sends requests to a broker and completes their responses in order.

    Parameters:
        address: of the broker.
        seconds: an answer comes within this time, unless it is asked for otherwise.
    """

    def __init__(self, address: Address, seconds: float) -> None:
        self.address: Final = address
        #: What the broker serves: API -> (lowest, highest version).
        self.versions: dict[int, tuple[int, int]] = {}
        #: Whether the broker takes no more for now.
        self.paused = False
        #: Called when it takes more again, and when the connection has ended.
        self.on_change: Callable[[], None] | None = None
        self._seconds = seconds
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_Waiting] = deque()
        self._held: list[Buffer] = []
        self._held_bytes = 0
        self._buffer = bytearray(_BUFFER_BYTES)
        self._filled = 0
        self._frame: bytearray | None = None
        self._frame_size = 0
        self._error: UpstreamError | None = None
        self._watch: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ sending

    @property
    def open(self) -> bool:
        """Whether anything can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def in_flight(self) -> int:
        """Requests that have no answer yet."""
        return len(self._waiting)

    def send(self, parts: Sequence[Buffer], answered: Answered, seconds: float = 0.0) -> None:
        """Send a request; see `hold` for the parameters."""
        self.hold(parts, answered, seconds)
        self.flush()

    def hold(self, parts: Sequence[Buffer], answered: Answered, seconds: float = 0.0) -> None:
        """Queue a request until `flush`: it goes out together with those that follow.

        Parameters:
            parts: all of it but its length; the first holds the whole correlation id.
            answered: gets the response, from the correlation id on; or why there is none. What was
                sent may have had its effect then.
            seconds: so long the answer may take at most; 0: as long as others.
        """
        if self._transport is None or self._transport.is_closing():
            answered(UpstreamLostError(f"{self}: not connected"))
            return
        latest = time.monotonic() + (seconds or self._seconds)
        self._waiting.append(_Waiting(bytes(parts[0][_ID]), latest, answered))
        size = sum(map(len, parts))
        self._held.append(size.to_bytes(_LENGTH_BYTES, "big"))
        self._held += parts
        self._held_bytes += size
        if self._held_bytes > _HELD_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Send what was held back, at one go: each costs as much as all together."""
        held, self._held, self._held_bytes = self._held, [], 0
        if held and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(held)

    async def ask(self, request: Buffer, seconds: float = 0.0) -> bytearray:
        """Send a request, and wait for the answer.

        Raises:
            UpstreamError: there is none.
        """
        return await self.begin(request, seconds)

    def begin(self, request: Buffer, seconds: float = 0.0) -> asyncio.Future[bytearray]:
        """Send a request now; the answer, or an UpstreamError, comes as the future's."""
        future: asyncio.Future[bytearray] = asyncio.get_running_loop().create_future()

        def answered(answer: bytearray | UpstreamError) -> None:
            if future.cancelled():
                return
            if isinstance(answer, UpstreamError):
                future.set_exception(answer)
                future.exception()  # the caller may have been cancelled
            else:
                future.set_result(answer)

        self.send([request], answered, seconds)
        return future

    def close(self, error: UpstreamError | None = None) -> None:
        """End the connection at once; requests in flight fail."""
        self._error = self._error or error
        if self._transport is not None:
            self._transport.abort()

    def __str__(self) -> str:
        return f"Kafka at {self.address[0]}:{self.address[1]}"

    # ------------------------------------------------------------------ asyncio's side

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's in all but name.
        self._transport = cast(asyncio.Transport, transport)
        self._watch = asyncio.get_running_loop().call_later(_WATCH_SECONDS, self._look)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.paused = False
        if self._watch is not None:
            self._watch.cancel()
        why = f": {exc}" if exc is not None else ""
        error = self._error or UpstreamLostError(f"{self}: the connection ended{why}")
        while self._waiting:
            self._complete(self._waiting.popleft().answered, error)
        self._changed()

    @override
    def pause_writing(self) -> None:
        self.paused = True

    @override
    def resume_writing(self) -> None:
        self.paused = False
        self._changed()

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        frame = self._frame
        if frame is None:
            return memoryview(self._buffer)[self._filled :]
        if self._filled == len(frame):
            # Not all at once: what is no answer may say that it is of gigabytes.
            frame += bytes(min(self._frame_size, 2 * len(frame)) - len(frame))
        return memoryview(frame)[self._filled :]

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._frame is None:
            self._take_frames()
        elif self._filled == self._frame_size:
            frame, self._frame, self._filled = self._frame, None, 0
            self._answer(frame)

    @override
    def eof_received(self) -> bool:
        return False

    def _take_frames(self) -> None:
        at = 0
        while self._filled - at >= _LENGTH_BYTES:
            body = at + _LENGTH_BYTES
            size = int.from_bytes(self._buffer[at:body], "big", signed=True)
            if not _FRAME_BYTES_MIN <= size <= _FRAME_BYTES_MAX:
                self.close(UpstreamNonsenseError(f"{self}: an answer of {size} bytes"))
                return
            if self._filled - body < size:
                if size > len(self._buffer) - _LENGTH_BYTES:
                    self._begin_large(body, size)
                    return
                break
            if not self._answer(self._buffer[body : body + size]):
                return
            at = body + size
        self._buffer[: self._filled - at] = self._buffer[at : self._filled]
        self._filled -= at

    def _begin_large(self, body: int, size: int) -> None:
        self._frame_size = size
        self._frame = bytearray(min(size, max(_AHEAD_BYTES, self._filled - body)))
        self._frame[: self._filled - body] = self._buffer[body : self._filled]
        self._filled -= body

    def _answer(self, frame: bytearray) -> bool:
        """Complete the oldest request; False: it does not fit, and the connection has ended."""
        if not self._waiting or self._waiting[0].correlation_id != frame[_ANSWER_ID]:
            error = UpstreamNonsenseError(f"{self}: a response to no request")
            if not self._waiting:  # no request fails by it, so nothing else reports it
                LINES.write(_log, "error", "a response of Kafka is invalid", str(self),
                            broker=str(self), error=str(error))  # fmt: skip
            self.close(error)
            return False
        self._complete(self._waiting.popleft().answered, frame)
        return self._error is None

    def _complete(self, answered: Answered, answer: bytearray | UpstreamError) -> None:
        try:
            answered(answer)
        except Exception:  # noqa: BLE001 - one waiter's bug is not to strand the others
            _log.exception("a response of Kafka could not be handed on")

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _look(self) -> None:
        """Give up on a broker that does not answer: a connection can be dead without a word."""
        self._watch = asyncio.get_running_loop().call_later(_WATCH_SECONDS, self._look)
        if self._waiting and time.monotonic() > self._waiting[0].latest:
            # Whoever waits may try again and have it: here alone it is known for certain.
            LINES.write(_log, "warning", "a connection to Kafka is given up: no answer in time",
                        str(self), broker=str(self))  # fmt: skip
            self.close(UpstreamLostError(f"{self}: no answer in time"))


def version_for(connection: BrokerConnection, api_key: int) -> int:
    """The highest version that both sides know (see `SENT_VERSIONS`).

    Raises:
        UpstreamRefusedError: there is none.
    """
    lowest, highest = connection.versions.get(api_key, (0, -1))
    own_lowest, own_highest = SENT_VERSIONS[api_key]
    version = min(highest, own_highest)
    if version < max(lowest, own_lowest):
        raise UpstreamRefusedError(
            f"{connection} serves versions {lowest} to {highest} of API {api_key}, of which"
            f" {own_lowest} to {own_highest} are understood here"
        )
    return version
