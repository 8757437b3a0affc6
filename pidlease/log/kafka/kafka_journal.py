"""The coordinator's rows in Kafka: the compacted topic `__pidlease`, written by one server.

The server that serves the cluster is the writer of the topic's only partition, as of any other
partition (ADR 15): it raises the epoch of the transactional id, has Kafka append its marker, and
reads up to that. Then it has all rows, and no former writer can append any more. Each batch must
land directly after what it has read; if one does not, or its outcome is unknown, the server becomes
the writer again, and reads on; then it knows whether the batch is in the log. The row "owner" names
the server that serves the cluster: a server that finds another one's row after its own was
replaced, and ends. The owner puts its row again and again: for the others a sign of life, for
itself the proof that it is still the writer.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import structlog
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from typing_extensions import override

from pidlease.coordination.boot_clock import boot_seconds
from pidlease.coordination.journal.journal import (
    NEXT_NUMBER,
    OWNER,
    Fields,
    Journal,
    JournalConflictError,
    JournalError,
    NotRegistrarError,
    Row,
)
from pidlease.coordination.ownership import Ownership, OwnershipError
from pidlease.coordination.shared_call import SharedCall
from pidlease.core.backoff import Backoff
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.cluster import NO_LEADER, Cluster
from pidlease.kafka.client.kafka_client import Upstream
from pidlease.kafka.client.produce_channels import ProduceSend
from pidlease.kafka.client.topic_creation import RefusedChangeError, create_topic
from pidlease.kafka.client.transactions import SERVED_TOPIC
from pidlease.kafka.codec.produce import PartitionResponse
from pidlease.kafka.error_codes import (
    CONTENT,
    NO_RIGHT,
    REREAD,
    RESEND,
    TOPIC_ALREADY_EXISTS,
)
from pidlease.kafka.errors import UpstreamAwayError, UpstreamError, UpstreamLostError
from pidlease.kafka.produce_errors import Stored, produce_error
from pidlease.kafka.records.batch_records import (
    UndecodableError,
    batches_in,
    is_small,
    records_in,
)
from pidlease.kafka.records.record_batch import MAGIC, read_header
from pidlease.kafka.records.writer_batch import Writer, stamp
from pidlease.log.ports import LATE_MS
from pidlease.observability.repeated_lines import LINES

Result = TypeVar("Result")

#: Of each key, the last record counts. A start reads the topic, which must stay short.
_CONFIGS: Final = {
    "cleanup.policy": "compact", "segment.ms": "600000", "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.1",
}  # fmt: skip
_REPLICAS: Final = 3
_PLACE: Final = TopicPartition(SERVED_TOPIC, 0)
#: The kinds of rows that are about the journal itself.
_FORMAT: Final = "format"
_VERSION: Final = 1

_READ_BYTES: Final = 4 << 20
_BATCH_BYTES_MAX: Final = 900_000
#: After so many looks without anything new, a server that stands by takes over. One look a second.
#: Kafka itself needs some ten seconds to go on without a broker that was killed.
SILENT_LOOKS: Final = 15
#: How long a call may try, besides what Kafka's own answers take.
SECONDS: Final = 20.0
#: How long reading to the end may take, before the topic's leader is looked up again.
_READ_SECONDS: Final = 3.0
#: After so long without a read, removals may be gone from the log (`delete.retention.ms`, a day).
_UNREAD_SECONDS_MAX: Final = 12 * 3600.0
_RELEASE_SECONDS: Final = 2.0
_DELETED: Final = (
    f"{SERVED_TOPIC} was deleted: without its rows the same PIDs would be leased again"
)
#: The writer is taken again after this time, so that Kafka does not forget its transactional id. It
#: would give another producer id to the next server, which fences nothing under this one.
_RENEW_SECONDS: Final = 600.0
BACKOFF: Final = Backoff(0.02, 1.0)

_log = structlog.get_logger(__name__)


class _UnknownOutcomeError(Exception):
    """A batch may be in the log, or another server is the writer."""


class KafkaJournal(Journal, Ownership):
    """Rows in the topic `__pidlease`, and the claim to be the server that writes them.

    Parameters:
        upstream: the cluster, after its first metadata response.
        server: this server's name, for the operator.
        folder: identifies the data directory. Only one process uses that at a time, so a former
            owner with it has ended.
        clock_ms: the time, in ms since 1970.

    Attributes:
        first_service: whether no server has served the cluster before. Known after `claim`.
        topic_id: the topic's id; empty: not known before `claim`.
    """

    def __init__(
        self,
        upstream: Upstream,
        server: str,
        folder: str,
        clock_ms: Callable[[], int],
    ) -> None:
        self._upstream: Final = upstream
        self._loop: Final = asyncio.get_running_loop()
        #: Held to become the writer, and to put.
        self._lock: Final = asyncio.Lock()
        #: Held to read on: that goes on while Kafka takes long to put.
        self._reading: Final = asyncio.Lock()
        self._server: Final = server
        self._folder: Final = folder
        self._clock_ms: Final = clock_ms
        self.session = self._run = uuid.uuid4().hex
        self.first_service = False
        self.topic_id = ""
        self._created = False
        self._rows: dict[str, dict[str, Fields]] = {}
        #: The offset after all that was read or put, and when it was read last; None: never.
        self._next = 0
        self._read_at: float | None = None
        #: The newest writer of which the marker was read.
        self._marked: Writer | None = None
        self._writer: Writer | None = None
        self._sequence = 0
        #: The batch of which the outcome is unknown, and whether it was found in the log.
        self._doubtful: _Identity | None = None
        self._landed = False
        #: Whether the writer must be taken again before anything else.
        self._unsettled = False
        self.ended = ""
        self._released = False
        #: Whether this server has been the writer: then it finds out if another one replaces it.
        self._claimed = False
        self._silent_looks = 0
        #: The offset after all that was known at the last look.
        self._looked = -1
        self._taken_at = 0.0
        #: Until when batches under a former producer id may still arrive; 0: there is none.
        self._late_until = 0.0
        self._late_pid = -1
        #: Whether the last put had an effect.
        self._reached = False
        self._watchers: Final[dict[str, list[Callable[[], None]]]] = {}
        self._refreshed: Final = SharedCall(partial(self._translated, self._refresh))

    # ------------------------------------------------------------------ rows

    @override
    def refresh(self) -> None:
        self._wait(self._refreshed())

    @override
    def get(self, kind: str, id_: str) -> Fields | None:
        return self._rows.get(kind, {}).get(id_)

    @override
    def all(self, kind: str) -> dict[str, Fields]:
        return dict(self._rows.get(kind, {}))

    @override
    def above(self, kind: str, number: int) -> list[tuple[int, Fields]]:
        found = []
        for id_, fields in reversed(self.all(kind).items()):
            if int(id_) <= number:
                break
            found.append((int(id_), fields))
        return found[::-1]

    @override
    def put(self, rows: Iterable[Row], expected: Iterable[Row] = ()) -> None:
        # As they will be read: with lists instead of tuples.
        found = [row._replace(fields=json.loads(json.dumps(row.fields))) for row in rows]
        if found:
            self._wait(self._put(found, list(expected)))

    @override
    def watch(self, kind: str, changed: Callable[[], None]) -> None:
        watchers = self._watchers.setdefault(kind, [])
        if changed not in watchers:
            watchers.append(changed)

    @property
    def has_rows(self) -> bool:
        """Whether a server has put rows, as of the last read."""
        return bool(self._rows)

    @property
    def connected(self) -> bool:
        """Whether Kafka had what was asked of it last."""
        return self._reached and not self.ended

    # ------------------------------------------------------------------ ownership

    @override
    def claim(self) -> str:
        try:
            return self._wait(self._locked(self._claim))
        except JournalError as error:
            raise OwnershipError(str(error)) from error

    @override
    def still(self) -> bool:
        try:
            self._wait(self._check())
        except JournalError as error:
            if self.ended and not self._released:
                return False
            raise OwnershipError(str(error)) from error
        return True

    async def release(self) -> None:
        """Let another server take over at once; this one puts no more rows."""
        if self._writer is None or self.ended:
            return
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._locked(partial(self._try_to_put, lambda: [self._owner_row("")]))
        except NotRegistrarError:
            pass  # another one has taken over
        except (JournalError, TimeoutError) as error:
            _log.warning("the end of this server is not noted; another one takes over later",
                         topic=SERVED_TOPIC, error=str(error))  # fmt: skip
        self.ended, self._released = "this server stops", True

    # ------------------------------------------------------------------ on the event loop

    async def _locked(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        async with self._lock:
            return await self._translated(call)

    async def _translated(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Await a call; an error of Kafka is one of the journal."""
        try:
            found = await call()
        except (JournalError, UpstreamError) as error:
            self._reached = False
            raise JournalError(str(error)) from error
        self._reached = True
        return found

    async def _refresh(self) -> None:
        if self.ended:
            raise JournalError(self.ended)
        await self._read_on()
        if self._claimed:
            self._check_owner()

    async def _put(self, rows: Sequence[Row], expected: Sequence[Row]) -> None:
        await self._locked(partial(self._try_to_put, lambda: rows, expected))

    async def _check(self) -> None:
        """Put the owner's row again: it lands where it must if no other server has taken over."""
        if time.monotonic() - self._taken_at > _RENEW_SECONDS:
            self._unsettled = True
        await self._locked(partial(self._try_to_put, lambda: [self._owner_row(self._server)]))

    async def _claim(self) -> str:
        await self._make_topic()
        await self._look()
        owner = self._owner()
        if self._serves_elsewhere(owner) and self._silent_looks < SILENT_LOOKS:
            return str(owner["server"])
        first = self._created and not self._rows
        await self._take()
        # It may have served all the time, or since this look: becoming the writer takes a while.
        if self._owner() is not owner and self._serves_elsewhere(self._owner()):
            self._silent_looks = 0
            return str(self._owner()["server"])
        self.first_service = self.first_service or first
        await self._put_owner()
        self._claimed = True
        _log.info("this server keeps the rows of the cluster", topic=SERVED_TOPIC,
                  former=owner.get("server") or None, writer=self._writer)  # fmt: skip
        return ""

    async def _look(self) -> None:
        """Read on, and count the looks in a row without anything new, read by any call."""
        await self._refresh()
        self._silent_looks = self._silent_looks + 1 if self._next == self._looked else 0
        self._looked = self._next

    async def _put_owner(self) -> None:
        """Put the owner's row for the first time; the next claim reads what became of it.

        Raises:
            JournalError: it may have been put or not.
            UpstreamError: it was not.
        """
        rows = [Row(_FORMAT, "", {"version": _VERSION}), self._owner_row(self._server)]
        try:
            await self._append(rows)
        except _UnknownOutcomeError as error:
            raise JournalError(str(error)) from error

    def _owner(self) -> Fields:
        return self._rows.get(OWNER, {}).get("", {})

    def _serves_elsewhere(self, owner: Fields) -> bool:
        return bool(owner.get("server")) and owner["folder"] != self._folder

    def _owner_row(self, server: str) -> Row:
        pid = -1 if self._writer is None else self._writer.pid
        fields = {"server": server, "folder": self._folder, "run": self._run, "writer": pid}
        return Row(OWNER, "", fields)

    async def _settle(self) -> None:
        """Become the writer again if the last outcome is unknown, and read what is in the log.

        Raises:
            JournalError: another server has taken over.
            UpstreamError: Kafka does not answer now.
        """
        if self.ended:
            raise JournalError(self.ended)
        if not self._unsettled:
            return
        # Without fencing anyone, first: a server that was replaced takes nothing back.
        await self._read_on()
        self._check_owner()
        await self._take()
        self._check_owner()

    def _check_owner(self) -> None:
        owner = self._owner()
        if owner.get("run") != self._run:
            name = owner.get("server") or "unknown"
            self.ended = (
                f"another server serves this cluster: {name}, so this one has stepped down;"
                " start it again to stand by"
            )
            raise JournalError(self.ended)

    async def _take(self) -> None:
        """Become the writer, and read up to its marker: no former writer can append after it."""
        self._writer = None
        if time.monotonic() < self._late_until:
            self._refuse_late(self._late_pid)  # each attempt would fence another server's again
        writer = await self._upstream.fencing.raise_epoch(_PLACE)
        await self._upstream.fencing.mark(_PLACE, writer)
        self._check_late(writer)
        latest = time.monotonic() + SECONDS
        looks = 0
        while not self._has_marker(writer):
            if time.monotonic() >= latest:
                raise JournalError(f"the marker of {writer} is still missing in {SERVED_TOPIC}")
            await asyncio.sleep(BACKOFF.seconds(looks) if looks else 0)
            looks += 1
            await self._read_on()
        self._writer, self._sequence, self._unsettled = writer, 0, False
        self._taken_at = time.monotonic()

    def _has_marker(self, writer: Writer) -> bool:
        """Return whether a writer's marker was read, or that of one that has replaced it."""
        found = self._marked
        return found is not None and found.pid == writer.pid and found.epoch >= writer.epoch

    def _check_late(self, writer: Writer) -> None:
        """Check that no batch of a former producer id may arrive: Kafka does not fence it (ADR 15).

        Raises:
            JournalError: they may still arrive.
        """
        former = self._owner().get("writer", writer.pid)
        if former == writer.pid:
            self._late_until = 0.0
            return
        now = time.monotonic()
        self._late_until = self._late_until or now + LATE_MS / 1000
        self._late_pid = writer.pid
        if now < self._late_until:
            self._refuse_late(writer.pid)

    def _refuse_late(self, pid: int) -> None:
        rest = self._late_until - time.monotonic()
        raise JournalError(
            f"the writer of {SERVED_TOPIC} has another producer id, {pid}; batches sent under the"
            f" former one may arrive for {rest:.0f} s more"
        )

    # ------------------------------------------------------------------ appending

    async def _try_to_put(
        self, rows: Callable[[], Sequence[Row]], expected: Sequence[Row] = ()
    ) -> None:
        """Put rows; settle what is unknown, and try again, for a time.

        Parameters:
            rows: returns them, when this server is the writer.
            expected: what must be there before.

        Raises:
            JournalConflictError: something else is there; nothing was put.
            JournalError: they may have been put or not.
        """
        latest = time.monotonic() + SECONDS
        failures = 0
        # An earlier batch does not count.
        self._doubtful, self._landed = None, False
        while True:
            try:
                try:
                    await self._settle()
                except (JournalError, NotRegistrarError):
                    if self._landed:
                        return  # another server has taken over after that
                    raise
                if self._landed:
                    return
                await self._check_expected(expected)
                await self._append(self._numbered(rows()))
            except (_UnknownOutcomeError, UpstreamError) as error:
                self._upstream.stale()
                if time.monotonic() >= latest:
                    raise JournalError(f"{SERVED_TOPIC}: {error}") from error
            else:
                return
            failures += 1
            await asyncio.sleep(BACKOFF.seconds(failures))

    async def _append(self, rows: Sequence[Row]) -> None:
        """Append a batch, and apply it.

        Raises:
            JournalError: it is not in the log, and will not be.
            UpstreamAwayError: it is not in the log now; try again.
            _UnknownOutcomeError: it may be in the log.
        """
        writer = self._writer
        if writer is None:
            raise JournalError("this server is not the writer")
        data = _batch(rows, self._clock_ms())
        stamp(read_header(data), data, writer, self._sequence)
        at = self._next
        self._doubtful, self._landed = (writer.pid, writer.epoch, self._sequence), False
        # Until its response has come, whatever ends this call.
        self._unsettled = True
        send = _Send(_PLACE, data)
        self._upstream.send(writer.pid, send)
        result = await send.outcome
        if isinstance(result, UpstreamLostError) or not isinstance(
            result, PartitionResponse | UpstreamAwayError
        ):
            raise _UnknownOutcomeError(str(result))
        if isinstance(result, UpstreamAwayError):
            self._unsettled = False
            raise result
        if not result.code and result.offset != at:
            raise _UnknownOutcomeError(f"a batch is at {result.offset}, not at {at}")
        if result.code:
            reason = f"Kafka returns {result.code} for {SERVED_TOPIC} {result.reason}".rstrip()
            certain = produce_error(result.code).stored is Stored.NO
            self._unsettled = not certain or result.code not in RESEND | CONTENT | NO_RIGHT
            if self._unsettled:
                raise _UnknownOutcomeError(reason)
            raise UpstreamAwayError(reason) if result.code in RESEND else JournalError(reason)
        self._unsettled = False
        self._sequence += len(rows)
        if self._next == at:  # else it was read meanwhile
            self._next += len(rows)
            for row in rows:
                self._apply(row)

    async def _check_expected(self, expected: Sequence[Row]) -> None:
        """Check rows; before they are reported to be other ones, read on.

        Raises:
            JournalConflictError: one of them is not as it is expected.
        """
        if self._unlike(expected):
            # This server may have been replaced: then it does not know what is there.
            await self._read_on()
            self._check_owner()
        if found := self._unlike(expected):
            raise JournalConflictError(f"the row {found.kind}/{found.id} has changed meanwhile")

    def _unlike(self, expected: Sequence[Row]) -> Row | None:
        return next((row for row in expected if self.get(row.kind, row.id) != row.fields), None)

    def _numbered(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows with numbers for `NEXT_NUMBER`."""
        last: dict[str, int] = {}
        found = []
        for row in rows:
            number = row.id
            if number == NEXT_NUMBER:
                before = last.get(row.kind)
                if before is None:
                    before = int(next(reversed(self._rows.get(row.kind, {})), 0))
                last[row.kind] = before + 1
                number = str(before + 1)
            found.append(row._replace(id=number))
        return found

    # ------------------------------------------------------------------ reading

    async def _read_on(self) -> None:
        """Apply what is in the log, as of this call or later.

        Raises:
            JournalError: a newer server has written, or the log cannot be read there.
            UpstreamError: Kafka does not answer now.
        """
        latest = time.monotonic() + SECONDS / 4
        failures = 0
        async with self._reading:
            while True:
                try:
                    async with asyncio.timeout(_READ_SECONDS):
                        await self._read_to_end()
                except (UpstreamError, TimeoutError) as error:
                    self._upstream.stale()
                    if time.monotonic() >= latest:
                        reason = str(error) or f"no response within {_READ_SECONDS} s"
                        raise UpstreamAwayError(f"{SERVED_TOPIC}: {reason}") from error
                else:
                    return
                failures += 1
                await asyncio.sleep(BACKOFF.seconds(failures))

    async def _read_to_end(self) -> None:
        now = boot_seconds()
        if self._read_at is not None and now - self._read_at > _UNREAD_SECONDS_MAX:
            self.ended = (
                f"{SERVED_TOPIC} was not read for so long that removed rows may be unknown, so"
                " this server has stepped down; start it again"
            )
            raise JournalError(self.ended)
        # A new leader may not know yet how far the log goes. It says so to this question (KIP-207);
        # a Fetch returns nothing then.
        end = await self._upstream.end_of(_PLACE)
        if end < self._next:
            raise UpstreamAwayError(f"it ends at {end}, and was read up to {self._next}")
        while self._next < end:
            found = await self._upstream.fetch(_PLACE, self._next, _READ_BYTES)
            if found.code in REREAD:
                raise UpstreamAwayError(f"Kafka returns {found.code}")
            if found.code:
                raise JournalError(
                    f"{SERVED_TOPIC} cannot be read at {self._next}: Kafka returns {found.code}"
                )
            began, doubtful = self._next, self._doubtful
            work = partial(_decode, found.data, began, doubtful)
            # Not in the log's threads: they may all be waiting for this.
            part = work() if is_small(found.data) else await asyncio.to_thread(work)
            # Meanwhile this server may have put these rows, and changed them again.
            known, self._next = self._next, max(self._next, part.end)
            for offset, row in part.rows:
                if offset >= known:
                    self._apply(row)
            self._marked = part.marked or self._marked
            # Another batch may be in doubt by now.
            self._landed = self._landed or (part.landed and doubtful == self._doubtful)
            if part.end == began:
                # The rest up to the end was compacted.
                self._next = max(self._next, found.end_offset)
        self._read_at = now

    def _apply(self, row: Row) -> None:
        rows = self._rows.setdefault(row.kind, {})
        if row.fields is None:
            rows.pop(row.id, None)
        elif row.kind == _FORMAT and row.fields.get("version") != _VERSION:
            # For good: a later read would go on after the rows that were not applied.
            self.ended = (
                f"{SERVED_TOPIC} has format {row.fields.get('version')}, and this server reads"
                f" {_VERSION}: a newer server has served the cluster"
            )
            raise JournalError(self.ended)
        else:
            rows[row.id] = row.fields  # in place: threads read the rows meanwhile
        for changed in self._watchers.get(row.kind, ()):
            changed()

    async def _make_topic(self) -> None:
        """Create the topic if it does not exist, and wait until it has a leader."""
        cluster = self._upstream.cluster
        latest = time.monotonic() + SECONDS
        while cluster.view.leader(*_PLACE) == NO_LEADER:
            if SERVED_TOPIC not in cluster.view.topics:
                if self.topic_id:
                    raise JournalError(_DELETED)
                await self._create()
            if time.monotonic() >= latest:
                raise JournalError(f"{SERVED_TOPIC} has no leader now")
            cluster.stale()
            await asyncio.sleep(BACKOFF.max_seconds / 4)
        topic = cluster.view.topics[SERVED_TOPIC]
        if topic.compacted is False:
            raise JournalError(f"{SERVED_TOPIC} must have cleanup.policy=compact")
        if self.topic_id not in {"", topic.topic_id}:
            raise JournalError(_DELETED)
        self.topic_id = topic.topic_id

    async def _create(self) -> None:
        try:
            self._created = await create_served_topic(self._upstream.cluster) or self._created
        except RefusedChangeError as error:
            self._upstream.cluster.stale()  # an administrator may create it meanwhile
            raise JournalError(
                f"{SERVED_TOPIC} cannot be created: {error}; allow Create, or create it"
            ) from error

    def _wait(self, call: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


async def create_served_topic(cluster: Cluster) -> bool:
    """Create the topic; return whether it did not exist.

    Raises:
        RefusedChangeError: the cluster refuses it.
        UpstreamError: there is no response; the topic may exist now.
    """
    replicas = min(_REPLICAS, len(cluster.view.brokers))
    configs = _CONFIGS | {"min.insync.replicas": str(max(1, replicas - 1))}
    try:
        # Kafka creates a topic once: of several servers, one gets no error.
        await create_topic(cluster, SERVED_TOPIC, 1, replicas, configs)
    except RefusedChangeError as error:
        if error.code != TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


class _Send(ProduceSend):
    """A batch of rows."""

    __slots__ = ("outcome",)

    def __init__(self, place: TopicPartition, data: bytearray) -> None:
        super().__init__(place, data)
        self.outcome: asyncio.Future[PartitionResponse | UpstreamError] = (
            asyncio.get_running_loop().create_future()
        )

    @override
    def appended(self, offset: int) -> None:
        self.completed(PartitionResponse(0, offset))

    @override
    def completed(self, result: PartitionResponse | UpstreamError) -> None:
        if not self.outcome.done():
            self.outcome.set_result(result)


def _batch(rows: Sequence[Row], now_ms: int) -> bytearray:
    """Encode rows as a batch.

    Raises:
        JournalError: they are too many for one.
    """
    builder: Any = DefaultRecordBatchBuilder(MAGIC, 0, 0, -1, -1, -1, _BATCH_BYTES_MAX)
    for index, row in enumerate(rows):
        value = None if row.fields is None else json.dumps(row.fields).encode()
        if builder.append(index, now_ms, f"{row.kind}/{row.id}".encode(), value, []) is None:
            raise JournalError(f"{len(rows)} rows do not fit into a batch")
    built: bytearray = builder.build()
    return built


#: Of a batch: its producer, its producer's epoch and its first sequence number.
_Identity = tuple[int, int, int]


class _Part(NamedTuple):
    """A part of the log.

    Attributes:
        rows: each with its offset.
        end: the offset after it.
        marked: the writer of the last marker in it; None: there is none.
        landed: whether the doubtful batch is in it.
    """

    rows: list[tuple[int, Row]]
    end: int
    marked: Writer | None
    landed: bool


def _decode(data: bytes, offset: int, doubtful: _Identity | None) -> _Part:
    """Decode the whole batches of a response, from an offset on.

    Parameters:
        doubtful: the batch that is looked for.

    Raises:
        JournalError: a batch is damaged.
    """
    rows: list[tuple[int, Row]] = []
    marked: Writer | None = None
    end, landed = offset, False
    for header, batch in batches_in(data):
        if header.last_offset < offset:
            continue
        try:
            records = [each for each in records_in(header, batch) if each.offset >= offset]
        except UndecodableError as error:
            raise JournalError(f"{SERVED_TOPIC} at {header.base_offset}: {error}") from error
        for record in records:
            try:
                rows.append((record.offset, _row(record.key, record.value)))
            except ValueError as error:
                LINES.write(_log, "error", "another program has written to the coordinator's topic",
                            topic=SERVED_TOPIC, offset=record.offset, error=str(error))  # fmt: skip
        if header.is_control:
            marked = Writer(header.producer_id, header.producer_epoch)
        landed = landed or (
            (header.producer_id, header.producer_epoch, header.base_sequence) == doubtful
        )
        end = header.last_offset + 1
    return _Part(rows, end, marked, landed)


def _row(key: bytes | None, value: bytes | None) -> Row:
    """Decode a record.

    Raises:
        ValueError: it is no row.
    """
    kind, slash, id_ = (key or b"").decode().partition("/")
    fields = None if value is None else json.loads(value)
    if not slash or not isinstance(fields, dict | None):
        raise ValueError(f"the record with the key {key!r} is no row")
    return Row(kind, id_, fields)
