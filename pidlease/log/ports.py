"""The engine's interfaces to the log: partitions, their writers, and the store of all of them."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Protocol, runtime_checkable

from pidlease.core.buffer import Buffer
from pidlease.core.log_config import LogConfig
from pidlease.core.timed_offset import TimedOffset
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.codec.produce import NO_TIME, RecordError
from pidlease.kafka.records.record_batch import BatchHeader, WholeBatches
from pidlease.kafka.records.writer_batch import LoggedBatch, Writer
from pidlease.storage.snapshot_rows import PartitionRows
from pidlease.storage.topics.topic_settings import SettingsChange
from pidlease.storage.topics.topic_store import Topic


class NewBatch:
    """A batch to append.

    Attributes:
        data: the batch's bytes; the log overwrites the base offset and the leader epoch in them.
        header: the batch's header.
        append_time: when the log appended it, in ms since 1970; -1: its records keep their times.
    """

    __slots__ = ("append_time", "data", "header")

    def __init__(self, data: bytearray | memoryview, header: BatchHeader) -> None:
        self.data = data
        self.header = header
        self.append_time = NO_TIME

    @property
    def ended(self) -> bool:
        """Whether its request has ended, so that it must not be sent any more."""
        return False


#: Called on the event loop with the base offsets of the batches of one append, or its error.
AppendDone = Callable[[list[int] | Exception], None]


class LogPart(NamedTuple):
    """A part of a log, as it was read.

    Attributes:
        data: whole batches, and possibly the beginning of another one.
        whole: the size and the counts of the whole batches.
    """

    data: Buffer
    whole: WholeBatches


class CommittedPart(NamedTuple):
    """A part of a log, as a consumer reads it that reads what is committed.

    Attributes:
        data: whole batches, and possibly the beginning of another one.
        whole: the size and the counts of the whole batches.
        end_offset: the first offset that consumers may not read yet, now.
    """

    data: Buffer
    whole: WholeBatches
    end_offset: int


class PartitionLog(Protocol):
    """One partition's log. Everything but `read_batches` is called on the event loop.

    Offsets are those of acknowledged records.
    """

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""

    @property
    def kept_offset(self) -> int:
        """The first offset that `read_batches` can read.

        It is before the start offset if DeleteRecords has moved that, and the records are not
        removed yet.
        """

    @property
    def end_offset(self) -> int:
        """The offset after the last acknowledged record."""

    @property
    def promised_end(self) -> int:
        """The offset after the last record known to have been acknowledged.

        It is above `end_offset` if acknowledged records can no longer be read.
        """

    @property
    def stopped(self) -> str:
        """Why the partition accepts no appends; empty: it accepts them."""

    def append(self, batches: Sequence[NewBatch], done: AppendDone) -> None:
        """Append all batches in order, or none. Wait for `done` before the next call."""

    def stop(self, reason: str, detail: str = "") -> None:
        """Accept no more appends.

        Parameters:
            reason: for clients; contains no path.
            detail: for the server's log.
        """

    def stop_short(self, reason: str, offset: int, detail: str = "") -> None:
        """Accept no more appends, and end the log where a read failed. Blocks.

        Parameters:
            reason: why the rest cannot be read; for clients, so it contains no path.
            offset: the first offset that could not be read.
            detail: for the server's log.
        """

    async def flush(self, *, timed: bool = False) -> None:
        """Wait until everything acknowledged is durable.

        Parameters:
            timed: not with fsync policy `never`, which leaves that to the operating system.

        Raises:
            LogStoppedError: an fsync failed; the partition is stopped.
        """

    async def delete_records(self, before: int) -> None:
        """Move the start offset, durably. Records before it may be removed at any time.

        Raises:
            OffsetRangeError: the log does not have the offset, and does not end there.
            LogStoppedError: the partition is stopped.
            OSError: the new start is not durable; nothing has changed.
        """

    async def retain(self, limit_offset: int, now_ms: int) -> int:
        """Remove the oldest records past the topic's retention. Return the segments removed.

        Parameters:
            limit_offset: keep this offset and all after it; a snapshot may need them.
            now_ms: the time, in ms since 1970.
        """

    async def read(self, offset: int, max_bytes: int) -> LogPart:
        """Read from the batch that contains `offset`; the last batch may be cut by the limit.

        Returns at least one complete batch, whatever its size; nothing at the end of the log.

        Raises:
            OffsetRangeError: the log does not have the offset.
            DamagedLogError: the bytes there are not intact.
        """

    async def find_time(self, timestamp: int) -> TimedOffset | None:
        """Find the first record with this timestamp (ms since 1970) or a later one."""

    def read_batches(self, offset: int) -> Iterator[LoggedBatch]:
        """Read all acknowledged batches from `offset` on, without their records. Checks CRCs.

        Blocks; called by a replay, in a thread.

        Raises:
            DamagedLogError: a batch is not intact.
            UnidentifiedBatchError: a batch of the writer does not name its producer.
        """


@runtime_checkable
class SizedLog(Protocol):
    """A log that knows its size."""

    def size_bytes(self) -> int:
        """Return the size of its records on disk, in bytes. Blocks.

        Raises:
            OSError: a file cannot be read now.
        """


#: After this time a batch with an unknown outcome is no longer appended: nothing between this
#: server and the log holds a request as long.
LATE_MS: Final = 120_000


class Forwarded(NamedTuple):
    """The outcome of a batch that was sent to a log with other writers.

    Attributes:
        code: Kafka's error code; 0: the batch is in the log, or there was no response.
        offset: the offset of its first record; -1: the batch is not known to be in the log.
        definite: whether the batch is certainly not in the log, and never will be.
        reason: the error in words.
        record_errors: the records that caused the error.
    """

    code: int
    offset: int
    definite: bool = False
    reason: str = ""
    record_errors: tuple[RecordError, ...] = ()


class AppendReceiver(Protocol):
    """Takes the outcomes of batches that it sent to a log with other writers."""

    def landed(self, new: NewBatch, offset: int) -> None:
        """Take the outcome of a batch that is in the log.

        Parameters:
            new: the batch.
            offset: the offset of its first record.
        """

    def answered(self, new: NewBatch, answer: Forwarded) -> None:
        """Take the outcome of a batch that is not, or perhaps not, in the log."""


@runtime_checkable
class ForwardingLog(PartitionLog, Protocol):
    """A log that accepts many appends at once, and has other writers."""

    @property
    def producers_kept_ms(self) -> int:
        """How long the log deduplicates for a producer that does not write, in ms; 0: unknown."""

    @property
    def leader_epoch(self) -> int:
        """A leader epoch: what is known was in the log when it was current."""

    @property
    def has_lost(self) -> bool:
        """Whether the log has lost records that were known to be in it."""

    @property
    def confirmed(self) -> bool:
        """Whether there was no sign since the last `look` that the log may be another one.

        If there was, `look` comes before the next batch is validated.
        """

    def send(self, producer: int, new: NewBatch, receiver: AppendReceiver) -> None:
        """Append a batch after all earlier ones of its producer.

        Parameters:
            producer: the PID; 0: none.
            new: the batch; its bytes must not change until the outcome is known.
            receiver: gets the outcome, on the event loop, possibly before this returns.
        """

    @property
    def writer_ms(self) -> int:
        """How long this server may be the writer before the next takeover, in ms."""

    async def take(self, doubt_ms: int) -> Writer:
        """Take over as the partition's writer. The writer's marker is appended soon after.

        Former writers cannot append after the marker.

        Parameters:
            doubt_ms: when a batch that this server sent as the writer last had an unknown outcome,
                in ms since 1970; 0: never.

        Raises:
            NotOwnerError: another server owns the partition.
            NotAllowedError: this server may not write to it.
            LogError: the takeover failed; it may be tried again.
        """

    async def current_writer(self) -> Writer | None:
        """Return the current writer; None: the log does not report it.

        Raises:
            LogError: the log cannot be reached.
        """

    async def owned(self) -> bool | None:
        """Return whether this server has owned the partition ever since it started to serve.

        None: no coordinator assigns owners.

        Raises:
            LogError: this is unknown now.
        """

    async def look(self) -> int:
        """Ask the log for the offset after the last acknowledged record.

        When this returns, the log was the known one at some moment since the call.

        Raises:
            LogStoppedError: it is another one: what is known of it does not hold.
            LogError: the log cannot be reached.
        """

    async def read_committed(self, offset: int, max_bytes: int) -> CommittedPart:
        """Read from an offset on, up to the first open transaction, by asking the log now.

        Records of aborted transactions are left out. There may be nothing at the offset yet.

        Raises:
            OffsetRangeError: the log does not have the offset, and does not end there.
            OldFormatError: the record at the offset is of an old format, and cannot be read.
            LogError: the log cannot be read.
        """

    async def stable_end(self) -> int:
        """Ask the log for the first offset that consumers may not read yet.

        Raises:
            LogError: the log cannot be asked.
        """

    def follow(self, on_more: Callable[[], None]) -> None:
        """Call a function whenever there may be more to read, until `unfollow`.

        Parameters:
            on_more: called on the event loop.
        """

    def unfollow(self) -> None:
        """Call the function no longer."""

    def batches_from(self, offset: int, end: int) -> AsyncIterator[list[LoggedBatch]]:
        """Read the batches from one offset to another, some at a time.

        Raises:
            LogError: the batches cannot be read.
        """


class LogStore(Protocol):
    """All topics and their partitions' logs. All methods block, but `own_settings`.

    Attributes:
        lost: why no partition accepts appends, although nothing is wrong with its log; else empty.
    """

    lost: str = ""

    @property
    def made_by_others(self) -> bool:
        """Whether topics are also created and deleted outside this server."""

    @property
    def defaults(self) -> LogConfig:
        """The log settings given at the server's start, for topics without own settings."""

    def topic_defaults(self) -> dict[str, str]:
        """Read the settings of all topics, by Kafka's names.

        Raises:
            DataFolderError: the settings are damaged, or invalid here.
        """

    def change_topic_defaults(self, change: SettingsChange) -> dict[str, str]:
        """Change the settings of all topics, durably; return the new ones.

        Parameters:
            change: makes the new settings from the stored ones; its errors are raised.

        Raises:
            OSError: the settings are not stored.
        """

    def settings_changed(self) -> bool:
        """Return whether other servers may have changed topics' settings since the last read.

        Raises:
            OSError: this is unknown now.
        """
        return False

    def read_settings(self) -> dict[str, str]:
        """Read all topics' settings again, also for `own_settings`; return those of all topics.

        Raises:
            OSError: they cannot be read now.
        """
        return self.topic_defaults()

    def own_settings(self, topic: Topic) -> dict[str, str]:
        """Return a topic's own settings, as of the last read or change."""
        return topic.overrides

    def is_first_service(self) -> bool:
        """Note durably that these logs are served; return whether they never were before.

        Then no producer of this kind is in the logs, whatever others have written. Where that is
        not certain, the logs count as served.

        Raises:
            DataFolderError: the log cannot be asked.
        """

    def note_first_service(self, ends: Sequence[PartitionRows]) -> None:  # noqa: ARG002
        """Note durably where the logs end, before the first PID is leased.

        Parameters:
            ends: of all partitions, without producers.

        Raises:
            OSError: not all may be noted. Then later starts read more than they need.
        """
        return

    def first_rows(self, name: TopicPartition, topic_id: str) -> PartitionRows | None:  # noqa: ARG002
        """Return where a log begins to have batches of leased PIDs, if that was noted."""
        return None

    def ends_of_epochs(self, epochs: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:  # noqa: ARG002
        """Return up to which offset logs are as they were under leader epochs.

        Without the logs that cannot be asked now, or have no leader epochs.
        """
        return {}

    def topics(self) -> list[Topic]:
        """Return the topics that can be read."""

    def awaited(self) -> list[Topic]:
        """Return the topics that could not be read yet at the last call of `topics`."""

    def make_topic(self, topic: Topic, first: int = 0) -> None:
        """Make a topic's partitions from a number on, and store its definition, durably.

        Parameters:
            first: how many partitions the topic has now; 0: it is a new topic.

        Raises:
            OSError: not all is stored. A new topic does not exist; new partitions may be there
                after the next start.
        """

    def save_topic(self, topic: Topic) -> None:
        """Store a topic's new definition durably; its settings apply at once.

        Raises:
            OSError: the topic is not stored.
        """

    def change_topic(self, topic: Topic, change: SettingsChange) -> Topic:
        """Change a topic's own settings durably; return its new definition.

        Parameters:
            change: makes the new settings from the stored ones; its errors are raised.

        Raises:
            OSError: the settings are not stored.
        """
        altered = replace(topic, overrides=change(dict(topic.overrides)))
        self.save_topic(altered)
        return altered

    def delete_topic(self, topic: Topic) -> None:
        """Delete a topic durably, then its logs; after a crash the next start removes the rest.

        Raises:
            OSError: the topic still exists.
        """

    def open_partition(self, topic: Topic, partition: int, recovery_offset: int) -> PartitionLog:
        """Open a partition's log. A log that is missing, or is another topic's, is stopped.

        Parameters:
            recovery_offset: the log is durable and intact up to here (by a snapshot's vector).
        """

    def check_owned(self) -> None:
        """Check that no other server has served these logs since this server started to.

        Raises:
            NotOwnerError: another server has served them.
            LogError: this is unknown now.
        """

    def check_place(self) -> None:
        """Stop the partitions with files that are not where they were, and note a loss of all."""
        return

    def close(self) -> None:
        """Close all logs, and record that the stop was clean."""
