"""Batches that go into Kafka under the partition's writer: of all policies but Kafka's own.

Kafka knows one producer for all of them, whose numbers are the writer's own. It has them in order,
five at a time; small sends that wait are joined. The writer belongs to one server at a time: who
takes it has Kafka put a marker into the log, behind which nothing of the one before can come.

What Kafka refuses for certain leaves the others whole: they are numbered anew, and sent again.
After anything else nobody knows what stands in the log. Then all of it fails, the writer is taken
again, and the log read up to the marker before the next batch is judged (`taking.py`).
"""

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from pidlease.core.state import BATCHES_KEPT
from pidlease.engine.append_outcome import UNKNOWN_OUTCOME, Outcome, Status
from pidlease.engine.appenders.applied_offset import AppliedOffset
from pidlease.engine.appenders.group_appender import Appending
from pidlease.engine.pending_batches import Pending, not_taken
from pidlease.kafka.error_codes import CONTENT, FENCED, OUT_OF_ORDER_SEQUENCE_NUMBER
from pidlease.kafka.records.joined_batch import JOINED_BYTES_MAX, JOINED_SENDS_MAX, can_join, join
from pidlease.kafka.records.record_batch import read_header
from pidlease.kafka.records.writer_batch import Writer, stamp
from pidlease.log.ports import Forwarded, ForwardingLog, NewBatch
from pidlease.observability.repeated_lines import LINES

#: Stands for the writer, where producers are told apart.
WRITER: Final = -1
#: Kafka's numbers wrap behind this one. The writer is taken again before.
_SEQUENCE_MAX: Final = 2**31 - 1 - (1 << 24)

_log = structlog.get_logger(__name__)


class _Flight:
    """A batch on its way, and what was joined to make it."""

    __slots__ = ("began", "first", "new", "parts")

    def __init__(self, parts: list[Pending], new: NewBatch, first: int) -> None:
        self.parts = parts
        self.new = new
        self.first = first
        #: When it was sent, as time.monotonic tells it.
        self.began = time.monotonic()


