"""The sequence numbers in a log, by the same validation and the same fold as in a server.

A history begins at offset 0, or, where retention has removed the beginning or damage has cut
it off, at a later one: then a producer's first batch may be any, and the first snapshot at or
after that offset can only be compared as far as the log goes back. From there on its rows are
what is known, as for a server that starts with it.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from pidlease.core.judge import Age, Verdict, judge
from pidlease.core.judge import Kind as Judged
from pidlease.core.pid import Policy, policy_of
from pidlease.core.producer_names import ProducerNames
from pidlease.core.rules import rules_of
from pidlease.core.state import UNKNOWN_CRC, Appended, Batch, ProducerState, fold
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
    """What a partition's log says of its producers, from an offset on.

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
        """Fold a batch.

        Returns:
            What is wrong with its sequences; None where nothing is.
        """
        header = logged.header
        found = identity_of(logged, self._names)
        if found is None:
            return _not_judged(header.producer_id)
        pid, batch = found
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
        elif state is not None and len(new.batches) == 1:
            self._cut.discard(pid)  # a new generation: all of it is in the log
        if verdict.kind not in _KINDS:
            return None
        return _KINDS[verdict.kind], _explain(self._name(pid), batch, state, verdict)

    def differences(
        self, rows: Mapping[int, ProducerState], leases: Mapping[int, LeaseRow]
    ) -> Iterator[str]:
        """Where a snapshot taken here says something else.

        Parameters:
            rows: what it says of the producers.
            leases: its leases; they show which producers may have ended and come back.
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
        """Whether a row is what the log says, arrival aside.

        A producer that came back after its lease ended is known only from then on.
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
        """Go on from a snapshot's rows, where the log does not go back to the beginning."""
        if not self._whole and not self._based:
            self._based = True
            self.producers = dict(rows)
            self._cut.clear()


def _not_judged(pid: int) -> tuple[Kind, str] | None:
    """A batch without a PID; others may not stand in a batch's header."""
    if pid <= 0:
        return None
    policy = policy_of(pid)
    if policy in (None, Policy.WRITER):
        return Kind.MALFORMED, f"PID {pid} belongs to no policy"
    return Kind.MALFORMED, f"PID {pid} stands in the header of a batch, not in its first record"


def _lasted(lease: LeaseRow | None) -> bool:
    """Whether a lease was kept since its grant, so that nothing of its PID is forgotten.

    One that ended and was taken up again, or that only the log knew after a crash, has none.
    """
    return lease is not None and lease.granted_ms >= 0


def _ends_with(batches: tuple[Appended, ...], end: tuple[Appended, ...]) -> bool:
    return bool(end) and _same(batches[-len(end) :], end)


def _same(some: tuple[Appended, ...], others: tuple[Appended, ...]) -> bool:
    """Whether batches are the same, as far as their CRCs are known."""
    return len(some) == len(others) and all(
        one[:3] == other[:3] and (one.crc == other.crc or UNKNOWN_CRC in (one.crc, other.crc))
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
