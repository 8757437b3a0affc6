"""The files that all servers have in common, in a journal: a row for each."""

from typing import Final

from typing_extensions import override

from pidlease.coordination.common_files import (
    CommonFileConflictError,
    CommonFiles,
    CommonFilesError,
    decode_file,
    encode_file,
)
from pidlease.coordination.journal.journal import (
    Fields,
    Journal,
    JournalConflictError,
    JournalError,
    Row,
)

_KIND: Final = "file"


class JournalFiles(CommonFiles):
    """The files in a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal: Final = journal

    @override
    def version(self, name: str) -> object:
        # Servers that share a cluster read the journal all the time, and a server that serves alone
        # puts all rows itself.
        return self._journal.get(_KIND, name)

    @override
    def read(self, name: str) -> bytes | None:
        try:
            self._journal.refresh()
        except JournalError as error:
            raise CommonFilesError(str(error)) from error
        return _content(name, self._journal.get(_KIND, name))

    @override
    def replace(self, name: str, content: bytes, expected: bytes | None) -> None:
        known = self._journal.get(_KIND, name)
        if _content(name, known) != expected:
            raise CommonFileConflictError(f"another server has replaced the {name}")
        row = file_row(name, content)
        try:
            self._journal.put([row], [row._replace(fields=known)])
        except JournalConflictError as error:
            raise CommonFileConflictError(f"another server has replaced the {name}") from error
        except JournalError as error:
            raise CommonFilesError(str(error)) from error


def file_row(name: str, content: bytes) -> Row:
    """Return the row of a file.

    Raises:
        CommonFileTooLongError: the file is too long.
    """
    return Row(_KIND, name, {"content": encode_file(name, content)})


def _content(name: str, fields: Fields | None) -> bytes | None:
    return None if fields is None else decode_file(name, fields.get("content"))
