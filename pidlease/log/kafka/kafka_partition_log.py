"""The log of one partition of a Kafka cluster: implements `ForwardingLog` for the engine.

A batch has one of three outcomes: it is in the log; it is not, and never will be; or the outcome is
unknown, because the connection ended, or a replica was late. `pidlease.kafka.produce_errors` maps
error codes to them.
"""

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Container,
    Iterator,
    Sequence,
)
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

import structlog
from kio.schema.errors import ErrorCode
from typing_extensions import override

from pidlease.coordination.shared_call import SharedCall
from pidlease.core.backoff import Backoff
from pidlease.core.timed_offset import TimedOffset
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.cluster import NO_LEADER, View
from pidlease.kafka.client.end_watch import EndWatch
from pidlease.kafka.client.offset_requests import LeaderLog
from pidlease.kafka.client.produce_channels import ProduceSend
from pidlease.kafka.codec.fetch import READ_COMMITTED, READ_UNCOMMITTED, FetchedRecords
from pidlease.kafka.codec.produce import PartitionResponse
from pidlease.kafka.error_codes import OFFSET_OUT_OF_RANGE
from pidlease.kafka.errors import (
    UpstreamError,
    UpstreamLostError,
    UpstreamNonsenseError,
)
from pidlease.kafka.produce_errors import Stored, produce_error
from pidlease.kafka.records.aborted_batches import without_aborted
from pidlease.kafka.records.first_record import find_identity
from pidlease.kafka.records.identity_header import IdentityError
from pidlease.kafka.records.joined_batch import parted
from pidlease.kafka.records.old_formats import check_message, entries_in, in_current_format
from pidlease.kafka.records.record_batch import (
    BatchHeader,
    CorruptBatchError,
    check_intact,
    read_header,
    whole_batches,
)
from pidlease.kafka.records.writer_batch import LoggedBatch, Writer, logged, may_be_a_writers
from pidlease.log.ports import (
    AppendDone,
    AppendReceiver,
    CommittedPart,
    Forwarded,
    LogPart,
    NewBatch,
)
from pidlease.observability.repeated_lines import LINES
from pidlease.storage.errors import (
    DamagedLogError,
    LogError,
    LogStoppedError,
    OffsetRangeError,
    UnidentifiedBatchError,
)
from pidlease.storage.io_pool import IoPool

Result = TypeVar("Result")

_log = structlog.get_logger(__name__)

#: The size of one fetch of a replay or catch-up.
_READ_BYTES: Final = 8 << 20
#: The batches of a larger read are counted and converted in a thread.
_INLINE_BYTES_MAX: Final = 64 << 10
#: Kafka's own producer ids are below this number, those that pidlease leases are not.
_PIDS_OF_KAFKA: Final = 1 << 48
#: How often a request that only reads is sent in all, if it fails.
_TRIES: Final = 9
#: The pauses between these requests.
_BACKOFF: Final = Backoff(0.1, 1.0)
#: The pauses before the leader is asked, for the first time and again if it confirms nothing.
_REST_SECONDS: Final = (0.0, 0.0, 0.2, 0.8, 2.0)


#: Why a batch is not sent that was validated before its leader may have changed.
_LEADER_CHANGED: Final = "its leader in Kafka has changed; send it again"
#: Why a partition of a topic is stopped that was deleted, and created again.
OTHER_TOPIC: Final = "its topic was deleted and created again; the new one is read first"


class Upstream(Protocol):
    """The cluster, as a partition's log uses it."""

    def send(self, producer: int, send: ProduceSend) -> None:
        """Send a batch to the leader of its partition, after all earlier ones of its producer."""

    async def fetch(
        self,
        place: TopicPartition,
        offset: int,
        bytes_max: int,
        isolation: int = READ_UNCOMMITTED,
    ) -> FetchedRecords:
        """Read from a partition.

        Parameters:
            isolation: READ_UNCOMMITTED: also records of open and aborted transactions;
                READ_COMMITTED: up to the last stable offset, also records of aborted ones.

        Raises:
            UpstreamError: the partition cannot be read now.
        """

    async def log_of(self, place: TopicPartition, epoch: int) -> LeaderLog:
        """Return a partition's log, as its leader reports it.

        Parameters:
            epoch: the leader epoch for `LeaderLog.reached`.

        Raises:
            UpstreamError: the partition's leader does not report it now.
        """

    async def stable_offset_of(self, place: TopicPartition) -> int:
        """Return a partition's last stable offset.

        Raises:
            UpstreamError: the partition's leader does not report it now.
        """

    @property
    def ends(self) -> EndWatch:
        """Notices what others write to partitions."""

    async def find_time(self, place: TopicPartition, timestamp: int) -> TimedOffset | None:
        """Return the first committed record with this timestamp (ms) or a later one.

        Raises:
            UpstreamError: the partition's leader does not report it now.
        """

    def stale(self) -> None:
        """Note that the known metadata of the cluster are out of date."""

    def read_again(self) -> None:
        """Note that a partition has stopped, and is to be opened and read again."""


