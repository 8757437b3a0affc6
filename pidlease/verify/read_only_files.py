"""Reads a data directory without changing it, and keeps servers out meanwhile."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from typing_extensions import override

from pidlease.storage.files import Files, Lock, LockedError, OpenFile, is_aside
from pidlease.verify.verify_report import UnusableDirectoryError


class ReadOnlyFiles(Files):
    """A file system that cannot be changed.

    When a store opens a folder, it makes and fsyncs the folder, and sweeps temporary files: here
    that does nothing, and temporary files are not listed. Every other change raises.

    Parameters:
        listed: whether `list` returns a name.
    """

    def __init__(
        self, files: Files, listed: Callable[[str], bool] = lambda name: not is_aside(name)
    ) -> None:
        self._files = files
        self._listed = listed

    @override
    def open(self, path: Path, *, create: bool = False) -> NoReturn:
        raise _refused(path)

    @override
    def open_readonly(self, path: Path) -> OpenFile:
        return self._files.open_readonly(path)

    @override
    def exists(self, path: Path) -> bool:
        return self._files.exists(path)

    @override
    def is_folder(self, path: Path) -> bool:
        return self._files.is_folder(path)

    @override
    def list(self, folder: Path) -> list[str]:
        return [name for name in self._files.list(folder) if self._listed(name)]

    @override
    def make_folder(self, folder: Path) -> None:
        """Do nothing: a missing folder reads as an empty one."""

    @override
    def rename(self, source: Path, target: Path) -> NoReturn:
        raise _refused(target)

    @override
    def remove(self, path: Path) -> NoReturn:
        raise _refused(path)

    @override
    def fsync_folder(self, folder: Path) -> None:
        """Do nothing."""

    @override
    def lock(self, path: Path, content: str) -> Lock:
        # It would write into the lock file; `keep_servers_out` does not.
        raise _refused(path)

    @override
    def lock_shared(self, path: Path) -> Lock:
        return self._files.lock_shared(path)


def _refused(path: Path) -> OSError:
    return OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


@contextmanager
def keep_servers_out(files: Files, path: Path) -> Iterator[bool]:
    """Hold the lock of a data directory, shared, so that no server can start in it.

    `Files.lock` would not do: it creates the file, and writes into it.

    Yields:
        Whether there is a lock file; without one (as in a copy) no server is kept out.

    Raises:
        UnusableDirectoryError: a server holds the lock, or the file cannot be opened.
    """
    try:
        lock = files.lock_shared(path / "lock")
    except FileNotFoundError:
        yield False
        return
    except LockedError as error:
        text = f"{path} is in use by {error.holder}; stop that one first, or use a copy"
        raise UnusableDirectoryError(text) from None
    except OSError as error:
        raise UnusableDirectoryError(f"{path} cannot be read: {error}") from error
    try:
        yield True
    finally:
        lock.release()
