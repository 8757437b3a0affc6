"""What became of one thing that a request asked for, in Kafka's words."""

from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode


class Verdict(NamedTuple):
    """A code with a reason; without arguments: it is done."""

    code: ErrorCode = ErrorCode.none
    message: str | None = None


DONE: Final = Verdict()
TIMED_OUT: Final = Verdict(
    ErrorCode.request_timed_out, "the request's time is up; what was begun goes on"
)
