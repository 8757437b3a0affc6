"""How events are told: one line each, for people or as JSON; from a level on that may change."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

from proxy.settings import Settings

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


def set_level(name: str) -> None:
    """Tell what is of a level or above, from now on.

    Parameters:
        name: debug, info, warning or error.
    """
    _threshold.level = _LEVELS[name.upper()]


def configure_logs(settings: Settings) -> None:
    """Tell events as the settings say."""
    set_level(settings.log_level)
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
