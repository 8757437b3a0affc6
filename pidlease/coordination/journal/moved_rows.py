"""Rows about the move of a coordinator from ZooKeeper into the journal.

moving/<id of ZooKeeper's tree>   {}; until all rows were put: no server may use the journal
moved/<id of ZooKeeper's tree>    {}; data directories that have used the tree may use it now
"""

from typing import Final

from pidlease.coordination.journal.journal import Journal, Row

_MOVED: Final = "moved"
_MOVING: Final = "moving"


def moving_row(tree: str) -> Row:
    """Return the row of a move that was begun."""
    return Row(_MOVING, tree, {})


def moved_row(tree: str) -> Row:
    """Return the row of a move that was completed."""
    return Row(_MOVED, tree, {})


def is_moving(journal: Journal) -> bool:
    """Return whether a move was begun, and not completed."""
    return bool(journal.all(_MOVING))
