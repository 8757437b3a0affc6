"""Takes over the writers of Kafka's partitions, and records each writer's producer id before use.

A writer sends the batches with pidlease's own numbering, and Kafka fences it
(`pidlease/kafka/client/transactions.py`). Its producer id is recorded before a batch is sent under
it, because a replay trusts the record header `pidlease` only under recorded ids.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Container
from functools import partial
from typing import Final

import structlog

from pidlease.coordination.shared_call import SharedCall
from pidlease.coordination.writer_ids import WriterIds, WriterIdsError, WriterOf
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.topic_configs import IdExpirations
from pidlease.kafka.client.transactions import Fencing
from pidlease.kafka.error_codes import NO_RIGHT, TRANSACTIONAL_ID_NOT_FOUND
from pidlease.kafka.errors import UpstreamError, UpstreamRefusedError
from pidlease.kafka.records.writer_batch import Writer
from pidlease.log.ports import LATE_MS
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogError, NotAllowedError, NotOwnerError, reason_for_clients
from pidlease.storage.io_pool import IoPool

#: A writer is renewed after this time at the latest, in ms: before Kafka forgets its transactional
#: id. After that, Kafka would give another producer id, which does not fence the former writer.
_WRITER_MS_MAX: Final = 3_600_000
#: The same if Kafka does not report when it forgets ids.
_WRITER_MS_UNKNOWN: Final = 600_000
#: The most ids of others that are remembered.
_FOREIGN_MAX: Final = 10_000

_log = structlog.get_logger(__name__)


class WriterUnavailableError(LogError):
    """The partition's writer could not be taken over now; it may be tried again."""


