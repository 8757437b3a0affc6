"""The one small port through which everything on disk is touched.

Tests use another implementation, one that loses what was not fsynced, tears writes,
fills the disk or fails calls; `faults.FaultyFiles` wraps the real one to kill the process
between any two steps. Nothing else in the project opens a file of the data directory.
"""

import fcntl
import itertools
import os
import re
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
#: Exactly what `aside_path` makes: a topic may be named nearly like it.
_ASIDE_NAME: Final = re.compile(r"\.aside-\d+-\d+")
_aside_numbers = itertools.count()

#: How much of a lock file is shown where it is found locked.
_HOLDER_BYTES: Final = 200


class OpenFile(Protocol):
    """A file that is open for reading and writing at given places."""

    def write_at(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all the buffers, one after the other, from a position in bytes.

        A memoryview must be one of bytes.
        """

    def read_at(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""

    def size(self) -> int:
        """The length in bytes."""

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros, to a length in bytes."""

    def fsync(self) -> None:
        """Return when content and length are on the disk."""

    def close(self) -> None:
        """Let go of the file."""


class LockedError(BlockingIOError):
    """Another process has the lock.

    Attributes:
        holder: what it says of itself.
    """

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path} is locked by {holder}")
        self.holder = holder


class Lock(Protocol):
    """A lock that ends with `release` or with the process."""

    def release(self) -> None:
        """Let the next one in."""


class Files(Protocol):
    """A file system. All methods may raise OSError."""

    def open(self, path: Path, *, create: bool = False) -> OpenFile:
        """Open for reading and writing; with `create`, make the file where it is missing."""

    def open_readonly(self, path: Path) -> OpenFile:
        """Open for reading."""

    def exists(self, path: Path) -> bool:
        """Whether there is a file or folder."""

    def is_folder(self, path: Path) -> bool:
        """Whether there is a folder."""

    def list(self, folder: Path) -> list[str]:
        """The names in a folder, sorted; none where the folder is missing."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder, and those above it, where they are missing."""

    def rename(self, source: Path, target: Path) -> None:
        """Move, replacing a file at the target."""

    def remove(self, path: Path) -> None:
        """Remove a file, or an empty folder."""

    def fsync_folder(self, folder: Path) -> None:
        """Return when the names in the folder are on the disk."""

    def lock(self, path: Path, content: str) -> Lock:
        """Take an exclusive lock, and write into the file which process holds it.

        Raises:
            LockedError: another process has it; its word is in the message.
        """

    def lock_shared(self, path: Path) -> Lock:
        """Keep others from an exclusive lock, leaving no trace.

        Raises:
            FileNotFoundError: there is no such file.
            LockedError: another process has the exclusive lock; its word is in the message.
        """


class RealFile(OpenFile):
    """An operating system's file.

    Parameters:
        descriptor: it is open.
        fsyncs: how long they take.
    """

    def __init__(self, descriptor: int, fsyncs: Histogram) -> None:
        self._descriptor = descriptor
        self._fsyncs: Final = fsyncs

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
        """A short write (a signal, a nearly full disk): go on, or learn the reason."""
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
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    @override
    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    @override
    def fsync(self) -> None:
        """The length is metadata that fdatasync keeps, too."""
        began = time.monotonic()
        try:
            os.fdatasync(self._descriptor)
        finally:
            self._fsyncs.observe(time.monotonic() - began)

    @override
    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class RealLock(Lock):
    """An flock, which the kernel releases when the process ends, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @override
    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class RealFiles(Files):
    """The operating system's file system.

    Attributes:
        fsyncs: how long those of files took; not those of folders.
    """

    def __init__(self) -> None:
        self.fsyncs: Final = SharedHistogram()

    @override
    def open(self, path: Path, *, create: bool = False) -> RealFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(os.open(path, flags, 0o644), self.fsyncs)

    @override
    def open_readonly(self, path: Path) -> RealFile:
        return RealFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), self.fsyncs)

    @override
    def exists(self, path: Path) -> bool:
        return path.exists()

    @override
    def is_folder(self, path: Path) -> bool:
        return path.is_dir()

    @override
    def list(self, folder: Path) -> list[str]:
        try:
            return sorted(entry.name for entry in folder.iterdir())
        except FileNotFoundError:
            return []

    @override
    def make_folder(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)

    @override
    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    @override
    def remove(self, path: Path) -> None:
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
    return RealLock(descriptor)


def read_file(files: Files, path: Path) -> bytes:
    """The whole content of a file."""
    opened = files.open_readonly(path)
    try:
        return opened.read_at(opened.size(), 0)
    finally:
        opened.close()


def aside_path(folder: Path) -> Path:
    """Return a name in the folder that is not in use."""
    return folder / f"{_ASIDE}{os.getpid()}-{next(_aside_numbers)}"


def is_aside(name: str) -> bool:
    """Whether a name is that of something a crash left half written; the next start sweeps it."""
    return _ASIDE_NAME.fullmatch(name) is not None


def sweep_asides(files: Files, folder: Path) -> None:
    """Remove what a crash left of files and folders that were being written aside."""
    for name in files.list(folder):
        if is_aside(name):
            for inner in files.list(folder / name) if files.is_folder(folder / name) else ():
                files.remove(folder / name / inner)
            files.remove(folder / name)


def write_aside(files: Files, path: Path, chunks: Iterable[Buffer]) -> None:
    """Replace a file as a whole: after a crash there is the old content, or the new.

    Written aside, fsynced, renamed, and the folder fsynced.
    """
    aside = aside_path(path.parent)
    try:
        opened = files.open(aside, create=True)
        try:
            opened.truncate(0)
            position = 0
            for chunk in chunks:
                opened.write_at([chunk], position)
                position += len(chunk)
            opened.fsync()
        finally:
            opened.close()
        files.rename(aside, path)
    except OSError:
        with suppress(OSError):  # the disk is full, perhaps: do not leave it fuller
            files.remove(aside)
        raise
    files.fsync_folder(path.parent)


def make_durable_folder(files: Files, folder: Path) -> None:
    """Make a folder and the missing ones above it, each of them on the disk when this returns.

    The name of the one that is there already is fsynced, too: a crash may have come between
    making it and the fsync.
    """
    missing = []
    while not files.exists(folder):
        missing.append(folder)
        folder = folder.parent
    if folder.parent != folder:
        with suppress(PermissionError, FileNotFoundError):  # not ours, so not made by us either
            files.fsync_folder(folder.parent)
    for each in reversed(missing):
        files.make_folder(each)
        files.fsync_folder(each.parent)


def make_durable_file(files: Files, path: Path) -> None:
    """Make an empty file where it is missing, its folder too; what a crash left there is swept."""
    make_durable_folder(files, path.parent)
    sweep_asides(files, path.parent)
    if not files.exists(path):
        write_aside(files, path, [])
    # A crash may have come between a rename and its fsync.
    files.fsync_folder(path.parent)


def remove_tree(files: Files, folder: Path) -> None:
    """Remove a folder that holds files only, and the files in it."""
    for name in files.list(folder):
        files.remove(folder / name)
    files.remove(folder)