class Writers(Protocol):
    """The writers of partitions, as a partition's log uses them."""

    @property
    def ids(self) -> Container[int]:
        """The producer ids of all present and former writers."""

    @property
    def kept_ms(self) -> int:
        """How long a writer may be used, in ms."""

    async def take(self, place: TopicPartition, doubt_ms: int) -> Writer:
        """Take over as the writer of a partition."""

    async def current(self, place: TopicPartition) -> Writer | None:
        """Return the current writer of a partition; None: Kafka does not report it."""

    async def owned(self, partition: TopicPartition) -> bool | None:
        """Return whether this server owns a partition; None: there is no coordinator."""

    @property
    def learns(self) -> bool:
        """Whether ids in the log may be of writers that this server does not know yet."""

    async def learn(self, unknown: Collection[int]) -> None:
        """Learn which of some producer ids are writers of other active servers."""


class KafkaUnreadableError(LogError):
    """Kafka does not respond as needed now; the request may be tried again."""


class KafkaPartitionLog:
    """Sends batches to a partition of Kafka, and reads it.

    Another topic may have the name by now, and a leader that was not in sync has lost records.
    `look` confirms that the log is still the one that is known: its topic has the same id, and its
    leader still has what was known when the last confirmed leader epoch was current. It is called
    before anything but an append follows from what is known of the log, and before an append if
    there was a sign that it may be another one. ADR 46 has the whole rule.

    Parameters:
        upstream: the cluster.
        place: the topic and the partition number.
        opened: the log, as its leader reports it.
        writers: the writers of partitions; batches under their ids carry an identity header.
        pool: the threads that decode batches.
        loop: the event loop of the cluster's connections.
    """

    def __init__(
        self,
        upstream: Upstream,
        place: TopicPartition,
        opened: LeaderLog,
        writers: Writers,
        pool: IoPool,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._upstream: Final = upstream
        self._place: Final = place
        self._writers: Final = writers
        self._pool: Final = pool
        self._loop = loop
        self.topic_id: Final = opened.topic_id
        self.start_offset, self.end_offset = opened.start, opened.end
        self.stopped = ""
        #: The last stable offset, as far as it is known: all transactions before it have ended; -1:
        #: unknown.
        self.stable_offset = -1
        self._ask_stable: Final = SharedCall(self._stable_offset_now)
        self._on_more: Callable[[], None] | None = None
        #: The last confirmed leader epoch: what is known was in the log when it was current.
        self.leader_epoch = opened.epoch
        #: The leader then.
        self._leader = opened.leader
        #: The leader and its epoch as the metadata had them last.
        self._shown = opened.leader, opened.epoch
        #: Whether there was no sign since the last `look` that the log may be another one.
        self.confirmed = True
        #: How many signs there were.
        self._signs = 0
        #: The end that was known when the leader may have changed; None: there is no sign of that.
        self._end_before: int | None = None
        #: Grows when the leader may have changed: responses to what was sent before do not count.
        self.term = 0
        #: Whether Kafka has lost records that were known to be in the log.
        self.has_lost = False
        #: How long Kafka deduplicates for a producer that does not write, in ms; 0: unknown.
        self.producers_kept_ms = 0

    @property
    def writer_ms(self) -> int:
        """How long the writer may be used before the next takeover, in ms."""
        return self._writers.kept_ms

    async def take(self, doubt_ms: int) -> Writer:
        """Take over as the partition's writer."""
        return await self._writers.take(self._place, doubt_ms)

    async def current_writer(self) -> Writer | None:
        """Return the current writer; None: Kafka does not report it."""
        return await self._writers.current(self._place)

    async def owned(self) -> bool | None:
        """Return whether this server owns the partition; None: there is no coordinator."""
        return await self._writers.owned(self._place)

    @property
    def kept_offset(self) -> int:
        """The first offset that `read_batches` still has."""
        return self.start_offset

    # ------------------------------------------------------------------ appending

    def send(self, producer: int, new: NewBatch, receiver: AppendReceiver) -> None:
        """Append a batch after all earlier ones of its producer."""
        if self.stopped:  # a waiting batch could go to a new topic of the same name
            answer = Forwarded(0, -1, definite=True, reason=self.stopped)
            self._loop.call_soon(receiver.answered, new, answer)
            return
        if self._end_before is not None:  # it was validated before that
            answer = Forwarded(0, -1, definite=True, reason=_LEADER_CHANGED)
            self._loop.call_soon(receiver.answered, new, answer)
            return
        self._upstream.send(producer, _LogSend(self, self._place, new, receiver))

    def doubt(self) -> None:
        """Note a sign that the log may be another one: `look` comes before the next batch."""
        self.confirmed = False
        self._signs += 1

    def note_view(self, view: View) -> None:
        """Note the partition's leader, as the metadata have it."""
        topic = view.topics.get(self._place.topic)
        leader = view.leader(*self._place)
        if topic is None or topic.topic_id != self.topic_id or leader == NO_LEADER:
            return  # the topic's other partitions go with it; or there is no leader yet
        epoch = topic.epochs[self._place.partition]
        if (leader, epoch) == self._shown or epoch < self.leader_epoch:
            return  # no change, or of a broker that lags
        self._shown = leader, epoch
        if leader == self._leader and epoch == self.leader_epoch + 1 and self.confirmed:
            # A leader that stays loses nothing; one that goes and comes back rises by two.
            self.leader_epoch = epoch
        elif (leader, epoch) != (self._leader, self.leader_epoch):
            self._leader_changed()

    def note_connection_lost(self, leader: int) -> None:
        """Note that a connection to a broker has ended: another one may lead its partitions."""
        if leader == self._leader:
            self._leader_changed()

    def _leader_changed(self) -> None:
        self.doubt()
        self.term += 1
        if self._end_before is None:
            self._end_before = self.end_offset

    def append(self, batches: Sequence[NewBatch], done: AppendDone) -> None:
        """Raise NotImplementedError: batches are sent one by one."""
        raise NotImplementedError("Kafka's log takes batches by `send`")

    @property
    def promised_end(self) -> int:
        """The offset after the last record known to have been acknowledged."""
        return self.end_offset

    def stop(self, reason: str, detail: str = "") -> None:  # noqa: ARG002 - not needed here
        """Accept no more appends."""
        self.stopped = self.stopped or reason

    def stop_short(self, reason: str, offset: int, detail: str = "") -> None:  # noqa: ARG002
        """Accept no more appends; the end of the log stays Kafka's."""
        self.stop(reason)

    async def flush(self, *, timed: bool = False) -> None:  # noqa: ARG002 - Kafka's affair
        """Return at once: an acknowledged batch is as durable as Kafka's settings make it.

        Raises:
            LogStoppedError: the partition is stopped.
        """
        if self.stopped:
            raise LogStoppedError(self.stopped)

    async def retain(self, limit_offset: int, now_ms: int) -> int:  # noqa: ARG002 - Kafka's affair
        """Remove nothing: retention is Kafka's own."""
        return 0

    async def delete_records(self, before: int) -> None:
        """Raise NotImplementedError: Kafka deletes its records."""
        raise NotImplementedError("records are deleted by asking Kafka")

    # ------------------------------------------------------------------ reading

    async def look(self) -> int:
        """Ask Kafka for the end of the log, and confirm that it is the log that is known."""
        for rest in _REST_SECONDS:
            await asyncio.sleep(rest)
            # Of before: acknowledgements go on, and overtake the response.
            known = self.end_offset if self._end_before is None else self._end_before
            signs, epoch = self._signs, self.leader_epoch
            found = await self._try(partial(self._upstream.log_of, self._place, epoch))
            if self._is_confirmed(found, known, epoch) and self._signs == signs:
                self._confirm(found)
                return found.end
        raise KafkaUnreadableError(f"{self._place} changes while its leader is asked")

    def _is_confirmed(self, found: LeaderLog, known: int, epoch: int) -> bool:
        """Return whether a leader's log has what is known; False: ask again.

        Parameters:
            known: the known end when the leader was asked.
            epoch: the confirmed leader epoch that it was asked for.

        Raises:
            LogStoppedError: it is another log.
        """
        self._check_topic(found)
        rise = found.epoch - epoch
        if rise < 0:
            self._upstream.stale()  # the metadata are of a broker that lags
            return False
        stays = found.leader == self._leader and rise <= 1
        if found.reached < known and not (stays and rise):
            self._lose(known, found, epoch)
        if not stays and self._end_before is None and self.end_offset != known:
            self._leader_changed()  # and a response has come meanwhile, perhaps of a former leader
            return False
        # A new leader may not know the high watermark yet.
        return found.end >= known

    def _confirm(self, found: LeaderLog) -> None:
        if found.leader != self._leader or found.epoch > self.leader_epoch + 1:
            self.term += 1
        # The metadata may have shown the next epoch of the same leader meanwhile.
        self._leader, self.leader_epoch = found.leader, max(self.leader_epoch, found.epoch)
        self._shown = self._leader, self.leader_epoch
        self.confirmed, self._end_before = True, None
        self.start_offset = found.start
        self.end_offset = max(self.end_offset, found.end)

    def _lose(self, known: int, found: LeaderLog, epoch: int) -> None:
        """Stop: records that were known to be in the log are lost.

        Raises:
            LogStoppedError: always.
        """
        self.has_lost = True
        self.stop(
            f"it went up to {known}, and has only what was there up to {found.reached}: Kafka has"
            " lost records"
        )
        _log.error("a partition of Kafka was cut; it is read again", partition=str(self._place),
                   known_end=known, cut_at=found.reached, end=found.end,
                   leader_epoch=found.epoch, known_epoch=epoch)  # fmt: skip
        self._upstream.read_again()
        raise LogStoppedError(self.stopped)

    def _check_topic(self, found: LeaderLog) -> None:
        """Check that the topic was not deleted, and created again.

        Raises:
            LogStoppedError: it was; nothing that is known of the log holds any more.
        """
        if found.topic_id != self.topic_id:
            self.stop(OTHER_TOPIC)
            self._upstream.stale()
            _log.warning("a topic is another topic now: it was deleted, and created again",
                         partition=str(self._place), topic_id=found.topic_id)  # fmt: skip
            raise LogStoppedError(self.stopped)

    async def batches_from(self, offset: int, end: int) -> AsyncIterator[list[LoggedBatch]]:
        """Read the batches from one offset to another, some at a time."""
        while offset < end:
            found = await self._fetch(offset, _READ_BYTES)
            if self._writers.learns:
                work_ids = partial(_unknown_writers, found.data, self._writers.ids)
                if unknown := await self._pool.run(work_ids):
                    await self._writers.learn(unknown)
            work = partial(_take_apart, found.data, offset, self._writers.ids)
            batches, next_offset = await self._pool.run(work)
            if next_offset <= offset:
                self._check_end(found, end)
                return
            yield batches
            offset = next_offset

    def read_batches(self, offset: int) -> Iterator[LoggedBatch]:
        """Read all batches from an offset on, in a thread; the event loop fetches them."""
        end = self.end_offset
        while offset < end:
            fetch = asyncio.run_coroutine_threadsafe(self._fetch(offset, _READ_BYTES), self._loop)
            found = fetch.result()
            if self._writers.learns and (
                unknown := _unknown_writers(found.data, self._writers.ids)
            ):
                learn = self._writers.learn(unknown)
                asyncio.run_coroutine_threadsafe(learn, self._loop).result()
            batches, next_offset = _take_apart(found.data, offset, self._writers.ids)
            if next_offset <= offset:
                self._check_end(found, end)
                return
            yield from batches
            offset = next_offset

    def _check_end(self, found: FetchedRecords, end: int) -> None:
        """Check that the batches missing up to the end were compacted.

        Raises:
            KafkaUnreadableError: they are missing because the leader's end is lower.
        """
        if found.end_offset < end:
            raise KafkaUnreadableError(
                f"{self._place} went up to {end}, and for its leader now to {found.end_offset}"
            )

    async def read(self, offset: int, max_bytes: int) -> LogPart:
        """Read from the batch that contains an offset on."""
        if not self.start_offset <= offset <= self.end_offset:
            await self.look()
        found = await self._fetch(offset, max_bytes)
        self.end_offset = max(self.end_offset, found.end_offset)
        work = partial(_part, found.data, offset)
        return work() if len(found.data) <= _INLINE_BYTES_MAX else await self._pool.run(work)

    async def read_committed(self, offset: int, max_bytes: int) -> CommittedPart:
        """Read what a consumer reads that reads what is committed, from an offset on, now."""
        try:
            found = await self._fetch(offset, max_bytes, READ_COMMITTED)
        except OffsetRangeError:
            await self.look()  # the error has the present range
            if not self.start_offset <= offset <= self.end_offset:
                raise OffsetRangeError(offset, self.start_offset, self.end_offset) from None
            found = await self._fetch(offset, max_bytes, READ_COMMITTED)
        self.start_offset = max(self.start_offset, found.start_offset)
        self.end_offset = max(self.end_offset, found.end_offset)
        self.stable_offset = max(self.stable_offset, found.stable_offset)
        work = partial(_committed_part, found, offset)
        return work() if len(found.data) <= _INLINE_BYTES_MAX else await self._pool.run(work)

    async def stable_end(self) -> int:
        """Ask Kafka for its last stable offset: consumers may read the records before it."""
        return await self._ask_stable()

    async def _stable_offset_now(self) -> int:
        stable = await self._try(partial(self._upstream.stable_offset_of, self._place))
        self.stable_offset = max(self.stable_offset, stable)
        return stable

    def follow(self, on_more: Callable[[], None]) -> None:
        """Call a function whenever others may have written, until `unfollow`."""
        self._on_more = on_more
        self._upstream.ends.add(self._place, self)

    def unfollow(self) -> None:
        """Call the function no longer."""
        self._on_more = None
        self._upstream.ends.remove(self._place, self)

    def moved(self, stable_offset: int) -> None:
        """Note that the last stable offset may be higher, and say so."""
        self.stable_offset = max(self.stable_offset, stable_offset)
        if self._on_more is not None:
            self._on_more()

    async def find_time(self, timestamp: int) -> TimedOffset | None:
        """Return the first committed record with this timestamp (ms) or a later one."""
        return await self._try(partial(self._upstream.find_time, self._place, timestamp))

    async def _fetch(
        self, offset: int, bytes_max: int, isolation: int = READ_UNCOMMITTED
    ) -> FetchedRecords:
        """Fetch batches from an offset on; try again if the fetch fails.

        Raises:
            OffsetRangeError: Kafka does not have the offset.
            KafkaUnreadableError: Kafka cannot be read now.
        """
        reason = ""
        for attempt in range(1, _TRIES + 1):
            try:
                found = await self._upstream.fetch(self._place, offset, bytes_max, isolation)
            except UpstreamError as error:
                reason = str(error)
            else:
                if not found.code:
                    return found
                if found.code == OFFSET_OUT_OF_RANGE:
                    raise OffsetRangeError(offset, self.start_offset, self.end_offset)
                reason = f"Kafka answers {name_of(found.code)}"
            self._upstream.stale()
            self._log_retry(reason)
            await asyncio.sleep(_BACKOFF.seconds(attempt))
        raise KafkaUnreadableError(f"{self._place} cannot be read at {offset}: {reason}")

    async def _try(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        reason = ""
        for attempt in range(1, _TRIES + 1):
            try:
                return await ask()
            except UpstreamError as error:
                reason = str(error)
            if self.stopped:
                break
            self._upstream.stale()
            self._log_retry(reason)
            await asyncio.sleep(_BACKOFF.seconds(attempt))
        raise KafkaUnreadableError(f"{self._place} cannot be asked: {reason}")

    def _log_retry(self, reason: str) -> None:
        LINES.write(_log, "info", "Kafka could not be read; it is asked again", reason,
                    partition=str(self._place), reason=reason)  # fmt: skip


class _LogSend(ProduceSend):
    """A batch of a partition's log.

    Parameters:
        log: the partition's log.
        place: the partition.
        new: the batch.
        receiver: gets the outcome.
    """

    __slots__ = ("_floor", "_log", "_new", "_receiver", "_term")

    def __init__(
        self,
        log: KafkaPartitionLog,
        place: TopicPartition,
        new: NewBatch,
        receiver: AppendReceiver,
    ) -> None:
        super().__init__(place, new.data)
        self._log = log
        self._new = new
        self._receiver = receiver
        #: The known end: the batch is appended there or later.
        self._floor = log.end_offset
        self._term = log.term

    @property
    @override
    def ended(self) -> bool:
        return self._new.ended

    @override
    def appended(self, offset: int) -> None:
        log, new = self._log, self._new
        new.append_time = self.append_time
        if self._term != log.term:
            answer = Forwarded(0, -1, reason="a former leader of its partition has answered")
            self._receiver.answered(new, answer)
            return
        if offset < self._floor:  # Kafka had the batch already, or it is another log
            log.doubt()
        log.end_offset = max(log.end_offset, offset + new.header.records)
        self._receiver.landed(new, offset)

    @override
    def completed(self, result: PartitionResponse | UpstreamError) -> None:
        if isinstance(result, UpstreamError):
            unknown = isinstance(result, UpstreamLostError | UpstreamNonsenseError)
            # Clients must not see an address.
            LINES.write(_log, "info", "a batch was not answered", str(result),
                        partition=str(self.place), error=str(result))  # fmt: skip
            reason = (
                "its leader in Kafka did not answer" if unknown else "no leader in Kafka takes it"
            )
            answer = Forwarded(0, -1, definite=not unknown, reason=reason)
            self._receiver.answered(self._new, answer)
            return
        if result.code == 0 and result.offset >= 0:
            self.append_time = result.append_time
            self.appended(result.offset)
            return
        answer = not_appended(result)
        if produce_error(answer.code).stored is Stored.UNEXPECTED:
            _log.error(
                "unexpected error code of Produce; the batch may be stored",
                partition=str(self.place), code=answer.code, reason=answer.reason,
            )  # fmt: skip
        self._receiver.answered(self._new, answer)


def not_appended(row: PartitionResponse) -> Forwarded:
    """Translate an error of Kafka. An offset with an error code is ignored."""
    code = row.code
    said = f"that it is at offset {row.offset}" if code == 0 else name_of(code)
    reason = f"Kafka answers {said}" + (f": {row.reason}" if row.reason else "")
    definite = produce_error(code).stored is Stored.NO
    return Forwarded(code, -1, definite, reason, row.record_errors)


def name_of(code: int) -> str:
    """Return Kafka's name and number of an error code; only the number if it is unknown."""
    try:
        return f"{ErrorCode(code).name.upper()} ({code})"
    except ValueError:
        return f"error {code}"


def _part(data: bytes, offset: int) -> LogPart:
    data = in_current_format(data, offset)
    return LogPart(data, whole_batches(data))


def _committed_part(found: FetchedRecords, offset: int) -> CommittedPart:
    data = without_aborted(in_current_format(found.data, offset), found.aborted)
    return CommittedPart(data, whole_batches(data), found.stable_offset)


def _take_apart(data: bytes, offset: int, writers: Container[int]) -> tuple[list[LoggedBatch], int]:
    """Return the complete batches of a response, from an offset on, and the next offset.

    Raises:
        DamagedLogError: a batch is not intact, or begins within the preceding one.
    """
    view = memoryview(data)
    found: list[LoggedBatch] = []
    at, next_offset = 0, offset
    try:
        for entry in entries_in(view):
            at = entry.at
            if entry.is_old:  # its records have no producer
                check_message(view[at : entry.after])
                next_offset = max(next_offset, entry.offset + 1)
                continue
            header, batch = read_header(view, at), view[at : entry.after]
            check_intact(header, batch)
            if at and header.base_offset < next_offset:
                reason = f"{header.base_offset}, after one that goes up to {next_offset}"
                raise DamagedLogError(Path("Kafka"), at, reason)
            if header.last_offset >= offset:
                found += sends_of(header, batch, writers)
                next_offset = header.last_offset + 1
    except CorruptBatchError as error:
        raise DamagedLogError(Path("Kafka"), at, f"{next_offset}: {error}") from error
    return found, next_offset


def _unknown_writers(data: bytes, writers: Container[int]) -> set[int]:
    """Return the producer ids under which records name a producer, although no writer is known."""
    view = memoryview(data)
    found: set[int] = set()
    with suppress(CorruptBatchError):  # applying the batches reports it
        for entry in entries_in(view):
            if entry.is_old:
                continue
            header, batch = read_header(view, entry.at), view[entry.at : entry.after]
            pid = header.producer_id
            if 0 <= pid < _PIDS_OF_KAFKA and may_be_a_writers(header) and pid not in writers:
                with suppress(IdentityError, CorruptBatchError):  # it is no batch of a writer
                    if find_identity(header, batch) is not None:
                        found.add(pid)
    return found


def sends_of(header: BatchHeader, data: memoryview, writers: Container[int]) -> list[LoggedBatch]:
    """Return the clients' batches within a batch of the log, with the CRCs to judge them by."""
    try:
        return list(parted(logged(header, data, writers), data))
    except UnidentifiedBatchError as error:
        # Another program wrote it under a writer's id: its producer is unknown.
        LINES.write(_log, "error", "a batch of a writer does not name its producer",
                    error=str(error))  # fmt: skip
        return [LoggedBatch(header)]
