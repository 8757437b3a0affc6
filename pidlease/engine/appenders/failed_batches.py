"""The first batches that failed, and what is held off until they come again.

When an append fails, later batches of the same producer may be on the wire. Judged by
themselves they would be a gap, and a needless gap makes a client raise its generation, which
doubles records elsewhere; or, where nothing is known of the producer, the first ever seen, and
the failed one would then be refused for ever. So they get the failed one's error.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from pidlease.core.judge import Kind, Verdict
from pidlease.core.state import Batch

#: How long successors are held off. What was on the wire has come by then, or been given up
#: (Kafka's delivery.timeout.ms).
FAILED_HOLD_MS: Final = 120_000
#: Producers of a partition that are remembered so.
_KEPT_MAX: Final = 10_000
#: Kafka's numbers wrap; no others come as far apart while one is held off.
_NUMBERS: Final = 2**31
#: How many are looked at with each that is added.
_SWEPT: Final = 4


class _Failed(NamedTuple):
    generation: int
    first: int
    until_ms: int


class FailedFirsts:
    """The failed first batches of one partition.

    Parameters:
        clock_ms: the time, in ms since 1970.
    """

    __slots__ = ("_clock_ms", "by_pid")

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        #: By producer; nearly always empty, which is looked at for each batch.
        self.by_pid: dict[int, _Failed] = {}
        self._clock_ms = clock_ms

    def note(self, pid: int, batch: Batch) -> None:
        """Take note of a batch that failed; the first of the highest generation counts."""
        failed = self.by_pid.get(pid)
        if (
            failed is None
            or batch.generation > failed.generation
            or (batch.generation == failed.generation and _is_before(batch.first, failed.first))
        ):
            now_ms = self._clock_ms()
            self._sweep(now_ms)
            self.by_pid.pop(pid, None)  # so that the oldest stay in front
            until_ms = now_ms + FAILED_HOLD_MS
            self.by_pid[pid] = _Failed(batch.generation, batch.first, until_ms)

    def _sweep(self, now_ms: int) -> None:
        """Forget what was not asked for in time, and the oldest where there are too many."""
        for pid, failed in list(islice(self.by_pid.items(), _SWEPT)):
            if now_ms < failed.until_ms and len(self.by_pid) < _KEPT_MAX:
                return
            del self.by_pid[pid]

    def holds(self, pid: int, batch: Batch, verdict: Verdict, *, known: bool) -> bool:
        """Return whether a batch that would be admitted, or is a gap, is held off for now.

        Not one that follows what is known of the producer: then the failed one was found to be in
        the log after all.

        One of a lower generation as well: had the failed one come through, it would be fenced;
        let in now, its records are stored twice when they come again under the higher generation.
        """
        failed = self.by_pid.get(pid)
        if failed is None:
            return False
        if verdict.kind not in (Kind.ADMIT, Kind.GAP):
            if verdict.kind is Kind.DUPLICATE and batch[:2] == failed[:2]:
                del self.by_pid[pid]  # it is in the log after all
            return False
        if self._clock_ms() >= failed.until_ms or batch.generation > failed.generation:
            del self.by_pid[pid]
            return False
        if batch.generation < failed.generation:
            return True
        if batch.first == failed.first:
            return False
        if known and verdict.kind is Kind.ADMIT:
            del self.by_pid[pid]
            return False
        # Expected is the failed one; or a later one, where that was found in the log after all.
        return verdict.kind is Kind.ADMIT or not _is_before(verdict.expected, failed.first)

    def first(self, pid: int) -> int:
        """Return the sequence number that has to come again."""
        return self.by_pid[pid].first

    def forget(self, pid: int) -> None:
        """Forget a producer: its batch has come again, or its lease has ended."""
        self.by_pid.pop(pid, None)


def _is_before(sequence: int, other: int) -> bool:
    """Return whether a sequence number comes before another one, modulo 2^31."""
    return 0 < (other - sequence) % _NUMBERS < _NUMBERS // 2
