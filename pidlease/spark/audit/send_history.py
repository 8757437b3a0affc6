"""One producer's sends on one partition, validated one by one by `pidlease.core.judge`.

This is the expensive half of the audit, for suspect producers only. It differs from a server's
replay in three points:

- A duplicate in the log does not change the state, or the next send would be reported as a gap.
- A send after one that should have followed it is reported as late, not as a duplicate: its
  sequence numbers were not in the log before.
- If a producer of policy epoch begins at 0 again, its next send decides whether that was a
  duplicate, or whether the producer's state had expired (see `fold`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from pidlease.core.judge import Age, Verdict, judge
from pidlease.core.judge import Kind as Judged
from pidlease.core.pid import POLICY_SHIFT
from pidlease.core.rules import Rules, Start, rules_of
from pidlease.core.state import UNKNOWN_CRC, Batch, ProducerState, differ, fold, next_sequence, span
from pidlease.core.topic_partition import TopicPartition

DUPLICATE: Final = "duplicate"
GAP: Final = "gap"
OVERLAP: Final = "overlap"
LATE: Final = "late"
FENCED: Final = "fenced"
MALFORMED: Final = "malformed"
#: Kinds of findings that break a rule.
VIOLATIONS: Final = (DUPLICATE, GAP, OVERLAP, LATE, FENCED, MALFORMED)

JUMP: Final = "generation jump"
RESTART: Final = "restart"
LOST: Final = "lost to damage"
#: Kinds of findings that break no rule.
NOTICES: Final = (JUMP, RESTART, LOST)

#: The newest sequence gaps are remembered, to recognise late sends.
_GAPS_MAX: Final = 10_000


class LoggedSend(NamedTuple):
    """A send in the log.

    Attributes:
        policy: the number of its policy; an unknown number: the send is malformed.
        offset: of its first record.
        last_offset: of its last record.
        batch: its identity.
        counted: the number of its records.
        equal_offset: offset of the producer's first send of an equal range, if that is earlier; -1:
            there is none.
        equal_crc: the CRC of that send.
        equal_generation: the generation of that send.
    """

    policy: int
    offset: int
    last_offset: int
    batch: Batch
    counted: int
    equal_offset: int = -1
    equal_crc: int = UNKNOWN_CRC
    equal_generation: int = -1


class SendFinding(NamedTuple):
    """A violation or a notice about a send.

    Attributes:
        kind: one of VIOLATIONS and NOTICES.
        numbers: records that were stored before (duplicate, overlap), missing sequence numbers
            (gap, lost to damage), records of the send (otherwise).
        expected: the sequence number that was expected; -1: unknown.
        original: offset of the first send of an equal range; -1: there is none.
        differs: whether that send has other content.
    """

    kind: str
    sent: LoggedSend
    numbers: int
    expected: int = -1
    original: int = -1
    differs: bool = False
    detail: str = ""


class LogCompleteness(NamedTuple):
    """Which parts of a partition's log are missing.

    Attributes:
        whole: whether the log still begins at offset 0.
        damaged: offsets at which records are damaged or missing, in order.
    """

    whole: bool = True
    damaged: Sequence[int] = ()

    def is_damaged(self, after: int, upto: int) -> bool:
        """Return whether there is damage after an offset, up to another one."""
        index = bisect_right(self.damaged, after)
        return index < len(self.damaged) and self.damaged[index] <= upto


def completeness_of(
    starts: Mapping[TopicPartition, int], damaged: Mapping[TopicPartition, Sequence[int]]
) -> dict[TopicPartition, LogCompleteness]:
    """Return the completeness of each partition.

    Parameters:
        starts: the offset below which sends may be missing, of each partition.
        damaged: offsets of damage.
    """
    return {
        each: LogCompleteness(start == 0, sorted(damaged.get(each, ())))
        for each, start in starts.items()
    }


class _PossibleRestart(NamedTuple):
    """A send at 0 before which the state may have expired, with the verdict if it has not."""

    rules: Rules
    sent: LoggedSend
    verdict: Verdict


class SendHistory:
    """The sends of a producer on a partition.

    Parameters:
        log: the completeness of the partition's log.
    """

    def __init__(self, log: LogCompleteness) -> None:
        self._log: Final = log
        self._age: Final = Age.YOUNG if log.whole else Age.OLD
        self._state: ProducerState | None = None
        #: The last offset of the newest send.
        self._offset = -1
        #: The high sequence, counted on where sequence numbers wrap.
        self._high = -1
        #: The lowest sequence number in the log, counted alike.
        self._low = 0
        #: Sequence gaps, in order: first and last number of each.
        self._gaps: list[tuple[int, int]] = []
        self._restart: _PossibleRestart | None = None

    def judge(self, sent: LoggedSend) -> Iterator[SendFinding]:
        """Return the findings about the next send, and any about the last one that had to wait."""
        rules = rules_of(sent.policy << POLICY_SHIFT | 1)
        if rules is None:
            detail = "the PID belongs to no policy"
            yield SendFinding(MALFORMED, sent, sent.counted, detail=detail)
            return
        if self._restart is not None:
            yield from self._settle(self._restart, sent.batch)
        before, self._offset = self._offset, sent.last_offset
        state, batch = self._state, sent.batch
        verdict = judge(rules, state, batch, self._age, granted=batch.generation)
        if verdict.kind is Judged.MALFORMED:
            yield SendFinding(MALFORMED, sent, sent.counted, detail=verdict.reason)
            self._step_over(rules, sent)
        elif self._is_cut(sent):
            self._begin_at(rules, sent)
        elif self._may_restart(rules, batch):
            self._restart = _PossibleRestart(rules, sent, verdict)
        else:
            lost = verdict.kind is Judged.GAP and self._log.is_damaged(before, sent.offset)
            yield from self._report(rules, sent, verdict, lost=lost)

    def end(self) -> Iterator[SendFinding]:
        """Return the findings that have waited for another send."""
        if self._restart is not None:
            rules, sent, verdict = self._restart
            self._restart = None
            yield from self._report(rules, sent, verdict)

    # ------------------------------------------------------------------ one send

    def _report(
        self, rules: Rules, sent: LoggedSend, verdict: Verdict, *, lost: bool = False
    ) -> Iterator[SendFinding]:
        kind, expected = verdict.kind, verdict.expected
        if kind is Judged.FENCED:
            detail = f"generation {verdict.generation} stands before it"
            yield SendFinding(FENCED, sent, sent.counted, detail=detail)
            return
        state = self._state
        if state and not rules.restarts and sent.batch.generation > state.generation + 1:
            yield SendFinding(JUMP, sent, sent.counted, detail=f"from {state.generation}")
        ahead = self._ahead(rules, sent.batch)
        if kind is Judged.DUPLICATE or (ahead < 0 and kind is Judged.GAP):
            yield self._earlier(rules, sent, verdict)
            return
        if kind is Judged.OVERLAP:
            stored = -ahead - self._fill(self._high + 1 + ahead, self._high)
            detail = f"{expected} should follow"
            yield SendFinding(OVERLAP, sent, min(stored, sent.counted), expected, detail=detail)
        elif kind is Judged.GAP:
            detail = f"{expected} should follow"
            if state is None:
                detail = "begins in the middle; a producer's first sequence is 0"
            yield SendFinding(LOST if lost else GAP, sent, ahead, expected, detail=detail)
        self._apply(rules, sent)

    def _earlier(self, rules: Rules, sent: LoggedSend, verdict: Verdict) -> SendFinding:
        """Return the finding about a send at or below the high sequence; the state stays."""
        first = self._high + 1 + self._ahead(rules, sent.batch)
        numbers = span(rules, sent.batch)
        filled = self._fill(first, first + numbers - 1)
        stored = numbers - filled
        if rules.low_mark and first < self._low and not filled:
            detail = "lies before the first sequence that is known"
            return SendFinding(GAP, sent, 0, verdict.expected, detail=detail)
        self._low = min(self._low, first)
        if not stored:
            detail = "comes after what should follow it"
            return SendFinding(LATE, sent, sent.counted, verdict.expected, detail=detail)
        original, differs = _equal(sent)
        detail = f"the first one is at offset {original}" if original >= 0 else ""
        if differs:
            detail += ", with other content"
        count = min(stored, sent.counted)
        return SendFinding(DUPLICATE, sent, count, -1, original, differs, detail)

    def _step_over(self, rules: Rules, sent: LoggedSend) -> None:
        """Apply a send that is malformed by its number of records only."""
        batch = sent.batch._replace(records=max(span(rules, sent.batch), 1))
        kind = judge(rules, self._state, batch, self._age, granted=batch.generation).kind
        if kind is not Judged.MALFORMED and self._is_cut(sent):
            self._begin_at(rules, sent._replace(batch=batch))
        elif kind is Judged.ADMIT:
            self._apply(rules, sent._replace(batch=batch))

    def _is_cut(self, sent: LoggedSend) -> bool:
        """Return whether a send is the first one in the log, and earlier ones may be missing."""
        missing = not self._log.whole or self._log.is_damaged(-1, sent.offset)
        return self._state is None and missing

    def _begin_at(self, rules: Rules, sent: LoggedSend) -> None:
        """Apply the first send in the log if earlier ones are missing: it may begin anywhere."""
        self._apply(rules, sent)
        self._gaps.clear()

    # ------------------------------------------------------------------ a beginning at 0

    def _may_restart(self, rules: Rules, batch: Batch) -> bool:
        """Return whether the state may have expired before a batch: then `fold` begins anew."""
        known = self._state is not None and self._state.generation == batch.generation
        return known and rules.start_old is Start.AT_ZERO and batch.first == 0

    def _settle(self, restart: _PossibleRestart, batch: Batch) -> Iterator[SendFinding]:
        """Decide by the next batch whether the state had expired; if unclear, it had not."""
        rules, sent, verdict = restart
        self._restart = None
        state = self._state
        same = state is not None and state.generation == batch.generation
        goes_on = same and batch.first == next_sequence(rules, sent.batch.last)
        if goes_on and verdict.kind is not Judged.OVERLAP and batch.first != self._high + 1:
            self._state = None
            self._apply(rules, sent)
            detail = "begins at 0 again in its epoch: its state had expired"
            yield SendFinding(RESTART, sent, sent.counted, detail=detail)
        else:
            yield from self._report(rules, sent, verdict)

    # ------------------------------------------------------------------ sequence numbers

    def _begins(self, rules: Rules, batch: Batch) -> bool:
        state = self._state
        return state is None or (rules.restarts and batch.generation > state.generation)

    def _ahead(self, rules: Rules, batch: Batch) -> int:
        """Return the distance of a batch from the next sequence number; below 0: it is earlier."""
        if self._begins(rules, batch):
            return batch.first
        if not rules.wraps or self._state is None:
            return batch.first - self._high - 1
        modulus = rules.sequence_max + 1
        ahead = (batch.first - next_sequence(rules, self._state.high)) % modulus
        return ahead if ahead < modulus >> 1 else ahead - modulus

    def _apply(self, rules: Rules, sent: LoggedSend) -> None:
        batch = sent.batch
        ahead = self._ahead(rules, batch)
        if self._begins(rules, batch):
            self._high, self._gaps, self._low = -1, [], batch.first
        first = self._high + 1 + ahead
        if ahead > 0:
            self._gaps.append((self._high + 1, first - 1))
            del self._gaps[:-_GAPS_MAX]
        self._low = min(self._low, first)
        self._high = first + span(rules, batch) - 1
        self._state = fold(rules, self._state, batch, sent.offset, 0)

    def _fill(self, first: int, last: int) -> int:
        """Remove sequence numbers from the gaps; return how many were in one."""
        begin = bisect_left(self._gaps, first, key=lambda gap: gap[1])
        end = bisect_right(self._gaps, last, key=lambda gap: gap[0])
        touched = self._gaps[begin:end]
        if not touched:
            return 0
        left = ((touched[0][0], first - 1), (last + 1, touched[-1][1]))
        self._gaps[begin:end] = [each for each in left if each[0] <= each[1]]
        return sum(min(high, last) - max(low, first) + 1 for low, high in touched)


def _equal(sent: LoggedSend) -> tuple[int, bool]:
    """Return the offset of the first send of an equal range (or -1), and whether it differs."""
    # The CRC covers the generation: that of another generation says nothing about the content.
    same = sent.equal_offset >= 0 and sent.equal_generation == sent.batch.generation
    return sent.equal_offset, same and differ(sent.batch.crc, sent.equal_crc)
