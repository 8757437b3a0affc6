"""Asks the coordinator before a batch of a PID is refused that another server may have leased.

A refusal for an unknown PID is final: its producer drops its records, or sends them again under
another PID and stores them twice. So the refusal follows a lookup of the PID blocks that began
after the batch had come. A retriable error instead would not do: the batch would come again after
the lookup.
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
    """Batches of one partition that wait for a lookup; all partitions share the lookup.

    Parameters:
        leases: looks PID blocks up.
    """

    def __init__(self, leases: Leases) -> None:
        super().__init__()
        self._leases: Final = leases

    @override
    async def _read(self, producers: Set[int]) -> Outcome | None:
        if not any(map(self._leases.unsure, producers)):
            return None  # the lookup for an earlier batch was enough
        try:
            await self._leases.look()
        except SequenceError:
            return _UNKNOWN_YET
        return None
