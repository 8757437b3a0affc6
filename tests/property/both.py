"""The core and the oracle side by side: what both are asked, and where they must agree."""

from copy import copy
from dataclasses import replace
from typing import Final

from pidlease.core.judge import Age, Kind, Verdict, judge
from pidlease.core.packed import Packed, fold_packed, judge_packed, pack, unpack
from pidlease.core.pid import Policy
from pidlease.core.rules import RULES, Rules
from pidlease.core.state import Appended, Batch, ProducerState, fold
from tests.property.oracle import BEHIND, Answer, Oracle, PolicyName, Sent

AGES: Final = {"young": Age.YOUNG, "old": Age.OLD, "never": Age.NEVER}


def rules_of(policy: PolicyName) -> Rules:
    return RULES[Policy[policy.upper()]]


def as_batch(sent: Sent) -> Batch:
    return Batch(sent.generation, sent.first, sent.last, sent.records, sent.crc)


def as_answer(verdict: Verdict) -> Answer:
    """A verdict without its wording."""
    return Answer(
        verdict.kind.value, verdict.offset, verdict.expected, verdict.generation, verdict.differs
    )


def assert_state(oracle: Oracle, state: ProducerState | None) -> None:
    """The state says of the complete history what the design has it say."""
    if not oracle.accepted:
        assert state is None
        return
    assert state is not None
    current = oracle.current
    assert state.generation == oracle.generation
    assert state.high == oracle.wire(oracle.high)
    assert state.batches == tuple(
        Appended(a.sent.first, a.sent.last, a.offset, a.sent.crc) for a in current[-5:]
    )
    lowest = current[0].first
    if oracle.policy == "kafka":  # dragged along: further behind it would be taken for ahead
        lowest = oracle.wire(max(lowest, oracle.high + 1 - BEHIND))
    assert state.lowest == lowest


class Both:
    """A producer on a partition, judged by the core and by the oracle."""

    def __init__(self, policy: PolicyName, age: str, granted: int = -1) -> None:
        self.rules = rules_of(policy)
        self.oracle = Oracle(policy, age, granted)
        self.state: ProducerState | None = None
        self.packed: Packed | None = None
        self.log_end = 0

    def copy(self) -> "Both":
        """The same history, to go on from in another direction."""
        other = copy(self)
        other.oracle = replace(self.oracle, accepted=list(self.oracle.accepted))
        return other

    def arrive(self, sent: Sent) -> Answer:
        """Judge a batch by both, fold it if it was admitted.

        Raises:
            AssertionError: they do not agree; the message holds all that was asked.
        """
        batch, oracle = as_batch(sent), self.oracle
        verdict = judge(self.rules, self.state, batch, AGES[oracle.age], oracle.granted)
        expected = oracle.judge(sent)
        assert as_answer(verdict) == expected, (
            f"{oracle.policy}, block {oracle.age}, granted {oracle.granted}: {sent} on"
            f" {self.state}: the core says {verdict}, the oracle {expected};"
            f" accepted: {oracle.accepted}"
        )
        if self.packed is not None and oracle.granted < 0:
            assert judge_packed(self.rules, self.packed, batch) == verdict
        if verdict.kind is Kind.ADMIT:
            self.state = fold(self.rules, self.state, batch, self.log_end, arrival_ms=0)
            self.packed = fold_packed(self.rules, self.packed, batch, self.log_end, arrival_ms=0)
            assert unpack(self.rules, self.packed) == self.state
            assert pack(self.rules, self.state) == self.packed
            oracle.accept(sent, self.log_end)
            self.log_end += sent.records
        return expected
