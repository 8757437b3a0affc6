"""The writers of a Kafka cluster's partitions: they send what is not under Kafka's own numbers.

A writer is fenced by Kafka (`kafka/client/transactions.py`). Its producer id is on record before
anything is sent under it: the replay believes the record header `pidlease` under these ids only.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container
from functools import partial
from typing import Final

import structlog

from pidlease.coordination.writer_ids import WriterIds, WriterIdsError, WriterOf
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.topic_configs import IdExpirations
from pidlease.kafka.client.transactions import Fencing
from pidlease.kafka.error_codes import NO_RIGHT
from pidlease.kafka.errors import UpstreamError, UpstreamRefusedError
from pidlease.kafka.records.writer_batch import Writer
from pidlease.log.ports import LATE_MS
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogError, NotAllowedError, NotOwnerError, reason_for_clients
from pidlease.storage.io_pool import IoPool

#: A writer is renewed after this time, in ms: before Kafka forgets its transactional id. The next
#: user of the id would get another producer id then, and fence no former writer.
_WRITER_MS_MAX: Final = 3_600_000
#: The same where Kafka does not say when it forgets.
_WRITER_MS_UNKNOWN: Final = 600_000

_log = structlog.get_logger(__name__)


class WriterUnavailableError(LogError):
    """A partition has no writer now; it may be tried again."""


class KafkaWriters:
    """Takes over, and keeps, the writers of partitions.

    Parameters:
        fencing: raises epochs.
        ids: the ids on record.
        pool: the threads for blocking work.
        clock_ms: the time, in ms since 1970.
        owned: whether this server owns the cluster's partitions; raises LogError where it cannot
            be known. None: only a takeover of a writer shows it.
    """

    def __init__(
        self,
        fencing: Fencing,
        ids: WriterIds,
        pool: IoPool,
        clock_ms: Callable[[], int],
        owned: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._fencing: Final = fencing
        self._record: Final = ids
        self._pool: Final = pool
        self._owned: Final = owned
        self._clock_ms: Final = clock_ms
        self._ids: set[int] = set()
        self._takeovers: dict[TopicPartition, asyncio.Lock] = {}
        #: The writers as which this server could send, as far as the coordinator is concerned.
        self._taken: dict[TopicPartition, Writer] = {}
        #: The last id of each partition's writer.
        self._last: dict[TopicPartition, int] = {}
        #: The partitions that this server was the writer of.
        self._mine: set[TopicPartition] = set()
        #: Since when no other server sends for this server's partitions, in ms since 1970.
        self._took_over_ms = self._clock_ms()
        #: For how long one may be used, in ms.
        self.kept_ms = _WRITER_MS_UNKNOWN

    def load(self) -> None:
        """Read the ids on record: this server has just taken over, perhaps after standing by.

        Blocks. From now on no other server begins to send; what it sent before may still come.

        Raises:
            WriterIdsError: they cannot be read.
        """
        known = self._record.all()
        for pid, of in sorted(known.items(), key=lambda each: each[1].given_ms):
            self._last[TopicPartition(of.topic, of.partition)] = pid
        self._ids.update(known)
        self._took_over_ms = self._clock_ms()

    def kafka_keeps(self, kept: IdExpirations) -> None:
        """Take note of how long Kafka remembers."""
        shortest = min(kept)
        self.kept_ms = min(shortest // 2, _WRITER_MS_MAX) if shortest else _WRITER_MS_UNKNOWN

    @property
    def ids(self) -> Container[int]:
        """All that are or were a writer's."""
        return self._ids

    async def take(self, place: TopicPartition, doubt_ms: int) -> Writer:
        """Become a partition's writer. Its marker comes into the log soon.

        Parameters:
            place: the partition.
            doubt_ms: see `ports.ForwardingLog.take`.

        Raises:
            NotOwnerError: another server owns the partition.
            NotAllowedError: this server has not the right to.
            WriterUnavailableError: it could not be done now.
        """
        async with self._takeovers.setdefault(place, asyncio.Lock()):
            return await self._take(place, doubt_ms)

    async def _take(self, place: TopicPartition, doubt_ms: int) -> Writer:
        try:
            await self._check_owner(place)
            writer = await self._fencing.raise_epoch(place)
            if writer.pid != self._last.get(place):
                await self._follow(place, writer, doubt_ms)
            await self._fencing.mark(place, writer)
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
                        partition=str(place), error=str(error))  # fmt: skip
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
            reason = reason_for_clients(cause)
            raise WriterUnavailableError(f"the writer's id is not stored: {reason}") from error
        self._taken[place] = writer
        self._mine.add(place)
        _log.info("writer taken", partition=str(place), pid=writer.pid, epoch=writer.epoch)
        return writer

    async def _check_owner(self, place: TopicPartition) -> None:
        """Make sure that a replaced server does not take the writer back.

        Raises:
            NotOwnerError: another server owns the partition.
            UpstreamError: it cannot be asked now.
            LogError: likewise.
        """
        # Forgotten until it is taken again: where that fails half way, Kafka raises the epoch.
        taken = self._taken.pop(place, None)
        owned = await self._asked_owned(place)
        if owned is False:
            raise NotOwnerError(f"another server owns {place}")
        if owned:
            return
        now = None if taken is None else await self._fencing.current(place)
        if now is not None and now != taken:
            raise NotOwnerError(f"another server has taken the writer of {place}, as {now}")

    async def _asked_owned(self, place: TopicPartition) -> bool | None:
        """Return whether this server owns the cluster's partitions; None: that is unknown.

        ZooKeeper may be away: the last writer goes on.
        """
        if self._owned is None:
            return None
        try:
            return await self._owned()
        except LogError as error:
            LINES.write(_log, "warning", "the owner of a partition cannot be asked for",
                        kind_of(error), partition=str(place), error=str(error))  # fmt: skip
            return None

    async def owned(self) -> bool | None:
        """Return whether this server owns the partitions; None: there is no coordinator.

        Raises:
            LogError: it cannot be known now.
        """
        return None if self._owned is None else await self._owned()

    async def current(self, place: TopicPartition) -> Writer | None:
        """Return a partition's current writer; None: this Kafka does not report it (before 3.0).

        Raises:
            WriterUnavailableError: it cannot be asked now.
        """
        try:
            return await self._fencing.current(place)
        except UpstreamError as error:
            raise WriterUnavailableError(str(error)) from error

    async def _follow(self, place: TopicPartition, writer: Writer, doubt_ms: int) -> None:
        """Go on under another id, which does not fence the one before.

        Kafka gives one where it has forgotten the transactional id (unused for days), or
        where the epochs have run out.

        Raises:
            WriterUnavailableError: what went under the one before may still come.
            WriterIdsError: it could not be recorded.
        """
        if place in self._last:
            # When the server before last sent is not known: up to the moment it was replaced.
            since_ms = doubt_ms if place in self._mine else self._took_over_ms
            late_ms = since_ms + LATE_MS - self._clock_ms()
            if since_ms and late_ms > 0:
                raise WriterUnavailableError(
                    f"the writer of {place} has another producer id, {writer.pid}; what was sent"
                    f" under the one before may come for {late_ms / 1000:.0f} s more"
                )
        if writer.pid not in self._ids:
            of = WriterOf(place.topic, place.partition, self._clock_ms())
            await self._pool.run(partial(self._record.add, writer.pid, of))
            self._ids.add(writer.pid)
        self._last[place] = writer.pid
