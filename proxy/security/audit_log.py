"""The audit log: JSON lines of logins, refusals and changes, never with a credential.

A thread writes them. Repeated lines are counted: each is written once in `REPEAT_SECONDS`, and the
next one says how many were left out.
"""

import json
import os
import threading
import time
from collections import Counter, OrderedDict
from pathlib import Path
from queue import Full, Queue
from typing import Final

import structlog

#: How long lines that are the same but for their time are only counted.
REPEAT_SECONDS: Final = 10.0
#: The outcome of a request without a right.
DENIED: Final = "denied"
#: Lines that wait for the thread. More are counted as lost.
_QUEUE_MAX: Final = 10_000
#: Different lines with counts of their repeats.
_KINDS_MAX: Final = 10_000
#: The longest text of a field: names come from clients.
_TEXT_MAX: Final = 256

_log = structlog.get_logger(__name__)
_Line = tuple[str, str, str, str, str, str]
_FIELDS: Final = ("event", "principal", "address", "operation", "resource", "outcome")


class AuditLog:
    """Writes audit lines to a file.

    Parameters:
        path: the file, which only grows: rotate it by renaming, a new one is made within a second;
            None: no lines are written.

    Attributes:
        logins: by listener, way to log in, and whether the client was let in.
        denied: refusals for want of a right, by operation.
    """

    def __init__(self, path: Path | None) -> None:
        self._path: Final = path
        self._queue: Queue[str | None] = Queue(_QUEUE_MAX)
        self._repeats: OrderedDict[_Line, list[float]] = OrderedDict()
        self._thread: threading.Thread | None = None
        self._failing = False
        #: Lines that were not written: the queue was full, or the file could not be written.
        self.lost = 0
        self.logins: Final[Counter[tuple[str, str, str]]] = Counter()
        self.denied: Final[Counter[tuple[str]]] = Counter()

    def start(self) -> None:
        """Start the thread.

        Raises:
            OSError: the file cannot be opened.
        """
        if self._path is None:
            return
        os.close(self._open(self._path))
        self._thread = threading.Thread(target=self._run, name="audit log", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write the waiting lines and the counts of repeats, and end the thread. Blocks."""
        if self._thread is None:
            return
        for line, (_, count) in self._repeats.items():
            if count:
                self._put(line, int(count))
        self._queue.put(None)
        self._thread.join(timeout=5)
        self._thread = None

    def write(
        self, event: str, principal: str, address: str, operation: str, resource: str, outcome: str
    ) -> None:
        """Write a line, or count it as a repeat.

        Parameters:
            event: `login`, `refused` or `change`.
            principal: `User:NAME`; empty: not known.
        """
        if event == "login":
            self.logins[resource, operation, "success" if outcome == "success" else "refused"] += 1
        elif event == "refused" and outcome == DENIED:
            self.denied[operation,] += 1
        if self._thread is None:
            return
        line = (event, principal, address, operation, resource, outcome)
        line = tuple(each[:_TEXT_MAX] for each in line)  # type: ignore[assignment]
        now = time.monotonic()
        seen = self._repeats.get(line)
        if event != "change" and seen is not None and now - seen[0] < REPEAT_SECONDS:
            seen[1] += 1
            return
        self._repeats[line] = [now, 0]
        self._repeats.move_to_end(line)
        self._put(line, int(seen[1]) if seen is not None else 0)
        if len(self._repeats) > _KINDS_MAX:
            old, (_, count) = self._repeats.popitem(last=False)
            if count:
                self._put(old, int(count))

    def _put(self, line: _Line, repeats: int) -> None:
        fields: dict[str, object] = {"time": round(time.time(), 3)}
        fields |= zip(_FIELDS, line, strict=True)
        if repeats:
            fields["repeats_before"] = repeats
        try:
            self._queue.put_nowait(json.dumps(fields) + "\n")
        except Full:
            self.lost += 1

    @staticmethod
    def _open(path: Path) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return os.open(path, flags, 0o600)

    def _run(self) -> None:
        while True:
            lines = [self._queue.get()]
            while not self._queue.empty():
                lines.append(self._queue.get())
            text = "".join(each for each in lines if each is not None)
            if text:
                self._append(text, len(lines) - lines.count(None))
            if None in lines:
                return

    def _append(self, text: str, count: int) -> None:
        """Append lines. The file is opened each time, so that it can be renamed."""
        if self._path is None:
            return
        try:
            descriptor = self._open(self._path)
            try:
                data = text.encode()
                while data:
                    data = data[os.write(descriptor, data) :]
            finally:
                os.close(descriptor)
            self._failing = False
        except OSError as error:
            self.lost += count
            if not self._failing:
                _log.error("the audit log cannot be written; its lines are lost",
                           path=str(self._path), error=str(error))  # fmt: skip
            self._failing = True
