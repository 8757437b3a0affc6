"""Every producer id that Kafka ever gave to a partition's writer; no id is ever removed.

A replay of the log trusts the record header `pidlease` only under these ids. Kafka forgets an
unused transactional id, and gives its next user another producer id. So each id is recorded before
a batch is sent under it.
"""

from typing import NamedTuple, Protocol


class WriterIdsError(Exception):
    """The ids cannot be read, or an id could not be recorded; try again."""


class WriterOf(NamedTuple):
    """The partition that an id was given for, stored for the operator.

    Attributes:
        given_ms: when Kafka gave the id, in ms since 1970.
    """

    topic: str
    partition: int
    given_ms: int


class WriterIds(Protocol):
    """All writers' producer ids. The methods block and run in threads."""

    def all(self) -> dict[int, WriterOf]:
        """Return the recorded ids.

        Raises:
            WriterIdsError: they cannot be read.
        """

    def add(self, pid: int, writer_of: WriterOf) -> None:
        """Record an id, durably before this returns; a recorded id stays as it is.

        Raises:
            WriterIdsError: the id may have been recorded or not.
        """
