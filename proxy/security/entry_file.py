"""A file of JSON objects, one per line, for people and for Kafka's tools: the ACLs, the quotas.

Empty lines and lines that begin with # count as nothing; a change by a request keeps those at the
file's beginning.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from pidlease.storage.files import Files, make_durable_folder, read_file, write_aside

_FILE_BYTES_MAX: Final = 32 << 20


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
        fields: returns the object of an entry's line.
    """

    name: str
    plural: str
    most: int
    read: Callable[[Mapping[str, Any]], _EntryT]
    fields: Callable[[_EntryT], Mapping[str, Any]]


class EntryFile(Generic[_EntryT]):
    """The file of all entries of a kind. Its methods block.

    Parameters:
        folder: `security` of the data directory.
        kind: what the file has.
    """

    def __init__(self, files: Files, folder: Path, kind: EntryKind[_EntryT]) -> None:
        self.path: Final = folder / kind.name
        self._files: Final = files
        self._kind: Final = kind
        self._lock_path: Final = folder / "lock"

    def read(self) -> frozenset[_EntryT]:
        """Return the entries; none if there is no file.

        Raises:
            EntryFileError: a line is no valid entry, or the file cannot be read.
        """
        return frozenset(self._parse(self._text()))

    def change(
        self, alter: Callable[[frozenset[_EntryT]], Iterable[_EntryT]]
    ) -> frozenset[_EntryT]:
        """Replace the entries durably by those that a function returns; return them.

        Raises:
            EntryFileError: the file is not valid now, or there would be too many entries.
            OSError: the entries may have been replaced or not.
        """
        kind = self._kind
        make_durable_folder(self._files, self.path.parent)
        lock = self._files.lock(self._lock_path, f"a change of the {kind.plural}")
        try:
            text = self._text()
            entries = frozenset(alter(frozenset(self._parse(text))))
            if len(entries) > kind.most:
                raise EntryFileError(f"at most {kind.most} {kind.plural} are kept")
            made = sorted(json.dumps(kind.fields(each)) for each in entries)
            lines = [*_comments(text), *made]
            write_aside(self._files, self.path, ["".join(f"{line}\n" for line in lines).encode()])
        finally:
            lock.release()
        return entries

    def _text(self) -> str:
        try:
            if not self._files.exists(self.path):
                return ""
            content = read_file(self._files, self.path)
            if len(content) > _FILE_BYTES_MAX:
                raise EntryFileError(f"{self.path} has more than {_FILE_BYTES_MAX} bytes")
            return content.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise EntryFileError(f"{self.path}: {error}") from error

    def _parse(self, text: str) -> list[_EntryT]:
        entries = []
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip() or line.startswith("#"):
                continue
            try:
                entries.append(self._kind.read(_object(line)))
            except (ValueError, RecursionError) as error:
                raise EntryFileError(f"{self.path}, line {number}: {error}") from None
        if len(entries) > self._kind.most:
            raise EntryFileError(f"{self.path} has more than {self._kind.most} {self._kind.plural}")
        return entries


def _object(line: str) -> dict[str, Any]:
    """Read a line.

    Raises:
        ValueError: it is no JSON object.
    """
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - the line is wrong, not the program
    return fields


def _comments(text: str) -> list[str]:
    """Return the comments at the beginning."""
    found = []
    for line in text.split("\n")[:-1]:
        if line.strip() and not line.startswith("#"):
            break
        found.append(line)
    return found
