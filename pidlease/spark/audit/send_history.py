"""One producer's sends on one partition, judged one by one by `pidlease.core.judge`.

This is the expensive half of the audit, done only for producers of whom something is known to be
wrong. It differs in three points from what a server knows after a replay. A duplicate that stands
in the log moves nothing, or the send behind it would be told as a gap. What comes behind a send
that should have followed it is told as late, not as a duplicate: its numbers did not stand there.
And where a producer of policy epoch begins at 0 again, the send behind tells whether that was a
duplicate, or whether the producer had been forgotten (see `fold`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from pidlease.core.judge import Age, Verdict, judge
from pidlease.core.judge import Kind as Judged
from pidlease.core.pid import POLICY_SHIFT
from pidlease.core.rules import Rules, Start, rules_of
from pidlease.core.state import UNKNOWN_CRC, Batch, ProducerState, fold, next_sequence, span

DUPLICATE: Final = "duplicate"
GAP: Final = "gap"
OVERLAP: Final = "overlap"
LATE: Final = "late"
FENCED: Final = "fenced"
MALFORMED: Final = "malformed"
#: What is wrong, by kind.
VIOLATIONS: Final = (DUPLICATE, GAP, OVERLAP, LATE, FENCED, MALFORMED)

JUMP: Final = "generation jump"
RESTART: Final = "restart"
LOST: Final = "lost to damage"
#: What is as it may be, and worth knowing.
NOTICES: Final = (JUMP, RESTART, LOST)
#: Ranges left out that are remembered, for what comes late: the newest.
_HOLES_MAX: Final = 10_000


class LoggedSend(NamedTuple):
    """A send.

    Attributes:
        policy: the number of its policy; of none: it is malformed.
        offset: of its first record,
        last_offset: and of its last one.
        batch: its identity.
        counted: how many records stand in the log.
        equal_offset: where the first send of the same producer with the same range stands; -1:
            there is none before it.
        equal_crc: the CRC of that one,
        equal_generation: and its generation.
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
    """What is wrong with a send, or worth knowing.

    Attributes:
        kind: one of VIOLATIONS and NOTICES.
        sent: the send.
        numbers: records that stood there before (duplicate, overlap), numbers left out (gap, lost
            to damage), records of the send (otherwise).
        expected: the sequence that should have come; -1: that cannot be said.
        original: where the first send of an equal range stands; -1: there is none.
        differs: that one has other bytes.
        detail: in words.
    """

    kind: str
    sent: LoggedSend
    numbers: int
    expected: int = -1
    original: int = -1
    differs: bool = False
    detail: str = ""


class LogCompleteness(NamedTuple):
    """What is known of a partition's log as a whole.

    Attributes:
        whole: it goes back to offset 0.
        damaged: offsets at which something is damaged or missing, in order.
    """

    whole: bool = True
    damaged: Sequence[int] = ()

    def between(self, after: int, upto: int) -> bool:
        """Whether something is damaged behind an offset, and not behind another one."""
        place = bisect_right(self.damaged, after)
        return place < len(self.damaged) and self.damaged[place] <= upto


def completeness_of(
    starts: Mapping[tuple[str, int], int], damaged: Mapping[tuple[str, int], Sequence[int]]
) -> dict[tuple[str, int], LogCompleteness]:
    """What is known of each partition.

    Parameters:
        starts: the first offset of each,
        damaged: and where something is damaged.
    """
    return {
        each: LogCompleteness(start == 0, sorted(damaged.get(each, ())))
        for each, start in starts.items()
    }


def judge_all(sends: Iterable[LoggedSend], cuts: LogCompleteness) -> Iterator[SendFinding]:
    """Judge a producer's sends on a partition, in the order of the log."""
    producer = SendHistory(cuts)
    for sent in sends:
        yield from producer.judge(sent)
    yield from producer.end()


class _PossibleRestart(NamedTuple):
    """A send at 0 of who may have been forgotten, with the verdict on who was not."""

    rules: Rules
    sent: LoggedSend
    verdict: Verdict


