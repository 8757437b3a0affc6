"""Log lines that would repeat with each request or retry: the first, and then a count.

The first line of a cause is written at once. Repeats within the interval are counted. At the end of
the interval one line is written for all of them, with their number (`repeated`). So the number of
events is the number of lines without `repeated`, plus the sum of all `repeated`.

The next `write` writes the counts that are due, and so does `flush`, which the server calls each
second and at its stop.
"""

import errno
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Final

#: At most one line of a cause in this time.
INTERVAL_SECONDS: Final = 10.0
#: The most causes at once. A new one beyond them writes out the oldest one's count.
CAUSES_MAX: Final = 1000

_Write = Callable[[], None]


class _Cause:
    """The repeats of one cause since its last line."""

    __slots__ = ("count", "since", "write")

    def __init__(self, since: float) -> None:
        self.since = since
        self.count = 0
        #: Writes a line with the values of the last repeat.
        self.write: _Write | None = None


class RepeatedLines:
    """Writes lines, from any thread.

    Parameters:
        interval_seconds: at most one line of a cause in this time.
        causes_max: the most causes at once.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        interval_seconds: float = INTERVAL_SECONDS,
        causes_max: int = CAUSES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        #: May be changed at any time; 0: every line is written.
        self.interval_seconds = interval_seconds
        self._causes_max: Final = causes_max
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        #: By event and cause, in the order in which their intervals began.
        self._causes: Final[dict[tuple[str, Hashable], _Cause]] = {}

    def write(
        self,
        log: Any,  # noqa: ANN401 - a logger of structlog's
        level: str,
        event: str,
        cause: Hashable = "",
        exception: BaseException | None = None,
        /,
        **values: Any,  # noqa: ANN401 - whatever can be logged
    ) -> None:
        """Write a line, or count it.

        Parameters:
            level: debug, info, warning or error.
            event: what happened.
            cause: distinguishes causes of the event; few values, no counting numbers.
            exception: its traceback is written with the first line.
            values: written with the line.
        """
        key = (event, cause)
        now = self._clock()
        writes: list[_Write] = []
        with self._lock:
            known = self._causes.get(key)
            if known is not None:
                known.count += 1
                known.write = _line(log, level, event, {**values, "repeated": known.count})
            else:
                self._causes[key] = _Cause(now)
                if exception is not None:
                    values["exc_info"] = exception
                writes.append(_line(log, level, event, values))
            writes += self._due(now)
        for each in writes:
            each()

    def flush(self, *, everything: bool = False) -> None:
        """Write the counts that are due.

        Parameters:
            everything: write all counts.
        """
        with self._lock:
            writes = self._due(self._clock(), everything=everything)
        for each in writes:
            each()

    def _due(self, now: float, *, everything: bool = False) -> list[_Write]:
        writes: list[_Write] = []
        while self._causes:
            key, oldest = next(iter(self._causes.items()))
            over = everything or now - oldest.since >= self.interval_seconds
            if not over and len(self._causes) <= self._causes_max:
                break
            del self._causes[key]
            if oldest.write is not None:
                writes.append(oldest.write)
                if over and not everything:
                    self._causes[key] = _Cause(now)
        return writes

    def __len__(self) -> int:
        return len(self._causes)


def _line(log: Any, level: str, event: str, values: dict[str, Any]) -> _Write:  # noqa: ANN401
    return lambda: getattr(log, level)(event, **values)


def kind_of(error: BaseException) -> str:
    """Return the kind of a failure: the class, and the errno of an OSError."""
    name = type(error).__name__
    if isinstance(error, OSError) and error.errno is not None:
        return f"{name} {errno.errorcode.get(error.errno, error.errno)}"
    return name


#: The process's repeated lines.
LINES: Final = RepeatedLines()
