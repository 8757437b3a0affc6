"""The coordinator's interface for the fence log: the grants of names, in their order.

Each server that shares a Kafka cluster reads it on, and so learns which generations are fenced. An
entry is appended in one transaction with the change of the name's binding.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pidlease.coordination.name_bindings import Binding

#: Entries in a node.
FENCES_PER_NODE = 50


class Fence(NamedTuple):
    """A grant of a name, or its release.

    Attributes:
        name: the producer's name.
        binding: its new binding, without `fenced`: earlier entries fence those.
    """

    name: str
    binding: Binding


class FencePosition(NamedTuple):
    """A position in the log.

    Attributes:
        node: the number of a node.
        entry: the number of its entries that were read.
    """

    node: int
    entry: int


class FenceLogError(Exception):
    """The fence log cannot be read now; try again."""


class FenceLog(Protocol):
    """The fence log. All methods block, and run in threads."""

    def end(self) -> FencePosition:
        """Return the position after the last entry, as of this call or later.

        Raises:
            FenceLogError: it cannot be read now.
        """

    def read(self, position: FencePosition) -> tuple[Sequence[Fence], FencePosition | None]:
        """Read the entries from a position on, as of this call or later.

        Returns:
            The entries, and the position after them; None for the position: entries were removed
            before they were read, so all bindings must be read instead.

        Raises:
            FenceLogError: it cannot be read now.
        """
