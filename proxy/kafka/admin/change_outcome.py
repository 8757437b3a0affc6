"""What became of one thing that a request asked for, in Kafka's words."""

from typing import Final, NamedTuple

import structlog
from kio.schema.errors import ErrorCode

from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import reason_for_clients

_log = structlog.get_logger(__name__)


class Verdict(NamedTuple):
    """A code with a reason; without arguments: it is done."""

    code: ErrorCode = ErrorCode.none
    message: str | None = None


DONE: Final = Verdict()
TIMED_OUT: Final = Verdict(
    ErrorCode.request_timed_out, "the request's time is up; what was begun goes on"
)


def not_stored(error: Exception) -> Verdict:
    """A change that could not be made durable. The log has the whole error."""
    LINES.write(_log, "error", "a change of topics is not stored", kind_of(error), error=str(error))
    return Verdict(ErrorCode.kafka_storage_error, reason_for_clients(error))
