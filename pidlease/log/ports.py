"""What the engine asks of a log, whichever it is."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

from pidlease.core.log_config import LogConfig
from pidlease.core.timed_offset import TimedOffset
from pidlease.kafka.records.record_batch import BatchHeader
from pidlease.kafka.records.writer_batch import LoggedBatch, Writer
from pidlease.storage.topics.topic_store import Topic


class NewBatch:
    """A batch to append.

    Attributes:
        data: its bytes; the log overwrites the base offset and the leader epoch in them.
        header: its header.
    """

    __slots__ = ("data", "header")

    def __init__(self, data: bytearray | memoryview, header: BatchHeader) -> None:
        self.data = data
        self.header = header


#: Called on the event loop with the base offsets of the batches of one append, or its error.
AppendDone = Callable[[list[int] | Exception], None]


class PartitionLog(Protocol):
    """One partition's log. Everything but `read_batches` is called on the event loop.

    Offsets are those of acknowledged records: `end_offset` is the next one to be given.
    """

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""

    @property
    def kept_offset(self) -> int:
        """The first offset that `read_batches` still has.

        It lies before the start where records were deleted by order and are not removed yet.
        """

    @property
    def end_offset(self) -> int:
        """The first offset that is not acknowledged."""

    @property
    def promised_end(self) -> int:
        """The first offset after all that is known to have been acknowledged.

        Above `end_offset` where acknowledged records cannot be read any more.
        """

    @property
    def stopped(self) -> str:
        """Why the partition takes no appends; empty where it does."""

    def append(self, batches: Sequence[NewBatch], done: AppendDone) -> None:
        """Append all of the batches, in order, or none. The caller waits for `done` in between."""

    def stop(self, reason: str, detail: str = "") -> None:
        """Take no appends from now on.

        Parameters:
            reason: for clients; it names no path.
            detail: for the server's own log.
        """

    def stop_short(self, reason: str, offset: int, detail: str = "") -> None:
        """Take no appends from now on, and end where reading failed. Blocks.

        Parameters:
            reason: why it cannot be read; clients get it, so it names no path.
            offset: everything before it was read.
            detail: for the log.
        """

    async def flush(self) -> None:
        """Return when everything acknowledged is on the disk.

        Raises:
            LogStoppedError: that cannot be had; the partition is stopped.
        """

    async def delete_records(self, before: int) -> None:
        """Have the log start at an offset, durably. What it is before may be removed at any time.

        Raises:
            OffsetRangeError: the log does not have the offset, nor ends there.
            LogStoppedError: the partition is stopped.
            OSError: it could not be made durable; nothing has changed.
        """

    async def retain(self, limit_offset: int, now_ms: int) -> int:
        """Remove the oldest records that are past the topic's retention; how many segments went.

        Parameters:
            limit_offset: nothing at or beyond it may go; a snapshot may need it.
            now_ms: the time, in ms since 1970.
        """

    async def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from the one that holds `offset` on; the last may be cut by the limit.

        At least one whole batch, whatever its size; nothing at the end of the log.

        Raises:
            OffsetRangeError: the log does not have the offset.
            DamagedLogError: what stands there is not intact.
        """

    async def find_time(self, timestamp: int) -> TimedOffset | None:
        """The first record with this timestamp (ms) or a later one."""

    def read_batches(self, offset: int) -> Iterator[LoggedBatch]:
        """All acknowledged batches from `offset` on, without their records; their CRCs checked.

        Blocking; for replay, in a thread.

        Raises:
            DamagedLogError: a batch is not intact.
            UnidentifiedBatchError: one of the writer does not name its producer.
        """


#: A batch of unknown outcome is not written any more after this time: it is
#: longer than anything holds a request between here and the log.
LATE_MS: Final = 120_000


