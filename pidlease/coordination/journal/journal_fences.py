"""The fence log in a journal: a row for each grant of a name, by number."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final

from typing_extensions import override

from pidlease.coordination.fence_log import Fence, FenceLog, FenceLogError, FencePosition
from pidlease.coordination.journal.journal import (
    NEXT_NUMBER,
    Fields,
    Journal,
    JournalConflictError,
    JournalError,
    Row,
)
from pidlease.coordination.name_bindings import Binding
from pidlease.observability.loggers import Logger

_KIND: Final = "fence"
#: After so many new entries, old ones are removed.
_APPENDED_MAX: Final = 100
#: Entries removed at once: one batch has them all.
_REMOVED_MAX: Final = 1_000

_log = Logger(__name__)


class JournalFences(FenceLog):
    """The fence log in a journal.

    A position's node is the number of an entry, and its entry is 0.

    Parameters:
        clock_ms: the time, in ms since 1970.
        keep_ms: older entries may be removed.
    """

    def __init__(self, journal: Journal, clock_ms: Callable[[], int], keep_ms: int) -> None:
        self._journal: Final = journal
        self._clock_ms: Final = clock_ms
        self._keep_ms: Final = keep_ms
        self._appended = 0

    @override
    def end(self) -> FencePosition:
        self._refresh()
        return FencePosition(int(next(reversed(self._journal.all(_KIND)), 0)), 0)

    @override
    def read(self, position: FencePosition) -> tuple[Sequence[Fence], FencePosition | None]:
        self._refresh()
        rows = self._journal.above(_KIND, position.node)
        if not rows:
            return (), position
        if rows[0][0] != position.node + 1:
            return (), None
        return [_fence(fields) for _, fields in rows], FencePosition(rows[-1][0], 0)

    def _refresh(self) -> None:
        try:
            self._journal.refresh()
        except JournalError as error:
            raise FenceLogError(f"the fence log: {error}") from error

    def row(self, fence: Fence) -> Row:
        """Return the row that appends an entry."""
        binding = fence.binding._replace(fenced=(), continues=0).fields()
        fields = {"name": fence.name, **binding, "at_ms": self._clock_ms()}
        return Row(_KIND, NEXT_NUMBER, fields)

    def note_appended(self, entries: int) -> None:
        """Note that entries were appended; remove old ones now and then. Blocks."""
        self._appended += entries
        if self._appended >= _APPENDED_MAX:
            self._appended = 0
            self._remove_old()

    def _remove_old(self) -> None:
        """Remove the oldest entries; never the last one: the next one follows its number."""
        before_ms = self._clock_ms() - self._keep_ms
        entries = list(self._journal.all(_KIND).items())[:-1][:_REMOVED_MAX]
        old = list(takewhile(lambda each: _written_ms(each[1]) < before_ms, entries))
        try:
            self._journal.put(
                [Row(_KIND, number, None) for number, _ in old],
                [Row(_KIND, number, fields) for number, fields in old],
            )
        except JournalConflictError:
            return  # another server does it
        except JournalError as error:
            # The grant is stored. The next removal tries again.
            _log.warning("old fences of names could not be removed", error=str(error))


def _written_ms(fields: Fields) -> int:
    """Return when an entry was appended, in ms since 1970.

    A release, or a takeover of a name in use, is a new entry with the time of an old grant.
    """
    return int(fields["at_ms"] if "at_ms" in fields else fields["granted_ms"])


def _fence(fields: Fields) -> Fence:
    return Fence(fields["name"], Binding.of(fields))
