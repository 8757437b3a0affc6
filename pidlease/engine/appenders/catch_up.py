"""Reading the log again, where it may hold what is not applied.

A batch that was never answered may stand in the log. Kafka recognises it when it comes again; but
not where it has forgotten its producer, or all but its last batch. So before anything more of such
a producer is judged, the log is read.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from typing import Final, NamedTuple, Protocol

import structlog

from pidlease.engine.append_outcome import UNKNOWN_OUTCOME, Outcome, Status
from pidlease.kafka.records.writer_batch import Writer
from pidlease.log.ports import ForwardingLog
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogError, NotAllowedError, NotOwnerError
from pidlease.storage.snapshots import TopicPartition

#: What is told where the log could not be read; why is in our own log.
_UNREAD: Final = Outcome(
    Status.FAILED,
    reason="whether it is in the log already cannot be read now; send it again",
    code=UNKNOWN_OUTCOME,
)
_BEHIND: Final = Outcome(
    Status.FAILED, reason="a batch before it has failed; send it again behind that"
)
#: What is told where another server has the partition.
LOST: Final = Outcome(
    Status.NOT_OWNER, reason="another server writes to this partition; look for it, and send there"
)

_log = structlog.get_logger(__name__)


class Rereadable(Protocol):
    """What is asked of the partition."""

    @property
    def name(self) -> TopicPartition:
        """Topic and number."""

    async def reread(self, log: ForwardingLog) -> None:
        """Apply what stands in the log and is not applied.

        Raises:
            LogError: it cannot be read.
        """


class Takeable(Protocol):
    """What is asked of the partition."""

    @property
    def name(self) -> TopicPartition:
        """Topic and number."""

    @property
    def applied_offset(self) -> int:
        """Everything before this offset is applied for certain."""

    async def read_on(
        self, log: ForwardingLog, start: int, end: int, marker: Writer | None = None
    ) -> bool:
        """Apply what stands in the log from one offset to another.

        Parameters:
            log: what is read.
            start: the first offset; where the log begins behind it, there.
            end: the first that is not read.
            marker: a writer, whose marker is looked for.

        Returns:
            Whether the marker was there.

        Raises:
            LogError: it cannot be read; a part may be applied.
        """

    def caught_up(self, end: int, now_ms: int) -> None:
        """All of the log before an offset was applied, which was its end at a time."""


class Parked(NamedTuple):
    """A batch that waits for the log to be read.

    Attributes:
        again: judges it again.
        give_up: answers that it cannot be, or why.
    """

    again: Callable[[], None]
    give_up: Callable[[Outcome], None]


class ParkedBatches(ABC):
    """Batches of one partition that wait until something was read; many for the same reading."""

    def __init__(self) -> None:
        self._parked: list[tuple[int, Parked]] = []
        #: How much of each producer waits, also of those that are being read for.
        self._waiting: dict[int, int] = {}
        #: Those of them of which one has failed.
        self._failed: set[int] = set()
        self._wanted = False
        self._task: asyncio.Task[None] | None = None

    def holds(self, producer: int) -> bool:
        """Whether batches of a producer wait: then those behind them wait, too."""
        return producer in self._waiting

    def park(self, producer: int, parked: Parked) -> None:
        """Read, from a moment that is not past yet, and judge a batch then."""
        self._waiting[producer] = self._waiting.get(producer, 0) + 1
        self._parked.append((producer, parked))
        self.begin()

    def fail(self, producer: int) -> None:
        """A batch of a producer has failed: those that wait behind it are not to pass it.

        Where holes are allowed nothing else would tell that one is missing.
        """
        if producer in self._waiting:
            self._failed.add(producer)

    def begin(self) -> None:
        """Read."""
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
        except Exception as error:  # noqa: BLE001 - a bug is not to leave them waiting
            LINES.write(_log, "error", "batches that waited could not be validated",
                        kind_of(error), error, error=repr(error))  # fmt: skip
            failure = _UNREAD
        for producer, each in parked:
            if failure is not None:
                self.fail(producer)
            given_up = failure or (_BEHIND if producer in self._failed else None)
            self._waiting[producer] -= 1
            if not self._waiting[producer]:
                del self._waiting[producer]
                self._failed.discard(producer)
            try:
                if given_up is not None:
                    each.give_up(given_up)
                else:
                    each.again()
            except Exception as error:  # noqa: BLE001 - one's bug is not to strand the others
                LINES.write(_log, "error", "a batch could not be judged again", kind_of(error),
                            error, producer=producer, error=repr(error))  # fmt: skip

    @abstractmethod
    async def _read(self, producers: Set[int]) -> Outcome | None:
        """Read for producers.

        Returns:
            The outcome of their batches, where it could not be read.
        """


class CatchUp(ParkedBatches):
    """Batches that wait for the log to be read.

    Parameters:
        partition: what is read for.
        log: what is read.
    """

    def __init__(self, partition: Rereadable, log: ForwardingLog) -> None:
        super().__init__()
        self._partition: Final = partition
        self._log: Final = log

    async def _read(self, producers: Set[int]) -> Outcome | None:  # noqa: ARG002 - all are
        """See `ParkedBatches`."""
        try:
            await self._partition.reread(self._log)
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
