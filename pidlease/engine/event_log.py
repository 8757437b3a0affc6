"""Events of which there may be very many: some of each kind are told, and how many were not."""

import time
from typing import Any, Final

import structlog

#: Of each kind so many are told,
_TOLD: Final = 10
#: in a time of so many seconds.
_SECONDS: Final = 10.0

_log = structlog.get_logger(__name__)


class _Window:
    __slots__ = ("begun", "count", "left_out")

    def __init__(self, begun: float) -> None:
        self.begun = begun
        self.count = 0
        self.left_out = 0


class EventLog:
    """Tells warnings; for one event loop.

    Parameters:
        told: so many of each kind
        seconds: in so long.
    """

    def __init__(self, told: int = _TOLD, seconds: float = _SECONDS) -> None:
        self._told: Final = told
        self._seconds: Final = seconds
        self._windows: Final[dict[str, _Window]] = {}

    def tell(self, event: str, **what: Any) -> None:  # noqa: ANN401 - whatever can be told
        """Tell an event, unless there were many of its kind just now.

        Parameters:
            event: its kind, of which there are few.
            what: told with it; the first one after some were left out says how many.
        """
        now = time.monotonic()
        window = self._windows.get(event)
        if window is None or now - window.begun >= self._seconds:
            left_out = 0 if window is None else window.left_out
            window = self._windows[event] = _Window(now)
            if left_out:
                what["left_out_before"] = left_out
        window.count += 1
        if window.count <= self._told:
            _log.warning(event, **what)
        else:
            window.left_out += 1
