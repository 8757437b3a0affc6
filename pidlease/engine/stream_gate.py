"""Admits batches to a partition that is a stream: none after its close, and Stream-Seq in order.

A close is part of the last send of the log: the first record of a send over the streams' protocol
has the header `pidlease-stream`; its value says whether the send closes the stream. No batch is
admitted after it, so the last batch of the log says for ever whether the stream is closed, and a
close is durable when its batch is. The header `pidlease-stream-seq` holds the send's Stream-Seq.

A log that takes many appends at once may store them in another order than they were admitted in. So
there a close waits until no other batch is in flight, and a batch with a Stream-Seq until no other
such batch is.
"""

import asyncio
import enum
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple

import structlog
from typing_extensions import override

from pidlease.core.state import Batch
from pidlease.engine.append_outcome import Done, Outcome, Status
from pidlease.engine.appenders.catch_up import AFTER_FAILED, Parked
from pidlease.engine.pending_batches import Pending, Submitted
from pidlease.kafka.records.batch_records import UndecodableError, batches_in, records_in
from pidlease.kafka.records.record_batch import BatchHeader, read_header
from pidlease.log.ports import ForwardingLog, PartitionLog
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogError, OffsetRangeError, reason_for_clients
from pidlease.storage.io_pool import IoPool

#: The header of the first record of each send to a stream.
STREAM_HEADER: Final = "pidlease-stream"
#: The header with the Stream-Seq of a send, beside it.
ORDER_HEADER: Final = "pidlease-stream-seq"

#: How often a batch that waits looks whether others are in flight.
_IN_FLIGHT_POLL_SECONDS: Final = 0.002
#: How many offsets to read back for the last Stream-Seq at first, and how often as many then.
_BACK_FIRST: Final = 64
_BACK_TIMES: Final = 16
_READ_BYTES: Final = 1 << 20

_log = structlog.get_logger(__name__)


@enum.unique
class Closing(enum.Enum):
    """Whether a send closes the stream; the value is that of its header.

    ALONE: its one record is no data, and only says that the stream is closed.
    """

    NO = b""
    WITH_DATA = b"closed"
    ALONE = b"end"


@enum.unique
class Refusal(enum.Enum):
    """Why a stream does not admit a send that its producer may append."""

    CLOSED = "the stream is closed"
    OUT_OF_ORDER = "Stream-Seq is not above the last one"


class StreamSend:
    """A send to a stream, as far as it is more than a batch.

    Attributes:
        closing: whether it closes the stream.
        order: its Stream-Seq; None: it has none.
        refusal: why the stream did not admit it; None: it did, or was not asked.
    """

    __slots__ = ("closing", "order", "refusal")

    def __init__(self, closing: Closing = Closing.NO, order: bytes | None = None) -> None:
        self.closing: Final = closing
        self.order: Final = order
        self.refusal: Refusal | None = None

    def headers(self) -> list[tuple[str, bytes | None]]:
        """Return the headers of its first record."""
        found: list[tuple[str, bytes | None]] = [(STREAM_HEADER, self.closing.value)]
        if self.order is not None:
            found.append((ORDER_HEADER, self.order))
        return found


_NO_SEND: Final = StreamSend()


def _send_of(pending: Pending) -> StreamSend:
    return pending.send if isinstance(pending, StreamBatch) else _NO_SEND


class Closed(NamedTuple):
    """The end of a closed stream.

    Attributes:
        offset: of the first record of the send that closed it.
        tail: the offset after the last record that is data.
    """

    offset: int
    tail: int


class StreamBatch(Submitted):
    """A batch for a stream; the gate gets its outcome first."""

    __slots__ = ("gate", "send")

    def __init__(  # noqa: PLR0913, PLR0917 - as a batch, and two more
        self,
        pid: int,
        header: BatchHeader,
        data: bytearray | memoryview,
        batch: Batch,
        done: Done,
        gate: "StreamGate",
        send: StreamSend,
    ) -> None:
        super().__init__(pid, header, data, batch, done)
        self.gate = gate
        self.send = send

    @override
    def appended(self, offset: int) -> None:
        self.gate.appended(self, offset)
        super().appended(offset)

    @override
    def complete(self, outcome: Outcome) -> None:
        if outcome.status is not Status.APPENDED:
            self.gate.failed(self)
        super().complete(outcome)


class _Waiting:
    """A batch that waits.

    Attributes:
        fails: whether an earlier batch of its producer has failed.
    """

    __slots__ = ("fails", "parked", "pid")

    def __init__(self, pid: int, parked: Parked) -> None:
        self.pid: Final = pid
        self.parked: Final = parked
        self.fails = False


