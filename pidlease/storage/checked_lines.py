"""Files of lines: each a JSON object, a space, and the CRC-32C of the JSON in eight hex digits.

Lines are appended, and fsynced before they count. So only the end of a file can have a line that a
crash has torn. A `CheckedFile` is rewritten atomically instead, and never has a torn line.

The first line is the header, with the file's name. A file is made with it, atomically, so a file
that is empty has lost its content.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from pidlease.storage.files import (
    Files,
    make_durable_file,
    make_durable_folder,
    read_file,
    write_aside,
)


def header_of(path: Path) -> bytes:
    """Return the first line of a file of lines."""
    return encode_line({"file": path.name})


def make_lines_file(files: Files, path: Path) -> None:
    """Create a file of lines with its header, durably, if it is missing."""
    make_durable_file(files, path, header_of(path))


def check_header(path: Path, begin: bytes) -> int:
    """Check how a file of lines begins, and return the length of its header.

    Parameters:
        begin: the content, or as much of it as the header has bytes.

    Raises:
        OSError: the header is not there.
    """
    header = header_of(path)
    if not begin.startswith(header):
        reason = "line 1 is damaged" if begin else "it is empty, and was not"
        raise OSError(f"{reason}; take the file from a backup")
    return len(header)


def encode_line(fields: Mapping[str, object], *, ensure_ascii: bool = True) -> bytes:
    """Return a line, with its newline.

    Parameters:
        fields: the JSON object.
        ensure_ascii: escape all characters beyond ASCII.
    """
    text = json.dumps(
        fields, ensure_ascii=ensure_ascii, sort_keys=True, separators=(",", ":")
    ).encode()
    return b"%s %08x\n" % (text, crc32c(text))


def decode_line(line: bytes) -> dict[str, Any] | None:
    """Return the fields of a line without its newline; None: the line is damaged.

    Raises:
        ValueError: the line is intact, but not a JSON object.
    """
    text, _, crc = line.rpartition(b" ")
    if not text or b"%08x" % crc32c(text) != crc:
        return None
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError(f"no JSON object, but {type(fields).__name__}")  # noqa: TRY004
    return fields


def split_torn(content: bytes) -> tuple[list[bytes], bytes]:
    """Split a file that grows by one line per write into its lines and the line that a crash tore.

    A torn line has no newline. Or it has one, but zeros where the write's first part was lost;
    JSON contains no zero byte.
    """
    lines = content.split(b"\n")
    torn = lines.pop()
    if lines and not torn and b"\0" in lines[-1]:
        torn = lines.pop()
    return lines, torn


class CheckedFile:
    """A small file of checked lines; each change rewrites it. Its methods block.

    Parameters:
        path: the file; the first change creates it.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files: Final = files
        self._path: Final = path
        #: Whether the file's name is durable, not only its content.
        self._durable = False

    def rows(self) -> list[dict[str, Any]]:
        """Return the lines' fields, durable from now on; none if there is no file.

        Raises:
            OSError: the file cannot be read, or is damaged; the message has its path.
        """
        try:
            if not self._files.exists(self._path):
                return []
            content = read_file(self._files, self._path)
            content = content[check_header(self._path, content) :]
            if not self._durable:  # a replacement was cut short, perhaps by a crash
                self._files.fsync_folder(self._path.parent)
                self._durable = True
        except OSError as error:
            raise OSError(f"{self._path}: {error}") from error
        rows = []
        for number, line in enumerate(content.splitlines(), 2):
            fields = decode_line(line)
            if fields is None:
                raise OSError(
                    f"{self._path}: line {number} is damaged; take the file from a backup"
                )
            rows.append(fields)
        return rows

    def replace(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Replace all lines, durably.

        Raises:
            OSError: they may have been replaced or not; the message has the path.
        """
        try:
            make_durable_folder(self._files, self._path.parent)
            self._durable = False
            write_aside(self._files, self._path, [header_of(self._path), *map(encode_line, rows)])
            self._durable = True
        except OSError as error:
            raise OSError(f"{self._path}: {error}") from error
