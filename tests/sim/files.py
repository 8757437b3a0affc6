"""A file system in memory that loses what a real one may lose, behind the port `storage.files`.

    files = SimFiles(seed)
    files.crash_at(7)                       # or on_operation, fail_next, capacity, read_only
    with pytest.raises(SimulatedCrash):
        scenario(files)
    check(files.process_death())            # what a kill -9 at that point leaves
    for seed in range(100):
        check(files.power_loss(seed))       # what a power cut at that point may leave

Both views are copies: any number of them can be taken of one scenario.
"""

import copy
import errno
from collections.abc import Sequence
from pathlib import Path
from random import Random

from typing_extensions import override

from pidlease.core.buffer import Buffer
from pidlease.storage.files import OpenFile
from tests.sim.disk import FileNode, FolderNode, Losses, Node, Place, Tree, Truncate, Write
from tests.sim.gate import Gate, SimulatedCrash, os_error

__all__ = ["SimFile", "SimFiles", "SimLock", "SimulatedCrash"]


#: Linux's NAME_MAX.
_NAME_BYTES_MAX = 255


class SimFiles(Gate):
    """See `storage.files.Files`; hooks, faults and crash points are those of `Gate`.

    The root folder exists from the start. Attributes beside the gate's:

        capacity: the disk's size in bytes, or None; holes count, names do not.
        cached: whether files are in the page cache.
        modified_ms: when all files were last written to, in ms since 1970; this disk has no clock.
        lost_writes, lost_sectors, lost_names, torn_files: what the power cut that led here took
            away, so that a test can tell that there was something to lose (see `disk.Losses`).
    """

    def __init__(
        self, seed: int = 0, *, capacity: int | None = None, ordered_names: bool = False
    ) -> None:
        """Start with an empty disk.

        Args:
            seed: decides what power cuts and failed fsyncs lose.
            capacity: the disk's size in bytes.
            ordered_names: in a power cut the first changes of a folder's names survive, as on a
                journal, instead of any.
        """
        super().__init__()
        self.seed = seed
        self.capacity = capacity
        self.ordered_names = ordered_names
        self.cached = True
        self.modified_ms = 2**62
        self.random = Random(seed)
        self.tree = Tree()
        self._locked: set[FileNode] = set()
        self._count(Losses())

    def open(self, path: Path, *, create: bool = False) -> "SimFile":
        """See `Files`."""
        with self.operation("open", path):
            self.check_failures("open", path)
            return SimFile(self, self._find_or_create(path, create=create), path)

    def open_readonly(self, path: Path) -> "SimFile":
        """See `Files`."""
        with self.operation("open_readonly", path):
            self.check_failures("open_readonly", path)
            return SimFile(self, self._find_file(path), path, writable=False)

    def exists(self, path: Path) -> bool:
        """See `Files`."""
        with self.operation("exists", path):
            self.check_failures("exists", path)
            return self._look(path) is not None

    def is_folder(self, path: Path) -> bool:
        """See `Files`."""
        with self.operation("is_folder", path):
            self.check_failures("is_folder", path)
            return isinstance(self._look(path), FolderNode)

    def make_folder(self, folder: Path) -> None:
        """See `Files`."""
        with self.operation("make_folder", folder):
            self.check_failures("make_folder", folder)
            for each in (*reversed(folder.parents), folder):
                found = self._find(each)
                if isinstance(found, FileNode):
                    raise os_error(errno.EEXIST if each == folder else errno.ENOTDIR, each)
                if found is None:
                    self.change("make_folder", each)
                    self.tree.change(FolderNode(), None, self._place(each))

    def rename(self, source: Path, target: Path) -> None:
        """See `Files`."""
        with self.operation("rename", target):
            self.check_failures("rename", target)
            places = self._place(source), self._place(target)
            moved, replaced = self._require(source), self._find(target)
            if source in target.parents:
                raise os_error(errno.EINVAL, target)
            if target in source.parents:
                raise os_error(errno.ENOTEMPTY, target)
            if moved is replaced:
                return
            if isinstance(replaced, FolderNode):
                if isinstance(moved, FileNode):
                    raise os_error(errno.EISDIR, target)
                if replaced.names:
                    raise os_error(errno.ENOTEMPTY, target)
            elif replaced is not None and isinstance(moved, FolderNode):
                raise os_error(errno.ENOTDIR, target)
            self.change("rename", target)
            self.tree.change(moved, *places)

    def remove(self, path: Path) -> None:
        """See `Files`."""
        with self.operation("remove", path):
            self.check_failures("remove", path)
            node = self._require(path)
            if isinstance(node, FolderNode) and node.names:
                raise os_error(errno.ENOTEMPTY, path)
            self.change("remove", path)
            self.tree.change(node, self._place(path), None)

    def fsync_folder(self, folder: Path) -> None:
        """See `Files`."""
        with self.operation("fsync_folder", folder):
            self.check_failures("fsync_folder", folder)
            node = self._find_folder(folder)
            self.change("fsync_folder", folder)
            self.tree.fsync_folder(node)

    def lock(self, path: Path, content: str) -> "SimLock":
        """See `Files`."""
        with self.operation("lock", path):
            self.check_failures("lock", path)
            node = self._find_or_create(path, create=True)
            if node in self._locked:
                holder = node.content.decode(errors="replace").strip()
                raise BlockingIOError(f"{path} is locked by {holder or 'another process'}")
            self.change("lock", path)
            node.do(Truncate(0))
            node.do(Write(0, content.encode()))
            self._locked.add(node)
            return SimLock(self, node, path)

    def lock_shared(self, path: Path) -> "SimLock":
        """See `Files`. The simulated server is alone: nothing looks at its directory meanwhile."""
        raise os_error(errno.ENOTSUP, path)

    def leads_to(self, path: Path, node: FileNode) -> bool:
        """Whether a path leads to a file; also after its removal, which no fault fails."""
        with self._mutex:
            return self._look(path) is node

    def unlock(self, node: FileNode) -> None:
        """Let the next one lock a file."""
        with self._mutex:
            self._locked.discard(node)

    def process_death(self) -> "SimFiles":
        """The file system after a kill -9: all is there, locks are free, nothing more is durable.

        This one, and what was opened through it, is dead from now on, and raises EIO.
        """
        after = SimFiles(self._draw_seed(), capacity=self.capacity)
        after.ordered_names, after.read_only = self.ordered_names, self.read_only
        with self._mutex:
            self._dead = True
            after.tree = copy.deepcopy(self.tree)
        return after

    def power_loss(self, seed: int | None = None) -> "SimFiles":
        """The file system as found after a power cut; this one is dead from now on.

        Args:
            seed: decides what is lost; without it, the file system's own seed does.
        """
        after = self.process_death()
        if seed is not None:
            after.seed, after.random = seed, Random(seed)
        after._count(after.tree.lose_power(after.random, ordered=self.ordered_names))
        return after

    def flip(self, path: Path, position: int, bit: int) -> None:
        """Damage a bit of a file, on the disk."""
        with self._mutex:
            node = self._find_file(path)
            assert position < len(node.content), (path, position)
            node.content[position] ^= 1 << bit
            node.settle()

    def cut(self, path: Path, size: int) -> None:
        """Damage a file: what is behind a size in bytes is gone, on the disk."""
        with self._mutex:
            node = self._find_file(path)
            assert size <= len(node.content), (path, size)
            del node.content[size:]
            node.settle()

    def room_for(self, growth: int) -> int:
        """How many of so many more bytes the disk can take."""
        if self.capacity is None:
            return growth
        return max(0, min(growth, self.capacity - self.tree.used_bytes()))

    def __repr__(self) -> str:
        return f"SimFiles(seed={self.seed})"

    def _count(self, losses: Losses) -> None:
        self.lost_writes = losses.lost_writes
        self.lost_sectors = losses.lost_sectors
        self.lost_names = losses.lost_names
        self.torn_files = losses.torn_files

    def _draw_seed(self) -> int:
        with self._mutex:
            return self.random.getrandbits(32)

    def _find(self, path: Path) -> Node | None:
        node: Node | None = self.tree.root
        for name in path.parts[1 if path.anchor else 0 :]:
            if isinstance(node, FileNode):
                raise os_error(errno.ENOTDIR, path)
            node = None if node is None else node.names.get(name)
        return node

    def _look(self, path: Path) -> Node | None:
        try:
            return self._find(path)
        except NotADirectoryError:
            return None

    def _require(self, path: Path) -> Node:
        node = self._find(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        return node

    def _find_file(self, path: Path) -> FileNode:
        node = self._require(path)
        if isinstance(node, FolderNode):
            raise os_error(errno.EISDIR, path)
        return node

    def _find_folder(self, path: Path) -> FolderNode:
        node = self._require(path)
        if isinstance(node, FileNode):
            raise os_error(errno.ENOTDIR, path)
        return node

    def _place(self, path: Path) -> Place:
        if len(path.name.encode()) > _NAME_BYTES_MAX:
            raise os_error(errno.ENAMETOOLONG, path)
        return self._find_folder(path.parent), path.name

    def _find_or_create(self, path: Path, *, create: bool) -> FileNode:
        if self._find(path) is not None or not create:
            node = self._find_file(path)
            if self.read_only:
                raise os_error(errno.EROFS, path)
            return node
        place = self._place(path)
        self.change("open", path)
        node = FileNode()
        self.tree.change(node, None, place)
        return node

    # The last one, because from here on the class's `list` is this one.
    def list(self, folder: Path) -> list[str]:
        """See `Files`."""
        with self.operation("list", folder):
            self.check_failures("list", folder)
            if self._find(folder) is None:
                return []
            return sorted(self._find_folder(folder).names)


class SimFile(OpenFile):
    """See `storage.files.OpenFile`."""

    def __init__(
        self, files: SimFiles, node: FileNode, path: Path, *, writable: bool = True
    ) -> None:
        self._files = files
        self._node = node
        self._path = path
        self._writable = writable
        self._closed = False

    @override
    def write_at(self, buffers: Sequence[Buffer], position: int) -> None:
        data = b"".join(buffers)
        with self._files.operation("write", self._path):
            self._check_open(writable=True)
            self._files.check_failures("write", self._path)
            try:
                self._files.change("write", self._path)
            except SimulatedCrash:
                if self._files.take_tear():
                    self._node.do(Write(position, data[: len(data) // 2]))
                raise
            growth = max(0, position + len(data) - len(self._node.content))
            missing = growth - self._files.room_for(growth)
            self._node.do(Write(position, data[: max(0, len(data) - missing)]))
            if missing:
                raise os_error(errno.ENOSPC, self._path)

    @override
    def read_at(self, size: int, position: int) -> bytes:
        with self._files.operation("read", self._path):
            self._check_open()
            self._files.check_failures("read", self._path)
            return bytes(self._node.content[position : position + size])

    @override
    def read_cached(self, size: int, position: int) -> bytearray | None:
        with self._files.operation("read_cached", self._path):
            self._check_open()
            data = bytearray(self._node.content[position : position + size])
            return data if self._files.cached and len(data) == size else None

    @override
    def size(self) -> int:
        with self._files.operation("size", self._path):
            self._check_open()
            self._files.check_failures("size", self._path)
            return len(self._node.content)

    @override
    def truncate(self, size: int) -> None:
        with self._files.operation("truncate", self._path):
            self._check_open(writable=True)
            self._files.check_failures("truncate", self._path)
            growth = max(0, size - len(self._node.content))
            if self._files.room_for(growth) < growth:
                raise os_error(errno.ENOSPC, self._path)
            self._files.change("truncate", self._path)
            self._node.do(Truncate(size))

    @override
    def modified_ms(self) -> int:
        return self._files.modified_ms

    @override
    def is_at(self, path: Path) -> bool:
        """See `OpenFile`."""
        return self._files.leads_to(path, self._node)

    def fsync(self) -> None:
        # Covers what was written before the call, not what comes during it.
        mark = self._node.mark
        with self._files.operation("fsync", self._path):
            self._check_open()
            try:
                self._files.check_failures("fsync", self._path)
            except OSError:
                self._node.fail_fsync(mark, self._files.random)
                raise
            self._files.change("fsync", self._path)
            self._node.fsync(mark)

    @override
    def close(self) -> None:
        self._closed = True

    def _check_open(self, *, writable: bool = False) -> None:
        if self._closed or (writable and not self._writable):
            raise os_error(errno.EBADF, self._path)


class SimLock:
    """See `storage.files.Lock`."""

    def __init__(self, files: SimFiles, node: FileNode, path: Path) -> None:
        self._files = files
        self._node: FileNode | None = node
        self._path = path

    def is_lost(self) -> bool:
        """See `Lock`."""
        return self._node is not None and not self._files.leads_to(self._path, self._node)

    def release(self) -> None:
        """See `Lock`."""
        if self._node is not None:
            self._files.unlock(self._node)
            self._node = None
