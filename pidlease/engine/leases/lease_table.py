"""What is known of each leased PID, in a few bytes: there are a million of them.

PIDs are handed out one behind the other, so what belongs to a hundred neighbours stands in arrays
of one block, without a key for each. A block goes when the last of its PIDs has gone.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from pidlease.core.packed import Packed
from pidlease.core.pid import BLOCK_SIZE, N_MASK, POLICY_SHIFT, number_of
from pidlease.storage.snapshots import LeaseRow

#: A place in a block that holds no lease. (-1 is a lease that was not kept since its grant.)
_NONE: Final = -2


class LeasedPartition(Protocol):
    """What the leases ask of a partition."""

    @property
    def producers(self) -> dict[int, Packed]:
        """The states of its producers, by PID."""

    def is_flying(self, pid: int) -> bool:
        """Whether batches of a PID are in flight."""

    def forget(self, pid: int) -> None:
        """Let go of a producer whose lease has ended."""


class _Block:
    __slots__ = ("first_ms", "granted_ms", "leases", "partitions", "policies")

    def __init__(self) -> None:
        self.leases = 0
        self.granted_ms = array("q", [_NONE] * BLOCK_SIZE)
        self.first_ms = array("q", [_NONE] * BLOCK_SIZE)
        #: By number alone a PID is not told from one of another policy.
        self.policies = bytearray(BLOCK_SIZE)
        # None, a partition, or a list of several: nearly all write to one only.
        self.partitions: list[Any] = [None] * BLOCK_SIZE


class LeaseTable:
    """Leases by PID."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._leases = 0

    def __len__(self) -> int:
        return self._leases

    def __contains__(self, pid: int) -> bool:
        return self.get(pid) is not None

    def get(self, pid: int) -> LeaseRow | None:
        """The lease of a PID, if there is one."""
        number, place = divmod(number_of(pid) - 1, BLOCK_SIZE)
        block = self._blocks.get(number)
        if block is None or block.granted_ms[place] == _NONE:
            return None
        return LeaseRow(pid, block.granted_ms[place], block.first_ms[place])

    def is_other(self, pid: int) -> bool:
        """Whether the number of a PID is that of a lease of another policy."""
        number, place = divmod(number_of(pid) - 1, BLOCK_SIZE)
        block = self._blocks.get(number)
        if block is None or block.granted_ms[place] == _NONE:
            return False
        return block.policies[place] != pid >> POLICY_SHIFT

    def put(self, pid: int, granted_ms: int, first_ms: int = -1) -> None:
        """Begin a lease of a PID that has none, or set its times."""
        number, place = divmod(number_of(pid) - 1, BLOCK_SIZE)
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = _Block()
        if block.granted_ms[place] == _NONE:
            block.leases += 1
            self._leases += 1
        block.granted_ms[place] = granted_ms
        block.first_ms[place] = first_ms
        block.policies[place] = pid >> POLICY_SHIFT

    def pop(self, pid: int) -> tuple[LeasedPartition, ...]:
        """End a lease; the partitions that the PID wrote to."""
        number, place = divmod(number_of(pid) - 1, BLOCK_SIZE)
        block = self._blocks.get(number)
        if block is None or block.granted_ms[place] == _NONE:
            return ()
        partitions = _as_tuple(block.partitions[place])
        block.granted_ms[place] = _NONE
        block.partitions[place] = None
        block.leases -= 1
        self._leases -= 1
        if not block.leases:
            del self._blocks[number]
        return partitions

    def partitions(self, pid: int) -> tuple[LeasedPartition, ...]:
        """The partitions that a leased PID writes to."""
        number, place = divmod(number_of(pid) - 1, BLOCK_SIZE)
        block = self._blocks.get(number)
        return () if block is None else _as_tuple(block.partitions[place])

    def add_partition(self, pid: int, partition: LeasedPartition) -> None:
        """Take note that a leased PID writes to a partition."""
        number, place = divmod(number_of(pid) - 1, BLOCK_SIZE)
        partitions = self._blocks[number].partitions
        there = partitions[place]
        if there is None:
            partitions[place] = partition
        elif isinstance(there, list):
            if partition not in there:
                there.append(partition)
        elif there is not partition:
            partitions[place] = [there, partition]

    def restore(
        self, pids: Iterable[int], partition: LeasedPartition, now_ms: int
    ) -> Iterator[int]:
        """Take note at a start of state on a partition; each partition tells its PIDs once.

        Parameters:
            pids: which.
            partition: where.
            now_ms: counts as their first message.

        Yields:
            Those that had no lease; they have one now that was not kept since its grant.
        """
        blocks = self._blocks
        for pid in pids:
            number, place = divmod((pid & N_MASK) - 1, BLOCK_SIZE)
            block = blocks.get(number)
            if block is None:
                block = blocks[number] = _Block()
            block.first_ms[place] = now_ms
            partitions = block.partitions
            there = partitions[place]
            if there is None:
                partitions[place] = partition
            elif isinstance(there, list):
                there.append(partition)
            else:
                partitions[place] = [there, partition]
            if block.granted_ms[place] == _NONE:
                block.granted_ms[place] = -1
                block.policies[place] = pid >> POLICY_SHIFT
                block.leases += 1
                self._leases += 1
                yield pid

    def remove_partition(self, pid: int, partition: LeasedPartition) -> None:
        """A leased PID no longer writes to a partition: it is gone."""
        number, place = divmod(number_of(pid) - 1, BLOCK_SIZE)
        partitions = self._blocks[number].partitions
        left = [each for each in _as_tuple(partitions[place]) if each is not partition]
        partitions[place] = left or None

    def tell(self, pids: Iterable[int], told: Callable[[int, int, int], None]) -> None:
        """Call with (pid, granted_ms, first_ms) of PIDs, those left out that have no lease."""
        blocks = self._blocks
        for pid in pids:
            number, place = divmod(number_of(pid) - 1, BLOCK_SIZE)
            block = blocks.get(number)
            if block is not None and block.granted_ms[place] != _NONE:
                told(pid, block.granted_ms[place], block.first_ms[place])


def _as_tuple(partitions: Any) -> tuple[LeasedPartition, ...]:  # noqa: ANN401 - see `_Block`
    if partitions is None:
        return ()
    return tuple(partitions) if isinstance(partitions, list) else (partitions,)
