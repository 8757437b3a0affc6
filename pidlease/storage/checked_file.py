"""A small file of checked lines. Each change rewrites it.

A rewrite replaces the file atomically, so a crash leaves no torn line: a bad line is damage.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pidlease.storage.checked_lines import decode_line, encode_line
from pidlease.storage.files import Files, make_durable_folder, read_file, write_aside


class CheckedFile:
    """A file of checked lines. Its methods block.

    Parameters:
        files: the file system.
        path: the file; the first change creates it.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files: Final = files
        self._path: Final = path

    def rows(self) -> list[dict[str, Any]]:
        """Return the lines' fields; none if there is no file.

        Raises:
            OSError: the file cannot be read, or is damaged; the message has its path.
        """
        try:
            if not self._files.exists(self._path):
                return []
            content = read_file(self._files, self._path)
        except OSError as error:
            raise OSError(f"{self._path}: {error}") from error
        rows = []
        for number, line in enumerate(content.splitlines(), 1):
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
            write_aside(self._files, self._path, [b"".join(map(encode_line, rows))])
        except OSError as error:
            raise OSError(f"{self._path}: {error}") from error
