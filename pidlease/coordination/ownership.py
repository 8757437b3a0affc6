"""Which of several servers serves a log that they share: one at a time, the others stand by."""

from typing import Protocol


class OwnershipError(Exception):
    """It cannot be known now who is the owner; ask again."""


class Ownership(Protocol):
    """One server's part in it. The methods block, and are called in threads."""

    def claim(self) -> str:
        """Become the owner, unless there is one.

        Returns:
            Who it is; empty: this server.

        Raises:
            OwnershipError: it cannot be known now.
        """

    def still(self) -> bool:
        """Whether this server has been the owner all the time since it became that.

        Raises:
            OwnershipError: it cannot be known now.
        """
