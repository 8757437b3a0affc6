"""One client's connection: reads requests, and sends the responses in the order of the requests.

    bytes -> frame -> handler -> slot, filled now or later -> flushed after all earlier slots

A frame that does not fit the small buffer is read straight into a buffer of its own, and the log
appends its batches from there. The connection reads nothing while too many requests are in flight,
while the client does not read its responses, and while the server is short of memory. So a slow log
causes back-pressure.
"""

import asyncio
from collections import deque
from itertools import dropwhile
from time import monotonic
from typing import Final, Protocol, cast

import structlog
from typing_extensions import override

from pidlease.kafka.codec.primitives import (
    INT32,
    MalformedError,
    RequestHeader,
    read_request_header,
)
from pidlease.observability.repeated_lines import LINES, kind_of
from proxy.kafka.listener_counts import ListenerCounts
from proxy.kafka.memory_budget import MemoryBudget

#: An incomplete frame larger than this gets a buffer of its own.
_LARGE_FRAME_BYTES: Final = 16 << 10
_LENGTH_BYTES: Final = 4
_FRAME_BYTES_MIN: Final = 8
#: Up to here, copying responses into one buffer costs less than handing over each part.
_COPIED_BYTES_MAX: Final = 8 << 10
#: The size of the buffer that a connection reads small requests into.
READ_BUFFER_BYTES: Final = 64 << 10
#: How long a request may take to arrive, plus the time for its size by the speed below.
STALLED_SECONDS: Final = 30.0
#: The slowest that a large request may arrive.
_ARRIVING_BYTES_A_SECOND: Final = 1 << 20
#: A client that reads this much of its responses in `STALLED_SECONDS` is slow, not stalled.
_READ_BYTES_LEAST: Final = 256 << 10
#: The shortest time that a request may wait for the log; a client may say 0.
TIMEOUT_SECONDS_MIN: Final = 1.0
#: How many requests of one connection may wait for their responses.
REQUESTS_MAX: Final = 128
#: How many small requests of one connection are handled before other connections get their turn.
REQUESTS_IN_TURN_MAX: Final = 16
#: The same while other connections send requests, too. An idempotent client of Kafka has at most
#: this many in flight, so its requests are not divided.
REQUESTS_IN_SHARED_TURN_MAX: Final = 5
#: For how long after another connection's request a turn is shared.
SHARED_SECONDS: Final = 0.05

_log = structlog.get_logger(__name__)


