"""How far a copy is gets saved: one commit at a time, the newer one behind the older one.

A checkpoint that came in behind the next PID's would be taken up after a kill: what stands there
under the next PID would be copied again.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from aiokafka.structs import TopicPartition

from pidlease.copier.copy_checkpoint import Checkpoint
from pidlease.copier.copy_metrics import CopyMetrics
from pidlease.copier.group_membership import Saved, UnavailableError

_log = logging.getLogger(__name__)

_REST_S: Final = 0.2
#: A commit of more partitions would be too large for one batch of Kafka's offsets.
_COMMIT_MAX: Final = 500


class Commits(Protocol):
    """Where it is saved; see `membership.GroupMembership`."""

    async def commit(self, saved: Mapping[TopicPartition, Saved]) -> None:
        """Save."""

    async def saved(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, Saved]:
        """What is saved."""


class Savable(Protocol):
    """A partition's copy.

    Attributes:
        done: what may be saved; None: nothing now.
        kept: what was saved last.
    """

    done: Checkpoint | None
    kept: Checkpoint | None

    @property
    def place(self) -> TopicPartition:
        """Of the source."""


class CheckpointCommits:
    """See the module's text.

    Parameters:
        commits: where it is saved.
        metrics: counts it.
    """

    def __init__(self, commits: Commits, metrics: CopyMetrics) -> None:
        self._commits: Final = commits
        self._metrics: Final = metrics
        self._lock: Final = asyncio.Lock()

    async def save_all(self, copies: Iterable[Savable]) -> None:
        """Save how far they are.

        Raises:
            UnavailableError: it is not known to be saved.
            ReplacedError: it is not saved: they are somebody else's by now.
            CopyError: it will never be saved.
        """
        new = [each for each in copies if each.done is not None and each.done != each.kept]
        for first in range(0, len(new), _COMMIT_MAX):
            async with self._lock:
                # As they are now: while it waited, a PID may have been replaced.
                due = {
                    each: each.done
                    for each in new[first : first + _COMMIT_MAX]
                    if each.done is not None
                }
                await self._commit({each.place: done for each, done in due.items()})
            for each, done in due.items():
                if each.done is not None and each.done.pid == done.pid:
                    each.kept = done

    async def save(self, place: TopicPartition, checkpoint: Checkpoint) -> None:
        """Save this one now; it is tried again until it is.

        Raises:
            ReplacedError: it is not saved: the partition is somebody else's by now.
            CopyError: it will never be saved.
        """
        while True:
            try:
                async with self._lock:
                    await self._commit({place: checkpoint})
            except UnavailableError as error:
                self._metrics.commit_failures += 1
                _log.info("not saved now: %s", error)
            else:
                return

    async def saved(self, place: TopicPartition) -> Saved | None:
        """What is saved; it is asked for until it is told.

        Raises:
            CopyError: the source does not tell.
        """
        while True:
            try:
                return (await self._commits.saved([place])).get(place)
            except UnavailableError as error:
                _log.info("%s", error)
                await asyncio.sleep(_REST_S)

    async def _commit(self, checkpoints: Mapping[TopicPartition, Checkpoint]) -> None:
        if not checkpoints:
            return
        try:
            await self._commits.commit(
                {place: (each.offset, each.metadata()) for place, each in checkpoints.items()}
            )
        except UnavailableError:
            # What was not answered may still be worked on, and is not to come behind the next one.
            await asyncio.sleep(_REST_S)
            raise
        self._metrics.commits += 1
