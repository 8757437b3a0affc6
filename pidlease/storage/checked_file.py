"""A small file of checked lines that is written anew as a whole with each change.

It is written aside, so no crash leaves a part of it: a line that is not intact is damage.
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
        path: the file; it is made with the first change.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files: Final = files
        self._path: Final = path

    def rows(self) -> list[dict[str, Any]]:
        """What its lines say; nothing where there is no file.

        Raises:
            OSError: it cannot be read, or is damaged; with its path.
        """
        try:
            if not self._files.exists(self._path):
                return []
            content = read_file(self._files, self._path)
        except OSError as error:
            raise OSError(f"{self._path}: {error}") from error
        found = []
        for number, line in enumerate(content.splitlines(), 1):
            fields = decode_line(line)
            if fields is None:
                raise OSError(
                    f"{self._path}: line {number} is damaged; take the file from a backup"
                )
            found.append(fields)
        return found

    def replace(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Put lines in the place of those there are, durably.

        Raises:
            OSError: they may be there, or not; with its path.
        """
        try:
            make_durable_folder(self._files, self._path.parent)
            write_aside(self._files, self._path, [b"".join(map(encode_line, rows))])
        except OSError as error:
            raise OSError(f"{self._path}: {error}") from error
