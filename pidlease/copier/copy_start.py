"""Whether a copy with `--start latest` has begun, and which partitions are new to it.

A copy is its group. It begins when each of its partitions has a checkpoint, with the end that the
partition had. Until then the checkpoints are marked as `starting`, and nothing is copied. After
that, a partition without a checkpoint did not exist when the copy began: it is copied from its
first record. If it began at its end, what was written before its copier noticed it would be lost.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from pidlease.copier.copy_checkpoint import read_checkpoint
from pidlease.copier.errors import CheckpointError
from pidlease.copier.group_membership import Saved
from pidlease.core.topic_partition import TopicPartition

#: How often to look for checkpoints that other copiers save.
_LOOK_S: Final = 0.5


class CopyStart:
    """The start of a group's copy.

    Parameters:
        places: returns the partitions to copy that the source has now.
        saved: returns the committed offsets of partitions that have one.
    """

    def __init__(
        self,
        places: Callable[[], Awaitable[Collection[TopicPartition]]],
        saved: Callable[[Collection[TopicPartition]], Awaitable[Mapping[TopicPartition, Saved]]],
    ) -> None:
        self._places: Final = places
        self._saved: Final = saved
        #: The partitions that the source had when this copier started.
        self._at_start: frozenset[TopicPartition] = frozenset()
        self._has_begun = False
        #: Whether each partition had a checkpoint at the last look.
        self._all_saved = False
        self._lock: Final = asyncio.Lock()
        self._looks = 0
        #: The number of the last look that succeeded.
        self._last_look = 0

    async def note_partitions(self) -> None:
        """Note the partitions that the source has as this copier starts.

        Raises:
            CopyError: the source does not return them.
        """
        self._at_start = frozenset(await self._places())

    async def is_new(self, place: TopicPartition) -> bool:
        """Return whether a partition without a checkpoint came after the copy began.

        Raises:
            CopyError: the source does not respond.
        """
        if place in self._at_start:
            await self._look()
            return self._has_begun
        return True

    async def wait(self) -> None:
        """Wait until the copy has begun, or may begin: each partition has a checkpoint.

        Raises:
            CopyError: the source does not respond.
        """
        while True:
            await self._look()
            if self._has_begun or self._all_saved:
                return
            await asyncio.sleep(_LOOK_S)

    async def _look(self) -> None:
        """Read the checkpoints of all partitions; calls share a look that begins after them."""
        before = self._looks
        async with self._lock:
            if self._has_begun or self._last_look > before:
                return
            self._looks = look = self._looks + 1
            places = await self._places()
            saved = await self._saved(places)
            self._all_saved = all(place in saved for place in places)
            self._has_begun = any(map(_has_begun, saved.values()))
            self._last_look = look


def _has_begun(saved: Saved) -> bool:
    try:
        return not read_checkpoint(*saved).starting
    except CheckpointError:
        return False  # the copier of its partition reports it
