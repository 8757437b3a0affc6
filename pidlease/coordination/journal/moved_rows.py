"""Rows about the move of a coordinator from ZooKeeper into the journal.

    moving/<id of ZooKeeper's tree>   {}; until all rows were put
    moved/<id of ZooKeeper's tree>    {}; from then on

No server may use the journal before. Then a data directory that has used the tree may use it.
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
    """Return whether a move was begun, and not completed, as of the last refresh."""
    return bool(journal.all(_MOVING))


def was_moved(journal: Journal, tree: str) -> bool:
    """Return whether the move of a tree was completed, as of the last refresh."""
    return journal.get(_MOVED, tree) is not None
