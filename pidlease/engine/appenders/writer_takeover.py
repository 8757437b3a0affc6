"""Takes over as a partition's writer, and reads the log up to the new writer's marker.

Former writers cannot append after the marker. So a server that has applied everything before the
marker has all their batches in its state, and may validate.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from pidlease.core.backoff import Backoff
from pidlease.engine.appenders.catch_up import TakeoverTarget
from pidlease.engine.appenders.writer_appender import WriterAppender
from pidlease.kafka.records.writer_batch import Writer
from pidlease.log.ports import ForwardingLog
from pidlease.storage.errors import LogError, LogStoppedError, NotOwnerError
from pidlease.storage.snapshots import TopicPartition

#: The pauses between checks for the marker: Kafka writes it after its response.
_BACKOFF: Final = Backoff(0.005, 0.5)
#: The pause between checks whether batches of the former writer are still in flight.
_LANDING_POLL_SECONDS: Final = 0.005
#: How often to check for the marker; all checks take about ten seconds.
_LOOKS_MAX: Final = 30


class WriterTakeover:
    """Takes over as the writer of one partition.

    Parameters:
        partition: reads the log, and applies it.
        appender: returns the appender that sends as the writer.
        clock_ms: returns the time, in ms since 1970.
        rest: waits for a number of seconds.
    """

    def __init__(
        self,
        partition: TakeoverTarget,
        appender: Callable[[], WriterAppender],
        clock_ms: Callable[[], int],
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._partition: Final = partition
        self._appender: Final = appender
        self._clock_ms: Final = clock_ms
        self._rest: Final = rest

    @property
    def name(self) -> TopicPartition:
        """The topic and the partition number."""
        return self._partition.name

    async def catch_up(self, log: ForwardingLog) -> None:
        """Take over as the writer, unless this server is it, and read the log up to the marker.

        Raises:
            LogError: the takeover is not possible now.
        """
        appender = self._appender()
        try:
            await self._make_sure(log, appender)
        except NotOwnerError as error:
            appender.fence()
            appender.lose(str(error))
            raise
        except Exception as error:
            if not appender.ready:
                appender.lose(str(error))
            raise

    async def _make_sure(self, log: ForwardingLog, appender: WriterAppender) -> None:
        if log.stopped:
            raise LogStoppedError(log.stopped)
        if appender.ready and appender.writer is not None:
            await self._check(log, appender.writer)
            return
        if appender.fenced:
            if not await log.owned():
                raise NotOwnerError(f"another server has taken the writer of {self.name}")
            # A replaced server took over the writer before it noticed its replacement.
            appender.fenced = False
        while appender.landing:  # responses to the former writer's batches
            await self._rest(_LANDING_POLL_SECONDS)
        await self._take(log, appender)

    async def _check(self, log: ForwardingLog, writer: Writer) -> None:
        """Check that this server is still the writer, and the log still the known one.

        Raises:
            NotOwnerError: another server is the writer.
            LogError: the log is another one, or cannot be asked now.
        """
        current = await log.current_writer()
        if current is not None and current != writer:
            raise NotOwnerError(
                f"{self.name}: this server was writer {writer}, now it is {current}"
            )
        await log.look()

    async def _take(self, log: ForwardingLog, appender: WriterAppender) -> None:
        partition = self._partition
        at = partition.applied_offset
        writer = await log.take(appender.doubt_ms)
        for look in range(1, _LOOKS_MAX + 1):
            now_ms = self._clock_ms()
            end = await log.look()
            marked = await partition.read_on(log, at, end, writer)
            at = max(at, end)
            if marked:
                partition.caught_up(end, now_ms)
                appender.begin(writer)
                return
            await self._rest(_BACKOFF.seconds(look))
        raise LogError(f"the marker of {writer} is still missing in {self.name}")