class Slot:
    """Holds the position of one response in the order of responses, and the memory for it."""

    __slots__ = (
        "answer",
        "api_key",
        "began",
        "connection",
        "correlation_id",
        "counts",
        "parked",
        "ready",
        "request_size",
        "reserved",
        "waiting",
    )

    def __init__(self, connection: "KafkaConnection", correlation_id: int, size: int) -> None:
        self.connection = connection
        self.correlation_id = correlation_id
        self.request_size = size
        #: The listener's counts; None: the request's header is not read yet.
        self.counts: ListenerCounts | None = None
        self.api_key = -1
        self.began = 0.0
        #: Bytes held for the response.
        self.reserved = 0
        #: Whether the request waits for other clients, without a limit of time.
        self.parked = False
        self.ready = False
        self.answer: tuple[bytes, ...] = ()
        #: Set when all earlier responses are sent; None: no task waits for that.
        self.waiting: asyncio.Event | None = None

    def measure(self, counts: ListenerCounts, api_key: int) -> None:
        """Count the request, its errors and its latency from now on."""
        self.counts = counts
        self.api_key = api_key
        # The latency counts from the arrival of the bytes, so it includes the wait for the handler.
        self.began = self.connection.last_read

    def count_error(self, code: int) -> None:
        """Count an error code of the response."""
        if self.counts is not None:
            self.counts.errors[self.api_key, code] += 1

    def has_ended(self, timeout_ms: int) -> bool:
        """Return whether the client waits no more: it has closed, or its request's time is up.

        Parameters:
            timeout_ms: how long the client waits, as its request says.
        """
        seconds = max(timeout_ms / 1000, TIMEOUT_SECONDS_MIN)
        return not self.connection.open or monotonic() - self.began > seconds

    async def turn(self) -> None:
        """Wait until all earlier responses are sent, and the client reads its responses.

        A large response is made only after this. So a connection makes one at a time, and no
        response waits for memory that later responses hold.
        """
        while not self.connection.is_next(self):
            self.waiting = asyncio.Event()
            await self.waiting.wait()

    def followed(self) -> asyncio.Future[None]:
        """Return a future that completes when a request of another API waits for this response.

        A request that only waits for records responds then: clients send all requests for a broker
        on one connection, and librdkafka loses its group coordinator if the next response takes
        longer than its retry back-off.
        """
        return self.connection.followed(self)

    def reserve(self, size: int) -> bool:
        """Reserve memory for the response; False: there is not enough."""
        if not self.connection.budget.reserve(size):
            return False
        self.reserved += size
        return True

    async def hold(self, size: int, seconds: float) -> bool:
        """Wait for memory for the response, and reserve it; False: the time is up.

        A response counts as at most a quarter of all memory: a larger one is sent, too.

        Parameters:
            size: the response's size in bytes.
            seconds: how long to wait.
        """
        budget = self.connection.budget
        size = min(size, budget.limit // 4)
        latest = monotonic() + seconds
        while not self.reserve(size):
            try:
                await budget.freed(latest - monotonic())
            except TimeoutError:
                return False
        return True

    def count(self, size: int) -> None:
        """Count memory that the response holds already, even above the limit."""
        self.reserved += size
        self.connection.budget.add(size)

    def park(self) -> None:
        """Release the request's memory while it waits for other clients, as Kafka does.

        Kafka does so in RequestChannel.Request. The data kept from the request is counted
        elsewhere. Until the response is sent, the connection reads only small requests.
        """
        self.parked = True
        self.connection.parked += 1
        size, self.request_size = self.request_size, 0
        self.connection.budget.release(size)

    def resize(self, size: int) -> None:
        """Release the memory beyond the response's real size in bytes."""
        surplus = self.reserved - size
        self.reserved = size
        self.connection.budget.release(surplus)

    def fill(self, *parts: bytes) -> None:
        """Set the response, from its header on; no parts: the request gets no response."""
        size = sum(map(len, parts))
        self.fill_framed((INT32.pack(size), *parts) if parts else (), size)

    def fill_framed(self, parts: tuple[bytes, ...], size: int) -> None:
        """Set the response, with its length.

        Parameters:
            parts: the response's bytes; none: the request gets no response.
            size: their number without the length.
        """
        if self.ready:
            return  # a later error does not replace the response
        self.answer = parts
        self.ready = True
        counts, connection = self.counts, self.connection
        if counts is not None:
            counts.seconds[self.api_key].observe(monotonic() - self.began)
        if connection.is_next(self):
            connection.flush_soon()
        else:
            # The request is handled, and only its response waits: release the rest of its memory.
            surplus = self.request_size - max(size - self.reserved, 0)
            if surplus > 0:
                self.request_size -= surplus
                connection.budget.release(surplus)


class Turns:
    """Decides how many requests a connection handles before others get their turn.

    A turn costs a send of its own, so it is short only while there are others.
    """

    __slots__ = ("_last", "_shared_until")

    def __init__(self) -> None:
        self._last: object = None
        self._shared_until = 0.0

    def begin(self, connection: object, now: float) -> int:
        """Return how many requests a connection may handle in this turn.

        Parameters:
            now: the time, by the monotonic clock.
        """
        if connection is not self._last:
            if self._last is not None:
                self._shared_until = now + SHARED_SECONDS
            self._last = connection
        return REQUESTS_IN_SHARED_TURN_MAX if now < self._shared_until else REQUESTS_IN_TURN_MAX

    def forget(self, connection: object) -> None:
        """Keep no reference to a connection that has ended."""
        if self._last is connection:
            self._last = None


class Handler(Protocol):
    """The listener, as its connections use it."""

    budget: MemoryBudget
    turns: Turns
    #: What connections read into, one after the other.
    read_buffer: bytearray
    request_bytes_max: int

    @property
    def counts(self) -> ListenerCounts:
        """The counts of this listener's requests and errors."""

    def opened(self, connection: "KafkaConnection") -> bool:
        """Register a new connection; False: there are too many."""

    def closed(self, connection: "KafkaConnection") -> None:
        """Remove a connection that has ended."""

    def handle(self, slot: Slot, header: RequestHeader, frame: bytearray) -> None:
        """Respond to a request, now or later, by filling the slot.

        Raises:
            MalformedError: the request is malformed; the connection closes.
        """


class RepeatedRequest(Protocol):
    """Handles requests that are like the connection's preceding one, in less time."""

    def handle(self, slot: Slot, frame: bytearray) -> bool:
        """Respond to a request, now or later, by filling the slot; False: nothing was done."""


class KafkaConnection(asyncio.BufferedProtocol):
    """Reads requests from one client, and sends the responses in the order of the requests.

    Parameters:
        handler: handles its requests.
        listener: the name of the listener that accepted it; empty: there is only one.
    """

    def __init__(self, handler: Handler, listener: str = "") -> None:
        self._handler = handler
        self.listener: Final = listener
        self.budget = handler.budget
        self._turns = handler.turns
        #: The largest request.
        self.request_bytes_max = handler.request_bytes_max
        self._transport: asyncio.Transport | None = None
        self._shared_buffer: Final = handler.read_buffer
        #: One of its own only while a part of a request, or requests that wait, are in it.
        self._buffer = self._shared_buffer
        self._start = 0
        self._end = 0
        self._frame: bytearray | None = None
        self._filled = 0
        self._slots: deque[Slot] = deque()
        #: How many of the slots wait for other clients.
        self.parked = 0
        self._paused = False
        self._write_paused = False
        self._waits_for_memory = False
        #: Whether the next requests wait for the next turn of the event loop.
        self._turn_over = False
        #: Memory held for responses in the transport's buffer, in bytes.
        self._untaken = 0
        self._finishing = False
        self._flushing = False
        self.peer = ""
        #: The client's address, without the port.
        self.host = ""
        self.tasks: set[asyncio.Task[None]] = set()
        self.last_read = monotonic()
        self.frame_began = self.last_read
        self.write_paused_at = self.last_read
        #: How many bytes of responses waited at `write_paused_at`.
        self._unsent = 0
        #: The API of the request that waits for records, and the future that completes when a
        #: request of another API follows.
        self._poll: tuple[int, asyncio.Future[None]] | None = None
        #: Handles requests that are like the last Produce; None: there is no such handler.
        self.repeated: RepeatedRequest | None = None
        #: The first two partitions of the last Produce; None: there was no Produce.
        self.last_produced: list[tuple[str, int]] | None = None
        #: Held by the one task that makes a large response.
        self.answering = asyncio.Lock()
        #: Set while the client reads its responses.
        self.writable = asyncio.Event()
        self.writable.set()

    # ------------------------------------------------------------------ life cycle

    @property
    def open(self) -> bool:
        """Whether the client may still get a response."""
        return self._transport is not None and not self._transport.is_closing()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's in all but name.
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer)
        self.host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        if not self._handler.opened(self):
            LINES.write(_log, "warning", "too many connections", self.host, peer=self.peer)
            self.close()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._write_paused = False
        self._take_back_untaken()
        for task in self.tasks:
            task.cancel()
        if self._frame is not None:
            self.budget.arrived(len(self._frame))
            self._release(len(self._frame))
            self._frame = None
        # The slots of batches in flight release their memory when they are filled.
        self.flush()
        self._turns.forget(self)
        self._handler.closed(self)

    def close(self) -> None:
        """Send the responses that are ready, and close the connection."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def finish(self) -> None:
        """Stop reading, and close the connection when all responses are sent."""
        self._finishing = True
        self._pause()
        if not self._slots:
            self.close()

    def abort(self) -> None:
        """Close the connection at once, and drop responses that the client did not read."""
        if self._transport is not None:
            self._transport.abort()

    def is_stalled(self, now: float) -> bool:
        """Whether a request stopped arriving, or the client does not read its responses.

        Parameters:
            now: the time, by the monotonic clock.
        """
        if self._write_paused and self._transport is not None:
            left = self._transport.get_write_buffer_size()
            if left <= self._unsent - _READ_BYTES_LEAST:
                self.write_paused_at, self._unsent = now, left
            return now - self.write_paused_at > STALLED_SECONDS
        if self._paused:
            return False  # this server is the one that does not read
        size = len(self._frame) if self._frame is not None else self._end - self._start
        allowed = STALLED_SECONDS + size / _ARRIVING_BYTES_A_SECOND
        return size > 0 and now - self.frame_began > allowed

    @property
    def paused(self) -> bool:
        """Whether reading is paused, until responses are sent or memory is free."""
        return self._paused

    @property
    def idle(self) -> bool:
        """Whether no request waits for its response."""
        return not self._slots

    # ------------------------------------------------------------------ reading

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return memoryview(self._frame)[self._filled :]
        return memoryview(self._buffer)[self._end :]

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self.last_read = monotonic()
        frame = self._frame
        if frame is None:
            if self._start == self._end:
                self.frame_began = self.last_read
            self._end += nbytes
            self._read_frames()
            return
        self._filled += nbytes
        if self._filled == len(frame):
            self._frame = None
            self.budget.arrived(len(frame))
            self._take(frame)

    @override
    def eof_received(self) -> bool:
        self.flush()
        return False

    def _read_frames(self) -> None:
        """Handle the complete frames in the small buffer, as many as fit one turn."""
        left = self._turns.begin(self, self.last_read)
        while not self._paused and self._end - self._start >= _LENGTH_BYTES:
            (size,) = INT32.unpack_from(self._buffer, self._start)
            if not _FRAME_BYTES_MIN <= size <= self.request_bytes_max:
                limit = self.request_bytes_max
                self.refuse(f"{size} bytes; at most {limit}. Is this Kafka's protocol?")
                return
            body = self._start + _LENGTH_BYTES
            if self._end - body >= size:
                if not left:
                    self._end_turn()
                    break
                left -= 1
                frame = self._buffer[body : body + size]
                self._start = body + size
                self.budget.used += size  # not by `add`: this runs for every request
                self.frame_began = self.last_read
                self._take(frame)
            elif size > _LARGE_FRAME_BYTES:
                self._begin_large(size, body)
                break
            else:
                break
        self._compact()

    def _end_turn(self) -> None:
        """Leave the next requests to the next turn of the event loop.

        Otherwise one client that sends many small requests delays the requests of all others.
        """
        self._turn_over = True
        self._pause()
        asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_over = False
        if self._transport is not None:
            self._check_load()

    def _begin_large(self, size: int, body: int) -> None:
        """Read the rest of a frame straight into a buffer of its own."""
        if self.parked:
            # Until the parked request has its response: the frame would hold memory as long.
            self._pause()
            return
        if not self.budget.begin(size):
            self._wait_for_memory()
            return
        frame = bytearray(size)
        self._filled = self._end - body
        frame[: self._filled] = memoryview(self._buffer)[body : self._end]
        self._start = self._end = 0
        self._frame = frame

    def _compact(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
            self._buffer = self._shared_buffer
            return
        shared = self._buffer is self._shared_buffer
        if shared or (self._start and len(self._buffer) - self._end < _LARGE_FRAME_BYTES):
            rest = self._buffer[self._start : self._end]
            if shared:  # the next connection reads into it
                self._buffer = bytearray(READ_BUFFER_BYTES)
            self._buffer[: len(rest)] = rest
            self._start, self._end = 0, len(rest)

    def _take(self, frame: bytearray, slot: Slot | None = None) -> None:
        """Handle one request.

        Parameters:
            slot: gets the response; None: a usual one.
        """
        if slot is None:
            slot = Slot(self, 0, len(frame))
        self._slots.append(slot)
        try:
            if self.repeated is None or not self.repeated.handle(slot, frame):
                header = read_request_header(frame)
                slot.correlation_id = header.correlation_id
                self._handler.handle(slot, header, frame)
        except MalformedError as error:
            self.refuse(str(error))
            slot.fill()
            return
        except Exception as error:  # noqa: BLE001 - a bug of ours: this client reconnects
            self.fail(slot, error)
            return
        if self._poll is not None and slot.api_key != self._poll[0]:
            self._end_poll()
        budget = self.budget
        if self._paused or len(self._slots) >= REQUESTS_MAX or budget.used >= budget.limit:
            self._check_load()

    def may_create(self, topic: str) -> bool:  # noqa: ARG002 - those with logins look at it
        """Whether the client may create a topic by its first use."""
        return True

    def followed(self, slot: Slot) -> asyncio.Future[None]:
        """Return a future that completes when another request follows this one."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._poll = slot.api_key, future
        following = dropwhile(lambda each: each is not slot, self._slots)
        if any(each.api_key != slot.api_key for each in following):
            self._end_poll()
        return future

    def _end_poll(self) -> None:
        if self._poll is not None and not self._poll[1].done():
            self._poll[1].set_result(None)
        self._poll = None

    def fail(self, slot: Slot, error: Exception) -> None:
        """Log a bug, and close: there is no response, and no later request may overtake this one.

        Parameters:
            slot: of the request; its memory is released.
        """
        LINES.write(_log, "error", "request failed", (slot.api_key, kind_of(error)), error,
                    api_key=slot.api_key, peer=self.peer, error=repr(error))  # fmt: skip
        self._break_off()
        slot.fill()

    def _break_off(self) -> None:
        """Handle no more requests, not even those that have arrived; close the connection."""
        self._finishing = True
        self._start = self._end = 0
        self._pause()
        self.close()

    def refuse(self, reason: str) -> None:
        """Log a malformed request and close: Kafka's protocol has no response for it."""
        self._handler.counts.malformed += 1
        LINES.write(_log, "warning", "connection closed: malformed request", (self.host, reason),
                    peer=self.peer, reason=reason)  # fmt: skip
        self._break_off()

    # ------------------------------------------------------------------ back-pressure

    def _check_load(self) -> None:
        if self._turn_over:
            return  # `_next_turn` comes
        if self._write_paused or len(self._slots) >= REQUESTS_MAX:
            self._pause()
        elif self.budget.exhausted:
            self._wait_for_memory()
        elif self._paused and not self._waits_for_memory:
            self._resume()

    def _wait_for_memory(self) -> None:
        self._pause()
        if not self._waits_for_memory:
            self._waits_for_memory = True
            self.budget.wait(self)

    def budget_freed(self) -> None:
        """Resume reading, because there is memory again."""
        self._waits_for_memory = False
        if self._transport is not None:
            self._check_load()

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            if self._transport is not None and not self._transport.is_closing():
                self._transport.pause_reading()

    def _resume(self) -> None:
        if self._transport is None or self._transport.is_closing() or self._finishing:
            return
        self._paused = False
        self.last_read = self.frame_began = monotonic()
        self._transport.resume_reading()
        if self._frame is None:
            self._read_frames()

    @override
    def pause_writing(self) -> None:
        self._write_paused = True
        self.write_paused_at = monotonic()
        self._unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        self.writable.clear()
        self._pause()

    @override
    def resume_writing(self) -> None:
        self._write_paused = False
        self._take_back_untaken()
        self.writable.set()
        self.flush()
        self._check_load()

    # ------------------------------------------------------------------ responses

    def flush_soon(self) -> None:
        """Send the next responses at the end of this turn of the event loop, in one send.

        A send costs as much as making many responses.
        """
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Send the next responses in order."""
        self._flushing = False
        parts: list[bytes] = []
        freed = 0
        answered = False
        slots = self._slots
        # Responses that the client does not read stay here, where their memory is counted.
        while slots and slots[0].ready and not self._write_paused:
            slot = slots.popleft()
            answered = True
            self.parked -= slot.parked
            freed += slot.request_size + slot.reserved
            parts += slot.answer
        # Nothing may follow a missing response: the client would take it for that one.
        if parts and self._transport is not None and not self._transport.is_closing():
            if len(parts) > 1 and sum(map(len, parts)) > _COPIED_BYTES_MAX:
                self._transport.writelines(parts)
            else:
                self._transport.write(b"".join(parts))
        if self._write_paused:
            # The transport's buffer holds them, so they count until the client has read them.
            self._untaken += freed
        elif freed:
            self._release(freed)
        if answered and self._paused:
            self._check_load()
        if slots and slots[0].waiting is not None:
            slots[0].waiting.set()

    def is_next(self, slot: Slot) -> bool:
        """Whether a slot's response would be sent at once."""
        return bool(self._slots) and self._slots[0] is slot and not self._write_paused

    def _take_back_untaken(self) -> None:
        untaken, self._untaken = self._untaken, 0
        self._release(untaken)

    def _release(self, size: int) -> None:
        self.budget.release(size)
