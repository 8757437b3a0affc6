"""The writers' producer ids in a journal: a row for each id."""

from typing import Final

from typing_extensions import override

from pidlease.coordination.journal.journal import (
    Journal,
    JournalConflictError,
    JournalError,
    Row,
)
from pidlease.coordination.writer_ids import WriterIds, WriterIdsError, WriterOf

_KIND: Final = "writer"


class JournalWriterIds(WriterIds):
    """The writers' producer ids in a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal: Final = journal

    @override
    def all(self) -> dict[int, WriterOf]:
        try:
            self._journal.refresh()
        except JournalError as error:
            raise WriterIdsError(str(error)) from error
        return {
            int(pid): WriterOf(*(fields[name] for name in WriterOf._fields))
            for pid, fields in self._journal.all(_KIND).items()
        }

    @override
    def add(self, pid: int, writer_of: WriterOf) -> None:
        row = writer_row(pid, writer_of)
        try:
            if self._journal.get(_KIND, row.id) is None:
                self._journal.put([row], [row._replace(fields=None)])
        except JournalConflictError:
            return  # another server has recorded it
        except JournalError as error:
            raise WriterIdsError(str(error)) from error


def writer_row(pid: int, writer_of: WriterOf) -> Row:
    """Return the row of an id."""
    return Row(_KIND, str(pid), writer_of._asdict())