class StreamGate:
    """Admits the batches of one partition.

    Parameters:
        log: the partition's log.
        pool: threads for decoding records.
        in_flight: returns how many batches of the partition are in flight or wait to be.
    """

    def __init__(
        self,
        log: PartitionLog,
        pool: IoPool,
        in_flight: Callable[[], int],
    ) -> None:
        self._log: Final = log
        #: The log, if it takes many appends at once, and has other writers.
        self._forwarding: Final = log if isinstance(log, ForwardingLog) else None
        self._in_flight: Final = in_flight
        self._pool: Final = pool
        #: The end of the stream; None: it is open, or this is not known.
        self.closed: Closed | None = None
        #: When it was last read or appended to, by `time.monotonic`; at first, when it was loaded.
        self.touched: float = time.monotonic()
        self._known = log.end_offset == 0
        #: Whether the log is known to have, or have had, a record that is data: not only Kafka's
        #: markers.
        self.has_data = False
        #: Grows when what is being read from the log is no longer the newest.
        self._doubts = 0
        self._closing: StreamBatch | None = None
        #: The last Stream-Seq in the log; None: it is not known.
        self._order: bytes | None = b"" if self._known else None
        #: The batches with a Stream-Seq that are in flight.
        self._orders: list[StreamBatch] = []
        #: The offset before which no batch has a Stream-Seq.
        self._none_before = 0
        #: The batches that wait, in their order.
        self._waiting: list[_Waiting] = []
        #: Those that go on now. The first of them may be stored at once, and let others go on.
        self._going_on: list[list[_Waiting]] = []
        #: How many batches of each producer wait.
        self._waiting_of: Counter[int] = Counter()
        #: How many of them wait for more than the last Stream-Seq: none overtakes these.
        self._blocking = 0
        self._loading: asyncio.Task[None] | None = None
        #: Waits for the batches that the first waiting one must not overtake.
        self._clearing: asyncio.Task[None] | None = None

    def touch(self) -> None:
        """Note a read or an append."""
        self.touched = time.monotonic()

    def tail(self, end: int) -> int:
        """Return the offset after the last record that is data.

        Parameters:
            end: the offset after the last record.
        """
        return end if self.closed is None else self.closed.tail

    @property
    def is_known(self) -> bool:
        """Whether it is known whether the stream is closed."""
        return self._known

    async def known(self) -> None:
        """Wait until it is known whether the stream is closed.

        Raises:
            LogError: the log cannot be read.
        """
        while not self._known:
            await asyncio.shield(self._load())

    def doubt(self) -> None:
        """Read again what the log says, because others may have written to it."""
        self._doubts += 1
        self.closed = None
        self._known = False
        self._order = None

    # ------------------------------------------------------------------ batches

    def holds(self, pending: Pending) -> bool:
        """Return whether a batch must wait until it can be known whether it may be admitted."""
        send = _send_of(pending)
        if not self._known or self._closing is not None:
            return True
        if send.order is not None and self._order is None:
            return True
        if self._waiting and self._must_follow(pending.pid, send):
            return True
        return self._must_wait_for_others(send)

    def _must_follow(self, pid: int, send: StreamSend) -> bool:
        """Return whether a batch may not overtake those that wait.

        The search for the last Stream-Seq may read the whole log: only ordered ones wait for it.
        """
        is_plain = send.order is None and send.closing is Closing.NO
        return not is_plain or self._blocking > 0 or (pid > 0 and self._waiting_of[pid] > 0)

    def park(self, pending: Pending, parked: Parked) -> None:
        """Keep a batch back that must wait."""
        send = _send_of(pending)
        lacks_order = send.order is not None and self._order is None
        is_first = self._closing is None and not self._waiting
        blocks = (
            not self._known
            or self._closing is not None
            or self._blocking > 0
            or (is_first and not lacks_order)
        )
        self._waiting.append(_Waiting(pending.pid, parked))
        self._waiting_of[pending.pid] += 1
        self._blocking += blocks
        if not self._known or lacks_order:
            self._load().add_done_callback(self._release_after)
        elif is_first:
            clearing = asyncio.get_running_loop().create_task(self._until_clear(send))
            self._clearing = clearing  # or it might be collected as garbage
            clearing.add_done_callback(self._release_after)

    def fail(self, pid: int) -> None:
        """Fail the waiting batches of a producer, because an earlier one has failed."""
        for each in chain(self._waiting, *self._going_on):
            each.fails = each.fails or each.pid == pid

    def _must_wait_for_others(self, send: StreamSend) -> bool:
        """Return whether a batch could be stored before others that were admitted before it."""
        if self._forwarding is None:
            return False
        if send.closing is not Closing.NO and self._in_flight() > 0:
            return True
        return send.order is not None and bool(self._orders)

    async def _until_clear(self, send: StreamSend) -> None:
        while self._must_wait_for_others(send):  # noqa: ASYNC110 - the hot path sets no event for it
            await asyncio.sleep(_IN_FLIGHT_POLL_SECONDS)

    def admits(self, pending: Pending) -> Refusal | None:
        """Admit a batch that is appended next, or say why not."""
        self.touch()
        send = pending.send if isinstance(pending, StreamBatch) else None
        refusal = None
        if self.closed is not None:
            refusal = Refusal.CLOSED
        elif send is not None and send.order is not None and send.order <= self._last_order():
            refusal = Refusal.OUT_OF_ORDER
        if send is not None:
            send.refusal = refusal
        if refusal is None and isinstance(pending, StreamBatch):
            if pending.send.closing is not Closing.NO:
                self._closing = pending
            if pending.send.order is not None:
                self._orders.append(pending)
        return refusal

    def _last_order(self) -> bytes:
        in_flight = [each.send.order or b"" for each in self._orders]
        return max((self._order or b"", *in_flight))

    def appended(self, batch: StreamBatch, offset: int) -> None:
        """Note that an admitted batch is in the log."""
        self.has_data = True
        send = batch.send
        if send.order is not None:
            if self._order is not None:
                self._order = max(self._order, send.order)
            else:
                self._doubts += 1  # a read that has begun may have ended before it
            self._orders = [each for each in self._orders if each is not batch]
        if self._closing is batch:
            records = 0 if send.closing is Closing.ALONE else batch.header.records
            self._doubts += 1
            self.closed = Closed(offset, offset + records)
            self._closing = None
            self._release()

    def failed(self, batch: StreamBatch) -> None:
        """Note that a batch may not be in the log, whether it was admitted or not."""
        if batch in self._orders:
            self._orders = [each for each in self._orders if each is not batch]
            self._order = None
        if self._closing is batch:
            self._closing = None
            self.doubt()
            self._release()

    def _release(self, error: BaseException | None = None) -> None:
        """Let all batches go on that wait; some may wait again."""
        going_on, self._waiting = self._waiting, []
        self._waiting_of.clear()
        self._blocking = 0
        self._going_on.append(going_on)
        for each in going_on:
            try:
                if error is not None:
                    reason = f"the stream cannot be read: {reason_for_clients(error)}"
                    each.parked.give_up(Outcome(Status.FAILED, reason=reason))
                elif each.fails:
                    each.parked.give_up(AFTER_FAILED)
                else:
                    each.parked.again()
            except Exception:  # noqa: BLE001 - a listener's bug must not keep the others waiting
                _log.exception("a batch for a stream could not go on")
        self._going_on.pop()

    def _release_after(self, loading: asyncio.Task[None]) -> None:
        if loading.cancelled():  # the server is being ended
            return
        if self._waiting:
            self._release(loading.exception())

    # ------------------------------------------------------------------ the log

    def _load(self) -> asyncio.Task[None]:
        if self._loading is None or self._loading.done():
            self._loading = asyncio.get_running_loop().create_task(self._read())
        return self._loading

    async def _read(self) -> None:
        """Read from the log whether the stream is closed; if that is known, the last Stream-Seq.

        Raises:
            LogError: it cannot be read.
        """
        try:
            if self._forwarding is not None:
                # Others may have written, and appends without a response may have landed.
                await self._forwarding.look()
            if self._known:
                doubts, found = self._doubts, await self._stored_order()
                if doubts == self._doubts:
                    self._order = max(self._order or b"", found)
            while not self._known:
                doubts, closed = self._doubts, await self._last_close()
                if doubts == self._doubts:
                    self.closed = closed
                    self._known = True
        except (OSError, UndecodableError, OffsetRangeError) as error:
            LINES.write(_log, "error", "a stream cannot be read", kind_of(error), error=str(error))
            raise LogError(reason_for_clients(error)) from error

    async def _last_close(self) -> Closed | None:
        offset = self._log.end_offset - 1
        while offset >= self._log.start_offset:
            data = bytes((await self._log.read(offset, 1)).data)
            header = read_header(data)
            if not header.is_control:
                self.has_data = True
                return await self._pool.run(partial(close_in, data[: header.size]))
            offset = header.base_offset - 1
        self.has_data = self._log.start_offset > 0  # or they were removed
        return None

    async def _stored_order(self) -> bytes:
        searched = end = self._log.end_offset
        first, count = max(self._log.start_offset, self._none_before), _BACK_FIRST
        while end > first:
            begin = max(end - count, first)
            found = b""
            at = begin
            while at < end:
                data = bytes((await self._log.read(at, _READ_BYTES)).data)
                last, at = await self._pool.run(partial(order_in, data, at))
                found = max(found, last)
            if found:
                return found
            end, count = begin, count * _BACK_TIMES
        self._none_before = searched
        return b""


def close_in(data: bytes) -> Closed | None:
    """Return the close in the last batch of a log; None: there is none.

    Raises:
        UndecodableError: the batch cannot be decoded.
    """
    for header, batch in batches_in(data):
        for record in records_in(header, batch):
            closing = _value(record, STREAM_HEADER)
            if closing == Closing.WITH_DATA.value:
                return Closed(record.offset, header.last_offset + 1)
            if closing == Closing.ALONE.value:
                return Closed(record.offset, record.offset)
    return None


def order_in(data: bytes, offset: int) -> tuple[bytes, int]:
    """Return the last Stream-Seq in some bytes of a log, and the offset after them.

    Raises:
        UndecodableError: a batch cannot be decoded.
    """
    found = b""
    for header, batch in batches_in(data):
        for record in records_in(header, batch):
            found = max(found, _value(record, ORDER_HEADER) or b"")
        offset = header.last_offset + 1
    return found, offset


def _value(record: Any, name: str) -> bytes | None:  # noqa: ANN401 - aiokafka's, in C
    for key, value in record.headers:
        if key == name:
            return value  # type: ignore[no-any-return]
    return None
