"""The file system as a small port, which is the only access to the data directory.

Tests use another implementation, which loses data that was not fsynced, tears writes, fills the
disk or fails calls. `faults.FaultyFiles` wraps the real one to kill the process between any two
steps.
"""

import errno
import fcntl
import itertools
import os
import re
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from typing_extensions import override

from pidlease.core.buffer import Buffer
from pidlease.observability.histogram import Histogram, SharedHistogram

#: Buffers in one writev call; Linux takes 1024 (IOV_MAX).
_BUFFERS_MAX: Final = 1024


_ASIDE: Final = ".aside-"
#: Matches exactly the names that `aside_path` makes: a topic may have nearly such a name.
_ASIDE_NAME: Final = re.compile(r"\.aside-\d+-\d+")
_aside_numbers = itertools.count()

#: Read from the page cache only; 0: Python was built without it, and nothing is read that way.
_NOWAIT: Final = getattr(os, "RWF_NOWAIT", 0)

#: How many bytes of a lock file are shown if it is locked.
_HOLDER_BYTES: Final = 200


class OpenFile(Protocol):
    """An open file, for reading and writing at given positions."""

    def write_at(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all the buffers, one after the other, from a position in bytes.

        The items of a memoryview must be bytes.
        """

    def read_at(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""

    def read_cached(self, size: int, position: int) -> bytearray | None:
        """Read `size` bytes without a wait for the disk; None: `read_at` has to read them."""

    def size(self) -> int:
        """Return the length in bytes."""

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros, to a length in bytes."""

    def fsync(self) -> None:
        """Wait until content and length are on the disk."""

    def modified_ms(self) -> int:
        """Return when it was last written to, in ms since 1970."""

    def is_at(self, path: Path) -> bool:
        """Whether a path leads to this file: it was not removed, moved or replaced."""

    def close(self) -> None:
        """Close the file."""


class LockedError(BlockingIOError):
    """Another process has the lock.

    Attributes:
        holder: the text in the lock file, by which the process describes itself.
    """

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is locked by {holder}")
        self.holder = holder


class Lock(Protocol):
    """A lock, held until `release` or the end of the process."""

    def release(self) -> None:
        """Release the lock."""

    def is_lost(self) -> bool:
        """Whether the lock's file was removed, moved or replaced: it keeps no process out."""


class Files(Protocol):
    """A file system. All methods may raise OSError."""

    def open(self, path: Path, *, create: bool = False) -> OpenFile:
        """Open a file for reading and writing; with `create`, create it if it is missing."""

    def open_readonly(self, path: Path) -> OpenFile:
        """Open a file for reading."""

    def exists(self, path: Path) -> bool:
        """Whether a file or folder exists."""

    def is_folder(self, path: Path) -> bool:
        """Whether a folder exists."""

    def list(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted; empty if the folder is missing."""

    def make_folder(self, folder: Path) -> None:
        """Create a folder, and its parents, if they are missing."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or folder, and replace a file at the target."""

    def remove(self, path: Path) -> None:
        """Remove a file, or an empty folder."""

    def fsync_folder(self, folder: Path) -> None:
        """Wait until the names in the folder are on the disk."""

    def lock(self, path: Path, content: str) -> Lock:
        """Take an exclusive lock, and write into the file which process holds it.

        Raises:
            LockedError: another process has the lock; the message names it.
        """

    def lock_shared(self, path: Path) -> Lock:
        """Take a shared lock, which prevents an exclusive one; write nothing.

        Raises:
            FileNotFoundError: there is no such file.
            LockedError: another process has the exclusive lock; the message names it.
        """


class RealFile(OpenFile):
    """A file of the operating system.

    Parameters:
        descriptor: the open file descriptor; closed by this object.
        fsyncs: gets the durations of fsyncs, in seconds.
    """

    def __init__(self, descriptor: int, fsyncs: Histogram) -> None:
        self._descriptor = descriptor
        self._fsyncs: Final = fsyncs
        self._reads_cached = bool(_NOWAIT)

    @override
    def write_at(self, buffers: Sequence[Buffer], position: int) -> None:
        for start in range(0, len(buffers), _BUFFERS_MAX):
            part = buffers[start : start + _BUFFERS_MAX]
            wanted = sum(map(len, part))
            written = os.pwritev(self._descriptor, part, position)
            if written < wanted:
                self._write_rest(b"".join(part)[written:], position + written)
            position += wanted

    def _write_rest(self, rest: bytes, position: int) -> None:
        """Continue a short write (a signal, a nearly full disk), or raise its reason."""
        while rest:
            written = os.pwrite(self._descriptor, rest, position)
            rest = rest[written:]
            position += written

    @override
    def read_at(self, size: int, position: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        missing = size - len(data)
        while missing:
            data = os.pread(self._descriptor, missing, position + size - missing)
            if not data:
                break
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    @override
    def read_cached(self, size: int, position: int) -> bytearray | None:
        if not self._reads_cached:
            return None
        data = bytearray(size)
        try:
            found = os.preadv(self._descriptor, [data], position, _NOWAIT)
        except OSError as error:
            # The pages are not in the cache, or the file system does not know this way to read.
            # `read_at` raises any other error.
            self._reads_cached = error.errno != errno.EOPNOTSUPP
            return None
        return data if found == size else None

    @override
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    @override
    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    @override
    def fsync(self) -> None:
        began = time.monotonic()
        try:
            os.fdatasync(self._descriptor)  # the length is metadata that fdatasync writes, too
        finally:
            self._fsyncs.observe(time.monotonic() - began)

    @override
    def modified_ms(self) -> int:
        return os.fstat(self._descriptor).st_mtime_ns // 1_000_000

    @override
    def is_at(self, path: Path) -> bool:
        return _is_at(self._descriptor, path)

    @override
    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class RealLock(Lock):
    """An flock, which the kernel releases when the process ends, even by a kill."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path: Final = path

    @override
    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @override
    def is_lost(self) -> bool:
        return self._descriptor >= 0 and not _is_at(self._descriptor, self._path)

    def check(self, path: Path) -> None:
        """Check, before a path in the lock's folder is used, that the folder is the same.

        Raises:
            OSError: it was removed, moved or replaced.
        """
        folder = self._path.parent
        if path.is_relative_to(folder) and self.is_lost():
            reason = "the directory was removed, moved or replaced under this process"
            raise OSError(errno.ESTALE, reason, str(folder))


class RealFiles(Files):
    """The file system of the operating system.

    In a folder that it has locked, it opens and changes nothing once the lock is lost.

    Attributes:
        fsyncs: the durations of fsyncs of files, in seconds; those of folders do not count.
    """

    def __init__(self) -> None:
        self.fsyncs: Final = SharedHistogram()
        self._locks: Final[list[RealLock]] = []

    def _check_place(self, path: Path) -> None:
        for lock in self._locks:
            lock.check(path)

    @override
    def open(self, path: Path, *, create: bool = False) -> RealFile:
        self._check_place(path)
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(os.open(path, flags, 0o644), self.fsyncs)

    @override
    def open_readonly(self, path: Path) -> RealFile:
        self._check_place(path)
        return RealFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), self.fsyncs)

    @override
    def exists(self, path: Path) -> bool:
        return _mode(path) is not None

    @override
    def is_folder(self, path: Path) -> bool:
        mode = _mode(path)
        return mode is not None and stat.S_ISDIR(mode)

    @override
    def list(self, folder: Path) -> list[str]:
        try:
            return sorted(entry.name for entry in folder.iterdir())
        except FileNotFoundError:
            return []

    @override
    def make_folder(self, folder: Path) -> None:
        self._check_place(folder)
        folder.mkdir(parents=True, exist_ok=True)

    @override
    def rename(self, source: Path, target: Path) -> None:
        self._check_place(target)
        source.replace(target)

    @override
    def remove(self, path: Path) -> None:
        self._check_place(path)
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()

    @override
    def fsync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @override
    def lock(self, path: Path, content: str) -> RealLock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        lock = _flock(descriptor, path, fcntl.LOCK_EX)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, content.encode(), 0)
        except OSError:
            lock.release()
            raise
        self._locks.append(lock)
        return lock

    @override
    def lock_shared(self, path: Path) -> RealLock:
        return _flock(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path, fcntl.LOCK_SH)


def _flock(descriptor: int, path: Path, kind: int) -> RealLock:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, _HOLDER_BYTES, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise LockedError(path, holder or "another process") from None
    return RealLock(descriptor, path)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def read_file(files: Files, path: Path) -> bytes:
    """Return the whole content of a file."""
    opened = files.open_readonly(path)
    try:
        return opened.read_at(opened.size(), 0)
    finally:
        opened.close()


def aside_path(folder: Path) -> Path:
    """Return a path in the folder that no other file uses."""
    return folder / f"{_ASIDE}{os.getpid()}-{next(_aside_numbers)}"


def is_aside(name: str) -> bool:
    """Whether a name is one of `aside_path`: after a crash, of a half-written file or folder."""
    return _ASIDE_NAME.fullmatch(name) is not None


def sweep_asides(files: Files, folder: Path) -> None:
    """Remove half-written files and folders that a crash left."""
    for name in files.list(folder):
        if is_aside(name):
            for inner in files.list(folder / name) if files.is_folder(folder / name) else ():
                files.remove(folder / name / inner)
            files.remove(folder / name)


def write_aside(
    files: Files, path: Path, chunks: Iterable[Buffer], mode: int | None = None
) -> None:
    """Replace a file as a whole: after a crash it has the old content, or the new.

    Writes another file, fsyncs and renames it, and fsyncs the folder.

    Parameters:
        mode: the file's permissions, from before the first byte is written; None: the default.
    """
    aside = aside_path(path.parent)
    try:
        opened = files.open(aside, create=True)
        try:
            opened.truncate(0)
            if mode is not None:
                aside.chmod(mode)
            position = 0
            for chunk in chunks:
                opened.write_at([chunk], position)
                position += len(chunk)
            opened.fsync()
        finally:
            opened.close()
        files.rename(aside, path)
    except OSError:
        with suppress(OSError):  # the disk may be full: do not leave the unused file
            files.remove(aside)
        raise
    files.fsync_folder(path.parent)


def make_durable_folder(files: Files, folder: Path) -> None:
    """Create a folder and its missing parents, durably.

    The name of the lowest folder that exists is fsynced, too: a crash may have happened between
    creating it and the fsync.
    """
    missing = []
    while not files.exists(folder):
        missing.append(folder)
        folder = folder.parent
    if folder.parent != folder:
        # A folder without permission is not ours, so this program did not create it, either.
        with suppress(PermissionError, FileNotFoundError):
            files.fsync_folder(folder.parent)
    for each in reversed(missing):
        files.make_folder(each)
        files.fsync_folder(each.parent)


def _mode(path: Path) -> int | None:
    """Return a file's mode; None: there is no such file.

    `Path.exists` does not do: from Python 3.14 on it takes any error for a missing file.
    """
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def make_durable_file(files: Files, path: Path, content: bytes = b"") -> None:
    """Create a file and its folder if they are missing; remove the leftovers of a crash."""
    make_durable_folder(files, path.parent)
    sweep_asides(files, path.parent)
    if not files.exists(path):
        write_aside(files, path, [content])
    # A crash may have happened between a rename and its fsync.
    files.fsync_folder(path.parent)


def remove_tree(files: Files, folder: Path) -> None:
    """Remove a folder of files, and the files in it."""
    for name in files.list(folder):
        files.remove(folder / name)
    files.remove(folder)
