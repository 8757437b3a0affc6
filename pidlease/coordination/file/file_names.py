"""Bindings of names in a file, for a server without ZooKeeper.

One line for each change, appended and fsynced before it counts:

    {"former":-1,"generation":3,"granted_ms":17...,"name":"orders","pid":281474976710663} 8d2f3a11
    {"name":"orders"} 1c0d9a44

Each line ends with a CRC-32C of its JSON. The last line of a name counts; one without a PID unbinds
the name. The file is rewritten when most of its lines are superseded.
"""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog
from typing_extensions import override

from pidlease.coordination.name_bindings import (
    Binding,
    BindingConflictError,
    NameBindings,
    NamesError,
)
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.checked_lines import decode_line, encode_line, split_torn
from pidlease.storage.errors import reason_for_clients
from pidlease.storage.files import Files, make_durable_file, read_file, write_aside

#: Superseded lines that the file may have beyond the number of names.
_SPARE_LINES: Final = 10_000

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
        self._lines = 0
        self._length = 0
        #: A failed write may have left bytes, or an fsync lost some: rewrite the file.
        self._doubtful = False
        self._load()

    def __len__(self) -> int:
        return len(self._bindings)

    @override
    def get(self, name: str) -> Binding | None:
        with self._lock:
            return self._bindings.get(name)

    @override
    def all(self) -> dict[str, Binding]:
        with self._lock:
            return dict(self._bindings)

    @override
    def change(self, name: str, expected: Binding | None, new: Binding | None) -> None:
        with self._lock:
            found = self._bindings.get(name)
            if found != expected:
                raise BindingConflictError(f"{name!r} is bound to {found}, not to {expected}")
            try:
                if self._doubtful or self._lines > 2 * len(self._bindings) + _SPARE_LINES:
                    self._replace()
                self._append(_line(name, new))
            except OSError as error:
                LINES.write(_log, "error", "names are not stored", kind_of(error),
                            path=str(self._path), error=str(error))  # fmt: skip
                reason = reason_for_clients(error)
                raise NamesError(f"names are not stored: {reason}") from error
            if new is None:
                self._bindings.pop(name, None)
            else:
                self._bindings[name] = new

    # ------------------------------------------------------------------ the file

    def _append(self, line: bytes) -> None:
        file = self._files.open(self._path)
        try:
            try:
                file.write_at([line], self._length)
                file.fsync()
            except OSError:
                # The change was refused, and must not count after a crash. The file is rewritten
                # before the next change in any case: fsync reports a loss only once.
                self._doubtful = True
                with suppress(OSError):
                    file.truncate(self._length)
                    file.fsync()
                raise
        finally:
            file.close()
        self._length += len(line)
        self._lines += 1

    def _replace(self) -> None:
        content = b"".join(_line(name, binding) for name, binding in self._bindings.items())
        write_aside(self._files, self._path, [content])
        self._length, self._lines, self._doubtful = len(content), len(self._bindings), False

    def _load(self) -> None:
        try:
            make_durable_file(self._files, self._path)
            content = read_file(self._files, self._path)
        except OSError as error:
            raise NamesError(f"{self._path}: {error}") from error
        lines, torn = split_torn(content)
        for number, line in enumerate(lines, 1):
            change = parse_line(line)
            if change is None:
                raise NamesError(
                    f"{self._path}: line {number} is damaged; take the file from a backup"
                )
            name, binding = change
            self._bindings.pop(name, None)
            if binding is not None:
                self._bindings[name] = binding
            self._length += len(line) + 1
            self._lines += 1
        if torn:
            # A line that a crash tore was never acknowledged.
            self._doubtful = True
            _log.warning("the end of the names' file is damaged; ignoring it",
                         path=str(self._path), bytes=len(torn))  # fmt: skip


def _line(name: str, binding: Binding | None) -> bytes:
    fields: dict[str, object] = {"name": name}
    if binding is not None:
        fields |= binding._asdict()
    return encode_line(fields)


def parse_line(line: bytes) -> tuple[str, Binding | None] | None:
    """Parse a line of the file; None: it is damaged."""
    fields = decode_line(line)
    if fields is None:
        return None
    pid = fields.get("pid")
    if pid is None:
        return fields["name"], None
    return fields["name"], Binding(**{name: fields[name] for name in Binding._fields})
