"""The state of each leased PID, packed: there may be a million. `ring` has when they end.

PIDs are leased one after another, so the leases of a hundred adjacent PIDs are stored in the arrays
of one block, without a key for each. A block is removed with the last of its leases.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

from pidlease.core.packed import Packed
from pidlease.core.pid import BLOCK_SIZE, N_MASK, POLICY_SHIFT, number_of
from pidlease.storage.snapshots import LeaseRow, LeaseRows

#: An entry of a block without a lease. (-1 is a lease that was not kept since its grant.)
_NONE: Final = -2


class LeasedPartition(Protocol):
    """A partition, as far as the leases use it."""

    @property
    def producers(self) -> dict[int, Packed]:
        """The states of its producers, by PID."""

    def is_in_flight(self, pid: int) -> bool:
        """Return whether batches of a PID are in flight."""

    def forget(self, pid: int) -> None:
        """Remove the state of a producer after its lease."""


class _Block:
    __slots__ = ("first_ms", "granted_ms", "leases", "partitions", "policies")

    def __init__(self) -> None:
        self.leases = 0
        self.granted_ms = array("q", [_NONE] * BLOCK_SIZE)
        self.first_ms = array("q", [_NONE] * BLOCK_SIZE)
        #: The number alone does not distinguish PIDs of different policies.
        self.policies = bytearray(BLOCK_SIZE)
        # None, a partition, or a list of several: nearly all PIDs write to one only.
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
        """Return the lease of a PID, if there is one."""
        number, index = divmod(number_of(pid) - 1, BLOCK_SIZE)
        block = self._blocks.get(number)
        if block is None or block.granted_ms[index] == _NONE:
            return None
        return LeaseRow(pid, block.granted_ms[index], block.first_ms[index])

    def is_other(self, pid: int) -> bool:
        """Return whether the number of a PID belongs to a lease of another policy."""
        number, index = divmod(number_of(pid) - 1, BLOCK_SIZE)
        block = self._blocks.get(number)
        if block is None or block.granted_ms[index] == _NONE:
            return False
        return block.policies[index] != pid >> POLICY_SHIFT

    def put(self, pid: int, granted_ms: int, first_ms: int = -1) -> None:
        """Begin a lease of a PID that has none, or set its times."""
        number, index = divmod(number_of(pid) - 1, BLOCK_SIZE)
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = _Block()
        if block.granted_ms[index] == _NONE:
            block.leases += 1
            self._leases += 1
        block.granted_ms[index] = granted_ms
        block.first_ms[index] = first_ms
        block.policies[index] = pid >> POLICY_SHIFT

    def pop(self, pid: int) -> tuple[LeasedPartition, ...]:
        """End a lease; return the partitions that the PID wrote to."""
        number, index = divmod(number_of(pid) - 1, BLOCK_SIZE)
        block = self._blocks.get(number)
        if block is None or block.granted_ms[index] == _NONE:
            return ()
        partitions = _as_tuple(block.partitions[index])
        block.granted_ms[index] = _NONE
        block.partitions[index] = None
        block.leases -= 1
        self._leases -= 1
        if not block.leases:
            del self._blocks[number]
        return partitions

    def partitions(self, pid: int) -> tuple[LeasedPartition, ...]:
        """Return the partitions that a leased PID writes to."""
        number, index = divmod(number_of(pid) - 1, BLOCK_SIZE)
        block = self._blocks.get(number)
        return () if block is None else _as_tuple(block.partitions[index])

    def add_partition(self, pid: int, partition: LeasedPartition) -> None:
        """Note that a leased PID writes to a partition."""
        number, index = divmod(number_of(pid) - 1, BLOCK_SIZE)
        partitions = self._blocks[number].partitions
        there = partitions[index]
        if there is None:
            partitions[index] = partition
        elif isinstance(there, list):
            if partition not in there:
                there.append(partition)
        elif there is not partition:
            partitions[index] = [there, partition]

    def restore(
        self,
        pids: Iterable[int],
        partition: LeasedPartition,
        now_ms: int,
        former: LeasedPartition | None = None,
    ) -> Iterator[int]:
        """Note, at a start, the PIDs with state on a partition; once for each partition.

        Parameters:
            pids: PIDs with state on the partition.
            now_ms: counts as the time of their first message.
            former: the partition takes the place of this one.

        Yields:
            The PIDs without a lease. They get one, which counts as not kept since its grant.
        """
        blocks = self._blocks
        for pid in pids:
            number, index = divmod((pid & N_MASK) - 1, BLOCK_SIZE)
            block = blocks.get(number)
            if block is None:
                block = blocks[number] = _Block()
            block.first_ms[index] = now_ms
            partitions = block.partitions
            there = partitions[index]
            if there is None or there is former:
                partitions[index] = partition
            elif isinstance(there, list):
                if former in there:
                    there.remove(former)
                there.append(partition)
            else:
                partitions[index] = [there, partition]
            if block.granted_ms[index] == _NONE:
                block.granted_ms[index] = -1
                block.policies[index] = pid >> POLICY_SHIFT
                block.leases += 1
                self._leases += 1
                yield pid

    def restore_rows(self, rows: LeaseRows) -> "tuple[array[int], array[int]]":
        """Begin the leases of a snapshot; a PID that has a lease keeps it as it is.

        Returns:
            The PIDs of the leases that began here, in the rows' order, and the time from which each
            lease counts, in ms since 1970.
        """
        pids, begun_ms = array("q"), array("q")
        blocks = self._blocks
        block, known = _Block(), -1
        # In the order of the grants, so a block's leases mostly follow one another.
        for pid, granted_ms, first_ms in zip(*rows.columns, strict=True):
            number, index = divmod((pid & N_MASK) - 1, BLOCK_SIZE)
            if number != known:
                known = number
                block = blocks.get(number) or blocks.setdefault(number, _Block())
            if block.granted_ms[index] != _NONE:
                continue
            block.granted_ms[index] = granted_ms
            block.first_ms[index] = first_ms
            block.policies[index] = pid >> POLICY_SHIFT
            block.leases += 1
            pids.append(pid)
            begun_ms.append(granted_ms if granted_ms > first_ms else first_ms)
        self._leases += len(pids)
        return pids, begun_ms

    def remove_partition(self, pid: int, partition: LeasedPartition) -> None:
        """Note that a partition of a leased PID was deleted."""
        number, index = divmod(number_of(pid) - 1, BLOCK_SIZE)
        partitions = self._blocks[number].partitions
        left = [each for each in _as_tuple(partitions[index]) if each is not partition]
        partitions[index] = left[0] if len(left) == 1 else left or None

    def visit(self, pids: Iterable[int], visitor: Callable[[int, int, int], None]) -> None:
        """Call a visitor with (pid, granted_ms, first_ms) for each PID that has a lease."""
        blocks = self._blocks
        for pid in pids:
            number, index = divmod(number_of(pid) - 1, BLOCK_SIZE)
            block = blocks.get(number)
            if block is not None and block.granted_ms[index] != _NONE:
                visitor(pid, block.granted_ms[index], block.first_ms[index])


def _as_tuple(partitions: Any) -> tuple[LeasedPartition, ...]:  # noqa: ANN401 - as in `_Block`
    if partitions is None:
        return ()
    return tuple(partitions) if isinstance(partitions, list) else (partitions,)
