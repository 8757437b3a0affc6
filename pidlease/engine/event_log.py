"""Warnings that may be very many: logs some of each kind, and counts the others."""

import time
from typing import Any, Final

import structlog

#: The number of events of each kind that are logged,
_LOGGED_MAX: Final = 10
#: in this time.
_SECONDS: Final = 10.0

_log = structlog.get_logger(__name__)


class _Window:
    __slots__ = ("begun", "count", "left_out")

    def __init__(self, begun: float) -> None:
        self.begun = begun
        self.count = 0
        self.left_out = 0


class EventLog:
    """Logs warnings; for one event loop.

    Parameters:
        logged_max: how many of each kind to log
        seconds: in this time.
    """

    def __init__(self, logged_max: int = _LOGGED_MAX, seconds: float = _SECONDS) -> None:
        self._logged_max: Final = logged_max
        self._seconds: Final = seconds
        self._windows: Final[dict[str, _Window]] = {}

    def warn(self, event: str, **what: Any) -> None:  # noqa: ANN401 - structlog's
        """Log an event, unless there were many of its kind just now.

        Parameters:
            event: its kind; there are few.
            what: its values; the first event after some were left out says how many.
        """
        now = time.monotonic()
        window = self._windows.get(event)
        if window is None or now - window.begun >= self._seconds:
            left_out = 0 if window is None else window.left_out
            window = self._windows[event] = _Window(now)
            if left_out:
                what["left_out_before"] = left_out
        window.count += 1
        if window.count <= self._logged_max:
            _log.warning(event, **what)
        else:
            window.left_out += 1
