"""Logs warnings that may be very frequent: some of each kind, and the number of the others."""

import time
from typing import Any, Final

import structlog

#: How many warnings of each kind are logged
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
    """Logs warnings; used by one event loop.

    Parameters:
        logged_max: how many of each kind to log
        seconds: in this time.
    """

    def __init__(self, logged_max: int = _LOGGED_MAX, seconds: float = _SECONDS) -> None:
        self._logged_max: Final = logged_max
        self._seconds: Final = seconds
        self._windows: Final[dict[str, _Window]] = {}

    def warn(self, event: str, **values: Any) -> None:  # noqa: ANN401 - structlog's
        """Log a warning, unless there were many of its kind just now.

        Parameters:
            values: logged with it. The first warning after some were left out has their number.
        """
        now = time.monotonic()
        window = self._windows.get(event)
        if window is None or now - window.begun >= self._seconds:
            left_out = 0 if window is None else window.left_out
            window = self._windows[event] = _Window(now)
            if left_out:
                values["left_out_before"] = left_out
        window.count += 1
        if window.count <= self._logged_max:
            _log.warning(event, **values)
        else:
            window.left_out += 1
