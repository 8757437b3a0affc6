"""Commits the checkpoints of copies, one commit at a time, in order.

If a checkpoint were stored after that of the partition's next PID, a copier that resumes from it
would copy the records of the next PID again.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Set
from typing import Final, Protocol

from pidlease.copier.cluster_reader import RETRY_S
from pidlease.copier.copy_checkpoint import CopyCheckpoint
from pidlease.copier.copy_metrics import CopyMetrics
from pidlease.copier.group_membership import Saved, UnavailableError
from pidlease.core.topic_partition import TopicPartition

_log = logging.getLogger(__name__)

#: With more partitions, a commit would be too large for one batch of Kafka's offsets topic.
_COMMIT_MAX: Final = 500
#: A partition that the coordinator has not known for so long is gone.
_GONE_S: Final = 60.0
#: Back-off before the checkpoint of one that is gone is committed again.
_GONE_REST_S: Final = 5.0


class Commits(Protocol):
    """The offsets of the consumer group."""

    async def commit(self, saved: Mapping[TopicPartition, Saved]) -> Set[TopicPartition]:
        """Commit offsets with their metadata; return the partitions that do not exist."""

    async def saved(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, Saved]:
        """Return the committed offsets with their metadata."""


class Savable(Protocol):
    """A partition's copy.

    Attributes:
        done: the checkpoint to commit; None: none now.
        kept: the checkpoint committed last.
    """

    done: CopyCheckpoint | None
    kept: CopyCheckpoint | None

    @property
    def place(self) -> TopicPartition:
        """The source's topic and partition."""


class CheckpointCommits:
    """Commits checkpoints, one commit at a time.

    Parameters:
        commits: the offsets of the group.
        metrics: counts the commits.
    """

    def __init__(self, commits: Commits, metrics: CopyMetrics) -> None:
        self._commits: Final = commits
        self._metrics: Final = metrics
        self._lock: Final = asyncio.Lock()
        #: Partitions that the coordinator did not know at their last commit.
        self._gone: set[TopicPartition] = set()

    async def save_all(self, copies: Iterable[Savable]) -> None:
        """Commit the checkpoints of copies that have a new one.

        Raises:
            UnavailableError: the outcome of the commit is unknown.
            ReplacedError: they are not committed: another copier has the partitions.
            CopyError: they can never be committed.
        """
        new = [each for each in copies if each.done is not None and each.done != each.kept]
        for first in range(0, len(new), _COMMIT_MAX):
            async with self._lock:
                # Read them under the lock: while this call waited, a PID may have been replaced.
                due = {
                    each: each.done
                    for each in new[first : first + _COMMIT_MAX]
                    if each.done is not None
                }
                gone = await self._commit({each.place: done for each, done in due.items()})
            for place in gone - self._gone:
                _log.warning("%s of the source is gone: its offset is not saved", place)
            self._gone.difference_update(each.place for each in due)
            self._gone |= gone
            for each, done in due.items():
                is_saved = each.place not in gone
                if is_saved and each.done is not None and each.done.pid == done.pid:
                    each.kept = done

    async def save(self, place: TopicPartition, checkpoint: CopyCheckpoint) -> None:
        """Commit one checkpoint now, with retries.

        A coordinator may not know a new partition yet. If one is gone, the group will revoke it:
        until then this tries again, because nothing may be sent under a PID that is not saved.

        Raises:
            ReplacedError: it is not committed: another copier has the partition.
            CopyError: it can never be committed.
        """
        loop = asyncio.get_running_loop()
        gone_from, is_warned = loop.time() + _GONE_S, False
        while True:
            try:
                async with self._lock:
                    gone = await self._commit({place: checkpoint})
            except UnavailableError as error:
                self._metrics.commit_failures += 1
                _log.info("not saved now: %s", error)
            else:
                if not gone:
                    return
                _log.info("the group does not know %s of the source", place)
                if gone_from <= loop.time() and not is_warned:
                    is_warned = True
                    _log.warning("%s of the source is gone: it is not copied", place)
                await asyncio.sleep(_GONE_REST_S if is_warned else RETRY_S)

    async def saved(self, place: TopicPartition) -> Saved | None:
        """Return a partition's committed offset with its metadata, with retries.

        Raises:
            CopyError: the source does not return it.
        """
        return (await self.all_saved([place])).get(place)

    async def all_saved(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, Saved]:
        """Return the committed offsets of partitions that have one, with retries.

        Raises:
            CopyError: the source does not return them.
        """
        while True:
            try:
                return await self._commits.saved(places)
            except UnavailableError as error:
                _log.info("%s", error)
                await asyncio.sleep(RETRY_S)

    async def _commit(
        self, checkpoints: Mapping[TopicPartition, CopyCheckpoint]
    ) -> Set[TopicPartition]:
        if not checkpoints:
            return frozenset()
        try:
            gone = await self._commits.commit(
                {place: (each.offset, each.metadata()) for place, each in checkpoints.items()}
            )
        except UnavailableError:
            # The group may still store a commit without a response; the next one must follow it.
            await asyncio.sleep(RETRY_S)
            raise
        self._metrics.commits += 1
        return gone
