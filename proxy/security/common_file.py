"""A file of users, ACLs or quotas that all servers with one coordinator have in common.

The coordinator has the file, each server has it in its data directory as before, and beside it, in
`common`, as it was when both were last the same. So a server knows which of them has changed:

    the coordinator's   it replaces the server's
    the server's        by an operator, or by a command: it replaces the coordinator's
    both                what has changed at the server is made in the coordinator's

A file that a server had before there was a common one is kept aside, and does not count.
"""

from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

import structlog

from pidlease.coordination.common_files import (
    CommonFileConflictError,
    CommonFiles,
    CommonFilesError,
)
from pidlease.storage.files import make_durable_folder, read_file, write_aside
from proxy.security.entry_file import EntryFile

#: How often other servers may replace the file while this one does.
_ATTEMPTS_MAX: Final = 20
_COMMON_FOLDER: Final = "common"

_log = structlog.get_logger(__name__)
_EntryT = TypeVar("_EntryT")


class CommonFile(Generic[_EntryT]):
    """A file that this server has in common with others. Its methods block.

    Parameters:
        file: this server's.
        files: those of the coordinator.
    """

    def __init__(self, file: EntryFile[_EntryT], files: CommonFiles) -> None:
        self._file: Final = file
        self._common: Final = files
        self._name: Final = file.kind.name
        self._same: Final = file.path.parent / _COMMON_FOLDER / self._name
        #: The coordinator's file, as of the last `seen` that was followed by a `sync`.
        self._synced: bytes | None = None

    def is_changed(self) -> bool:
        """Whether the coordinator's file may have changed since the last `sync`.

        Raises:
            CommonFilesError: this is unknown now.
        """
        return self._common.seen(self._name) != self._synced

    def sync(self) -> None:
        """Make this server's file and the coordinator's the same.

        Raises:
            LockedError: another process is changing this server's.
            EntryFileError: a file is broken; the server's was not replaced.
            CommonFilesError: the coordinator's cannot be read or replaced now.
            OSError: this server's cannot be read or replaced.
        """
        lock = self._file.lock()
        try:
            self._synced = self._sync()
        finally:
            lock.release()

    def change(
        self, alter: Callable[[frozenset[_EntryT]], Iterable[_EntryT]]
    ) -> frozenset[_EntryT]:
        """Replace the entries of both files by those that a function returns; return them.

        Raises:
            As `sync`. After CommonFilesError the entries may have been replaced or not.
        """
        lock = self._file.lock()
        try:
            for _ in range(_ATTEMPTS_MAX):
                before = self._sync()
                entries = frozenset(alter(self._file.parse(before or b"")))
                content = self._file.render(entries, before or b"")
                if self._replace(content, before):
                    self._take(content)
                    self._synced = content
                    return entries
        finally:
            lock.release()
        raise CommonFilesError(f"other servers have always changed the {self._name} meanwhile")

    def _sync(self) -> bytes | None:
        """Make both files the same, and return them; None: there are none."""
        for _ in range(_ATTEMPTS_MAX):
            mine, theirs = self._file.content(), self._common.read(self._name)
            content = self._after(mine, self._last_same(), theirs)
            if content is None:
                return None
            if content == theirs or self._replace(content, theirs):
                self._take(content)
                return content
        raise CommonFilesError(f"other servers have always changed the {self._name} meanwhile")

    def _after(self, mine: bytes | None, same: bytes | None, theirs: bytes | None) -> bytes | None:
        """Return what both files will be.

        Parameters:
            mine: this server's file; None: there is none.
            same: as both were before.
            theirs: the coordinator's.
        """
        if theirs is None:
            if mine is not None:
                self._file.parse(mine)
            return mine
        entries = self._file.parse(theirs)
        if mine is None or mine in {same, theirs}:
            if mine is None and same is not None:
                _log.warning("a file that servers have in common was missing here",
                             file=str(self._file.path))  # fmt: skip
            return theirs
        if same is None:
            self._put_aside(mine)
            return theirs
        changed = self._file.parse(mine)
        if theirs == same:
            return mine
        key = self._file.kind.key
        before = {key(each): each for each in self._file.parse(same)}
        after = {key(each): each for each in changed}
        merged = {key(each): each for each in entries}
        for gone in before.keys() - after.keys():
            merged.pop(gone, None)
        merged |= {each: after[each] for each in after if after[each] != before.get(each)}
        return self._file.render(merged.values(), theirs)

    def _replace(self, content: bytes, theirs: bytes | None) -> bool:
        """Replace the coordinator's file; False: another server has."""
        try:
            self._common.replace(self._name, content, theirs)
        except CommonFileConflictError:
            return False
        return True

    def _take(self, content: bytes) -> None:
        """Replace this server's file, and then what both were last."""
        if self._file.content() != content:
            self._file.replace(content)
        if self._last_same() != content:
            make_durable_folder(self._file.files, self._same.parent)
            write_aside(self._file.files, self._same, [content])

    def _last_same(self) -> bytes | None:
        files = self._file.files
        return read_file(files, self._same) if files.exists(self._same) else None

    def _put_aside(self, mine: bytes) -> None:
        aside = self._file.path.with_name(f"{self._name}.before-common")
        write_aside(self._file.files, aside, [mine])
        _log.warning("the servers have another file in common; this one's does not count any more",
                     file=str(self._file.path), kept=str(aside))  # fmt: skip