class Forwarded(NamedTuple):
    """What a log that others write to, too, made of a batch.

    Attributes:
        code: Kafka's error code; 0: it is in the log, or there was no answer.
        offset: of its first record; -1: it is not known to be in the log.
        definite: whether it is certain that it is not in the log, and will not come into it.
        reason: for a person.
    """

    code: int
    offset: int
    definite: bool = False
    reason: str = ""


@runtime_checkable
class ForwardingLog(PartitionLog, Protocol):
    """A log that takes many appends at once, and that others write to, too."""

    @property
    def producers_kept_ms(self) -> int:
        """How long it recognises batches of a producer that has not written since; 0: not known."""

    def send(self, producer: int, new: NewBatch, done: Callable[[Forwarded], None]) -> None:
        """Append a batch after all earlier ones of its producer.

        Parameters:
            producer: its PID; 0: none.
            new: the batch; its bytes stay as they are until `done` is called.
            done: called with the response, on the event loop, perhaps before this returns.
        """

    @property
    def writer_ms(self) -> int:
        """How long its writer may be used before the next takeover, in ms."""

    async def take(self, doubt_ms: int) -> Writer:
        """Take over as the partition's writer; a marker of it comes into the log soon.

        Former writers cannot append after the marker.

        Parameters:
            doubt_ms: when the outcome of a batch that this server sent as the writer last was
                unknown, in ms since 1970; 0: never.

        Raises:
            NotOwnerError: another server owns the partition.
            NotAllowedError: this server may not write to it.
            LogError: it could not be done now.
        """

    async def current_writer(self) -> Writer | None:
        """Return the current writer; None: the log does not report it.

        Raises:
            LogError: it cannot be asked.
        """

    async def owned(self) -> bool | None:
        """Whether this server owns the partition, and always has since it started to serve.

        Returns:
            None: there is no coordinator that names the owner.

        Raises:
            LogError: it cannot be known now.
        """

    async def look(self) -> int:
        """Ask again how far it goes: the first offset that is not acknowledged.

        Raises:
            LogError: it cannot be asked.
        """

    def batches_from(self, offset: int, end: int) -> AsyncIterator[list[LoggedBatch]]:
        """The batches from one offset to another, some at a time.

        Raises:
            LogError: they cannot be read.
        """


class LogStore(Protocol):
    """All partitions' logs, and the topics they belong to. All methods block."""

    @property
    def made_by_others(self) -> bool:
        """Whether others than this server create and delete topics."""

    @property
    def defaults(self) -> LogConfig:
        """What the server was started with, for topics that have no settings of their own."""

    def topic_defaults(self) -> dict[str, str]:
        """What was set for all topics while a server ran, by Kafka's names.

        Raises:
            DataFolderError: it is damaged, or invalid here.
        """

    def save_topic_defaults(self, settings: dict[str, str]) -> None:
        """Make what is set for all topics durable, in place of what was set before.

        Raises:
            OSError: it is not.
        """

    def topics(self) -> list[Topic]:
        """The topics there are, and can be read."""

    def awaited(self) -> list[Topic]:
        """Those that there are besides, and that cannot be read yet; as of the last `topics`."""

    def save_topic(self, topic: Topic) -> None:
        """Make a topic, or its new definition, durable; its settings hold from now on.

        Raises:
            OSError: it is not.
        """

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic durably, then its logs; the next start removes what a crash leaves.

        Raises:
            OSError: the topic is still there.
        """

    def open_partition(self, topic: Topic, partition: int, recovery_offset: int) -> PartitionLog:
        """Open a partition's log; the folder is made where it is missing.

        Parameters:
            topic: the definition.
            partition: the number.
            recovery_offset: up to here the log was durable and intact (a snapshot's vector).
        """

    def check_owned(self) -> None:
        """Make sure that no other server has served these logs since this one started to.

        Raises:
            NotOwnerError: another server has.
            LogError: it cannot be known now.
        """

    def close(self) -> None:
        """Close all logs, and note that it was done properly."""
