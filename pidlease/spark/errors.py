"""What is said where Spark would say it with a Java stack trace alone."""

import re
from typing import Final

#: How one of ours stands in Spark's text of a task, or of the driver, that failed.
_OURS: Final = re.compile(
    r"pidlease\.spark\.(?:\w+\.)*(SparkPieceError|SinkError|SinkFencedError|NoLeaseError|OptionError"
    r"|ReadError): (.+)"
)
#: What stands in Spark's text where a run was fenced.
FENCED: Final = "SinkFencedError"


class SparkPieceError(Exception):
    """A part of the pipeline cannot go on; the text says why, and what to do."""


class SinkError(SparkPieceError):
    """The sink refuses, or cannot go on. Nothing is lost: a restart goes on where it was."""


class SinkFencedError(SinkError):
    """Another run of the same query has taken over."""


def text_of(error: BaseException) -> str:
    """What is wrong, in a line: of an error of Spark's, what one of ours said in it."""
    found = _ours(error)
    if found:
        return found[-1][1].strip()
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def is_fenced(error: BaseException) -> bool:
    """Whether another run has taken over."""
    return isinstance(error, SinkFencedError) or FENCED in {name for name, _ in _ours(error)}


def _ours(error: BaseException) -> list[tuple[str, str]]:
    """Errors of ours that Spark tells of, by name and text."""
    # Where its own text says nothing but that a job has failed, Java's stack trace says why.
    found: list[tuple[str, str]] = _OURS.findall(str(error))
    return found or _OURS.findall(str(getattr(error, "_stackTrace", "")))
