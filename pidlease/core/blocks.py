"""PID blocks: what the sequence hands out, and how old the block of a PID is."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from pidlease.core.judge import Age
from pidlease.core.pid import number_of


@dataclass(frozen=True, slots=True, order=True)
class PidBlock:
    """A run of numbers taken from the global sequence by one durable write.

    Attributes:
        first: the first number in it.
        count: how many there are.
        taken_ms: when it was taken, in ms since 1970; never later than any lease out of it.
        owner: the server that took it.
    """

    first: int
    count: int
    taken_ms: int
    owner: str = ""

    @property
    def end(self) -> int:
        """The first number after the block."""
        return self.first + self.count


class BlockAges:
    """The blocks on record, in order of their numbers, asked for the age of a PID.

    Numbers in no recorded block were never handed out: they lie beyond the sequence, or in a
    block that was skipped. Blocks older than the lease may be merged: only "old" matters then.
    """

    def __init__(self, blocks: Iterable[PidBlock] = ()) -> None:
        self._firsts: list[int] = []
        self._blocks: list[PidBlock] = []
        for block in sorted(blocks):
            self.add(block)

    def __len__(self) -> int:
        return len(self._blocks)

    def blocks(self) -> list[PidBlock]:
        """The blocks, in order."""
        return list(self._blocks)

    @property
    def end(self) -> int:
        """The first number after all recorded blocks."""
        return self._blocks[-1].end if self._blocks else 1

    def add(self, block: PidBlock) -> None:
        """Record a block.

        Raises:
            ValueError: it does not lie after all others.
        """
        if block.first < self.end:
            raise ValueError(f"block {block.first} does not follow {self.end}")
        self._firsts.append(block.first)
        self._blocks.append(block)

    def note(self, block: PidBlock) -> None:
        """Record a block, as far as no other one is on record.

        Blocks of other servers may follow it already. One that was merged spans blocks that are on
        record one by one.
        """
        at = block.first
        while at < block.end:
            place = bisect_right(self._firsts, at)
            if place and at < self._blocks[place - 1].end:
                at = self._blocks[place - 1].end
                continue
            end = min([block.end, *self._firsts[place : place + 1]])
            self._firsts.insert(place, at)
            self._blocks.insert(place, PidBlock(at, end - at, block.taken_ms, block.owner))
            at = end

    def age(self, pid: int, young_after_ms: int) -> Age:
        """How old the block of a PID is.

        Parameters:
            pid: the producer id.
            young_after_ms: blocks taken later than this (ms since 1970) are young: now minus the
                lease length, or the time up to which a partition's history is incomplete.
        """
        block = self._holding(pid)
        if block is None:
            return Age.NEVER
        return Age.YOUNG if block.taken_ms > young_after_ms else Age.OLD

    def taken_ms(self, pid: int) -> int:
        """When the block of a PID was taken, in ms since 1970; -1 where none is on record."""
        block = self._holding(pid)
        return -1 if block is None else block.taken_ms

    def _holding(self, pid: int) -> PidBlock | None:
        n = number_of(pid)
        place = bisect_right(self._firsts, n) - 1
        if place < 0 or n >= self._blocks[place].end:
            return None
        return self._blocks[place]

    def merge_older(self, than_ms: int) -> None:
        """Join neighbouring blocks taken before `than_ms` into one, to bound what is kept."""
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
