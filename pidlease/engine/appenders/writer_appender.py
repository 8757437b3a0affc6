"""Appends to Kafka as the partition's writer: batches of all policies except kafka.

For Kafka the writer is the one producer of these batches, with the writer's own sequence numbers.
At most five batches are in flight, in order; small waiting batches are joined. One server at a time
is the writer: on a takeover Kafka appends a marker, and rejects later batches of the former writer.

A definite refusal does not fail the other batches: they get new sequence numbers, and are sent
again. After any other error the outcome is unknown. Then all batches fail, this server takes over
the writer again, and reads the log up to the marker before it validates the next batch
(`writer_takeover.py`).
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Final, cast

import structlog
from typing_extensions import override

from pidlease.core.state import BATCHES_KEPT
from pidlease.engine.append_outcome import UNKNOWN_OUTCOME, Outcome, Status
from pidlease.engine.appenders.applied_offset import AppliedOffset
from pidlease.engine.appenders.group_appender import AppendTarget
from pidlease.engine.pending_batches import Pending, not_taken
from pidlease.kafka.error_codes import CONTENT, FENCED, OUT_OF_ORDER_SEQUENCE_NUMBER
from pidlease.kafka.records.joined_batch import JOINED_BYTES_MAX, JOINED_SENDS_MAX, can_join, join
from pidlease.kafka.records.record_batch import BatchHeader, read_header
from pidlease.kafka.records.writer_batch import Writer, stamp
from pidlease.log.ports import AppendReceiver, Forwarded, ForwardingLog, NewBatch
from pidlease.observability.repeated_lines import LINES

#: Stands for the writer among the producers with batches of unknown outcome.
WRITER: Final = -1
#: The writer is taken over again at this sequence number, before Kafka's numbers wrap.
_SEQUENCE_MAX: Final = 2**31 - 1 - (1 << 24)

_log = structlog.get_logger(__name__)


class _SentBatch(NewBatch):
    """A batch in flight, and the batches that were joined to make it."""

    __slots__ = ("began", "first", "parts")

    def __init__(
        self, parts: list[Pending], data: bytearray | memoryview, header: BatchHeader, first: int
    ) -> None:
        super().__init__(data, header)
        self.parts = parts
        self.first = first
        #: When it was sent, by time.monotonic.
        self.began = time.monotonic()


class WriterAppender(AppendReceiver):
    """Sends batches as the writer of one partition.

    Parameters:
        log: sends the batches to Kafka.
        partition: applies and completes the batches.
        applied_offset: tracks the batches in flight.
        clock_ms: returns the time, in ms since 1970.
        take_over: starts a takeover of the writer.
    """

    def __init__(
        self,
        log: ForwardingLog,
        partition: AppendTarget,
        applied_offset: AppliedOffset,
        clock_ms: Callable[[], int],
        take_over: Callable[[], None],
    ) -> None:
        self._log: Final = log
        self._partition: Final = partition
        self._applied_offset: Final = applied_offset
        self._clock_ms: Final = clock_ms
        self._take_over: Final = take_over
        #: The writer under which this server sends; None: a takeover must come first.
        self.writer: Writer | None = None
        self._taken_ms = 0
        self._sequence = 0
        self._in_flight: deque[_SentBatch] = deque()
        self._waiting: deque[Pending] = deque()
        #: How many of the first waiting batches are sent one by one.
        self._alone = 0
        #: The refused batches with their responses, until all later batches have a response, too.
        self._refused: list[tuple[_SentBatch, Forwarded]] = []
        #: Until when Kafka certainly keeps the writer's state, in ms since 1970; Kafka counts from
        #: record timestamps.
        self._known_until_ms = 0
        #: When this server last failed a batch of unknown outcome, in ms since 1970; 0: never.
        self.doubt_ms = 0
        #: Whether another server has taken over the writer.
        self.fenced = False

    @property
    def in_flight(self) -> int:
        """How many batches are in flight or wait to be."""
        return len(self._waiting) + sum(len(each.parts) for each in self._in_flight)

    @property
    def landing(self) -> bool:
        """Whether batches wait for a response from Kafka."""
        return bool(self._in_flight)

    @property
    def ready(self) -> bool:
        """Whether batches may be validated and sent: a recent takeover has read the log."""
        return (
            self.writer is not None
            and self._clock_ms() - self._taken_ms < self._log.writer_ms
            and self._sequence < _SEQUENCE_MAX
        )

    def begin(self, writer: Writer) -> None:
        """Begin as a writer, after the log was read up to its marker."""
        self._partition.totals.writers_taken += 1
        former = self.writer
        if self._waiting and (former is None or writer != (former.pid, former.epoch + 1)):
            # They were validated before the log was read, and may be in it by now.
            self.lose("another server may have been the partition's writer meanwhile")
        self.writer = writer
        self._taken_ms = self._clock_ms()
        self._known_until_ms = self._taken_ms + self._log.producers_kept_ms // 2
        self._sequence = 0
        self._applied_offset.settled(WRITER)
        self._pump()

    def fence(self) -> None:
        """Note that another server has taken over the writer."""
        self._partition.totals.writers_fenced += not self.fenced
        self.fenced = True

    # ------------------------------------------------------------------ sending

    def push(self, pending: Pending) -> None:
        """Append a batch after all earlier ones."""
        self._waiting.append(pending)
        if self.writer is None:  # it was lost since the batch was validated
            self.lose("the writer of the partition is to be taken first")
            self._take_over()
            return
        self._pump()

    def _pump(self) -> None:
        # If Kafka has forgotten the writer, it appends any batch, even after refusing the
        # preceding one.
        room = BATCHES_KEPT if self._known_until_ms > self._clock_ms() else 1
        while self._waiting and len(self._in_flight) < room and not self._refused:
            if self.writer is None or not self.ready:
                # The writer is so old that another one may exist without this server being fenced.
                self._take_over()
                return
            sent = self._next(self.writer)
            self._in_flight.append(sent)
            self._applied_offset.sent(sent)
            # ~id is no PID of any producer. Kafka's id itself may be 0, which means "none" here.
            self._log.send(~sent.header.producer_id, sent, self)

    def _next(self, writer: Writer) -> _SentBatch:
        """Return the next batch, under the writer's next sequence numbers."""
        parts = self._take()
        joined = join([each.data for each in parts]) if len(parts) > 1 else None
        if joined is None:
            self._waiting.extendleft(reversed(parts[1:]))
            parts = parts[:1]
            data, header = parts[0].data, parts[0].header
        else:
            data, header = joined, read_header(joined)
        first = self._sequence
        self._sequence += header.records
        return _SentBatch(parts, data, stamp(header, data, writer, first), first)

    def _take(self) -> list[Pending]:
        """Remove the parts of the next batch from the queue: one batch, or several small ones."""
        parts = [self._waiting.popleft()]
        if self._alone:
            self._alone -= 1
            return parts
        size = parts[0].header.size
        if not can_join(parts[0].header):
            return parts
        while self._waiting and len(parts) < JOINED_SENDS_MAX:
            header = self._waiting[0].header
            size += header.size
            if size > JOINED_BYTES_MAX or not can_join(header):
                break
            parts.append(self._waiting.popleft())
        return parts

    # ------------------------------------------------------------------ responses

    @override
    def landed(self, new: NewBatch, offset: int) -> None:
        self.answered(new, Forwarded(0, offset))

    @override
    def answered(self, new: NewBatch, answer: Forwarded) -> None:
        sent = cast(_SentBatch, new)
        self._partition.totals.forwarded(sent.began, answer.code, answer.offset)
        if sent not in self._in_flight:
            return  # it failed with an earlier batch; the next catch-up resolves the outcome
        # Out of order, because an earlier batch was refused.
        follows = answer.code == OUT_OF_ORDER_SEQUENCE_NUMBER and bool(self._refused)
        refused = answer.definite or follows
        if answer.code in FENCED:
            self.fence()
        if self._in_flight[0] is sent and refused:
            self._in_flight.popleft()
            self._applied_offset.refused(sent)
            self._refused.append((sent, answer))
        elif self._in_flight[0] is not sent or answer.code or answer.offset < 0 or self._refused:
            self.lose(answer.reason or "answers of Kafka that contradict one another")
            return
        else:
            self._landed(sent, answer.offset)
        if self._refused and not self._in_flight:
            self._sort_out()
        self._pump()

    def _landed(self, sent: _SentBatch, offset: int) -> None:
        self._in_flight.popleft()
        offsets = []
        at = offset
        for part in sent.parts:
            part.append_time = sent.append_time
            offsets.append(at)
            at += part.header.records
        self._partition.apply(sent.parts, offsets)
        self._applied_offset.landed(sent, at)
        newest_ms = min(sent.header.max_timestamp, self._clock_ms())
        self._known_until_ms = newest_ms + self._log.producers_kept_ms // 2
        self._pump()
        self._partition.complete(sent.parts, offsets)

    def _sort_out(self) -> None:
        """Send again, or fail, the batches after a refused one: none of them is in the log."""
        answers, self._refused = self._refused, []
        self._sequence = answers[0][0].first
        again: list[Pending] = []
        failed: list[tuple[Pending, Outcome]] = []
        everything: Outcome | None = None
        for sent, answer in answers:
            refusal = not_taken(answer)
            if answer.code == OUT_OF_ORDER_SEQUENCE_NUMBER:
                again += sent.parts
            elif answer.code in CONTENT and len(sent.parts) > 1:
                again += sent.parts  # one part is invalid; Kafka's response does not say which
                self._alone = len(again)
            else:
                failed += [(each, refusal) for each in sent.parts]
                everything = everything or (None if answer.code in CONTENT else refusal)
                name = str(self._partition.name)
                LINES.write(_log, "warning", "Kafka refuses a batch", (name, answer.code),
                            partition=name, reason=answer.reason)  # fmt: skip
        gone = {each.pid for each, _ in failed if each.pid}
        after = everything or Outcome(Status.FAILED, reason="a batch before it was refused")
        kept: deque[Pending] = deque()
        for each in (*again, *self._waiting):
            if everything is not None or each.pid in gone:
                failed.append((each, after))
            else:
                kept.append(each)
        self._alone = min(self._alone, len(kept))  # sending too many alone is harmless
        self._waiting = kept
        if failed:
            self._partition.fail(failed)

    def lose(self, reason: str) -> None:
        """Fail everything: an outcome is unknown, so nothing more is sent under this writer."""
        in_doubt = [*(each for each, _ in self._refused), *self._in_flight]
        self.writer = None
        if not in_doubt and not self._waiting:
            return
        LINES.write(_log, "warning", "the writer of a partition is to be taken again",
                    str(self._partition.name), reason=reason, partition=str(self._partition.name),
                    fenced=self.fenced, batches=len(in_doubt))  # fmt: skip
        if in_doubt:
            self.doubt_ms = self._clock_ms()
        for sent in self._in_flight:
            self._applied_offset.lost(sent, WRITER, self._clock_ms())
        unknown = Outcome(Status.FAILED, reason=reason, code=UNKNOWN_OUTCOME)
        unsent = Outcome(Status.FAILED, reason=reason)
        failed = [(each, unknown) for sent in in_doubt for each in sent.parts]
        failed += [(each, unsent) for each in self._waiting]
        self._in_flight.clear()
        self._waiting.clear()
        self._refused.clear()
        self._alone = 0
        self._partition.fail(failed)
