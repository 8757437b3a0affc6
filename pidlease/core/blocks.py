"""Blocks of PIDs, and the age of the block that a PID came from."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from pidlease.core.judge import Age
from pidlease.core.pid import BLOCK_SIZE, number_of


@dataclass(frozen=True, slots=True, order=True)
class PidBlock:
    """Consecutive PID numbers, taken from the PID sequence by one durable write.

    Attributes:
        first: the first number.
        count: how many numbers.
        taken_ms: when it was taken, in ms since 1970; never later than a lease of its PIDs.
        owner: the server that took it.
    """

    first: int
    count: int
    taken_ms: int
    owner: str = ""

    @property
    def end(self) -> int:
        """The number after the last one."""
        return self.first + self.count


def block_start(number: int) -> int:
    """Return the first number of the block that begins at a number or after it."""
    return (number - 2) // BLOCK_SIZE * BLOCK_SIZE + BLOCK_SIZE + 1


class BlockAges:
    """The recorded blocks, in order of their numbers; returns the age of a PID's block.

    Numbers in no recorded block were never leased: the sequence has not reached them, or skipped
    their block. Blocks older than a lease may be merged, since only `Age.OLD` matters for them.
    """

    def __init__(self, blocks: Iterable[PidBlock] = ()) -> None:
        self._firsts: list[int] = []
        self._blocks: list[PidBlock] = []
        for block in sorted(blocks):
            self.add(block)

    def __len__(self) -> int:
        return len(self._blocks)

    def blocks(self) -> list[PidBlock]:
        """Return the blocks, in order."""
        return list(self._blocks)

    @property
    def end(self) -> int:
        """The number after the last recorded block; 1: there is none."""
        return self._blocks[-1].end if self._blocks else 1

    def add(self, block: PidBlock) -> None:
        """Record a block after all others.

        Raises:
            ValueError: it does not follow them.
        """
        if block.first < self.end:
            raise ValueError(f"block {block.first} does not follow {self.end}")
        self._firsts.append(block.first)
        self._blocks.append(block)

    def note(self, block: PidBlock) -> None:
        """Record those parts of a block that no recorded block covers.

        Other servers' blocks may follow it already, and a merged block spans blocks that are
        recorded one by one.
        """
        at = block.first
        while at < block.end:
            index = bisect_right(self._firsts, at)
            if index and at < self._blocks[index - 1].end:
                at = self._blocks[index - 1].end
                continue
            end = min([block.end, *self._firsts[index : index + 1]])
            self._firsts.insert(index, at)
            self._blocks.insert(index, PidBlock(at, end - at, block.taken_ms, block.owner))
            at = end

    def age(self, pid: int, young_after_ms: int) -> Age:
        """Return the age of a PID's block.

        Parameters:
            pid: the PID, policy bits included.
            young_after_ms: blocks taken later than this (ms since 1970) are young: now minus the
                lease length, or the time up to which a partition's history is incomplete.
        """
        block = self._holding(pid)
        if block is None:
            return Age.NEVER
        return Age.YOUNG if block.taken_ms > young_after_ms else Age.OLD

    def taken_ms(self, pid: int) -> int:
        """Return when a PID's block was taken, in ms since 1970; -1: no block is recorded."""
        block = self._holding(pid)
        return -1 if block is None else block.taken_ms

    def _holding(self, pid: int) -> PidBlock | None:
        n = number_of(pid)
        index = bisect_right(self._firsts, n) - 1
        if index < 0 or n >= self._blocks[index].end:
            return None
        return self._blocks[index]

    def merge_older(self, than_ms: int) -> None:
        """Merge adjacent blocks taken before `than_ms`, to bound the memory."""
        merged: list[PidBlock] = []
        for block in self._blocks:
            previous = merged[-1] if merged else None
            if (
                previous is not None
                and block.taken_ms < than_ms
                and previous.taken_ms < than_ms
                and previous.end == block.first
            ):
                merged[-1] = PidBlock(
                    previous.first, previous.count + block.count, block.taken_ms, block.owner
                )
            else:
                merged.append(block)
        self._blocks = merged
        self._firsts = [block.first for block in merged]
