"""The PID sequence in a journal: a row for each block, named by its first number."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from typing_extensions import override

from pidlease.coordination.journal.journal import Fields, Journal, JournalError, Row
from pidlease.coordination.pid_sequence import PidSequence, SequenceError
from pidlease.core.blocks import BlockAges, PidBlock, block_start
from pidlease.core.pid import BLOCK_SIZE

_KIND: Final = "block"
#: Rows at which old blocks are merged.
_BLOCKS_MAX: Final = 10_000
#: Rows that are put or removed at once: one batch has them all.
_ROWS_AT_ONCE: Final = 1_000


class JournalSequence(PidSequence):
    """Blocks of 100 PIDs from a journal.

    Parameters:
        owner: the server's name, recorded with each block.
        clock_ms: the time, in ms since 1970.
        keep_ms: blocks older than this may be merged; at least the lease length.
    """

    shared = True

    def __init__(
        self,
        journal: Journal,
        owner: str,
        clock_ms: Callable[[], int],
        keep_ms: int,
    ) -> None:
        self._journal: Final = journal
        self._owner: Final = owner
        self._clock_ms: Final = clock_ms
        self._keep_ms: Final = keep_ms
        self._lock = threading.Lock()
        #: The number after the last block; 0: to be read from the journal.
        self._end = 0
        self._count = 0
        self._merge_at = _BLOCKS_MAX

    @override
    def blocks(self, beyond: int = 0) -> list[PidBlock]:
        try:
            self._journal.check()  # a server that was replaced knows no block of its successor
            return [block for block in self._read() if block.end > beyond]
        except JournalError as error:
            raise SequenceError(f"the PID blocks cannot be read: {error}") from error

    @override
    def take(self, at_least: int = 1) -> PidBlock:
        with self._lock:
            try:
                if not self._end:
                    blocks = self._read()
                    self._end, self._count = blocks[-1].end if blocks else 1, len(blocks)
                first = max(self._end, block_start(at_least))
                block = PidBlock(first, BLOCK_SIZE, self._clock_ms(), self._owner)
                # If the outcome is unknown, the block may be recorded: then it is not used.
                self._end = 0
                self._journal.put([_row(block)])
                if self._count >= self._merge_at:
                    self._merge()
            except JournalError as error:
                raise SequenceError(f"no PID block: {error}") from error
            self._end, self._count = block.end, self._count + 1
            return block

    def adopt(self, blocks: Sequence[PidBlock]) -> None:
        """Put the blocks of a sequence that this one continues; it may have been done before.

        Raises:
            SequenceError: some of them may not have been put.
        """
        try:
            for at in range(0, len(blocks), _ROWS_AT_ONCE):
                self._journal.put(map(_row, blocks[at : at + _ROWS_AT_ONCE]))
        except JournalError as error:
            raise SequenceError(f"no PID block: {error}") from error
        self._end = 0

    def _read(self) -> list[PidBlock]:
        """Return the blocks, in order. The rows of merged blocks may still be there."""
        found: list[PidBlock] = []
        for block in sorted(_block(*row) for row in self._journal.all(_KIND).items()):
            if not found or block.first >= found[-1].end:
                found.append(block)
        return found

    def _merge(self) -> None:
        """Merge old blocks; the row of the first one of them has them all."""
        before = self._read()
        ages = BlockAges(before)
        ages.merge_older(self._clock_ms() - self._keep_ms)
        after = ages.blocks()
        kept = {str(block.first) for block in after}
        # What is merged is put before its parts are removed. A crash may leave parts.
        self._journal.put([_row(block) for block in set(after).difference(before)])
        gone = sorted(self._journal.all(_KIND).keys() - kept)
        for at in range(0, len(gone), _ROWS_AT_ONCE):
            self._journal.put(Row(_KIND, each, None) for each in gone[at : at + _ROWS_AT_ONCE])
        self._count = len(after)
        self._merge_at = max(_BLOCKS_MAX, 2 * self._count)


def _row(block: PidBlock) -> Row:
    fields = {"count": block.count, "taken_ms": block.taken_ms, "owner": block.owner}
    return Row(_KIND, str(block.first), fields)


def _block(first: str, fields: Fields) -> PidBlock:
    return PidBlock(int(first), fields["count"], fields["taken_ms"], fields["owner"])