class WriterAppender:
    """See the module's text.

    Parameters:
        log: where batches go.
        partition: told what became of them.
        frontier: told what is on its way.
        clock_ms: the time, in ms since 1970.
        take_again: has the writer taken again.
    """

    def __init__(
        self,
        log: ForwardingLog,
        partition: Appending,
        applied_offset: AppliedOffset,
        clock_ms: Callable[[], int],
        take_again: Callable[[], None],
    ) -> None:
        self._log: Final = log
        self._partition: Final = partition
        self._applied_offset: Final = applied_offset
        self._clock_ms: Final = clock_ms
        self._take_again: Final = take_again
        #: The writer, as which this server sends; None: it is to be taken first.
        self.writer: Writer | None = None
        self._taken_ms = 0
        self._sequence = 0
        self._flying: deque[_Flight] = deque()
        self._waiting: deque[Pending] = deque()
        #: How many of those in front of what waits go one by one.
        self._alone = 0
        #: What was answered since Kafka refused a batch, until all that was behind it is, too.
        self._refused: list[tuple[_Flight, Forwarded]] = []
        #: Until when Kafka surely knows the writer, in ms since 1970: it goes by records' times.
        self._known_until_ms = 0
        #: When it last was not known what became of a batch, in ms since 1970; 0: never.
        self.doubt_ms = 0
        #: Whether another server has taken the writer.
        self.fenced = False

    @property
    def in_flight(self) -> int:
        """How many batches are on their way."""
        return len(self._waiting) + sum(len(each.parts) for each in self._flying)

    @property
    def landing(self) -> bool:
        """Whether Kafka has still to answer something."""
        return bool(self._flying)

    @property
    def ready(self) -> bool:
        """Whether batches may be judged, and sent: the log is read up to the writer's marker."""
        return (
            self.writer is not None
            and self._clock_ms() - self._taken_ms < self._log.writer_ms
            and self._sequence < _SEQUENCE_MAX
        )

    def begin(self, writer: Writer) -> None:
        """The log is read up to the writer's marker."""
        self._partition.totals.writers_taken += 1
        self.writer = writer
        self._taken_ms = self._clock_ms()
        self._known_until_ms = self._taken_ms + self._log.producers_kept_ms // 2
        self._sequence = 0
        self._applied_offset.settled(WRITER)
        self._pump()

    def fence(self) -> None:
        """Another server has taken the writer."""
        self._partition.totals.writers_fenced += not self.fenced
        self.fenced = True

    # ------------------------------------------------------------------ sending

    def push(self, pending: Pending) -> None:
        """See `appends.Appender`."""
        self._waiting.append(pending)
        if self.writer is None:  # it was lost since the batch was judged
            self.lose("the writer of the partition is to be taken first")
            self._take_again()
            return
        self._pump()

    def _pump(self) -> None:
        # Whom Kafka does not know it takes any batch of, also one whose predecessor it refused.
        room = BATCHES_KEPT if self._known_until_ms > self._clock_ms() else 1
        while self._waiting and len(self._flying) < room and not self._refused:
            if self.writer is None or not self.ready:
                # It was used for so long that somebody else may have it without our being fenced.
                self._take_again()
                return
            flight = self._next(self.writer)
            self._flying.append(flight)
            self._applied_offset.sent(flight)
            # By no PID that somebody else may have: Kafka begins with 0, which means none here.
            self._log.send(~flight.new.header.producer_id, flight.new,
                           partial(self._answered, flight))  # fmt: skip

    def _next(self, writer: Writer) -> _Flight:
        """The next batch, under the writer's next numbers."""
        parts = self._take()
        joined = join([each.new.data for each in parts]) if len(parts) > 1 else None
        if joined is None:
            self._waiting.extendleft(reversed(parts[1:]))
            parts = parts[:1]
            data, header = parts[0].new
        else:
            data, header = joined, read_header(joined)
        first = self._sequence
        self._sequence += header.records
        return _Flight(parts, NewBatch(data, stamp(header, data, writer, first)), first)

    def _take(self) -> list[Pending]:
        """What goes into the next batch: one send, or several small ones."""
        parts = [self._waiting.popleft()]
        if self._alone:
            self._alone -= 1
            return parts
        size = parts[0].new.header.size
        if not can_join(parts[0].new.header):
            return parts
        while self._waiting and len(parts) < JOINED_SENDS_MAX:
            header = self._waiting[0].new.header
            size += header.size
            if size > JOINED_BYTES_MAX or not can_join(header):
                break
            parts.append(self._waiting.popleft())
        return parts

    # ------------------------------------------------------------------ answers

    def _answered(self, flight: _Flight, answer: Forwarded) -> None:
        self._partition.totals.forwarded(flight.began, answer.code, answer.offset)
        if flight not in self._flying:
            return  # it failed with one before it; the log up to the next marker settles it
        # Out of order, because what came before it was refused.
        follows = answer.code == OUT_OF_ORDER_SEQUENCE_NUMBER and bool(self._refused)
        refused = answer.definite or follows
        if answer.code in FENCED:
            self.fence()
        if self._flying[0] is flight and refused:
            self._flying.popleft()
            self._applied_offset.refused(flight)
            self._refused.append((flight, answer))
        elif self._flying[0] is not flight or answer.code or answer.offset < 0 or self._refused:
            self.lose(answer.reason or "answers of Kafka that contradict one another")
            return
        else:
            self._landed(flight, answer.offset)
        if self._refused and not self._flying:
            self._sort_out()
        self._pump()

    def _landed(self, flight: _Flight, offset: int) -> None:
        self._flying.popleft()
        offsets = []
        at = offset
        for part in flight.parts:
            offsets.append(at)
            at += part.new.header.records
        applied = self._partition.apply(flight.parts, offsets)
        self._applied_offset.landed(flight, at)
        newest_ms = min(flight.new.header.max_timestamp, self._clock_ms())
        self._known_until_ms = newest_ms + self._log.producers_kept_ms // 2
        self._pump()
        self._partition.tell(applied)

    def _sort_out(self) -> None:
        """All that was on its way behind a refused batch is answered: none of it is in the log."""
        answers, self._refused = self._refused, []
        self._sequence = answers[0][0].first
        again: list[Pending] = []
        failed: list[tuple[Pending, Outcome]] = []
        everything: Outcome | None = None
        for flight, answer in answers:
            refusal = not_taken(answer)
            if answer.code == OUT_OF_ORDER_SEQUENCE_NUMBER:
                again += flight.parts
            elif answer.code in CONTENT and len(flight.parts) > 1:
                again += flight.parts  # one of them, and nobody says which
                self._alone = len(again)
            else:
                failed += [(each, refusal) for each in flight.parts]
                everything = everything or (None if answer.code in CONTENT else refusal)
                place = str(self._partition.name)
                LINES.write(_log, "warning", "Kafka refuses a batch", (place, answer.code),
                            partition=place, reason=answer.reason)  # fmt: skip
        gone = {each.pid for each, _ in failed if each.pid}
        behind = everything or Outcome(Status.FAILED, reason="a batch before it was refused")
        kept: deque[Pending] = deque()
        for each in (*again, *self._waiting):
            if everything is not None or each.pid in gone:
                failed.append((each, behind))
            else:
                kept.append(each)
        self._alone = min(self._alone, len(kept))  # perhaps some too many: that does no harm
        self._waiting = kept
        if failed:
            self._partition.fail(failed)

    def lose(self, reason: str) -> None:
        """Nobody knows what stands in the log: nothing goes on under this writer."""
        flights = [*(each for each, _ in self._refused), *self._flying]
        self.writer = None
        if not flights and not self._waiting:
            return
        LINES.write(_log, "warning", "the writer of a partition is to be taken again",
                    str(self._partition.name), reason=reason, partition=str(self._partition.name),
                    fenced=self.fenced, batches=len(flights))  # fmt: skip
        if flights:
            self.doubt_ms = self._clock_ms()
        for flight in self._flying:
            self._applied_offset.lost(flight, WRITER, self._clock_ms())
        unknown = Outcome(Status.FAILED, reason=reason, code=UNKNOWN_OUTCOME)
        unsent = Outcome(Status.FAILED, reason=reason)
        failed = [(each, unknown) for flight in flights for each in flight.parts]
        failed += [(each, unsent) for each in self._waiting]
        self._flying.clear()
        self._waiting.clear()
        self._refused.clear()
        self._alone = 0
        self._partition.fail(failed)
