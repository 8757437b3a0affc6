"""Configures the log output: one line for each event, readable or as JSON, from a level on."""

import asyncio
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

from pidlease.observability.repeated_lines import LINES
from proxy.configuration.settings import Settings

#: By the name of structlog's method.
_LEVELS: Final = {**logging.getLevelNamesMapping(), "EXCEPTION": logging.ERROR}


class _Threshold:
    """Drops events below a level, which may change after the loggers are created."""

    def __init__(self) -> None:
        self.level = logging.INFO

    def __call__(
        self,
        logger: object,  # noqa: ARG002 - structlog's signature
        method: str,
        event: MutableMapping[str, Any],
    ) -> MutableMapping[str, Any]:
        """Return the event; structlog calls this as a processor."""
        if _LEVELS.get(method.upper(), logging.CRITICAL) < self.level:
            raise structlog.DropEvent
        return event


_threshold: Final = _Threshold()


class _WorkerNumber:
    """Adds the number of this process among several workers; they share one output."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(
        self,
        logger: object,  # noqa: ARG002 - structlog's signature
        method: str,  # noqa: ARG002 - structlog's signature
        event: MutableMapping[str, Any],
    ) -> MutableMapping[str, Any]:
        """Return the event; structlog calls this as a processor."""
        if self.number:
            event["worker"] = self.number
        return event


_worker: Final = _WorkerNumber()

#: How often to write the counts of repeated lines that are due.
_FLUSH_SECONDS: Final = 1.0


def set_level(name: str) -> None:
    """Log events from this level on: debug, info, warning or error."""
    _threshold.level = _LEVELS[name.upper()]


def set_worker(number: int) -> None:
    """Name this worker in each line from now on."""
    _worker.number = number


def configure_logs(settings: Settings) -> None:
    """Configure the log output by the settings."""
    set_level(settings.log_level)
    LINES.interval_seconds = settings.log_repeat_seconds
    renderer: Any = structlog.processors.JSONRenderer()
    if settings.log_format == "console":
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            # Never the values of variables: they hold clients' records.
            exception_formatter=structlog.dev.plain_traceback,
        )
    structlog.configure(
        processors=[
            _threshold,
            _worker,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            *([] if settings.log_format == "console" else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)


async def write_repeats() -> None:
    """Write the counts of repeated lines that are due, until cancelled."""
    while True:
        await asyncio.sleep(_FLUSH_SECONDS)
        LINES.flush()
