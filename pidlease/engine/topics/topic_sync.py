"""Topic sync: follows the topics that others create, delete and extend in a Kafka cluster."""

import asyncio
import itertools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from pidlease.engine.leases.leases import Leases
from pidlease.engine.partition import Partition
from pidlease.engine.recovery import KeptRows, begin, catch_up
from pidlease.engine.topics.topic_table import TopicTable, UnseenTopic
from pidlease.engine.unloaded_partitions import UNSEEN_MS_MAX
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshots import PartitionRows, SnapshotStore
from pidlease.storage.topics.topic_settings import SettingError
from pidlease.storage.topics.topic_store import Topic

#: The most names of deleted topics kept.
_GONE_MAX: Final = 100_000

_log = structlog.get_logger(__name__)


class TopicSync:
    """Follows the topics that others create and delete.

    Parameters:
        table: the topics that this server knows.
        leases: forgets the producers of removed partitions.
        snapshots: where the replay of a partition begins that is not known otherwise.
    """

    def __init__(
        self, table: TopicTable, leases: Leases, pool: IoPool, snapshots: SnapshotStore
    ) -> None:
        self._table: Final = table
        self._leases: Final = leases
        self._pool: Final = pool
        self._snapshots: Final = snapshots
        #: Notes whether this server owns a partition that was opened; None: it owns all.
        self.claim: Callable[[Partition], bool] | None = None
        #: The ids of removed topics, by name: another topic may get the name.
        self._gone_ids: dict[str, str] = {}
        #: How many offsets of logs were read since the start.
        self.offsets_read = 0

    async def follow(self, topics: Mapping[str, Topic]) -> None:
        """Make the known topics equal to the given ones; runs as one of the table's changes.

        A new partition becomes visible when its log has been read. A stopped one is read again, and
        stays visible as stopped meanwhile.

        Raises:
            OSError: a new partition could not be opened, so its topic is tried again next time; or
                a partition could not be read, and is stopped until it can be.
        """
        gone = self._hide_missing(topics) + self._show_again(topics)
        # Now a new topic with the name of a removed one is reported as unloaded, not as unknown.
        # Not after an await: a newer list may have arrived by then.
        self._table.expect(topics)
        for each in gone:
            await self._forget(each)
        await self._table.held.forget_others(topics)
        failed: OSError | None = None
        for topic in topics.values():
            try:
                await self._grow(topic)
            except OSError as error:  # go on with the other topics
                failed = error
            except SettingError as error:
                failed = OSError(f"{topic.name}: {error}")
        if failed is not None:
            raise failed

    def _hide_missing(self, topics: Mapping[str, Topic]) -> list[UnseenTopic]:
        """Hide known topics that the cluster no longer lists, or lists with another id.

        A missing topic may have been deleted. But this server may also have lost the right to see
        it, or a broker that has just started may not know it yet. So its state is kept until
        another topic has its name, or for an hour.

        Returns:
            The topics to forget.
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
                gone += self._table.unsee(known)
                _log.warning("topic not seen any more", topic=name, partitions=len(partitions))
        return gone

    def _show_again(self, topics: Mapping[str, Topic]) -> list[UnseenTopic]:
        """Show unseen topics that the cluster lists again. Return those to forget."""
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
        topic = self._table.with_stored_settings(topic)  # they may be newer than the list
        if before:
            known = self._table.topics[topic.name]
            topic = replace(topic, made_again_ms=known.made_again_ms)
        elif self._is_another(topic):
            # Producers of the former topic continue their numbers (`TopicTable` says why).
            topic = replace(topic, made_again_ms=self._leases.now_ms())
            self._leases.blocks.retire(topic.made_again_ms)
        stopped = [number for number, each in enumerate(before) if each.stopped]
        wanted = [*stopped, *range(len(before), topic.partitions)]
        if wanted:
            await self._read(topic, before, stopped, wanted)
        elif before and topic.compacted != known.compacted:
            self._table.publish(replace(known, compacted=topic.compacted), before)

    async def take_over(self, name: str, numbers: Sequence[int]) -> None:
        """Open and read partitions that this server owns now, and show them.

        Only the last step is one of the table's changes: a partition that takes long delays no
        other topic. What was changed meanwhile is not shown.

        Raises:
            OSError: a partition could not be opened or read; others are taken over all the same.
        """
        before = self._table.partitions.get(name, [])
        wanted = [each for each in numbers if each < len(before) and before[each].elsewhere]
        if wanted:
            opened, failure = await self._open(self._table.topics[name], before, wanted)
            await self._replay(opened.values(), wanted, ())
            await self._table.change(self._show_taken(name, before, opened))
            if failure is not None:
                raise failure

    async def _show_taken(
        self, name: str, before: list[Partition], opened: dict[int, Partition]
    ) -> None:
        now = self._table.partitions.get(name, [])
        for number, each in list(opened.items()):
            if number >= len(now) or now[number] is not before[number]:
                each.log.stop("its topic was deleted, or made again, during the takeover")
                del opened[number]
        if opened:
            await self._show(self._table.topics[name], now, list(opened), opened)

    async def _read(
        self, topic: Topic, before: list[Partition], stopped: list[int], wanted: list[int]
    ) -> None:
        """Open and replay some partitions of a topic: new ones, and stopped ones again."""
        opened, failure = await self._open(topic, before, wanted)
        cut = {number for number in stopped if before[number].has_lost}
        await self._replay(opened.values(), stopped, cut)
        await self._show(topic, before, stopped, opened)
        if failure is not None:
            raise failure

    async def _replay(
        self, opened: Iterable[Partition], known: Container[int], cut: Container[int]
    ) -> None:
        """Read partitions.

        Parameters:
            known: the numbers of those that were not forgotten: the kept snapshots have them.
            cut: the numbers of those that have lost records since they were opened last.
        """
        kept = KeptRows(self._snapshots)
        work = []
        for each in opened:
            if self._claims(each):
                number = each.name.partition
                rows = kept.of(each.name) if number in known else ()
                work.append(self._begin(each, rows, is_cut=number in cut))
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _show(
        self,
        topic: Topic,
        before: list[Partition],
        stopped: list[int],
        opened: dict[int, Partition],
    ) -> None:
        """Show partitions that were opened and replayed.

        Raises:
            OSError: one of them is stopped.
        """
        for each in opened.values():
            if not each.elsewhere:  # another server may own it by now
                self._claims(each)
        # A new partition that cannot be read is shown as stopped, as at a start, and tried again.
        shown = {number: each for number, each in opened.items()
                 if number not in stopped or not each.log.stopped}  # fmt: skip
        left = []
        for each in shown.values():
            if each.stopped or each.elsewhere:
                each.note_leases()
            elif (former := self._table.held.replace_by(each)) is not None:
                left.append(former)
        now = dict(enumerate(before)) | shown
        topic = replace(topic, partitions=len(now))
        self._table.publish(topic, [now[number] for number in sorted(now)])
        again = [number for number in stopped if number in shown]
        await self._leave([before[number] for number in again])
        if shown:
            _log.info("topic found", topic=topic.name, partitions=topic.partitions,
                      read_again=again)  # fmt: skip
        for former in left:
            await self._leases.leave(former)
        for each in opened.values():
            if each.stopped:
                raise OSError(f"{each.name}: {each.log.stopped}")

    async def _open(
        self, topic: Topic, before: list[Partition], wanted: list[int]
    ) -> tuple[dict[int, Partition], OSError | None]:
        """Open all partitions of a new topic, or some of a known one; return the failure, too."""
        if not before:
            return dict(enumerate(await self._table.open(topic, wanted))), None
        opened: dict[int, Partition] = {}
        failure: OSError | None = None
        for number, found in zip(wanted, await self._table.open_each(topic, wanted), strict=True):
            if isinstance(found, Partition):
                opened[number] = found
                continue
            failure = found
            if number >= len(before):
                break  # partition numbers have no gaps
        if failure is not None and not opened:
            raise failure
        return opened, failure

    def _claims(self, partition: Partition) -> bool:
        """Return whether this server owns a partition; if not, it is marked so."""
        return self.claim is None or self.claim(partition)

    async def _begin(
        self, partition: Partition, kept: Iterable[PartitionRows], *, is_cut: bool
    ) -> None:
        now_ms = self._leases.now_ms()
        held = self._table.held.rows_of(partition.name)
        candidates = itertools.chain([] if held is None else [held], kept)
        base = await self._pool.run(partial(self._table.base_of, partition, candidates))
        base.is_other = base.is_other or is_cut
        begin(partition, base, now_ms)
        self.offsets_read += partition.offsets_to_apply
        await self._pool.run(partial(catch_up, partition, now_ms))

    def _is_another(self, topic: Topic) -> bool:
        """Return whether a removed topic had this name, and was a different topic."""
        gone = self._gone_ids.get(topic.name)
        return gone is not None and not (gone == topic.topic_id and topic.has_own_id)

    async def _leave(self, partitions: list[Partition]) -> None:
        """Forget partitions that are hidden by now, and wake their waiting consumers."""
        for each in partitions:
            each.gone = True
            each.wake()
            await self._leases.leave(each)

    async def _forget(self, unseen: UnseenTopic) -> None:
        """Forget a topic that is hidden by now, with its producers."""
        topic, partitions, _ = unseen
        if len(self._gone_ids) < _GONE_MAX:
            self._gone_ids[topic.name] = topic.topic_id
        for each in partitions:
            # Waiting batches must not be validated without the forgotten state, nor be appended to
            # a new topic of the same name.
            each.log.stop("its topic is gone")
        await self._leave(partitions)
        await self._table.held.forget_topic(topic.name)
        for callback in self._table.on_deleted:
            await callback(topic)
        _log.info("topic gone", topic=topic.name, partitions=topic.partitions)
