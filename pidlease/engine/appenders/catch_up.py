"""Catch-up: reads the part of the log that may hold batches that are not applied.

A batch without a response may be in the log. Kafka recognises its retry, unless it has forgotten
the producer, or all but the producer's last batch. So the log is read before the producer's next
batch is validated.

While Kafka is away, batches wait here, each until its request ends: the client has closed the
connection, the request's own timeout has passed, or the producer sends under a higher generation.
A batch that waits longer would be stored after its client has given it up and sent its records
again under a higher epoch: then they are in the log twice.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence, Set
from typing import Final, NamedTuple, Protocol

import structlog
from typing_extensions import override

from pidlease.core.backoff import Backoff
from pidlease.engine.append_outcome import UNKNOWN_OUTCOME, Outcome, Status
from pidlease.engine.pending_batches import Pending
from pidlease.kafka.records.writer_batch import Writer
from pidlease.log.ports import ForwardingLog
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogError, NotAllowedError, NotOwnerError
from pidlease.storage.snapshots import TopicPartition

#: The outcome if the log could not be read; the server's own log has the reason.
UNREAD: Final = Outcome(
    Status.FAILED,
    reason="whether the batch is in the log cannot be read now; send it again",
    code=UNKNOWN_OUTCOME,
)
#: The outcome of a batch: its request has ended before the batch was sent to Kafka.
ENDED: Final = Outcome(
    Status.FAILED,
    reason="the log could not be reached in the time of the request; send it again",
    code=UNKNOWN_OUTCOME,
)
AFTER_FAILED: Final = Outcome(
    Status.FAILED, reason="an earlier batch has failed; send that one again first"
)
#: The outcome if another server is the partition's writer.
LOST: Final = Outcome(
    Status.NOT_OWNER, reason="another server writes to this partition; look for it, and send there"
)

#: The pauses between reads while batches wait for Kafka.
_BACKOFF: Final = Backoff(0.1, 1.0)
#: After so long without a batch that was put back, the next one is read for at once.
_CALM_SECONDS: Final = 10.0
#: How often to look for requests that have ended.
_LOOK_SECONDS: Final = 0.5

_log = structlog.get_logger(__name__)


class CatchUpTarget(Protocol):
    """A partition, or its writer, that can be caught up with the log."""

    @property
    def name(self) -> TopicPartition:
        """The topic and the partition number."""

    async def catch_up(self, log: ForwardingLog) -> None:
        """Apply the part of the log that is not applied yet.

        Raises:
            LogError: the log cannot be read.
        """


class TakeoverTarget(Protocol):
    """A partition, as the takeover of its writer uses it."""

    @property
    def name(self) -> TopicPartition:
        """The topic and the partition number."""

    @property
    def applied_offset(self) -> int:
        """The offset before which everything is applied."""

    async def read_on(
        self, log: ForwardingLog, start: int, end: int, marker: Writer | None = None
    ) -> bool:
        """Apply the log from one offset to another.

        Parameters:
            start: the first offset to read; the log's start if that is higher.
            end: the first offset not to read.
            marker: the writer with the marker to look for.

        Returns:
            Whether the marker was found.

        Raises:
            LogError: the log cannot be read; a part of it may be applied.
        """

    def caught_up(self, end: int, now_ms: int) -> None:
        """Note that the log was applied up to its end at a given time."""


class Parked(NamedTuple):
    """A batch that waits for a read of the log.

    Attributes:
        again: validates the batch again.
        give_up: completes the batch with an outcome, without validation.
        pending: the batch; None: it is a question, which does not wait for Kafka.
    """

    again: Callable[[], None]
    give_up: Callable[[Outcome], None]
    pending: Pending | None = None

    @property
    def ended(self) -> bool:
        """Whether the request of the batch has ended."""
        return self.pending is not None and self.pending.ended

    @property
    def patient(self) -> bool:
        """Whether the batch waits on after a read that failed."""
        return self.pending is not None and self.pending.patient


class ParkedBatches(ABC):
    """Parks batches of one partition until a read; all that wait at its start share it."""

    def __init__(self) -> None:
        #: Those that wait for the next read: first those that were put back, in order.
        self._ahead: list[tuple[int, Parked]] = []
        self._parked: list[tuple[int, Parked]] = []
        #: Those that wait for the running read.
        self._reading: list[tuple[int, Parked]] = []
        #: How many batches of each producer wait, including those of a running read.
        self._waiting: dict[int, int] = {}
        #: How many of each producer's waiting batches, the oldest, come after a failed one. Not
        #: those that come later: they would fail the retry of the failed one, and so on for ever.
        self._failed: dict[int, int] = {}
        self._wanted = False
        #: How often batches were put back, or a read has failed, since it was calm: rests come
        #: between the reads then. And when batches were put back last, by time.monotonic.
        self._rests = 0
        self._put_back_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._looks: asyncio.TimerHandle | None = None

    def holds(self, producer: int) -> bool:
        """Return whether batches of a producer wait; then its later batches must wait, too."""
        return producer in self._waiting

    def park(self, producer: int, parked: Parked) -> None:
        """Validate a batch after a read that begins after this call."""
        self._waiting[producer] = self._waiting.get(producer, 0) + 1
        self._parked.append((producer, parked))
        self.begin()

    def put_back(self, producer: int, batches: Sequence[Parked]) -> None:
        """Park batches that precede all those of their producer that wait.

        Parameters:
            producer: the PID.
            batches: in their order.
        """
        now = time.monotonic()
        if now - self._put_back_at > _CALM_SECONDS:
            self._rests = 0
        self._put_back_at = now
        self._rests += 1
        self._waiting[producer] = self._waiting.get(producer, 0) + len(batches)
        self._ahead = [*((producer, each) for each in batches), *self._ahead]
        self.begin()

    def fail(self, producer: int) -> None:
        """Fail the waiting batches of a producer, because an earlier one has failed.

        If sequence gaps are allowed, nothing else would notice the missing batch.
        """
        if producer and producer in self._waiting:  # without a producer there is no order
            self._failed[producer] = self._waiting[producer]

    def begin(self) -> None:
        """Start a read now, or after the running one."""
        self._wanted = True
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            self._look()
            while self._wanted:
                if self._rests > 1 and self._ahead and not self._parked:
                    await asyncio.sleep(_BACKOFF.seconds(self._rests - 1))
                self._wanted = False
                self._reading = self._ahead + self._parked
                self._ahead, self._parked = [], []
                if await self._once():
                    self._rests = max(self._rests, 1) + 1
        finally:
            self._task = None
            if self._looks is not None:
                self._looks.cancel()

    def _look(self) -> None:
        """Give up the batches of ended requests, now and from time to time."""
        self._give_up_ended()
        self._looks = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    async def _once(self) -> bool:
        """Read once, and go on with the batches that wait for it; return whether it failed."""
        try:
            failure = await self._read({producer for producer, _ in self._reading})
        except Exception as error:  # noqa: BLE001 - a bug must not leave the batches waiting
            LINES.write(_log, "error", "batches that waited could not be validated",
                        kind_of(error), error, error=repr(error))  # fmt: skip
            failure = UNREAD
        self._give_up_ended()
        reading, self._reading = self._reading, []
        put_back = {producer for producer, _ in self._ahead}
        for producer, each in reading:
            after_failed = producer in self._failed
            waits = failure is UNREAD and each.patient and not after_failed
            if waits or producer in put_back:
                # After those of its producer that were put back meanwhile.
                self._ahead.append((producer, each))
                self._wanted = True
                continue
            if failure is not None:
                self.fail(producer)
            self._go_on(producer, each, failure or (AFTER_FAILED if after_failed else None))
        return failure is not None

    def _go_on(self, producer: int, parked: Parked, given_up: Outcome | None) -> None:
        """Validate a batch that waits no more, or give it up."""
        _count_down(self._failed, producer)
        _count_down(self._waiting, producer)
        try:
            if given_up is not None:
                parked.give_up(given_up)
            else:
                parked.again()
        except Exception as error:  # noqa: BLE001 - a bug must not strand the other batches
            LINES.write(_log, "error", "a batch could not be validated again", kind_of(error),
                        error, producer=producer, error=repr(error))  # fmt: skip

    def _give_up_ended(self) -> None:
        """Give up the waiting batches of ended requests, and those under a lower generation."""
        waiting = [*self._ahead, *self._reading, *self._parked]
        newest: dict[int, int] = {}
        for producer, each in waiting:
            if each.pending is not None:
                generation = each.pending.batch.generation
                newest[producer] = max(newest.get(producer, -1), generation)
        ended = {
            id(each)
            for producer, each in waiting
            if each.ended
            or (producer and each.pending and each.pending.batch.generation < newest[producer])
        }
        if not ended:
            return
        for batches in (self._ahead, self._reading, self._parked):
            batches[:] = [item for item in batches if id(item[1]) not in ended]
        for producer, each in waiting:
            if id(each) in ended:
                self._go_on(producer, each, ENDED)

    @abstractmethod
    async def _read(self, producers: Set[int]) -> Outcome | None:
        """Do the read that the producers' batches wait for.

        Returns:
            The outcome of the batches if the read failed; None: validate them. After UNREAD, those
            of Kafka clients wait on, and the read is repeated.
        """


def _count_down(counts: dict[int, int], key: int) -> None:
    if key in counts:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]


class CatchUp(ParkedBatches):
    """Parks batches until the log is read.

    Parameters:
        partition: reads the log, and applies it.
        log: the log to read.
    """

    def __init__(self, partition: CatchUpTarget, log: ForwardingLog) -> None:
        super().__init__()
        self._partition: Final = partition
        self._log: Final = log

    @override
    async def _read(self, producers: Set[int]) -> Outcome | None:
        try:
            await self._partition.catch_up(self._log)
        except LogError as error:
            LINES.write(_log, "warning", "the log could not be read again", kind_of(error),
                        partition=str(self._partition.name), error=str(error))  # fmt: skip
            if self._log.stopped:
                return None  # they are refused: no read can succeed any more
            return _outcome(error)
        return None


def _outcome(error: LogError) -> Outcome:
    if isinstance(error, NotOwnerError):
        return LOST
    if isinstance(error, NotAllowedError):
        return Outcome(Status.REFUSED, reason=str(error), code=error.code)
    return UNREAD
