"""Errors of a partition's log, for appends and for reads.

LogError
|-- AppendFailedError   nothing of this append is in the log; it may be tried again
|-- LogStoppedError     the partition takes no more appends until someone has looked at it
|-- NotOwnerError       another server writes to the partition now
|-- NotAllowedError     Kafka does not let this server write to the partition
|-- OffsetRangeError    an offset that the log does not have (any more, or yet)
|-- UnidentifiedBatchError  a batch of the partition's writer does not name its producer
`-- DamagedLogError     bytes that were acknowledged are no longer intact
DataFolderError         a data directory that this process must not use
"""

from pathlib import Path


class LogError(Exception):
    """Something about one partition's log."""


class AppendFailedError(LogError):
    """The append failed, and nothing of it is in the log. Retriable."""


class LogStoppedError(LogError):
    """The partition takes no appends: what is on the disk is not what was acknowledged."""


class NotOwnerError(LogError):
    """Another server writes to the partition now; this one does not own it any more."""


class NotAllowedError(LogError):
    """Kafka does not let this server write to the partition.

    Attributes:
        code: Kafka's error code.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class OffsetRangeError(LogError):
    """An offset outside the log."""

    def __init__(self, offset: int, start: int, end: int) -> None:
        super().__init__(f"offset {offset} is outside {start}..{end}")
        self.start = start
        self.end = end


class UnidentifiedBatchError(LogError):
    """A batch of the partition's writer that does not name its producer. None is appended so."""


class DamagedLogError(LogError):
    """Acknowledged bytes are no longer intact."""

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class DataFolderError(Exception):
    """A data directory that cannot be used; the message says what to do."""


def reason_for_clients(error: BaseException) -> str:
    """Return the reason of a failure for clients: the text without paths of this server.

    Write the error itself to the log.
    """
    if isinstance(error, DamagedLogError):
        return f"the log is damaged at byte {error.position}: {error.reason}"
    if not isinstance(error, OSError):
        return str(error)
    if error.strerror:
        return error.strerror
    if isinstance(error.__cause__, OSError):
        return reason_for_clients(error.__cause__)
    if error.__cause__ is not None:  # of ZooKeeper
        return str(error)
    return "a file of the server cannot be used; its log says more"
