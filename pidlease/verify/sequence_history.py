"""Checks the sequence numbers in a log by the server's own rules.

A history begins at offset 0, or later if retention or damage has removed the beginning. In the
second case a producer's first batch may have any number, and the first snapshot is compared only as
far as the log goes back. From there on the snapshot's rows count, as for a server that starts with
them.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from pidlease.core.judge import Age, Verdict, judge
from pidlease.core.judge import Kind as Judged
from pidlease.core.pid import Policy, policy_of
from pidlease.core.producer_names import ProducerNames
from pidlease.core.rules import rules_of
from pidlease.core.state import Appended, Batch, ProducerState, differ, fold
from pidlease.engine.batch_identity import identity_of
from pidlease.kafka.records.writer_batch import LoggedBatch
from pidlease.storage.snapshots import LeaseRow
from pidlease.verify.verify_report import Kind

_KINDS: Final = {
    Judged.DUPLICATE: Kind.DUPLICATE,
    Judged.GAP: Kind.GAP,
    Judged.OVERLAP: Kind.OVERLAP,
    Judged.FENCED: Kind.FENCING,
    Judged.MALFORMED: Kind.MALFORMED,
}


class History:
    """The producers' states by a partition's log from an offset on.

    Parameters:
        start: the offset.
        names: the producer ids of policy epoch, of all partitions and snapshots.
    """

    def __init__(self, start: int, names: ProducerNames) -> None:
        self.start: Final = start
        self._names = names
        self.producers: dict[int, ProducerState] = {}
        self._whole = start == 0
        self._based = False
        self._cut: set[int] = set()

    def apply(self, logged: LoggedBatch) -> tuple[Kind, str] | None:
        """Apply a batch.

        Returns:
            What is wrong with its sequence numbers; None: nothing.
        """
        header = logged.header
        identified = identity_of(logged, self._names)
        if identified is None:
            return _check_unidentified(header.producer_id)
        pid, batch = identified
        rules = rules_of(pid)
        if rules is None:
            return Kind.MALFORMED, f"PID {pid} belongs to no policy"
        state = self.producers.get(pid)
        age = Age.YOUNG if self._whole else Age.OLD
        verdict = judge(rules, state, batch, age, granted=batch.generation)
        new = fold(rules, state, batch, header.base_offset, 0)
        self.producers[pid] = new
        if state is None and not (self._whole or self._based):
            self._cut.add(pid)
            if verdict.kind is Judged.GAP:
                return None  # retention may have removed its first batches
        elif state is not None and len(new.batches) == 1:
            self._cut.discard(pid)  # a new generation: the log has all its batches
        if verdict.kind not in _KINDS:
            return None
        return _KINDS[verdict.kind], _explain(self._name(pid), batch, state, verdict)

    def differences(
        self, rows: Mapping[int, ProducerState], leases: Mapping[int, LeaseRow]
    ) -> Iterator[str]:
        """Yield the differences between a snapshot taken here and the log.

        Parameters:
            rows: the snapshot's producers.
            leases: the snapshot's leases. They show which producers may have expired and returned.
        """
        known = self._whole or self._based
        for pid, row in rows.items():
            state = self.producers.get(pid)
            if state is None:
                if known:
                    yield f"{self._name(pid)} is in the snapshot, and not in the log"
            elif not self._agrees(pid, row, state, lasted=_lasted(leases.get(pid))):
                yield (
                    f"{self._name(pid)} is {_show(row)} in the snapshot,"
                    f" and {_show(state)} by the log"
                )
        for pid, state in self.producers.items():
            if pid not in rows and _lasted(leases.get(pid)):
                yield f"{self._name(pid)} is not in the snapshot, and {_show(state)} by the log"

    def _agrees(self, pid: int, row: ProducerState, state: ProducerState, *, lasted: bool) -> bool:
        """Return whether a snapshot's row is equal to the log's state, arrival times aside.

        If a producer returned after its lease had ended, the row has only the batches since then.
        """
        if (row.generation, row.high) != (state.generation, state.high):
            return False
        cut = pid in self._cut
        if not cut and row.lowest == state.lowest and _same(row.batches, state.batches):
            return True
        if cut and _ends_with(row.batches, state.batches):
            return True
        return not lasted and _ends_with(state.batches, row.batches)

    def _name(self, pid: int) -> str:
        name = self._names.name(pid)
        return f"producer {name!r}" if name else f"PID {pid}"

    def begin_with(self, rows: Mapping[int, ProducerState]) -> None:
        """Continue with a snapshot's rows, if the log does not go back to its beginning."""
        if not self._whole and not self._based:
            self._based = True
            self.producers = dict(rows)
            self._cut.clear()


def _check_unidentified(pid: int) -> tuple[Kind, str] | None:
    """Return what is wrong with a batch without identity; None: it has no PID, as it should."""
    if pid <= 0:
        return None
    policy = policy_of(pid)
    if policy in (None, Policy.WRITER):
        return Kind.MALFORMED, f"PID {pid} belongs to no policy"
    return Kind.MALFORMED, f"PID {pid} stands in the header of a batch, not in its first record"


def _lasted(lease: LeaseRow | None) -> bool:
    """Return whether a lease was kept since its grant, so that no state of its PID has expired.

    That is unknown for a lease that ended and was taken up again, or that only the log had.
    """
    return lease is not None and lease.granted_ms >= 0


def _ends_with(batches: tuple[Appended, ...], end: tuple[Appended, ...]) -> bool:
    return bool(end) and _same(batches[-len(end) :], end)


def _same(some: tuple[Appended, ...], others: tuple[Appended, ...]) -> bool:
    """Return whether batches are equal, as far as their CRCs are known."""
    return len(some) == len(others) and all(
        one[:3] == other[:3] and not differ(one.crc, other.crc)
        for one, other in zip(some, others, strict=True)
    )


def _show(state: ProducerState) -> str:
    return (
        f"at generation {state.generation}, H {state.high}, lowest {state.lowest}, last batches"
        f" {[tuple(batch) for batch in state.batches]}"
    )


def _explain(producer: str, batch: Batch, state: ProducerState | None, verdict: Verdict) -> str:
    what = f"{producer}, generation {batch.generation}, sequences {batch.first}..{batch.last}: "
    if verdict.kind is Judged.DUPLICATE:
        return what + f"a duplicate stands in the log{_at(verdict.offset)}"
    if verdict.kind is Judged.FENCED:
        return what + f"generation {verdict.generation} stands before it"
    if verdict.kind is Judged.OVERLAP:
        return what + f"overlaps what stands before it; {verdict.expected} should follow"
    if verdict.kind is Judged.GAP and state is None:
        return what + "begins in the middle; a producer's first sequence is 0"
    if verdict.kind is Judged.GAP:
        return what + f"a gap; {verdict.expected} should follow"
    return what + verdict.reason


def _at(offset: int) -> str:
    return "" if offset < 0 else f"; the first one is at offset {offset}"
