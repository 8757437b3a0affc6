"""Errors of a partition's log, for appends and for reads.

LogError
|-- AppendFailedError   the append failed, and none of it is in the log; retriable
|-- LogStoppedError     the partition accepts no appends until the operator has repaired it
|-- NotOwnerError       another server writes to the partition now
|-- NotAllowedError     Kafka does not let this server write to the partition
|-- OffsetRangeError    the log does not have the offset yet, or has it no longer
|-- UnidentifiedBatchError  a batch of the partition's writer does not name its producer
`-- DamagedLogError     acknowledged bytes are no longer intact
DataFolderError         this process must not use the data directory
"""

import errno
from pathlib import Path


class LogError(Exception):
    """A failure of one partition's log."""


class AppendFailedError(LogError):
    """The append failed, and none of it is in the log. Retriable."""


class LogStoppedError(LogError):
    """The partition accepts no appends: the disk does not hold what was acknowledged."""


class NotOwnerError(LogError):
    """Another server writes to the partition now."""


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
    """A batch of the partition's writer does not name its producer. No writer appends that."""


class DamagedLogError(LogError):
    """Acknowledged bytes are no longer intact."""

    def __init__(self, path: Path, position: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {position}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class DataFolderError(Exception):
    """A data directory that cannot be used; the message says what to do."""


def is_unreadable(error: Exception) -> bool:
    """Whether a read failed because the disk cannot read the bytes, as of a bad sector."""
    return isinstance(error, OSError) and error.errno == errno.EIO


def reason_for_clients(error: BaseException) -> str:
    """Return the reason of a failure as clients may see it: without paths of this server.

    The log gets the error itself.
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
