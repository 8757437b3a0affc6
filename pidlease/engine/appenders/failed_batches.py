"""Holds off a producer's later batches after a failed one, until that one is sent again.

When an append fails, later batches of the same producer may be on the wire. Judged by themselves
they would be a gap, and a needless gap makes a client raise its generation, which stores records
twice elsewhere. If the producer has no state, they would be admitted as its first, and the failed
one would then be refused for ever. So they get the failed one's error.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from pidlease.core.judge import Kind, Verdict
from pidlease.core.rules import rules_of
from pidlease.core.state import Batch

#: How long later batches are held off. By then a batch on the wire has arrived, or its client has
#: given it up (Kafka's delivery.timeout.ms).
FAILED_HOLD_MS: Final = 120_000
#: The most producers of a partition with a failed batch; beyond it the oldest are forgotten.
_KEPT_MAX: Final = 10_000
#: Kafka's sequence numbers wrap after so many.
_NUMBERS: Final = 2**31
#: How many of the oldest entries are checked whenever one is added.
_SWEPT: Final = 4


class _Failed(NamedTuple):
    generation: int
    first: int
    until_ms: int


class FailedFirsts:
    """Keeps the first failed batch of each producer on one partition.

    Parameters:
        clock_ms: returns the time, in ms since 1970.
    """

    __slots__ = ("_clock_ms", "by_pid")

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        #: By PID; nearly always empty, so each batch first checks for that.
        self.by_pid: dict[int, _Failed] = {}
        self._clock_ms = clock_ms

    def note(self, pid: int, batch: Batch) -> None:
        """Note a failed batch; of several, the first one of the highest generation counts."""
        failed = self.by_pid.get(pid)
        if (
            failed is None
            or batch.generation > failed.generation
            or (
                batch.generation == failed.generation and _is_before(pid, batch.first, failed.first)
            )
        ):
            now_ms = self._clock_ms()
            self._sweep(now_ms)
            self.by_pid.pop(pid, None)  # so that the oldest entries come first
            until_ms = now_ms + FAILED_HOLD_MS
            self.by_pid[pid] = _Failed(batch.generation, batch.first, until_ms)

    def _sweep(self, now_ms: int) -> None:
        """Forget the oldest entries if their time is up, or if there are too many."""
        for pid, failed in list(islice(self.by_pid.items(), _SWEPT)):
            if now_ms < failed.until_ms and len(self.by_pid) < _KEPT_MAX:
                return
            del self.by_pid[pid]

    def holds(self, pid: int, batch: Batch, verdict: Verdict, *, known: bool) -> bool:
        """Return whether a batch that would be admitted, or is a gap, is held off for now.

        A batch that follows the producer's state is not held off: a catch-up has found the failed
        one in the log then.

        A batch of a lower generation is held off as well. If the failed one had been appended, it
        would be fenced; if it were admitted now, its records would be stored twice when the client
        sends them again under the higher generation.
        """
        failed = self.by_pid.get(pid)
        if failed is None:
            return False
        if verdict.kind not in (Kind.ADMIT, Kind.GAP):
            if verdict.kind is Kind.DUPLICATE and batch[:2] == failed[:2]:
                del self.by_pid[pid]  # the failed batch is in the log after all
            return False
        if self._clock_ms() >= failed.until_ms or batch.generation > failed.generation:
            del self.by_pid[pid]
            return False
        if batch.generation < failed.generation:
            return True
        if not _is_before(pid, failed.first, batch.first):
            # It is the failed one, or comes before it: another server had that, and has not stored
            # it.
            return False
        if known and verdict.kind is Kind.ADMIT:
            del self.by_pid[pid]
            return False
        # The state expects the failed one; or a later one, if the failed one is in the log after
        # all.
        return verdict.kind is Kind.ADMIT or not _is_before(pid, verdict.expected, failed.first)

    def first(self, pid: int) -> int:
        """Return the first sequence number of a producer's failed batch."""
        return self.by_pid[pid].first

    def forget(self, pid: int) -> None:
        """Forget a producer's failed batch: it was sent again, or the lease has ended."""
        self.by_pid.pop(pid, None)


def _is_before(pid: int, sequence: int, other: int) -> bool:
    """Return whether a producer's sequence number comes before another one."""
    rules = rules_of(pid)
    if rules is not None and not rules.wraps:
        return sequence < other
    return 0 < (other - sequence) % _NUMBERS < _NUMBERS // 2
