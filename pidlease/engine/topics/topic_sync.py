"""Topics that come, go and grow without us: those of a Kafka cluster."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from pidlease.engine.leases.leases import Leases
from pidlease.engine.partition import Partition
from pidlease.engine.recovery import begin, catch_up
from pidlease.engine.topics.topic_table import TopicTable, UnseenTopic
from pidlease.engine.unloaded_partitions import UNSEEN_MS_MAX
from pidlease.storage.io_pool import IoPool
from pidlease.storage.topics.topic_store import Topic

#: Names that are remembered.
_GONE_MAX: Final = 100_000

_log = structlog.get_logger(__name__)


class TopicSync:
    """Follows the topics that others create and delete.

    Parameters:
        table: the topics as they are known.
        leases: forgets the producers of partitions that are gone.
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
            OSError: a partition cannot be opened, and its topic is found the next time; or it
                cannot be read, and is there and stopped until it can.
        """
        gone = self._lose(topics) + self._find(topics)
        # Another one of the name is not unknown meanwhile. No later: there may be a newer view.
        self._table.expect(topics)
        for each in gone:
            await self._forget(each)
        await self._table.held.let_go_others(topics)
        failed: OSError | None = None
        for topic in topics.values():
            try:
                await self._grow(topic)
            except OSError as error:  # the others are not to wait for this one
                failed = error
        if failed is not None:
            raise failed

    def _lose(self, topics: Mapping[str, Topic]) -> list[UnseenTopic]:
        """Topics that are known, and are not seen, or have another one in their place.

        A cluster that does not show a topic may have deleted it. It may as well not let us see it
        any more, or not know of it yet itself, as a broker that has just started. So nothing of
        it is forgotten until another topic has the name, or an hour has gone by.

        Returns:
            Those that are to be forgotten.
        """
        gone = []
        for name, known in list(self._table.topics.items()):
            if name in topics and topics[name].topic_id == known.topic_id:
                continue
            partitions = self._table.partitions[name]
            if name in topics or not known.has_own_id:
                self._table.hide(known)
                gone.append(UnseenTopic(known, partitions, self._leases.now_ms()))
            else:
                gone += self._table.lose_sight_of(known)
                _log.warning("topic not seen any more", topic=name, partitions=len(partitions))
        return gone

    def _find(self, topics: Mapping[str, Topic]) -> list[UnseenTopic]:
        """Topics that were not seen any more: seen again, or to be forgotten."""
        gone = []
        for name, unseen in list(self._table.unseen.items()):
            if name in topics and topics[name].topic_id == unseen.topic.topic_id:
                self._table.see_again(name)
                _log.info("topic seen again", topic=name, partitions=len(unseen.partitions))
            elif name in topics or self._leases.now_ms() - unseen.since_ms >= UNSEEN_MS_MAX:
                gone.append(self._table.unseen.pop(name))
        return gone

    async def _grow(self, topic: Topic) -> None:
        before = self._table.partitions.get(topic.name, [])
        if before:
            known = self._table.topics[topic.name]
            topic = replace(topic, made_again_ms=known.made_again_ms)
        elif self._is_another(topic):
            # Producers of that one go on where they were (see `TopicTable`).
            topic = replace(topic, made_again_ms=self._leases.now_ms())
        stopped = [number for number, each in enumerate(before) if each.log.stopped]
        wanted = [*stopped, *range(len(before), topic.partitions)]
        if wanted:
            await self._read(topic, before, stopped, wanted)
        elif before and topic.compacted != known.compacted:
            self._table.publish(replace(known, compacted=topic.compacted), before)

    async def _read(
        self, topic: Topic, before: list[Partition], stopped: list[int], wanted: list[int]
    ) -> None:
        """Read some of a topic's partitions: new ones, and those that could not be read before."""
        opened, failure = await self._open(topic, before, wanted)
        reading = map(self._begin, opened.values())
        for outcome in await asyncio.gather(*reading, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        # One that could not be read is there, as at a start, and is tried again.
        shown = {number: each for number, each in opened.items()
                 if number not in stopped or not each.log.stopped}  # fmt: skip
        for each in shown.values():
            each.note_leases()
        now = dict(enumerate(before)) | shown
        topic = replace(topic, partitions=len(now))
        self._table.publish(topic, [now[number] for number in sorted(now)])
        again = [number for number in stopped if number in shown]
        await self._leave([before[number] for number in again])
        if shown:
            _log.info("topic found", topic=topic.name, partitions=topic.partitions,
                      read_again=again)  # fmt: skip
        for each in opened.values():
            if each.log.stopped:
                failure = OSError(f"{each.name}: {each.log.stopped}")
            else:
                await self._table.held.let_go(each.name)
        if failure is not None:
            raise failure

    async def _open(
        self, topic: Topic, before: list[Partition], wanted: list[int]
    ) -> tuple[dict[int, Partition], OSError | None]:
        """Open all of a new topic, or what there is of one that is known; and what went wrong."""
        if not before:
            return dict(enumerate(await self._table.open(topic, wanted))), None
        opened: dict[int, Partition] = {}
        failure: OSError | None = None
        for number in wanted:
            try:
                (opened[number],) = await self._table.open(topic, [number])
            except OSError as error:
                failure = error
                if number >= len(before):
                    break  # partition numbers have no gaps
        if failure is not None and not opened:
            raise failure
        return opened, failure

    async def _begin(self, partition: Partition) -> None:
        now_ms = self._leases.now_ms()
        begin(partition, self._table.held.of(partition), now_ms)
        await self._pool.run(partial(catch_up, partition, now_ms))

    def _is_another(self, topic: Topic) -> bool:
        """Whether a topic of this name is gone, and this is not the same, seen again."""
        gone = self._gone_ids.get(topic.name)
        return gone is not None and not (gone == topic.topic_id and topic.has_own_id)

    async def _leave(self, partitions: list[Partition]) -> None:
        """Forget partitions that no listener finds any more; wake the consumers that wait."""
        for each in partitions:
            each.gone = True
            each.wake()
            await self._leases.leave(each)

    async def _forget(self, unseen: UnseenTopic) -> None:
        """Forget all that is known of a topic that no listener finds any more."""
        topic, partitions, _ = unseen
        if len(self._gone_ids) < _GONE_MAX:
            self._gone_ids[topic.name] = topic.topic_id
        for each in partitions:
            # What waits there is not to be judged by what is forgotten, nor to go on to a topic
            # that has the name now.
            each.log.stop("its topic is gone")
        await self._leave(partitions)
        await self._table.held.let_go_topic(topic.name)
        for callback in self._table.on_deleted:
            await callback(topic)
        _log.info("topic gone", topic=topic.name, partitions=topic.partitions)
