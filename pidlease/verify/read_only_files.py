"""Reading a data directory without leaving a trace, and keeping servers out meanwhile."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from typing_extensions import override

from pidlease.storage.files import Files, Lock, LockedError, OpenFile, is_aside
from pidlease.verify.verify_report import CannotLookError


class ReadOnlyFiles(Files):
    """A file system that cannot be changed (see `files.Files`).

    What the stores do when they open a folder comes to nothing: it is not made, not fsynced, and
    what would be swept from it is not listed. Everything else that would change something raises.

    Parameters:
        files: the file system.
        listed: which names `list` returns.
    """

    def __init__(
        self, files: Files, listed: Callable[[str], bool] = lambda name: not is_aside(name)
    ) -> None:
        self._files = files
        self._listed = listed

    def open(self, path: Path, *, create: bool = False) -> NoReturn:  # noqa: ARG002 - the port's
        """Raise: it would be open for writing."""
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

    def make_folder(self, folder: Path) -> None:
        """Do nothing: a folder that is not there reads as an empty one."""

    def rename(self, source: Path, target: Path) -> NoReturn:  # noqa: ARG002 - the port's
        """Raise."""
        raise _refused(target)

    def remove(self, path: Path) -> NoReturn:
        """Raise."""
        raise _refused(path)

    def fsync_folder(self, folder: Path) -> None:
        """Do nothing."""

    def lock(self, path: Path, content: str) -> Lock:  # noqa: ARG002 - the port's
        """Raise: it would leave a word in the file; see `keep_servers_out`."""
        raise _refused(path)

    @override
    def lock_shared(self, path: Path) -> Lock:
        return self._files.lock_shared(path)


def _refused(path: Path) -> OSError:
    return OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


@contextmanager
def keep_servers_out(files: Files, path: Path) -> Iterator[bool]:
    """Hold the lock of a data directory, shared, so that no server can start in it.

    Not by `Files.lock`: that makes the file where it is missing, and writes into it.

    Parameters:
        files: the file system.
        path: the data directory.

    Yields:
        Whether there was a lock to hold; without one (a copy, perhaps) no server is kept out.

    Raises:
        CannotLookError: a server has it, or it cannot be opened.
    """
    try:
        lock = files.lock_shared(path / "lock")
    except FileNotFoundError:
        yield False
        return
    except LockedError as error:
        text = f"{path} is in use by {error.holder}; stop that one first, or look at a copy"
        raise CannotLookError(text) from None
    except OSError as error:
        raise CannotLookError(f"{path} cannot be read: {error}") from error
    try:
        yield True
    finally:
        lock.release()
