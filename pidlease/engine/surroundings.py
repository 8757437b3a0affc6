"""What all partitions share, and what they ask of the leases."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from pidlease.core.judge import Age
from pidlease.core.producer_names import ProducerNames
from pidlease.engine.appends import AppendsMaker, GroupAppends
from pidlease.engine.counts import Counts
from pidlease.engine.events import Events
from pidlease.engine.lease_table import LeasedPartition


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


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all partitions share.

    Attributes:
        leases: where new producers are noted.
        counts: where outcomes are counted.
        clock_ms: the time, in ms since 1970.
        judging: off lets every batch through as if it had no PID.
        names: the producer ids of policy epoch.
        appends: how admitted batches come into the log.
        events: where refused batches are told.
    """

    leases: LeaseBook
    counts: Counts
    clock_ms: Callable[[], int]
    judging: bool = True
    names: ProducerNames = field(default_factory=ProducerNames)
    appends: AppendsMaker = GroupAppends
    events: Events = field(default_factory=Events)
