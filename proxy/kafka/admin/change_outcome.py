"""The outcome of one item of an admin request, as an error code and a message."""

from typing import Final, NamedTuple

import structlog
from kio.schema.errors import ErrorCode

from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import reason_for_clients

_log = structlog.get_logger(__name__)


class Verdict(NamedTuple):
    """An error code with its message; by default, success."""

    code: ErrorCode = ErrorCode.none
    message: str | None = None


DONE: Final = Verdict()
TIMED_OUT: Final = Verdict(
    ErrorCode.request_timed_out, "the request's time is up; a change that was begun goes on"
)


def not_stored(error: Exception) -> Verdict:
    """Return the outcome of a change that could not be stored, and log the whole error."""
    LINES.write(_log, "error", "a change of topics is not stored", kind_of(error), error=str(error))
    return Verdict(ErrorCode.kafka_storage_error, reason_for_clients(error))
