"""The producer ids that Kafka gave the partitions' writers, for ever.

Who reads the log again believes the record header `pidlease` under these only. Kafka forgets a
transactional id that is not used, and gives its next user another producer id: so each one is on
record before anything is sent under it, and none is ever taken off.
"""

from typing import NamedTuple, Protocol


class WriterIdsError(Exception):
    """The ids cannot be read, or one could not be recorded; try again."""


class WriterOf(NamedTuple):
    """What an id was given for, for a person to look at.

    Attributes:
        topic: the topic,
        partition: and the partition's number.
        given_ms: when, in ms since 1970.
    """

    topic: str
    partition: int
    given_ms: int


class WriterIds(Protocol):
    """All of them. The methods block, and are called in threads."""

    def all(self) -> dict[int, WriterOf]:
        """The ids on record.

        Raises:
            WriterIdsError: they cannot be read.
        """

    def add(self, pid: int, writer_of: WriterOf) -> None:
        """Record an id, durably before this returns; one that is on record stays as it is.

        Raises:
            WriterIdsError: it may have been recorded, or not.
        """
