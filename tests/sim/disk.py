"""What is on a simulated disk, what only the page cache knows, and what a power cut leaves.

Every file and folder exists twice: as programs see it, and as it is known to be on the disk. The
operations between the two are pending until an fsync. A power cut starts from the disk's view and
lets a random part of the pending operations through. That is harsher than a real disk in one way:
of two writes into the same sector the second may survive without the first.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final, Union

#: What a disk writes as a whole or not at all.
SECTOR_BYTES: Final = 512

#: The share of pending operations that survives; None is any. The ends are frequent: "nothing"
#: finds a missing fsync, and "all names but no content" the classic bug.
_SHARES: Final = (0.0, 0.0, 0.5, 1.0, None)


def put(content: bytearray, position: int, data: bytes) -> None:
    """Write into a content; a hole before it becomes zeros. Nothing at all makes no hole."""
    if not data:
        return
    content.extend(bytes(max(0, position - len(content))))
    content[position : position + len(data)] = data


def resize(content: bytearray, size: int) -> None:
    """Cut a content, or extend it with zeros."""
    del content[size:]
    content.extend(bytes(size - len(content)))


def draw_share(random: Random) -> float:
    """The share of pending operations that survive a power cut."""
    share = random.choice(_SHARES)
    return random.random() if share is None else share


@dataclass(slots=True)
class Losses:
    """What a power cut took away; counted only where what is found differs from what was seen."""

    lost_writes: int = 0  # writes with a lost sector, and lost truncates
    lost_sectors: int = 0
    lost_names: int = 0  # creates, renames and removes
    torn_files: int = 0  # files found neither as last seen nor as last fsynced


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """A write that no fsync has covered yet."""

    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        """Write all of it."""
        put(content, self.position, self.data)

    def survive(self, content: bytearray, random: Random, share: float) -> tuple[int, int]:
        """Write some sectors of it; how many writes and sectors were lost."""
        lost = 0
        end = self.position + len(self.data)
        start = self.position
        while start < end:
            stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
            if random.random() < share:
                put(content, start, self.data[start - self.position : stop - self.position])
            else:
                lost += 1
            start = stop
        if lost and len(content) < end and random.random() < 0.5:
            resize(content, end)  # the new length survives, and shows zeros
        return int(lost > 0), lost


@dataclass(frozen=True, slots=True, eq=False)
class Truncate:
    """A truncate that no fsync has covered yet."""

    size: int

    def apply(self, content: bytearray) -> None:
        """Do it."""
        resize(content, self.size)

    def survive(self, content: bytearray, random: Random, share: float) -> tuple[int, int]:
        """Do it or not; how many operations and sectors were lost."""
        if random.random() < share:
            resize(content, self.size)
            return 0, 0
        return 1, 0


@dataclass(slots=True, eq=False)
class FileNode:
    """A file, whatever its name."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write | Truncate] = field(default_factory=list)
    mark: int = 0  # the number of operations so far; an fsync covers those up to a mark
    dropped: tuple[int, int] = (0, 0)  # writes and sectors that a failed fsync gave up
    home: "Place | None" = None  # its name on the disk

    def do(self, operation: Write | Truncate) -> None:
        """Change what programs see."""
        operation.apply(self.content)
        self.pending.append(operation)
        self.mark += 1

    def fsync(self, mark: int) -> None:
        """Make the operations up to a mark durable."""
        for operation in self._take(mark):
            operation.apply(self.durable)

    def fail_fsync(self, mark: int, random: Random) -> None:
        """Give the operations up to a mark up, as Linux does.

        Some of them reached the disk; the pages are clean again, programs still see them, and a
        later fsync does nothing about them and succeeds.
        """
        writes, sectors = self._survive(self._take(mark), random)
        self.dropped = (self.dropped[0] + writes, self.dropped[1] + sectors)

    def settle(self) -> None:
        """Put what programs see on the disk."""
        self._take(self.mark)
        self.durable = bytearray(self.content)

    def lose_power(self, random: Random, losses: Losses) -> None:
        """Become what is found after a power cut."""
        before = bytes(self.durable)
        writes, sectors = self._survive(self._take(self.mark), random)
        if self.durable != self.content:
            losses.lost_writes += writes + self.dropped[0]
            losses.lost_sectors += sectors + self.dropped[1]
            losses.torn_files += self.durable != before
        self.content = bytearray(self.durable)
        self.dropped = (0, 0)

    def _take(self, mark: int) -> list[Write | Truncate]:
        count = max(0, mark - self.mark + len(self.pending))
        taken = self.pending[:count]
        del self.pending[:count]
        return taken

    def _survive(self, operations: list[Write | Truncate], random: Random) -> tuple[int, int]:
        share = draw_share(random)
        lost = [each.survive(self.durable, random, share) for each in operations]
        return sum(writes for writes, _ in lost), sum(sectors for _, sectors in lost)


