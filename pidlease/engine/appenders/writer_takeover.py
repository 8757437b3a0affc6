"""Taking a partition's writer: then the log is read up to its marker, and everything is known.

What stands before the marker is all that writers before have written there, and ever will. So who
has read up to it may judge, and nobody else can write any more what is not known here.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from pidlease.core.backoff import Backoff
from pidlease.engine.appenders.catch_up import Takeable
from pidlease.engine.appenders.writer_appender import WriterAppender
from pidlease.kafka.records.writer_batch import Writer
from pidlease.log.ports import ForwardingLog
from pidlease.storage.errors import LogError, LogStoppedError, NotOwnerError
from pidlease.storage.snapshots import TopicPartition

#: Between two looks for the marker, which comes after the answer that it will.
_BACKOFF: Final = Backoff(0.005, 0.5)
#: Between two looks whether batches of the former writer are still in flight.
_LANDING_POLL_SECONDS: Final = 0.005
#: How often it is looked for; some ten seconds.
_LOOKS_MAX: Final = 30


class WriterTakeover:
    """One partition's (see `rereading.Rereadable`).

    Parameters:
        partition: what is read for.
        lane: sends as the writer.
        clock_ms: the time, in ms since 1970.
        rest: waits so many seconds.
    """

    def __init__(
        self,
        partition: Takeable,
        lane: Callable[[], WriterAppender],
        clock_ms: Callable[[], int],
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._partition: Final = partition
        self._lane: Final = lane
        self._clock_ms: Final = clock_ms
        self._rest: Final = rest

    @property
    def name(self) -> TopicPartition:
        """Topic and number."""
        return self._partition.name

    async def reread(self, log: ForwardingLog) -> None:
        """Take the writer, unless this server has it, and read the log up to its marker.

        Raises:
            LogError: it cannot be done now.
        """
        lane = self._lane()
        try:
            await self._make_sure(log, lane)
        except NotOwnerError as error:
            lane.fence()
            lane.lose(str(error))
            raise
        except Exception as error:
            if not lane.ready:
                lane.lose(str(error))
            raise

    async def _make_sure(self, log: ForwardingLog, lane: WriterAppender) -> None:
        if log.stopped:
            raise LogStoppedError(log.stopped)
        if lane.ready and lane.writer is not None:
            await self._check(log, lane.writer)
            return
        if lane.fenced:
            await self._own(log)
            lane.fenced = False  # one took it that did not know yet that we own it
        while lane.landing:  # a wait for some answers
            await self._rest(_LANDING_POLL_SECONDS)
        await self._take(log, lane)

    async def _own(self, log: ForwardingLog) -> None:
        if not await log.owned():
            raise NotOwnerError(f"another server has taken the writer of {self.name}")

    async def _check(self, log: ForwardingLog, writer: Writer) -> None:
        """Before a batch is refused by what is known here: is it all there is?"""
        now = await log.who_writes()
        if now is not None and now != writer:
            raise NotOwnerError(f"{self.name}: this server was writer {writer}, now it is {now}")

    async def _take(self, log: ForwardingLog, lane: WriterAppender) -> None:
        partition = self._partition
        at = partition.applied_offset
        writer = await log.take(lane.doubt_ms)
        for look in range(1, _LOOKS_MAX + 1):
            now_ms = self._clock_ms()
            end = await log.look()
            marked = await partition.read_on(log, at, end, writer)
            at = max(at, end)
            if marked:
                partition.caught_up(end, now_ms)
                lane.begin(writer)
                return
            await self._rest(_BACKOFF.seconds(look))
        raise LogError(f"the marker of {writer} does not come into {self.name}")
