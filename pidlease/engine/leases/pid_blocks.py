"""The server's current and next block of PIDs, and the ages of all blocks."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from pidlease.coordination.pid_sequence import PidSequence, SequenceError
from pidlease.coordination.shared_call import SharedCall
from pidlease.core.blocks import BlockAges, PidBlock
from pidlease.core.pid import number_of
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.io_pool import IoPool

#: The next block is taken when the current one has this many numbers left.
_PREFETCH_AT: Final = 50
#: A block is old after this part of a lease: an hour of a day.
_BLOCK_PART: Final = 24
#: The least time between two reads of the coordinator's blocks.
_LOOK_REST_SECONDS: Final = 0.02
#: From this many blocks on, those older than a lease are merged.
_MERGE_LEAST: Final = 200

_log = structlog.get_logger(__name__)


class PidBlocks:
    """The blocks of this server, and the known blocks of others.

    Parameters:
        sequence: the source of blocks.
        pool: the threads for it.
        clock_ms: the time, in ms since 1970.
        lease_ms: the length of a lease; older blocks are merged.
    """

    def __init__(
        self, sequence: PidSequence, pool: IoPool, clock_ms: Callable[[], int], lease_ms: int
    ) -> None:
        self._sequence = sequence
        self._pool = pool
        self._clock_ms = clock_ms
        self._lease_ms = lease_ms
        #: The recorded blocks.
        self.ages = BlockAges()
        self._numbers = iter(range(0))
        self._left = 0
        self._taken_ms = 0
        self._next: PidBlock | None = None
        #: The rest of a block from before this time is left out, in ms since 1970.
        self._old_before_ms = 0
        #: The rest of a block from up to this time is left out, in ms since 1970.
        self._retired_ms = -1
        self._fetching = False
        self._came = asyncio.Event()
        self._merge_at = _MERGE_LEAST
        #: Up to this number all blocks of all servers are known, as of the last `look`. Blocks of
        #: this server lie beyond it, and between them those that others took since.
        self._known_end = 1
        #: Many batches share one read of the coordinator's blocks.
        self._look: Final = SharedCall(self._look_once, rest_seconds=_LOOK_REST_SECONDS)
        self.prefetch_seconds = 0.0
        self.prefetch_error = ""
        self.prefetch_failures = 0

    def load(self) -> None:
        """Read the recorded blocks. Blocks the thread; call before the first batch is validated.

        Raises:
            SequenceError: the blocks cannot be read.
        """
        self.ages = BlockAges(self._sequence.blocks())
        self._known_end = self.ages.end
        self._merge()

    def first(self, largest: int) -> None:
        """Take the first block of this run. Blocks the thread; call before the listeners open.

        Parameters:
            largest: the largest number in the log.

        Raises:
            SequenceError: no block can be taken.
        """
        if largest >= self.ages.end:
            _log.error("the log has PIDs that the sequence never reached; skipping them",
                       largest=largest, sequence_end=self.ages.end)  # fmt: skip
        self._use(self._sequence.take(largest + 1))

    # ------------------------------------------------------------------ numbers for leases

    @property
    def left(self) -> int:
        """How many numbers are left without another block."""
        return self._left + (self._next.count if self._next else 0)

    def prepare(self) -> bool:
        """Make a number available, and fetch the next block in time; False: there is none."""
        if self._next is not None and (not self._left or self._taken_ms < self._old_before_ms):
            self._use(self._next)
            self._next = None
        if self._left <= _PREFETCH_AT and self._next is None:
            self._prefetch()
        return self._left > 0

    def refresh(self) -> None:
        """Replace an old block before it is used up; without the coordinator it goes on.

        Other active servers, and this one after a kill -9 before the next snapshot, count a lease
        from its block's time, so a lease from an old block would end early there, or at once.
        """
        self._old_before_ms = max(
            self._clock_ms() - self._lease_ms // _BLOCK_PART, self._retired_ms + 1
        )
        newest_ms = self._taken_ms if self._next is None else self._next.taken_ms
        if newest_ms < self._old_before_ms:
            self._prefetch()

    def retire(self, until_ms: int) -> None:
        """Replace a block that was taken before a topic was created again, as an old one.

        After a kill -9 before the next snapshot, a PID of it would count as leased before, and
        could not begin in that topic.

        Parameters:
            until_ms: when the topic was created, in ms since 1970.
        """
        self._retired_ms = max(self._retired_ms, until_ms)
        self.refresh()

    def take(self) -> int:
        """Return the next number, after `prepare` returned True."""
        self._left -= 1
        return next(self._numbers)

    async def fetched(self, seconds: float) -> bool:
        """Wait for the block that is being taken; other callers may use it up at once.

        Parameters:
            seconds: how long at most.

        Returns:
            False: no block is being taken, or it could not be.
        """
        if not self._fetching:
            return False
        self._came.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._came.wait(), seconds)
        return not self.prefetch_error

    def _use(self, block: PidBlock) -> None:
        self.ages.note(block)
        self._keep_small()
        self._numbers = iter(range(block.first, block.end))
        self._left = block.count
        self._taken_ms = block.taken_ms

    def _prefetch(self) -> None:
        if self._fetching:
            return
        self._fetching = True
        started = time.monotonic()

        def done(result: PidBlock | Exception) -> None:
            self._fetching = False
            self._came.set()
            self.prefetch_seconds = time.monotonic() - started
            if isinstance(result, Exception):
                self.prefetch_error = str(result)
                self.prefetch_failures += 1
                LINES.write(_log, "error", "no PID block; leases continue to the end of the last",
                            error=str(result), cause=str(result.__cause__ or ""))  # fmt: skip
                return
            self.prefetch_error = ""
            self._next = result

        self._pool.submit(self._sequence.take, done)

    # ------------------------------------------------------------------ other servers' blocks

    def unsure(self, pid: int) -> bool:
        """Return whether another server may have leased a PID, because its block is not known here.

        A decision that depends on it waits for `look`.
        """
        beyond = self._sequence.shared and number_of(pid) >= self._known_end
        return beyond and self.ages.taken_ms(pid) < 0

    async def look(self) -> None:
        """Learn which PIDs other servers have leased, by a read that begins after this call.

        Raises:
            SequenceError: the coordinator cannot be read now.
        """
        error = await self._look()
        if error is not None:
            raise SequenceError(str(error)) from error

    async def _look_once(self) -> SequenceError | None:
        """Read the blocks of other servers; return the error if they cannot be read."""
        try:
            found = await self._pool.run(partial(self._sequence.blocks, self._known_end))
        except SequenceError as error:
            LINES.write(_log, "error", "blocks of other servers cannot be read",
                        error=str(error))  # fmt: skip
            return error
        except Exception as error:  # noqa: BLE001 - a bug must not kill the task that callers share
            LINES.write(_log, "error", "blocks of other servers cannot be read", kind_of(error),
                        error, error=repr(error))  # fmt: skip
            return SequenceError(f"{type(error).__name__}: {error}")
        for block in found:
            self.ages.note(block)
            self._known_end = max(self._known_end, block.end)
        self._keep_small()
        return None

    def _keep_small(self) -> None:
        if len(self.ages) >= self._merge_at:
            self._merge()
            self._merge_at = 2 * len(self.ages) + _MERGE_LEAST

    def _merge(self) -> None:
        """Merge blocks that are older than a lease."""
        self.ages.merge_older(self._clock_ms() - self._lease_ms)
