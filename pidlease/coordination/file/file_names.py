"""Bindings of names in a file, for a server without ZooKeeper.

One line for each change after the header, appended and fsynced before it counts:

    {"file":"names"} 5d6f1c22
    {"former":-1,"generation":3,"granted_ms":17...,"name":"orders","pid":281474976710663} 8d2f3a11
    {"name":"orders"} 1c0d9a44
    {"changes":[{"former":-1,...,"name":"orders","pid":...},{"former":-1,...}]} 77a0c1e5

Changes that are made together share a line, so that a crash tears only the last line. Each line
ends with a CRC-32C of its JSON. The last change of a name counts; one without a PID unbinds the
name. The file is rewritten when most of its changes are superseded.
"""

import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import structlog
from typing_extensions import override

from pidlease.coordination.name_bindings import (
    Binding,
    BindingChange,
    BindingConflictError,
    NameBindings,
    NamesError,
    StoredBinding,
    decide_changes,
)
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.checked_lines import (
    check_header,
    decode_line,
    encode_line,
    header_of,
    make_lines_file,
    split_torn,
)
from pidlease.storage.errors import reason_for_clients
from pidlease.storage.files import Files, read_file, write_aside

#: Superseded changes that the file may have beyond the number of names.
_SPARE_CHANGES: Final = 10_000

_log = structlog.get_logger(__name__)


class FileNames(NameBindings):
    """Bindings in a file.

    Raises:
        NamesError: the file cannot be read, or its middle is damaged.
    """

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._lock = threading.Lock()
        self._bindings: dict[str, Binding] = {}
        self._changes = 0
        self._length = 0
        #: A failed write may have left bytes, or an fsync lost some: rewrite the file.
        self._doubtful = False
        self._load()

    def __len__(self) -> int:
        return len(self._bindings)

    @override
    def all(self) -> dict[str, Binding]:
        with self._lock:
            return dict(self._bindings)

    @override
    def get_many(self, names: Sequence[str]) -> list[StoredBinding]:
        with self._lock:
            return [StoredBinding(self._bindings.get(name)) for name in names]

    @override
    def change_many(
        self, changes: Sequence[BindingChange]
    ) -> list[BindingConflictError | NamesError | None]:
        with self._lock:
            outcomes, after = decide_changes(changes, self._bindings.get)
            if after:
                self._store(after)
        return outcomes

    # ------------------------------------------------------------------ the file

    def _store(self, changes: dict[str, Binding | None]) -> None:
        """Write changes durably, and apply them."""
        try:
            if self._doubtful or self._changes > 2 * len(self._bindings) + _SPARE_CHANGES:
                self._replace()
            self._append(_line(changes))
        except OSError as error:
            LINES.write(_log, "error", "names are not stored", kind_of(error),
                        path=str(self._path), error=str(error))  # fmt: skip
            reason = reason_for_clients(error)
            raise NamesError(f"names are not stored: {reason}") from error
        self._apply(changes)

    def _apply(self, changes: dict[str, Binding | None]) -> None:
        for name, binding in changes.items():
            if binding is None:
                self._bindings.pop(name, None)
            else:
                self._bindings[name] = binding
        self._changes += len(changes)

    def _append(self, line: bytes) -> None:
        file = self._files.open(self._path)
        try:
            try:
                file.write_at([line], self._length)
                file.fsync()
            except OSError:
                # The changes were refused, and must not count after a crash. The file is rewritten
                # before the next change in any case: fsync reports a loss only once.
                self._doubtful = True
                with suppress(OSError):
                    file.truncate(self._length)
                    file.fsync()
                raise
        finally:
            file.close()
        self._length += len(line)

    def _replace(self) -> None:
        lines = (_line({name: binding}) for name, binding in self._bindings.items())
        content = b"".join((header_of(self._path), *lines))
        write_aside(self._files, self._path, [content])
        self._length, self._changes, self._doubtful = len(content), len(self._bindings), False

    def _load(self) -> None:
        try:
            make_lines_file(self._files, self._path)
            content = read_file(self._files, self._path)
            self._length = check_header(self._path, content)
        except OSError as error:
            raise NamesError(f"{self._path}: {error}") from error
        lines, torn = split_torn(content[self._length :])
        for number, line in enumerate(lines, 2):
            changes = parse_line(line)
            if changes is None:
                raise NamesError(
                    f"{self._path}: line {number} is damaged; take the file from a backup"
                )
            self._apply(changes)
            self._length += len(line) + 1
        if lines:
            self._make_durable(lines[-1] + b"\n")
        if torn:
            # A line that a crash tore was never acknowledged.
            self._doubtful = True
            _log.warning("the end of the names' file is damaged; ignoring it",
                         path=str(self._path), bytes=len(torn))  # fmt: skip

    def _make_durable(self, last: bytes) -> None:
        """Write the last line again, and fsync it: the lines before it are durable.

        A kill may have come between its write and its fsync, or the fsync failed: then a further
        one alone succeeds without writing it. The line is answered to clients without another
        write, so a crash must not take it back.
        """
        try:
            with closing(self._files.open(self._path)) as file:
                file.write_at([last], self._length - len(last))
                file.fsync()
        except OSError as error:
            raise NamesError(f"{self._path}: {error}") from error


def _line(changes: dict[str, Binding | None]) -> bytes:
    rows = [
        {"name": name, **({} if binding is None else binding.fields())}
        for name, binding in changes.items()
    ]
    return encode_line(rows[0] if len(rows) == 1 else {"changes": rows})


def parse_line(line: bytes) -> dict[str, Binding | None] | None:
    """Parse a line of the file: its bindings by name, None for an unbound one.

    None: the line is damaged.
    """
    fields = decode_line(line)
    if fields is None:
        return None
    return dict(map(_parse_change, fields.get("changes", [fields])))


def _parse_change(fields: dict[str, Any]) -> tuple[str, Binding | None]:
    if fields.get("pid") is None:
        return fields["name"], None
    return fields["name"], Binding.of(fields)
