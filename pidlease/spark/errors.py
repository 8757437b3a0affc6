"""The errors of the Spark integration, and how to find them in Spark's own errors.

    SparkPieceError
    +-- SinkError
    |   +-- SinkFencedError
    |   +-- NoLeaseError
    +-- RebuildError
    ReadError
    OptionError (a ValueError)

Each text says what is wrong and what to do.
"""

import re
from typing import Final

from pidlease.kafka.errors import OptionError

__all__ = ["FENCED", "NoLeaseError", "OptionError", "ReadError", "RebuildError", "SinkError",
           "SinkFencedError", "SparkPieceError", "is_fenced", "text_of"]  # fmt: skip

#: Matches one of these errors in the text of a failed task or driver.
_OURS: Final = re.compile(
    r"pidlease\.(?:\w+\.)*(SparkPieceError|SinkError|SinkFencedError|NoLeaseError|OptionError"
    r"|ReadError): (.+)"
)
#: Occurs in Spark's text of an error if a run was fenced.
FENCED: Final = "SinkFencedError"


class SparkPieceError(Exception):
    """A part of the pipeline cannot continue.

    ```python
    from pidlease.spark import SparkPieceError, copy, session

    cluster = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
    try:
        copy(session("copy"), {**cluster, "subscribe": "orders"}, cluster)
    except SparkPieceError as error:
        print(error)  # source and destination are the same cluster
    ```
    """


class SinkError(SparkPieceError):
    """The sink cannot continue. Nothing is lost: a restart resumes where the query stopped.

    ```python
    from pidlease.spark import SinkError, exactly_once, session

    table = session("orders").range(3)
    try:
        exactly_once(table, {})
    except SinkError as error:
        print(error)  # the query is not a stream
    ```
    """


class SinkFencedError(SinkError):
    """Another run of the same query has taken over.

    ```python
    from pidlease.spark import SinkError, SinkFencedError, exactly_once, session

    table = session("orders").range(3)
    try:
        exactly_once(table, {})
    except SinkFencedError:
        print("another run has taken over: let it work")
    except SinkError as error:
        print(error)  # the query is not a stream
    ```
    """


class NoLeaseError(SinkError):
    """No lease is available at the moment."""


class RebuildError(SparkPieceError):
    """The state cannot be rebuilt: the log is damaged, in use, or missing."""


class ReadError(Exception):
    """The log cannot be read: it is missing or damaged, or its server does not respond."""


def text_of(error: BaseException) -> str:
    """Describe an error in one line; a Spark error by pidlease's error in its text."""
    ours = _ours(error)
    if ours:
        return ours[-1][1].strip()
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def is_fenced(error: BaseException) -> bool:
    """Return whether another run has taken over."""
    return isinstance(error, SinkFencedError) or FENCED in {name for name, _ in _ours(error)}


def _ours(error: BaseException) -> list[tuple[str, str]]:
    """Find pidlease's errors in the text of a Spark error; return their names and texts."""
    # If the text says only that a job has failed, the Java stack trace says why.
    ours: list[tuple[str, str]] = _OURS.findall(str(error))
    return ours or _OURS.findall(str(getattr(error, "_stackTrace", "")))