class SendHistory:
    """A producer on a partition.

    Parameters:
        cuts: what is known of the partition's log.
    """

    def __init__(self, cuts: LogCompleteness) -> None:
        self._cuts: Final = cuts
        self._age: Final = Age.YOUNG if cuts.whole else Age.OLD
        self._state: ProducerState | None = None
        #: Where its newest send ends.
        self._offset = -1
        #: H, counted on where the numbers wrap,
        self._high = -1
        #: and so the lowest number that stands there,
        self._low = 0
        #: and the ranges that were left out, first and last, in order.
        self._holes: list[tuple[int, int]] = []
        self._doubt: _PossibleRestart | None = None

    def judge(self, sent: LoggedSend) -> Iterator[SendFinding]:
        """What is wrong with the next send; of the one before, that may be known only now."""
        rules = rules_of(sent.policy << POLICY_SHIFT | 1)
        if rules is None:
            yield SendFinding(MALFORMED, sent, sent.counted, detail="the PID belongs to no policy")
            return
        if self._doubt is not None:
            yield from self._settle(self._doubt, sent.batch)
        before, self._offset = self._offset, sent.last_offset
        state, batch = self._state, sent.batch
        verdict = judge(rules, state, batch, self._age, granted=batch.generation)
        if verdict.kind is Judged.MALFORMED:
            yield SendFinding(MALFORMED, sent, sent.counted, detail=verdict.reason)
            self._step_over(rules, sent)
        elif self._is_cut(sent):
            self._begin_at(rules, sent)
        elif self._may_restart(rules, batch):
            self._doubt = _PossibleRestart(rules, sent, verdict)
        else:
            lost = verdict.kind is Judged.GAP and self._cuts.between(before, sent.offset)
            yield from self._tell(rules, sent, verdict, lost=lost)

    def end(self) -> Iterator[SendFinding]:
        """What is left to be told when no send follows."""
        if self._doubt is not None:
            rules, sent, verdict = self._doubt
            self._doubt = None
            yield from self._tell(rules, sent, verdict)

    # ------------------------------------------------------------------ one send

    def _tell(
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
            yield self._behind(rules, sent, verdict)
            return
        if kind is Judged.OVERLAP:
            stood = -ahead - self._fill(self._high + 1 + ahead, self._high)
            detail = f"{expected} should follow"
            yield SendFinding(OVERLAP, sent, min(stood, sent.counted), expected, detail=detail)
        elif kind is Judged.GAP:
            detail = f"{expected} should follow"
            if state is None:
                detail = "begins in the middle; a producer's first sequence is 0"
            yield SendFinding(LOST if lost else GAP, sent, ahead, expected, detail=detail)
        self._apply(rules, sent)

    def _behind(self, rules: Rules, sent: LoggedSend, verdict: Verdict) -> SendFinding:
        """A send that moves nothing."""
        first = self._high + 1 + self._ahead(rules, sent.batch)
        numbers = span(rules, sent.batch)
        filled = self._fill(first, first + numbers - 1)
        stood = numbers - filled
        if rules.low_mark and first < self._low and not filled:
            detail = "lies before the first sequence that is known"
            return SendFinding(GAP, sent, 0, verdict.expected, detail=detail)
        self._low = min(self._low, first)
        if not stood:
            detail = "comes behind what should follow it"
            return SendFinding(LATE, sent, sent.counted, verdict.expected, detail=detail)
        original, differs = _equal(sent)
        detail = f"the first one is at offset {original}" if original >= 0 else ""
        if differs:
            detail += ", with other content"
        return SendFinding(DUPLICATE, sent, min(stood, sent.counted), -1, original, differs, detail)

    def _step_over(self, rules: Rules, sent: LoggedSend) -> None:
        """What is malformed by the number of its records only has its place all the same."""
        batch = sent.batch._replace(records=max(span(rules, sent.batch), 1))
        kind = judge(rules, self._state, batch, self._age, granted=batch.generation).kind
        if kind is not Judged.MALFORMED and self._is_cut(sent):
            self._begin_at(rules, sent._replace(batch=batch))
        elif kind is Judged.ADMIT:
            self._apply(rules, sent._replace(batch=batch))

    def _is_cut(self, sent: LoggedSend) -> bool:
        """Whether a send is the first that is seen, and others before it may be gone."""
        gone = not self._cuts.whole or self._cuts.between(-1, sent.offset)
        return self._state is None and gone

    def _begin_at(self, rules: Rules, sent: LoggedSend) -> None:
        """What came before it is gone: any send may be the first that is seen."""
        self._apply(rules, sent)
        self._holes.clear()

    # ------------------------------------------------------------------ a beginning at 0

    def _may_restart(self, rules: Rules, batch: Batch) -> bool:
        """Whether it may be of who was forgotten: that is so where `fold` begins anew."""
        known = self._state is not None and self._state.generation == batch.generation
        return known and rules.start_old is Start.AT_ZERO and batch.first == 0

    def _settle(self, doubt: _PossibleRestart, batch: Batch) -> Iterator[SendFinding]:
        """Whether a producer had been forgotten; where both would fit, it had not."""
        rules, sent, verdict = doubt
        self._doubt = None
        state = self._state
        same = state is not None and state.generation == batch.generation
        goes_on = same and batch.first == next_sequence(rules, sent.batch.last)
        if goes_on and verdict.kind is not Judged.OVERLAP and batch.first != self._high + 1:
            self._state = None
            self._apply(rules, sent)
            detail = "begins at 0 again in its epoch: what was known of it had ended"
            yield SendFinding(RESTART, sent, sent.counted, detail=detail)
        else:
            yield from self._tell(rules, sent, verdict)

    # ------------------------------------------------------------------ numbers

    def _begins(self, rules: Rules, batch: Batch) -> bool:
        state = self._state
        return state is None or (rules.restarts and batch.generation > state.generation)

    def _ahead(self, rules: Rules, batch: Batch) -> int:
        """How many numbers lie between what is known and a batch; below 0: it lies behind."""
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
            self._high, self._holes, self._low = -1, [], batch.first
        first = self._high + 1 + ahead
        if ahead > 0:
            self._holes.append((self._high + 1, first - 1))
            del self._holes[:-_HOLES_MAX]
        self._low = min(self._low, first)
        self._high = first + span(rules, batch) - 1
        self._state = fold(rules, self._state, batch, sent.offset, 0)

    def _fill(self, first: int, last: int) -> int:
        """Take numbers out of those that were left out; how many of them were."""
        begin = bisect_left(self._holes, first, key=lambda hole: hole[1])
        end = bisect_right(self._holes, last, key=lambda hole: hole[0])
        touched = self._holes[begin:end]
        if not touched:
            return 0
        left = ((touched[0][0], first - 1), (last + 1, touched[-1][1]))
        self._holes[begin:end] = [each for each in left if each[0] <= each[1]]
        return sum(min(high, last) - max(low, first) + 1 for low, high in touched)


def _equal(sent: LoggedSend) -> tuple[int, bool]:
    """Where the first send of an equal range stands (-1: nowhere), and whether it differs."""
    # A CRC is of the generation, too: of another one it says nothing of the content.
    same = sent.equal_offset >= 0 and sent.equal_generation == sent.batch.generation
    crcs = sent.batch.crc, sent.equal_crc
    return sent.equal_offset, same and UNKNOWN_CRC not in crcs and crcs[0] != crcs[1]
