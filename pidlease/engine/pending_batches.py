"""The batches between a listener and the log, and the groups in which they are appended."""

from collections import deque
from collections.abc import Callable
from typing import Final

import structlog
from typing_extensions import override

from pidlease.core.state import Batch
from pidlease.engine.append_outcome import UNKNOWN_OUTCOME, Done, GapWait, Outcome, Status
from pidlease.kafka.codec.produce import NO_TIME
from pidlease.kafka.records.record_batch import BatchHeader
from pidlease.log.ports import Forwarded, NewBatch

#: The largest append. It bounds how many bytes a crash can tear, and how long a response waits.
GROUP_BYTES_MAX: Final = 8 << 20
GROUP_BATCHES_MAX: Final = 1000
#: A segment has no more offsets: its indexes have 32 bits for them.
GROUP_RECORDS_MAX: Final = 2**31 - 1

_log = structlog.get_logger(__name__)


class Pending(NewBatch):
    """A batch that a listener submits; the listener's subclass takes the outcome.

    Parameters:
        pid: the producer id, or the stand-in PID of a producer name of policy epoch; 0 or below:
            none.
        header: the batch's header, checked; under the writer if the policy is not kafka.
        data: the batch; the log overwrites its offset and its leader epoch.
        batch: the batch's identity.

    Attributes:
        retries: the batches that repeat it, and wait for its outcome; None: there are none.
        queue: its producer's queue, and
        began: when it was sent, by time.monotonic; both belong to the appender to Kafka.
        superseded: whether its producer has sent a batch under a higher generation since.
    """

    __slots__ = ("batch", "began", "pid", "queue", "retries", "superseded")

    #: Whether it waits while Kafka is away, until its request ends; if not, it fails at once.
    patient = False

    began: float
    queue: "ProducerQueue"

    def __init__(
        self, pid: int, header: BatchHeader, data: bytearray | memoryview, batch: Batch
    ) -> None:
        self.pid = pid
        self.header = header
        self.data = data
        self.batch = batch
        self.append_time = NO_TIME
        self.retries: list[Pending] | None = None
        self.superseded = False

    @property
    @override
    def ended(self) -> bool:
        return self.superseded

    def complete(self, outcome: Outcome) -> None:
        """Take the outcome: once, on the event loop, perhaps before `produce` has returned."""
        raise NotImplementedError

    def waits(self, expected: int, refuse: Callable[[], None]) -> bool:  # noqa: ARG002
        """Return whether it waits at a sequence gap, and gets no outcome yet.

        Parameters:
            expected: the sequence number that would be admitted.
            refuse: ends the wait: it refuses the batch for the gap.
        """
        return False

    def appended(self, offset: int) -> None:
        """Take the outcome of a batch that is in the log.

        Parameters:
            offset: the offset of its first record.
        """
        self.complete(Outcome(Status.APPENDED, offset))


class ProducerQueue:
    """Holds one producer's batches in flight to Kafka, and its waiting batches."""

    __slots__ = ("in_flight", "waiting")

    def __init__(self) -> None:
        self.in_flight: deque[Pending] = deque()
        self.waiting: deque[Pending] = deque()


class Submitted(Pending):
    """Calls a function with its outcome.

    Parameters:
        done: called with the outcome; if it is a `GapWait`, the batch may wait at a gap.
    """

    __slots__ = ("done",)

    def __init__(
        self,
        pid: int,
        header: BatchHeader,
        data: bytearray | memoryview,
        batch: Batch,
        done: Done,
    ) -> None:
        super().__init__(pid, header, data, batch)
        self.done = done

    @override
    def complete(self, outcome: Outcome) -> None:
        self.done(outcome)

    @override
    def waits(self, expected: int, refuse: Callable[[], None]) -> bool:
        done = self.done
        return isinstance(done, GapWait) and done.waits(expected, refuse)


class Watched(Pending):
    """Passes its outcome on, and first calls a function if the batch was not stored.

    Parameters:
        pending: the original batch, which gets the outcome.
        not_stored: called before the outcome is passed on.
    """

    __slots__ = ("_not_stored", "_pending", "patient")

    def __init__(self, pending: Pending, not_stored: Callable[[], object]) -> None:
        super().__init__(pending.pid, pending.header, pending.data, pending.batch)
        self._pending = pending
        self._not_stored = not_stored
        self.patient = pending.patient

    @property
    @override
    def ended(self) -> bool:
        return self.superseded or self._pending.ended

    @override
    def complete(self, outcome: Outcome) -> None:
        if outcome.status not in (Status.APPENDED, Status.DUPLICATE):
            self._not_stored()
        self._pending.complete(outcome)

    @override
    def appended(self, offset: int) -> None:
        self._pending.append_time = self.append_time
        self._pending.appended(offset)


def next_group(queue: deque[Pending]) -> list[Pending]:
    """Remove the batches of the next append from the queue, and return them."""
    group: list[Pending] = []
    size = records = 0
    while queue and len(group) < GROUP_BATCHES_MAX:
        size += len(queue[0].data)
        records += queue[0].header.records
        if group and (size > GROUP_BYTES_MAX or records > GROUP_RECORDS_MAX):
            break
        group.append(queue.popleft())
    return group


def original(in_flight: deque[Pending], batch: Batch) -> Pending:
    """Return the batch in flight that a retry repeats; the last one if it overlaps several."""
    for pending in in_flight:
        if pending.batch[:3] == batch[:3]:  # generation, first, last
            return pending
    return in_flight[-1]


def complete(pending: Pending, outcome: Outcome) -> None:
    """Complete one of many batches; its failure must not keep the others waiting."""
    try:
        pending.complete(outcome)
    except Exception:  # noqa: BLE001 - a listener's bug
        _log.exception("an outcome could not be delivered", outcome=outcome)


def complete_appended(pending: Pending, offset: int) -> None:
    """Complete one of many batches that are in the log."""
    try:
        pending.appended(offset)
    except Exception:  # noqa: BLE001 - a listener's bug
        _log.exception("an outcome could not be delivered", offset=offset)


def not_taken(answer: Forwarded) -> Outcome:
    """Return the outcome of a batch that Kafka certainly or perhaps did not append."""
    if answer.definite and answer.code:
        return Outcome(
            Status.REFUSED, reason=answer.reason, code=answer.code,
            record_errors=answer.record_errors,
        )  # fmt: skip
    code = 0 if answer.definite else UNKNOWN_OUTCOME
    return Outcome(Status.FAILED, reason=answer.reason, code=code)


def after_failed(expected: int) -> Outcome:
    """Return the outcome of a batch after one that failed."""
    reason = f"sequence {expected} failed and comes first again"
    return Outcome(Status.FAILED, expected=expected, reason=reason)
