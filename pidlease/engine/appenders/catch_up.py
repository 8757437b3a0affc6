"""Catch-up: reads the part of the log that may hold batches that are not applied.

A batch without a response may be in the log. Kafka recognises its retry, unless it has forgotten
the producer, or all but the producer's last batch. So the log is read before the producer's next
batch is validated.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from typing import Final, NamedTuple, Protocol

import structlog
from typing_extensions import override

from pidlease.engine.append_outcome import UNKNOWN_OUTCOME, Outcome, Status
from pidlease.kafka.records.writer_batch import Writer
from pidlease.log.ports import ForwardingLog
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogError, NotAllowedError, NotOwnerError
from pidlease.storage.snapshots import TopicPartition

#: The outcome if the log could not be read; the server's own log has the reason.
_UNREAD: Final = Outcome(
    Status.FAILED,
    reason="whether the batch is in the log cannot be read now; send it again",
    code=UNKNOWN_OUTCOME,
)
AFTER_FAILED: Final = Outcome(
    Status.FAILED, reason="an earlier batch has failed; send that one again first"
)
#: The outcome if another server is the partition's writer.
LOST: Final = Outcome(
    Status.NOT_OWNER, reason="another server writes to this partition; look for it, and send there"
)

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
    """

    again: Callable[[], None]
    give_up: Callable[[Outcome], None]


class ParkedBatches(ABC):
    """Parks batches of one partition until a read; all that wait at its start share it."""

    def __init__(self) -> None:
        self._parked: list[tuple[int, Parked]] = []
        #: How many batches of each producer wait, including those of a running read.
        self._waiting: dict[int, int] = {}
        #: How many of each producer's waiting batches, the oldest, come after a failed one. Not
        #: those that come later: they would fail the retry of the failed one, and so on for ever.
        self._failed: dict[int, int] = {}
        self._wanted = False
        self._task: asyncio.Task[None] | None = None

    def holds(self, producer: int) -> bool:
        """Return whether batches of a producer wait; then its later batches must wait, too."""
        return producer in self._waiting

    def park(self, producer: int, parked: Parked) -> None:
        """Validate a batch after a read that begins after this call."""
        self._waiting[producer] = self._waiting.get(producer, 0) + 1
        self._parked.append((producer, parked))
        self.begin()

    def fail(self, producer: int) -> None:
        """Fail the waiting batches of a producer, because an earlier one has failed.

        If sequence gaps are allowed, nothing else would notice the missing batch.
        """
        if producer in self._waiting:
            self._failed[producer] = self._waiting[producer]

    def begin(self) -> None:
        """Start a read now, or after the running one."""
        self._wanted = True
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._wanted:
                self._wanted = False
                parked, self._parked = self._parked, []
                await self._once(parked)
        finally:
            self._task = None

    async def _once(self, parked: list[tuple[int, Parked]]) -> None:
        try:
            failure = await self._read({producer for producer, _ in parked})
        except Exception as error:  # noqa: BLE001 - a bug must not leave the batches waiting
            LINES.write(_log, "error", "batches that waited could not be validated",
                        kind_of(error), error, error=repr(error))  # fmt: skip
            failure = _UNREAD
        for producer, each in parked:
            if failure is not None:
                self.fail(producer)
            given_up = failure or (AFTER_FAILED if producer in self._failed else None)
            _count_down(self._failed, producer)
            _count_down(self._waiting, producer)
            try:
                if given_up is not None:
                    each.give_up(given_up)
                else:
                    each.again()
            except Exception as error:  # noqa: BLE001 - a bug must not strand the other batches
                LINES.write(_log, "error", "a batch could not be validated again", kind_of(error),
                            error, producer=producer, error=repr(error))  # fmt: skip

    @abstractmethod
    async def _read(self, producers: Set[int]) -> Outcome | None:
        """Do the read that the producers' batches wait for.

        Returns:
            The outcome of the batches if the read failed; None: validate them.
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
            return _outcome(error)
        return None


def _outcome(error: LogError) -> Outcome:
    if isinstance(error, NotOwnerError):
        return LOST
    if isinstance(error, NotAllowedError):
        return Outcome(Status.REFUSED, reason=str(error), code=error.code)
    return _UNREAD
