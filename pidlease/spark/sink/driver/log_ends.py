"""What the destination's log says of a run before: whether it is whole, and what came last."""

import logging
from collections.abc import Mapping
from typing import Final

from aiokafka.structs import TopicPartition

from pidlease.copier.cluster_pair import ClusterConnection
from pidlease.copier.cluster_reader import EARLIEST, LATEST
from pidlease.copier.resume_position import last_in_log
from pidlease.spark.errors import SinkError
from pidlease.spark.sink.driver.name_grants import Grant
from pidlease.spark.sink.run_state import Place, RunState
from pidlease.spark.sink.settings import SinkSettings

_log = logging.getLogger(__name__)
#: What is to be done where the destination has less than the checkpoint.
RESTORE: Final = (
    "It was cut, made anew, or lost records: restore it, or write to a new topic with a new"
    " checkpoint"
)


class LogEnds:
    """Where the destination's logs begin and end, against what a state says.

    Parameters:
        settings: the sink's.
        cluster: the destination, reached.
    """

    def __init__(self, settings: SinkSettings, cluster: ClusterConnection) -> None:
        self._settings: Final = settings
        self._cluster: Final = cluster

    async def of(self, state: RunState) -> dict[Place, tuple[int, int]]:
        """The first offset of each partition of the destination, and the first behind it.

        Raises:
            SinkError: one is shorter than it was.
        """
        found: dict[Place, tuple[int, int]] = {}
        for place, offset in state.ends.items():
            there = TopicPartition(*place)
            begin = await self._cluster.reader.offset(there, EARLIEST)
            end = await self._cluster.reader.offset(there, LATEST)
            if end < offset:
                raise SinkError(
                    f"the checkpoint is ahead of the destination: {place} ends at {end}, and was"
                    f" written up to {offset}. {RESTORE}"
                )
            found[place] = begin, end
        return found

    async def behind(
        self,
        state: RunState,
        grants: Mapping[Place, Grant],
        logs: Mapping[Place, tuple[int, int]],
    ) -> dict[tuple[Place, int], int]:
        """Of sources whose PID is another one now: what the destination has by the one before.

        Nothing is written any more under a PID that its name has lost, so what the log says is so
        for good.

        Raises:
            SinkError: the log does not reach back far enough to tell; or others have written since,
                who may be later runs of which this state does not know.
        """
        changed = {p: state.sources[p] for p, g in grants.items() if state.sources[p].pid != g.pid}
        gone = {each.pid for each in changed.values()}
        found: dict[tuple[Place, int], int] = {}
        if not gone:
            return found
        # A name's generations rise by one for each grant, and by two with a new PID.
        known = all(grants[p].generation == each.generation + 2 for p, each in changed.items())
        ours = {each.pid for each in grants.values()}
        ours |= {each.pid for each in state.sources.values()}
        for place, (begin, end) in logs.items():
            offset = state.ends[place]
            if begin > offset:
                self._doubt(
                    f"the lease of PID {min(gone)} has ended, and {place} of the destination"
                    f" begins at {begin}, behind {offset}: nothing tells whether the last rows that"
                    " were sent were there"
                )
            there, span = TopicPartition(*place), (max(begin, offset), end)
            highs = await last_in_log(self._cluster.reader, there, span)
            if not known and (others := {pid for pid in highs if pid > 0} - ours):
                self._doubt(
                    f"the lease of PID {min(gone)} has ended, and its name was granted to others"
                    f" since, of which this checkpoint does not know; {place} has rows of PID"
                    f" {min(others)}, which may be one of them: was the checkpoint restored from a"
                    " backup?"
                )
            found |= {(place, pid): high for pid, high in highs.items()}
        return found

    def _doubt(self, problem: str) -> None:
        """Refuse, unless the checkpoint is to be trusted.

        Raises:
            SinkError: it is not.
        """
        if not self._settings.trust:
            raise SinkError(
                f"{problem}. Compare both sides, and give option trustCheckpoint to go on from what"
                " the checkpoint says"
            )
        _log.warning("%s; the checkpoint is trusted", problem)
