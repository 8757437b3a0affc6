"""How events are told: one line each, for people or as JSON; from a level on that may change."""

import asyncio
import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

from pidlease.observability.repeated_lines import LINES
from proxy.configuration.settings import Settings

#: By the method that tells an event, as structlog names it.
_LEVELS: Final = {**logging.getLevelNamesMapping(), "EXCEPTION": logging.ERROR}


class _Threshold:
    """Drops what is below a level. Loggers are made once; this may change at any time."""

    def __init__(self) -> None:
        self.level = logging.INFO

    def __call__(
        self,
        logger: object,  # noqa: ARG002 - structlog's signature
        method: str,
        event: MutableMapping[str, Any],
    ) -> MutableMapping[str, Any]:
        """See structlog's processors."""
        if _LEVELS.get(method.upper(), logging.CRITICAL) < self.level:
            raise structlog.DropEvent
        return event


_threshold: Final = _Threshold()

#: How often counts of lines are looked at.
_FLUSH_SECONDS: Final = 1.0


def set_level(name: str) -> None:
    """Tell what is of a level or above, from now on.

    Parameters:
        name: debug, info, warning or error.
    """
    _threshold.level = _LEVELS[name.upper()]


def configure_logs(settings: Settings) -> None:
    """Tell events as the settings say."""
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


class RepeatsFlush:
    """Writes counts of repeated lines whose interval is over (see `repeated_lines`)."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """End, and write all counts."""
        if self._task is not None:
            self._task.cancel()
        LINES.flush(everything=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_SECONDS)
            LINES.flush()
