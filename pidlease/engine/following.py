"""Topics that come, go and grow without us: those of a Kafka cluster."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from pidlease.engine.leasing import Leases
from pidlease.engine.partition import Partition
from pidlease.engine.recovery import begin, catch_up
from pidlease.engine.topics import TopicTable
from pidlease.storage.io_pool import IoPool
from pidlease.storage.topics import Topic

#: Names that are remembered.
_GONE_MAX: Final = 100_000

_log = structlog.get_logger(__name__)


class Following:
    """See the module's text.

    Parameters:
        table: the topics as they are known.
        leases: told of producers whose partition is gone.
        pool: the threads for blocking work.
    """

    def __init__(self, table: TopicTable, leases: Leases, pool: IoPool) -> None:
        self._table: Final = table
        self._leases: Final = leases
        self._pool: Final = pool
        #: Topics that are gone, and their ids, by name: another one may come in their place.
        self._gone_ids: dict[str, str] = {}

    async def follow(self, topics: Mapping[str, Topic]) -> None:
        """Make the topics that are known those that there are; as one of the table's changes.

        A partition is seen when its log has been read; one that was stopped, and is read again,
        answers meanwhile that it is.

        Raises:
            OSError: a partition cannot be opened; its topic is found the next time.
        """
        known = self._table.topics
        for name in list(known):
            if name not in topics or topics[name].topic_id != known[name].topic_id:
                await self._gone(known[name], topics)
        self._table.expect(topics)
        failed: OSError | None = None
        for topic in topics.values():
            try:
                await self._grow(topic)
            except OSError as error:  # the others are not to wait for this one
                failed = error
        if failed is not None:
            raise failed

    async def _grow(self, topic: Topic) -> None:
        before = self._table.partitions.get(topic.name, [])
        if not before and self._is_another(topic):
            # Producers of that one go on where they were (see `TopicTable`).
            topic = replace(topic, made_again_ms=self._leases.now_ms())
        stopped = [number for number, each in enumerate(before) if each.log.stopped]
        wanted = [*stopped, *range(len(before), topic.partitions)]
        if wanted:
            opened = await self._table.open(topic, wanted)
            for outcome in await asyncio.gather(*map(self._read, opened), return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
            now = dict(enumerate(before)) | dict(zip(wanted, opened, strict=True))
            self._table.publish(topic, [now[number] for number in sorted(now)])
            for each in opened:
                self._table.held.let_go(each.name)
            await self._leave([before[number] for number in stopped])
            _log.info("topic found", topic=topic.name, partitions=topic.partitions,
                      read_again=stopped)  # fmt: skip
        elif before and topic.compacted != self._table.topics[topic.name].compacted:
            known = self._table.topics[topic.name]
            self._table.publish(replace(known, compacted=topic.compacted), before)

    async def _read(self, partition: Partition) -> None:
        now_ms = self._leases.now_ms()
        begin(partition, self._table.held.of(partition), now_ms)
        await self._pool.run(partial(catch_up, partition, now_ms))
        if partition.log.stopped:
            raise OSError(partition.log.stopped)
        partition.note_leases()

    def _is_another(self, topic: Topic) -> bool:
        """Whether a topic of this name is gone, and this is not the same, seen again."""
        gone = self._gone_ids.get(topic.name)
        return gone is not None and not (gone == topic.topic_id and topic.has_own_id)

    async def _leave(self, partitions: list[Partition]) -> None:
        """Let go of partitions that no door finds any more; who waits for records is woken."""
        for each in partitions:
            each.gone = True
            each.wake()
            await self._leases.leave(each)

    async def _gone(self, topic: Topic, topics: Mapping[str, Topic]) -> None:
        if len(self._gone_ids) < _GONE_MAX:
            self._gone_ids[topic.name] = topic.topic_id
        partitions = self._table.partitions[topic.name]
        self._table.hide(topic)
        if topic.has_own_id:
            for each in partitions:
                self._table.held.hold(each)
        self._table.expect(topics)  # another one of the name is not unknown meanwhile
        await self._leave(partitions)
        for told in self._table.on_deleted:
            await told(topic)
        _log.info("topic gone", topic=topic.name, partitions=topic.partitions)
