"""Loggers for code that runs in a server and in applications: structlog's, or Python's logging."""

import logging
from typing import Any, Final

import structlog


class Logger:
    """Writes events to structlog if the program has configured it, else to `logging`.

    A server configures structlog. An application that imports the Python client does not:
    structlog would print to its standard output then.

    Parameters:
        name: the module's.
    """

    __slots__ = ("_plain", "_structured")

    def __init__(self, name: str) -> None:
        self._plain: Final = logging.getLogger(name)
        self._structured: Final = structlog.get_logger(name)

    def debug(self, event: str, **values: Any) -> None:  # noqa: ANN401 - whatever can be logged
        """Write an event for developers."""
        self._write(logging.DEBUG, event, values)

    def info(self, event: str, **values: Any) -> None:  # noqa: ANN401
        """Write an event that is part of normal operation."""
        self._write(logging.INFO, event, values)

    def warning(self, event: str, **values: Any) -> None:  # noqa: ANN401
        """Write an event that may need an operator."""
        self._write(logging.WARNING, event, values)

    def error(self, event: str, **values: Any) -> None:  # noqa: ANN401
        """Write an event that needs an operator."""
        self._write(logging.ERROR, event, values)

    def exception(self, event: str, **values: Any) -> None:  # noqa: ANN401
        """Write a defect, with the traceback of the current exception."""
        self._write(logging.ERROR, event, {"exc_info": True, **values})

    def _write(self, level: int, event: str, values: dict[str, Any]) -> None:
        if structlog.is_configured():
            self._structured.log(level, event, **values)
        elif self._plain.isEnabledFor(level):
            exception = values.pop("exc_info", None)
            text = ", ".join(f"{name}={value}" for name, value in values.items())
            self._plain.log(level, "%s%s", event, f": {text}" if text else "", exc_info=exception)