@dataclass(slots=True, eq=False)
class FolderNode:
    """A folder, whatever its name."""

    names: "dict[str, Node]" = field(default_factory=dict)
    durable: "dict[str, Node]" = field(default_factory=dict)
    home: "Place | None" = None  # its name on the disk


Node = Union[FileNode, FolderNode]  # noqa: UP007  (a forward reference in the classes above)
Place = tuple[FolderNode, str]


@dataclass(frozen=True, slots=True, eq=False)
class NameChange:
    """A create (no source), a remove (no target), or a rename; one of them is always there."""

    node: Node
    source: Place | None
    target: Place | None

    def places(self) -> list[Place]:
        """The names it changes."""
        return [place for place in (self.source, self.target) if place is not None]

    def touches(self, folder: FolderNode) -> bool:
        """Whether an fsync of the folder makes it durable."""
        return any(each is folder for each, _ in self.places())

    def apply(self) -> None:
        """Change what programs see."""
        if self.source is not None:
            del self.source[0].names[self.source[1]]
        if self.target is not None:
            self.target[0].names[self.target[1]] = self.node

    def apply_durably(self) -> None:
        """Change what is on the disk, where earlier changes may be missing.

        A node never gets two names: wherever the disk has it, from there it moves.
        """
        if self.node.home is not None:
            folder, name = self.node.home
            if folder.durable.get(name) is self.node:
                del folder.durable[name]
        if self.target is not None:
            self.target[0].durable[self.target[1]] = self.node
        self.node.home = self.target

    def is_lost(self) -> bool:
        """Whether programs and disk disagree about one of its names."""
        return any(
            folder.names.get(name) is not folder.durable.get(name) for folder, name in self.places()
        )


class Tree:
    """All files and folders, and the changes of names that no fsync has covered yet."""

    def __init__(self) -> None:
        self.root = FolderNode()
        self._pending: list[NameChange] = []

    def change(self, node: Node, source: Place | None, target: Place | None) -> None:
        """Create, remove or rename."""
        change = NameChange(node, source, target)
        change.apply()
        self._pending.append(change)

    def fsync_folder(self, folder: FolderNode) -> None:
        """Make the names in a folder durable, and what happened to the same nodes elsewhere."""
        nodes = {id(change.node) for change in self._pending if change.touches(folder)}
        for change in self._pending:
            if id(change.node) in nodes:
                change.apply_durably()
        self._pending = [change for change in self._pending if id(change.node) not in nodes]

    def used_bytes(self) -> int:
        """The bytes in all files that have a name."""
        return sum(len(node.content) for node in self.walk() if isinstance(node, FileNode))

    def walk(self) -> Iterator[Node]:
        """Everything that programs see."""
        waiting: list[Node] = [self.root]
        while waiting:
            node = waiting.pop()
            yield node
            if isinstance(node, FolderNode):
                waiting.extend(node.names.values())

    def lose_power(self, random: Random, *, ordered: bool) -> Losses:
        """Become what is found after a power cut.

        Args:
            random: decides what survives.
            ordered: of the changes in a folder the first ones survive, instead of any.
        """
        survivors = self._draw_prefixes(random) if ordered else self._draw_any(random)
        for change in survivors:
            change.apply_durably()
        losses = Losses()
        kept = set(map(id, survivors))
        for change in self._pending:
            losses.lost_names += id(change) not in kept and change.is_lost()
        self._pending = []
        self._forget_unsaved(random, losses)
        return losses

    def _forget_unsaved(self, random: Random, losses: Losses) -> None:
        waiting: list[Node] = [self.root]
        while waiting:
            node = waiting.pop()
            if isinstance(node, FileNode):
                node.lose_power(random, losses)
            else:
                node.names = dict(node.durable)
                waiting.extend(node.names.values())

    def _draw_any(self, random: Random) -> list[NameChange]:
        share = draw_share(random)
        return [change for change in self._pending if random.random() < share]

    def _draw_prefixes(self, random: Random) -> list[NameChange]:
        counts: dict[int, int] = {}
        for folder_id in _folder_ids(self._pending):
            counts[folder_id] = counts.get(folder_id, 0) + 1
        left = {folder_id: random.randint(0, count) for folder_id, count in counts.items()}
        survivors = []
        for change in self._pending:
            folder_ids = set(_folder_ids([change]))
            if all(left[each] > 0 for each in folder_ids):
                survivors.append(change)
            for each in folder_ids:
                left[each] -= 1
        return survivors


def _folder_ids(changes: Iterable[NameChange]) -> Iterator[int]:
    for change in changes:
        yield from dict.fromkeys(id(folder) for folder, _ in change.places())
