"""A file of users, ACLs or quotas that all servers with one coordinator have in common.

The coordinator has the file, and each server has it in its data directory as before. Beside it, in
`common`, a server has it as it was when both were last the same. So a server knows which of them
has changed:

    the coordinator's   it replaces the server's
    the server's        by an operator, or by a command: it replaces the coordinator's
    both                what has changed at the server is made in the coordinator's

While a server's file is replaced, `common` has what replaces it as well: after a crash in between,
the new file does not count as an operator's. A file that a server had before there was a common one
is kept aside, and does not count.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final, Generic, TypeVar

import structlog

from pidlease.coordination.common_files import (
    CommonFileConflictError,
    CommonFiles,
    CommonFilesError,
    CommonFileTooLongError,
)
from pidlease.storage.files import make_durable_folder, read_file, write_aside
from proxy.security.entry_file import EntryFile, EntryFileError

#: How often other servers, or an operator, may change the file while this server does.
_ATTEMPTS_MAX: Final = 20
_COMMON_FOLDER: Final = "common"
#: Only the server's user reads what is written here.
_MODE: Final = 0o600

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
        folder = file.path.parent / _COMMON_FOLDER
        #: Both files, when they were last the same.
        self._same: Final = folder / self._name
        #: What this server's file is being replaced by.
        self._incoming: Final = folder / f"{self._name}.incoming"
        #: The versions of both files for which the last `sync` was enough.
        self._done: object = None

    def needs_sync(self) -> bool:
        """Whether one of both files has changed, or could not be made the same until now.

        Raises:
            CommonFilesError: this is unknown now.
        """
        return self._versions() != self._done

    def sync(self) -> None:
        """Make this server's file and the coordinator's the same.

        Raises:
            LockedError: another process is changing this server's.
            EntryFileError: a file is broken; the server's was not replaced.
            CommonFilesError: the coordinator's cannot be read or replaced now.
            OSError: this server's cannot be read or replaced.
        """
        with self._locked():
            self._sync()

    def change(
        self, alter: Callable[[frozenset[_EntryT]], Iterable[_EntryT]]
    ) -> frozenset[_EntryT]:
        """Replace the entries of both files by those that a function returns; return them.

        Raises:
            As `sync`. After a CommonFilesError other than CommonFileTooLongError, the entries may
            have been replaced or not.
        """
        with self._locked():
            for _ in range(_ATTEMPTS_MAX):
                before = self._sync()
                entries = frozenset(alter(self._file.parse(before or b"")))
                content = self._file.render(entries, before or b"")
                # A conflict may come from an attempt of this call with an unknown outcome.
                if self._replace(content, before) or self._common.read(self._name) == content:
                    # If an operator has just changed the file, the next `sync` makes both changes.
                    self._take(content, before)
                    return entries
        raise self._busy()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self._file.lock()
        try:
            yield
        finally:
            lock.release()

    def _sync(self) -> bytes | None:
        """Make both files the same, and return them; None: there are none."""
        for _ in range(_ATTEMPTS_MAX):
            versions = self._versions()
            mine, theirs = self._file.content(), self._common.read(self._name)
            try:
                content = self._after(mine, theirs)
                same = content is None or content == theirs or self._replace(content, theirs)
            except (EntryFileError, CommonFileTooLongError):
                self._done = versions  # the same again, until a file is changed
                raise
            if same and (content is None or self._take(content, mine)):
                self._done = versions
                return content
        raise self._busy()

    def _after(self, mine: bytes | None, theirs: bytes | None) -> bytes | None:
        """Return what both files will be; None: there is none.

        Parameters:
            mine: this server's file; None: there is none.
            theirs: the coordinator's.
        """
        same = self._read(self._same)
        if mine is not None and mine == self._read(self._incoming):
            same = mine
        if theirs is None:
            if mine is not None:
                self._parse_own(mine)
            return mine
        is_edited = mine is not None and same is not None and mine not in {same, theirs}
        try:
            entries = self._file.parse(theirs, f"the {self._name} of all servers")
        except EntryFileError:
            if not is_edited:
                raise
            entries, same = frozenset(), theirs  # an operator repairs it
        if is_edited and mine is not None and same is not None:
            changed = self._parse_own(mine)
            return mine if theirs == same else self._merged(changed, same, entries, theirs)
        if mine is None and same is not None:
            _log.warning("a file that servers have in common was missing here",
                         file=str(self._file.path))  # fmt: skip
        if mine is not None and same is None and mine != theirs:
            self._put_aside(mine)
        return theirs

    def _merged(
        self,
        changed: frozenset[_EntryT],
        same: bytes,
        entries: frozenset[_EntryT],
        theirs: bytes,
    ) -> bytes:
        """Return the coordinator's file with what has changed at this server.

        Parameters:
            changed: the entries of this server's file.
            same: both files, when they were last the same.
            entries: those of the coordinator's.
            theirs: the coordinator's file.
        """
        key = self._file.kind.key
        before = {key(each): each for each in self._file.parse(same, self._same)}
        after = {key(each): each for each in changed}
        merged = {key(each): each for each in entries}
        for gone in before.keys() - after.keys():
            merged.pop(gone, None)
        merged |= {each: after[each] for each in after if after[each] != before.get(each)}
        return self._file.render(merged.values(), theirs)

    def _parse_own(self, mine: bytes) -> frozenset[_EntryT]:
        try:
            return self._file.parse(mine)
        except EntryFileError as error:
            raise EntryFileError(
                f"{error}. The {self._name} of all servers are unchanged: repair the file, or"
                " remove it to have theirs"
            ) from None

    def _replace(self, content: bytes, theirs: bytes | None) -> bool:
        """Replace the coordinator's file; False: another server has."""
        try:
            self._common.replace(self._name, content, theirs)
        except CommonFileConflictError:
            return False
        return True

    def _take(self, content: bytes, mine: bytes | None) -> bool:
        """Replace this server's file; False: it has changed since it was read."""
        files = self._file.files
        if self._file.content() != mine:
            return False
        if mine != content:
            self._write(self._incoming, content)
            self._file.replace(content)
        if self._read(self._same) != content:
            self._write(self._same, content)
        if files.exists(self._incoming):
            files.remove(self._incoming)
        return True

    def _put_aside(self, mine: bytes) -> None:
        first = f"{self._name}.before-common"
        names = (first if number == 1 else f"{first}-{number}" for number in count(1))
        paths = map(self._file.path.with_name, names)
        aside = next(each for each in paths if self._read(each) in {None, mine})
        self._write(aside, mine)
        _log.warning("the servers have another file in common; this one's does not count any more",
                     file=str(self._file.path), kept=str(aside))  # fmt: skip

    def _read(self, path: Path) -> bytes | None:
        files = self._file.files
        return read_file(files, path) if files.exists(path) else None

    def _write(self, path: Path, content: bytes) -> None:
        make_durable_folder(self._file.files, path.parent)
        write_aside(self._file.files, path, [content], _MODE)

    def _versions(self) -> object:
        return self._file.version(), self._common.version(self._name)

    def _busy(self) -> CommonFilesError:
        return CommonFilesError(f"others have always changed the {self._name} meanwhile")
