"""What partitions ask of the leases."""

from collections.abc import Iterable
from typing import Protocol

from pidlease.core.judge import Age
from pidlease.engine.leases.lease_table import LeasedPartition


class LeaseBook(Protocol):
    """What a partition asks of the leases.

    Attributes:
        fences: of PIDs that a name is bound to, the last generation granted: lower ones are
            fenced, wherever they are seen.
        formers: the PID that the name of a PID had before.
    """

    fences: dict[int, int]
    formers: dict[int, int]

    def age(self, pid: int, hole_ms: int) -> Age:
        """How old the PID's block is; blocks taken before `hole_ms` count as old."""

    def adopt(self, pid: int, partition: LeasedPartition) -> bool:
        """Take note that a PID writes to a partition for the first time; False: no slot is free."""

    def unsure(self, pid: int) -> bool:
        """Whether another server may have leased a PID, of whose block nothing is known here.

        What is decided by that waits for `look`.
        """

    async def look(self) -> None:
        """Learn which PIDs other servers have leased, by a look that begins after this is called.

        Raises:
            SequenceError: the coordinator cannot be asked now.
        """

    def restore(self, pids: Iterable[int], partition: LeasedPartition) -> None:
        """Take note that the log holds batches of PIDs on a partition."""