class KafkaWriters:
    """Takes over the partitions' writers, and renews them.

    Parameters:
        fencing: raises the writers' epochs in Kafka.
        ids: the recorded producer ids.
        clock_ms: the time, in ms since 1970.
        owned: returns whether this server owns a partition, or raises LogError if that is unknown.
            None: only Kafka's fencing shows it.
    """

    def __init__(
        self,
        fencing: Fencing,
        ids: WriterIds,
        pool: IoPool,
        clock_ms: Callable[[], int],
        owned: Callable[[TopicPartition], Awaitable[bool]] | None = None,
    ) -> None:
        self._fencing: Final = fencing
        self._record: Final = ids
        self._pool: Final = pool
        self._owned: Final = owned
        self._clock_ms: Final = clock_ms
        self._ids: set[int] = set()
        self._takeovers: dict[TopicPartition, asyncio.Lock] = {}
        #: The writers that this server took over last.
        self._taken: dict[TopicPartition, Writer] = {}
        #: The last recorded producer id of each partition's writer.
        self._last: dict[TopicPartition, int] = {}
        #: The partitions that this server has been the writer of.
        self._mine: set[TopicPartition] = set()
        #: Since when no other server sends to the cluster's partitions, in ms since 1970.
        self._took_over_ms = self._clock_ms()
        #: The same of partitions that were taken over from other active servers.
        self._since_ms: dict[TopicPartition, int] = {}
        #: How long a writer may be used before it is renewed, in ms.
        self.kept_ms = _WRITER_MS_UNKNOWN
        #: Called after a writer was taken, before the log is read to its marker: reads what other
        #: active servers have granted until then. None: there are none.
        self.after_take: Callable[[], Awaitable[None]] | None = None
        self._refresh: Final = SharedCall(self._read_ids)
        #: When partitions were taken over from other active servers, in s of `time.monotonic`.
        self._opened_at: dict[TopicPartition, float] = {}
        #: When the last read of the recorded ids began, by the same clock.
        self._ids_as_of = 0.0
        self._looking: asyncio.Task[None] | None = None
        #: Kafka's producer ids that are no writer's although records under them look like it.
        self._foreign: set[int] = set()

    def load(self) -> None:
        """Read the recorded ids, when this server begins to serve, possibly after standing by.

        Blocks. From now on no other server sends; its last batches may still arrive.

        Raises:
            WriterIdsError: the ids cannot be read.
        """
        known = self._record.all()
        for pid, of in sorted(known.items(), key=lambda each: each[1].given_ms):
            self._last[TopicPartition(of.topic, of.partition)] = pid
        self._ids.update(known)
        self._took_over_ms = self._clock_ms()

    def open_anew(self, partition: TopicPartition) -> None:
        """Note that this server takes over a partition from another active server."""
        if self.learns:
            self._mine.discard(partition)
            self._taken.pop(partition, None)
            self._since_ms[partition] = self._clock_ms()
            self._opened_at[partition] = time.monotonic()

    def knows(self, partition: TopicPartition) -> bool:
        """Whether `ids` has all ids of a partition that this server owns; if not, they are read."""
        if self._opened_at.get(partition, -1.0) < self._ids_as_of:
            return True
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return False

    async def _look(self) -> None:
        try:
            await self._refresh()
        except WriterIdsError as error:
            LINES.write(_log, "warning", "the ids of writers cannot be read; batches under Kafka's"
                        " own ids wait for them", kind_of(error), error=str(error))  # fmt: skip

    async def learn(self, unknown: Collection[int]) -> None:
        """Learn which of some producer ids are writers of other active servers.

        Parameters:
            unknown: ids in the log; a record of a batch under each names a producer. A writer's id
                is recorded before its use, so this read, which begins now, finds it.

        Raises:
            LogError: the recorded ids cannot be read now.
        """
        if self._foreign.issuperset(unknown):
            return
        try:
            await self._refresh()
        except WriterIdsError as error:
            raise WriterUnavailableError(f"the writers' ids cannot be read: {error}") from error
        if len(self._foreign) > _FOREIGN_MAX:
            self._foreign.clear()
        self._foreign |= set(unknown) - self._ids

    async def _read_ids(self) -> None:
        began = time.monotonic()
        known = await self._pool.run(self._record.all)
        # The newest id of a partition: Kafka has given it to another server.
        for pid, of in sorted(known.items(), key=lambda each: each[1].given_ms):
            self._last[TopicPartition(of.topic, of.partition)] = pid
        self._ids.update(known)
        self._ids_as_of = began

    @property
    def learns(self) -> bool:
        """Whether other active servers take writers, so that ids in the log may be unknown."""
        return self.after_take is not None

    def kafka_keeps(self, kept: IdExpirations) -> None:
        """Set when to renew writers, by how long Kafka remembers their ids."""
        shortest = min(kept)
        self.kept_ms = min(shortest // 2, _WRITER_MS_MAX) if shortest else _WRITER_MS_UNKNOWN

    @property
    def ids(self) -> Container[int]:
        """The producer ids that are or were a writer's."""
        return self._ids

    async def take(self, partition: TopicPartition, doubt_ms: int) -> Writer:
        """Become a partition's writer. The writer's marker is appended soon after.

        Parameters:
            doubt_ms: when this server last sent a batch as the writer and did not learn its
                outcome, in ms since 1970; 0: never.

        Raises:
            NotOwnerError: another server owns the partition.
            NotAllowedError: this server may not write to it.
            WriterUnavailableError: the takeover failed; it may be tried again.
        """
        async with self._takeovers.setdefault(partition, asyncio.Lock()):
            return await self._take(partition, doubt_ms)

    async def _take(self, partition: TopicPartition, doubt_ms: int) -> Writer:
        try:
            await self._check_owner(partition)
            writer = await self._fencing.raise_epoch(partition)
            if writer.pid != self._last.get(partition) and self.learns:
                await self._refresh()  # another server may have recorded it
            if writer.pid != self._last.get(partition):
                await self._record_id(partition, writer, doubt_ms)
            await self._fencing.mark(partition, writer)
        except UpstreamRefusedError as error:
            if error.code in NO_RIGHT:
                right = (
                    "allow Write on the topic, Write and Describe on transactional ids pidlease/"
                )
                raise NotAllowedError(f"{error}; {right}", error.code) from error
            raise WriterUnavailableError(str(error)) from error
        except UpstreamError as error:
            raise WriterUnavailableError(str(error)) from error
        except WriterIdsError as error:
            LINES.write(_log, "error", "the id of a writer is not stored", kind_of(error),
                        partition=str(partition), error=str(error))  # fmt: skip
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
            reason = reason_for_clients(cause)
            raise WriterUnavailableError(f"the writer's id is not stored: {reason}") from error
        if self.after_take is not None:
            await self.after_take()
        self._taken[partition] = writer
        self._mine.add(partition)
        _log.info("writer taken", partition=str(partition), pid=writer.pid, epoch=writer.epoch)
        return writer

    async def _check_owner(self, partition: TopicPartition) -> None:
        """Check that no other server has replaced this one, which must not take the writer back.

        Raises:
            NotOwnerError: another server owns the partition.
            UpstreamError: Kafka cannot be asked now.
            LogError: Kafka cannot be asked now.
        """
        taken = self._taken.get(partition)
        owned = await self._owned_if_known(partition)
        if owned is False:
            raise NotOwnerError(f"another server owns {partition}")
        if not owned and taken is not None:
            now = await self._now(partition)
            if now is not None and now != taken:
                raise NotOwnerError(f"another server has taken the writer of {partition}, as {now}")
        # Removed until the takeover succeeds: one that fails halfway has raised the epoch in Kafka.
        self._taken.pop(partition, None)

    async def _now(self, partition: TopicPartition) -> Writer | None:
        """Return a partition's writer; None: Kafka does not report it, or has forgotten it."""
        try:
            return await self._fencing.current(partition)
        except UpstreamRefusedError as error:
            if error.code == TRANSACTIONAL_ID_NOT_FOUND:
                return None
            raise

    async def _owned_if_known(self, partition: TopicPartition) -> bool | None:
        """Return whether this server owns a partition; None: that is unknown.

        While ZooKeeper cannot be reached, the last writer continues.
        """
        if self._owned is None:
            return None
        try:
            return await self._owned(partition)
        except LogError as error:
            LINES.write(_log, "warning", "the owner of a partition is unknown",
                        kind_of(error), partition=str(partition), error=str(error))  # fmt: skip
            return None

    async def owned(self, partition: TopicPartition) -> bool | None:
        """Return whether this server owns a partition; None: there is no coordinator.

        Raises:
            LogError: it is unknown now.
        """
        return None if self._owned is None else await self._owned(partition)

    async def current(self, partition: TopicPartition) -> Writer | None:
        """Return a partition's current writer; None: this Kafka does not report it (before 3.0).

        Raises:
            WriterUnavailableError: Kafka cannot be asked now.
        """
        try:
            return await self._fencing.current(partition)
        except UpstreamError as error:
            raise WriterUnavailableError(str(error)) from error

    async def _record_id(self, partition: TopicPartition, writer: Writer, doubt_ms: int) -> None:
        """Record a new producer id of a partition's writer. It does not fence the former id.

        Kafka assigns a new one after it has forgotten the transactional id (unused for days), or
        after the last epoch.

        Raises:
            WriterUnavailableError: batches sent under the former id may still arrive.
            WriterIdsError: the id could not be recorded.
        """
        if partition in self._last:
            # When a former server last sent is unknown: at the latest when it was replaced.
            replaced_ms = self._since_ms.get(partition, self._took_over_ms)
            since_ms = doubt_ms if partition in self._mine else replaced_ms
            late_ms = since_ms + LATE_MS - self._clock_ms()
            if since_ms and late_ms > 0:
                raise WriterUnavailableError(
                    f"the writer of {partition} has another producer id, {writer.pid}; batches sent"
                    f" under the former one may arrive for {late_ms / 1000:.0f} s more"
                )
        if writer.pid not in self._ids:
            of = WriterOf(partition.topic, partition.partition, self._clock_ms())
            await self._pool.run(partial(self._record.add, writer.pid, of))
            self._ids.add(writer.pid)
        self._last[partition] = writer.pid
