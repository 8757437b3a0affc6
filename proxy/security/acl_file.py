"""The file of the ACLs: one JSON object per line, for people and for `kafka-acls.sh`.

Empty lines and lines that begin with # count as nothing; a change by CreateAcls or DeleteAcls keeps
those at the file's beginning.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from pidlease.storage.files import Files, make_durable_folder, read_file, write_aside
from proxy.security.acls import Acl, AclError, acl_from, fields_of

ACLS_MAX: Final = 20_000
_FILE_BYTES_MAX: Final = 32 << 20


class AclFileError(Exception):
    """The file cannot be used; the message names the line."""


class AclFile:
    """The file of all ACLs. Its methods block.

    Parameters:
        folder: `security` of the data directory.
    """

    def __init__(self, files: Files, folder: Path) -> None:
        self.path: Final = folder / "acls"
        self._files: Final = files
        self._lock_path: Final = folder / "lock"

    def read(self) -> frozenset[Acl]:
        """Return the entries; none if there is no file.

        Raises:
            AclFileError: a line is no valid entry, or the file cannot be read.
        """
        return frozenset(self._parse(self._text()))

    def change(self, alter: Callable[[frozenset[Acl]], Iterable[Acl]]) -> frozenset[Acl]:
        """Replace the entries durably by those that a function returns; return them.

        Raises:
            AclFileError: the file is not valid now, or there would be too many entries.
            OSError: the entries may have been replaced or not.
        """
        make_durable_folder(self._files, self.path.parent)
        lock = self._files.lock(self._lock_path, "a change of the ACLs")
        try:
            text = self._text()
            acls = frozenset(alter(frozenset(self._parse(text))))
            if len(acls) > ACLS_MAX:
                raise AclFileError(f"at most {ACLS_MAX} ACLs are kept")
            lines = [*_comments(text), *(json.dumps(fields_of(each)) for each in sorted(acls))]
            write_aside(self._files, self.path, ["".join(f"{line}\n" for line in lines).encode()])
        finally:
            lock.release()
        return acls

    def _text(self) -> str:
        try:
            if not self._files.exists(self.path):
                return ""
            content = read_file(self._files, self.path)
            if len(content) > _FILE_BYTES_MAX:
                raise AclFileError(f"{self.path} has more than {_FILE_BYTES_MAX} bytes")
            return content.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise AclFileError(f"{self.path}: {error}") from error

    def _parse(self, text: str) -> list[Acl]:
        acls = []
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip() or line.startswith("#"):
                continue
            try:
                fields = json.loads(line)
                if not isinstance(fields, dict):
                    raise AclError("not a JSON object")
                acls.append(acl_from(fields))
            except (ValueError, RecursionError) as error:
                raise AclFileError(f"{self.path}, line {number}: {error}") from None
        if len(acls) > ACLS_MAX:
            raise AclFileError(f"{self.path} has more than {ACLS_MAX} ACLs")
        return acls


def _comments(text: str) -> list[str]:
    """Return the comments at the beginning."""
    found = []
    for line in text.split("\n")[:-1]:
        if line.strip() and not line.startswith("#"):
            break
        found.append(line)
    return found
