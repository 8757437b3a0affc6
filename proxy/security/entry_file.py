"""A file of JSON objects, one per line, for people and for Kafka's tools: users, ACLs, quotas.

Empty lines and lines that begin with # count as nothing; a change by a request keeps those at the
file's beginning. The lines of a kind that people do not write have a checksum each.
"""

import json
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pidlease.storage.checked_lines import decode_line, encode_line
from pidlease.storage.files import (
    Files,
    Lock,
    LockedError,
    make_durable_folder,
    read_file,
    write_aside,
)

_FILE_BYTES_MAX: Final = 32 << 20
#: How long another process's change is waited for: it may wait for a coordinator.
_LOCK_SECONDS: Final = 30.0
_LOCK_POLL_SECONDS: Final = 0.02


class EntryFileError(Exception):
    """The file cannot be used; the message names the line."""


_EntryT = TypeVar("_EntryT")


class EntryKind(NamedTuple, Generic[_EntryT]):
    """What a file has.

    Attributes:
        name: of the file.
        plural: of its entries, for errors.
        most: the largest number of entries.
        read: makes an entry of a line's object; raises ValueError if it is none.
        fields: returns the object of an entry's line; lines are sorted by it.
        key: returns what only one entry has.
        checked: whether each line has a checksum.
    """

    name: str
    plural: str
    most: int
    read: Callable[[Mapping[str, Any]], _EntryT]
    fields: Callable[[_EntryT], Mapping[str, Any]]
    key: Callable[[_EntryT], Hashable]
    checked: bool = False


class EntryFile(Generic[_EntryT]):
    """The file of all entries of a kind. Its methods block.

    Parameters:
        folder: `security` of the data directory.
        kind: what the file has.
    """

    def __init__(self, files: Files, folder: Path, kind: EntryKind[_EntryT]) -> None:
        self.path: Final = folder / kind.name
        self.kind: Final = kind
        self.files: Final = files
        self._lock_path: Final = folder / "lock"

    def read(self) -> frozenset[_EntryT]:
        """Return the entries; none if there is no file.

        Raises:
            EntryFileError: a line is no valid entry, or the file is too long.
            OSError: it cannot be read now.
        """
        return self.parse(self.content() or b"")

    def change(
        self, alter: Callable[[frozenset[_EntryT]], Iterable[_EntryT]]
    ) -> frozenset[_EntryT]:
        """Replace the entries durably by those that a function returns; return them.

        Raises:
            EntryFileError: the file is not valid now, or there would be too many entries.
            OSError: the entries may have been replaced or not.
        """
        lock = self.lock()
        try:
            before = self.content() or b""
            entries = frozenset(alter(self.parse(before)))
            self.replace(self.render(entries, before))
        finally:
            lock.release()
        return entries

    def lock(self) -> Lock:
        """Keep other processes from changing the file; wait for one that does.

        Raises:
            LockedError: another process is changing it for long.
            OSError: the lock cannot be taken.
        """
        make_durable_folder(self.files, self.path.parent)
        latest = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                return self.files.lock(self._lock_path, f"a change of the {self.kind.plural}")
            except LockedError:
                if time.monotonic() > latest:
                    raise
            time.sleep(_LOCK_POLL_SECONDS)

    def version(self) -> object:
        """Return a value that changes when the file does; None: there is no file."""
        return file_version(self.path)

    def content(self) -> bytes | None:
        """Return the file; None: there is none.

        Raises:
            EntryFileError: the file is too long.
            OSError: it cannot be read now.
        """
        if not self.files.exists(self.path):
            return None
        content = read_file(self.files, self.path)
        if len(content) > _FILE_BYTES_MAX:
            raise EntryFileError(f"{self.path} has more than {_FILE_BYTES_MAX} bytes")
        return content

    def replace(self, content: bytes) -> None:
        """Replace the file durably, under its lock. It keeps its mode; a new one is private.

        Raises:
            OSError: it may have been replaced or not.
        """
        mode = self.path.stat().st_mode if self.files.exists(self.path) else 0o600
        write_aside(self.files, self.path, [content], mode & 0o777)

    def parse(self, content: bytes, where: object = None) -> frozenset[_EntryT]:
        """Return the entries of a file.

        Parameters:
            where: the content is, for errors; None: in the file.

        Raises:
            EntryFileError: a line is no valid entry, or there are too many.
        """
        entries: dict[Hashable, _EntryT] = {}
        where = where or self.path
        for number, line in enumerate(content.split(b"\n"), 1):
            if not line.strip() or line.startswith(b"#"):
                continue
            try:
                entry = self.kind.read(self._object(line))
            except (ValueError, RecursionError) as error:
                raise EntryFileError(f"{where}, line {number}: {error}") from None
            if entries.setdefault(self.kind.key(entry), entry) != entry:
                raise EntryFileError(
                    f"{where}, line {number}: there are two lines of the same one; keep one"
                )
        self._check_count(len(entries))
        return frozenset(entries.values())

    def render(self, entries: Iterable[_EntryT], before: bytes) -> bytes:
        """Return the file with entries.

        Parameters:
            before: a file; its comments at the beginning are kept.

        Raises:
            EntryFileError: there are too many.
        """
        rows = sorted(map(self.kind.fields, entries), key=json.dumps)
        self._check_count(len(rows))
        lines = (encode_line(row) if self.kind.checked else b"%s\n" % json.dumps(row).encode()
                 for row in rows)  # fmt: skip
        return b"".join((*_comments(before), *lines))

    def _object(self, line: bytes) -> dict[str, Any]:
        """Read a line.

        Raises:
            ValueError: it is no JSON object, or damaged.
        """
        fields = decode_line(line) if self.kind.checked else json.loads(line.decode())
        if fields is None:
            raise ValueError("the line is damaged; take the file from a backup")
        if not isinstance(fields, dict):
            raise ValueError("not a JSON object")  # noqa: TRY004 - the line is wrong, not the program
        return fields

    def _check_count(self, entries: int) -> None:
        if entries > self.kind.most:
            raise EntryFileError(
                f"{self.path}: at most {self.kind.most} {self.kind.plural} are kept"
            )


def file_version(path: Path) -> object:
    """Return a value that changes when a file does; None: there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _comments(content: bytes) -> list[bytes]:
    """Return the comments at the beginning, with their newlines."""
    found = []
    for line in content.splitlines(keepends=True):
        if line.strip() and not line.startswith(b"#"):
            break
        found.append(line)
    return found
