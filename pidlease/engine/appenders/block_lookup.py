"""Batches under PIDs that another server may have leased: the coordinator is asked first.

An unknown PID is refused for good: its producer gives up what it has, or begins anew under another
PID and stores it twice. So it is refused only after a look at the PID blocks that began after the
batch had come. An error in the meantime would not do: the batch comes again, and later than the
look.
"""

from collections.abc import Set
from typing import Final

from pidlease.coordination.pid_sequence import SequenceError
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.appenders.catch_up import ParkedBatches
from pidlease.engine.leases.leases import Leases

_UNKNOWN_YET: Final = Outcome(
    Status.FAILED,
    reason="whether another server has leased this PID cannot be looked up now; send it again",
)


class BlockLookup(ParkedBatches):
    """One partition's; all partitions wait for the same look.

    Parameters:
        leases: know the PID blocks.
    """

    def __init__(self, leases: Leases) -> None:
        super().__init__()
        self._leases: Final = leases

    async def _read(self, producers: Set[int]) -> Outcome | None:
        """See `ParkedBatches`."""
        if not any(map(self._leases.unsure, producers)):
            return None  # the look for a batch in front was enough
        try:
            await self._leases.look()
        except SequenceError:
            return _UNKNOWN_YET
        return None
