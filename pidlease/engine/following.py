"""Topics that come, go and grow without us: those of a Kafka cluster."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from pidlease.engine.leasing import Leases
from pidlease.engine.partition import Partition
from pidlease.engine.recovery import catch_up
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
        #: Names of topics that are gone: one that comes again was another one's before.
        self._gone_names: set[str] = set()

    async def follow(self, topics: Mapping[str, Topic]) -> None:
        """Make the topics that are known those that there are; as one of the table's changes.

        A partition is seen when its log has been read.

        Raises:
            OSError: a partition cannot be opened; its topic is found the next time.
        """
        known = self._table.topics
        for name in list(known):
            if (
                name not in topics
                or topics[name].topic_id != known[name].topic_id
                or any(each.log.stopped for each in self._table.partitions[name])
            ):
                await self._gone(known[name])
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
        if not before and topic.name in self._gone_names:
            # Producers of that one go on where they were (see `TopicTable`).
            topic = replace(topic, made_again_ms=self._leases.now_ms())
        if len(before) < topic.partitions:
            added = await self._table.open_from(topic, len(before))
            for each in added:
                await self._read(each)
            self._table.publish(topic, [*before, *added])
            _log.info("topic found", topic=topic.name, partitions=topic.partitions)
        elif before and topic.compacted != self._table.topics[topic.name].compacted:
            known = self._table.topics[topic.name]
            self._table.publish(replace(known, compacted=topic.compacted), before)

    async def _read(self, partition: Partition) -> None:
        now_ms = self._leases.now_ms()
        start = partition.log.kept_offset
        partition.restore({}, start, now_ms if start > 0 else partition.hole_ms)
        await self._pool.run(partial(catch_up, partition, now_ms))
        if partition.log.stopped:
            raise OSError(partition.log.stopped)
        partition.note_leases()

    async def _gone(self, topic: Topic) -> None:
        if len(self._gone_names) < _GONE_MAX:
            self._gone_names.add(topic.name)
        partitions = self._table.partitions[topic.name]
        self._table.hide(topic)
        for each in partitions:
            await self._leases.leave(each)
        for told in self._table.on_deleted:
            await told(topic)
        _log.info("topic gone", topic=topic.name, partitions=topic.partitions)
