"""Ownership of a Kafka cluster: one of several servers serves it, the others stand by."""

from typing import Protocol


class OwnershipError(Exception):
    """It is unknown now whether this server is the owner; try again."""


class Ownership(Protocol):
    """One server's claim to a Kafka cluster. The methods block, and are called in threads."""

    def claim(self) -> str:
        """Become the owner, unless there is one.

        Returns:
            The owner's name; empty: this server.

        Raises:
            OwnershipError: the owner is unknown now.
        """

    def still(self) -> bool:
        """Return whether this server has been the owner without a break since `claim`.

        Raises:
            OwnershipError: the owner is not known now.
        """
