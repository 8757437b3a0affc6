"""The PID sequence in a journal: a row for each block, named by its first number."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from typing_extensions import override

from pidlease.coordination.journal.journal import (
    Fields,
    Journal,
    JournalConflictError,
    JournalError,
    Row,
)
from pidlease.coordination.pid_sequence import PidSequence, SequenceError
from pidlease.core.blocks import BlockAges, PidBlock, block_start
from pidlease.core.pid import BLOCK_SIZE
from pidlease.observability.loggers import Logger
from pidlease.observability.repeated_lines import LINES, kind_of

_log = Logger(__name__)

_KIND: Final = "block"
#: Rows at which old blocks are merged.
_BLOCKS_MAX: Final = 10_000
#: Rows that are put or removed at once: one batch has them all.
_ROWS_AT_ONCE: Final = 1_000
#: How often a block is tried while other servers take some.
_ATTEMPTS_MAX: Final = 100


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
        #: The last block, as of the last take; None: to be read from the journal.
        self._last: PidBlock | None = None
        self._count = 0
        self._merge_at = _BLOCKS_MAX

    @override
    def blocks(self, beyond: int = 0) -> list[PidBlock]:
        try:
            self._journal.refresh()
            return [block for block in _in_order(self._rows()) if block.end > beyond]
        except JournalError as error:
            raise SequenceError(f"the PID blocks cannot be read: {error}") from error

    @override
    def take(self, at_least: int = 1) -> PidBlock:
        with self._lock:
            try:
                for _ in range(_ATTEMPTS_MAX):
                    block = self._try_to_take(at_least)
                    if block is None:
                        continue
                    if self._count > self._merge_at:
                        self._try_to_merge()
                    return block
            except JournalError as error:
                raise SequenceError(f"no PID block: {error}") from error
        raise SequenceError("no PID block: other servers were always faster")

    def _try_to_take(self, at_least: int) -> PidBlock | None:
        """Take a block; None: another server was faster."""
        last, self._last = self._last, None
        if last is None:
            self._journal.refresh()
            blocks = _in_order(self._rows())
            last, self._count = blocks[-1] if blocks else None, len(blocks)
        first = max(1 if last is None else last.end, block_start(at_least))
        block = PidBlock(first, BLOCK_SIZE, self._clock_ms(), self._owner)
        row = _row(block)
        expected = [row._replace(fields=None)]
        if last is not None:
            # Its row changes if later blocks are merged: no block was taken and merged meanwhile.
            expected.append(_row(last))
        try:
            # If the outcome is unknown, the block may be recorded: then it is not used.
            self._journal.put([row], expected)
        except JournalConflictError:
            return None
        self._last, self._count = block, self._count + 1
        return block

    def adopt(self, blocks: Sequence[PidBlock], end: int) -> None:
        """Put the blocks of a sequence that this one continues; it may have been done before.

        Parameters:
            blocks: of that sequence.
            end: the number after all that it may have leased, which may be beyond the last block.

        Raises:
            SequenceError: some of them may not have been put; or both sequences have leased the
                same PIDs, and nothing was put.
        """
        own = {str(block.first): block for block in blocks}
        try:
            self._journal.refresh()
            rows = self._rows()
            for block in _in_order(rows):
                if block.first < end and str(block.first) not in own:
                    raise SequenceError(
                        f"the PIDs from {block.first} on were leased by {block.owner} meanwhile,"
                        " which did not know the ones of this directory"
                    )
            new = [_row(block) for first, block in own.items() if first not in rows]
            # The last ones first: after a crash, another server would take blocks after them.
            for at in reversed(range(0, len(new), _ROWS_AT_ONCE)):
                some = new[at : at + _ROWS_AT_ONCE]
                self._journal.put(some, [row._replace(fields=None) for row in some])
        except (JournalError, JournalConflictError) as error:
            raise SequenceError(f"no PID block: {error}") from error
        if end > max([block.end for block in self.blocks()], default=1):
            self.take(end)

    def _rows(self) -> dict[str, Fields]:
        return self._journal.all(_KIND)

    def _try_to_merge(self) -> None:
        try:
            self._merge()
        except JournalError as error:
            # The block was taken. The next merge goes on.
            LINES.write(_log, "warning", "old PID blocks could not be merged", kind_of(error),
                        error=str(error))  # fmt: skip

    def _merge(self) -> None:
        """Merge old blocks; the row of the first one of them has them all."""
        rows = self._rows()
        before = _in_order(rows)
        ages = BlockAges(before)
        ages.merge_older(self._clock_ms() - self._keep_ms)
        after = ages.blocks()
        kept = {str(block.first) for block in after}
        # What is merged is put before its parts are removed. A crash may leave parts.
        merged = [_row(block) for block in set(after).difference(before)]
        replaced = [row._replace(fields=rows.get(row.id)) for row in merged]
        try:
            self._journal.put(merged, replaced)
        except JournalConflictError:
            return  # another server merges them
        gone = sorted(rows.keys() - kept)
        for at in range(0, len(gone), _ROWS_AT_ONCE):
            self._journal.put(Row(_KIND, each, None) for each in gone[at : at + _ROWS_AT_ONCE])
        self._last, self._count = None, len(after)
        self._merge_at = max(_BLOCKS_MAX, 2 * self._count)


def _in_order(rows: dict[str, Fields]) -> list[PidBlock]:
    """Return the blocks, in order. The rows of merged blocks may still be there."""
    found: list[PidBlock] = []
    for block in sorted(_block(*row) for row in rows.items()):
        if not found or block.first >= found[-1].end:
            found.append(block)
    return found


def _row(block: PidBlock) -> Row:
    fields = {"count": block.count, "taken_ms": block.taken_ms, "owner": block.owner}
    return Row(_KIND, str(block.first), fields)


def _block(first: str, fields: Fields) -> PidBlock:
    return PidBlock(int(first), fields["count"], fields["taken_ms"], fields["owner"])


def has_blocks(journal: Journal) -> bool:
    """Return whether a block was taken, as of the last refresh."""
    return bool(journal.all(_KIND))
