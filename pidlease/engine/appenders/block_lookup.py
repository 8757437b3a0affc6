"""Looks up the blocks of PIDs before a batch is rejected because its PID is unknown.

Another server may have leased the PID. A rejection for an unknown PID is final: the producer drops
its records, or sends them again under another PID, which stores them twice. So it needs a lookup
that began after the batch had arrived. A retriable error instead would not help: the retry would
arrive after the lookup again.
"""

from collections.abc import Set
from typing import Final

from typing_extensions import override

from pidlease.coordination.pid_sequence import SequenceError
from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.appenders.catch_up import ParkedBatches
from pidlease.engine.leases.leases import Leases

_UNKNOWN_YET: Final = Outcome(
    Status.FAILED,
    reason="whether another server has leased this PID cannot be looked up now; send it again",
)


class BlockLookup(ParkedBatches):
    """Parks batches of one partition until a lookup of PID blocks, which all partitions share.

    Parameters:
        leases: looks the blocks up.
    """

    def __init__(self, leases: Leases) -> None:
        super().__init__()
        self._leases: Final = leases

    @override
    async def _read(self, producers: Set[int]) -> Outcome | None:
        if not any(map(self._leases.unsure, producers)):
            return None  # the lookup for an earlier batch was sufficient
        try:
            await self._leases.look()
        except SequenceError:
            return _UNKNOWN_YET
        return None
