"""The core runs the golden histories: judge each batch, fold what was admitted."""

from pathlib import Path

import pytest

from pidlease.core.judge import Age, Kind, Verdict, judge
from pidlease.core.pid import Policy
from pidlease.core.rules import RULES, Rules
from pidlease.core.state import Appended, Batch, ProducerState, fold
from tests.golden import HISTORIES, POLICIES, RULES_PROVED, GoldenState, History, history_id, load

#: Any time will do: judging and folding do not look at it, they only carry it.
ARRIVAL_MS = 1_700_000_000_000

#: What a policy has no rule for, so that the file need not prove it.
NOT_ITS_RULE = {
    ("strict", "5 low mark"),
    ("monotonic", "5 low mark"),
    ("monotonic", "5 next"),  # the successor of H is one of the many it takes: "5 beyond"
}


def state_of(golden: GoldenState | None) -> ProducerState | None:
    if golden is None:
        return None
    batches = tuple(Appended(b.first, b.last, b.offset, b.crc) for b in golden.batches or ())
    return ProducerState(golden.generation, golden.high, golden.lowest, batches, ARRIVAL_MS)


def rules_of(history: History) -> Rules:
    return RULES[Policy[history.policy.upper()]]


@pytest.mark.parametrize("history", HISTORIES, ids=history_id)
def test_core_gives_the_verdicts_and_states_of(history: History) -> None:
    rules = rules_of(history)
    state = state_of(history.start)
    for place, step in enumerate(history.steps):
        golden = step.batch
        batch = Batch(golden.generation, golden.first, golden.last, golden.count, golden.crc)
        verdict = judge(rules, state, batch, Age[history.age.upper()], step.granted)

        # The wording of a reason is for people; that there is one is for the rules.
        assert bool(verdict.reason) == (verdict.kind is Kind.MALFORMED), (place, verdict)
        expected = step.verdict
        assert verdict._replace(reason="") == Verdict(
            Kind(expected.kind),
            expected.offset,
            expected.expected,
            expected.generation,
            expected.differs,
        ), f"step {place}: {batch} on {state}, granted {step.granted}"

        if verdict.kind is Kind.ADMIT:
            state = fold(rules, state, batch, step.offset, ARRIVAL_MS)
        assert_state(state, step.next, f"after step {place}: {batch}")


def assert_state(state: ProducerState | None, golden: GoldenState | None, where: str) -> None:
    if golden is None or state is None:
        assert golden is None, where
        assert state is None, where
        return
    assert (state.generation, state.high, state.lowest) == (
        golden.generation,
        golden.high,
        golden.lowest,
    ), where
    if golden.batches is not None:
        kept = [(b.first, b.last, b.offset, b.crc) for b in state.batches]
        assert kept == [(b.first, b.last, b.offset, b.crc) for b in golden.batches], where


@pytest.mark.parametrize("history", HISTORIES, ids=history_id)
def test_replay_of_what_was_admitted_ends_where_judging_did(history: History) -> None:
    """A fold that never judges, over the admitted batches alone, is all a replay has."""
    rules = rules_of(history)
    state = state_of(history.start)
    for step in history.steps:
        if step.verdict.kind == "admit":
            golden = step.batch
            batch = Batch(golden.generation, golden.first, golden.last, golden.count, golden.crc)
            state = fold(rules, state, batch, step.offset, ARRIVAL_MS)
    assert_state(state, history.steps[-1].next, "at the end")


@pytest.mark.parametrize("rule", RULES_PROVED)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_file_proves_every_rule_for_every_policy(policy: str, rule: str) -> None:
    proved = [h.name for h in HISTORIES if h.policy == policy and h.rule == rule]
    assert proved or (policy, rule) in NOT_ITS_RULE


@pytest.mark.parametrize("policy", POLICIES)
def test_the_file_asks_for_unknown_producers_of_every_age(policy: str) -> None:
    ages = {h.age for h in HISTORIES if h.policy == policy and h.rule == "2 nothing known"}
    assert ages == {"young", "old", "never"}


@pytest.mark.parametrize("policy", POLICIES)
def test_names_begin_with_their_policy(policy: str) -> None:
    """So that `pytest -k kafka-` picks what it says."""
    assert all(h.name.startswith(f"{h.policy}-") for h in HISTORIES)


STEP = """{"batch": {"generation": 0, "first": 0, "last": 0, "count": 1},
           "verdict": {"kind": "admit"}, "offset": %d,
           "next": {"generation": 0, "high": 0, "lowest": 0}}"""
HISTORY = """{"name": "%s", "rule": "%s", "policy": "strict", "age": "young", "start": null,
              "steps": [%s]}"""


@pytest.mark.parametrize(
    ("histories", "complaint"),
    [
        ([HISTORY % ("a", "no such rule", STEP % 0)], "history a.*no rule"),
        ([HISTORY % ("a", "5 next", STEP % 7)], "history a.*log ends at 0"),
        ([HISTORY % ("a", "5 next", STEP % -1)], "history a.*offset belongs"),
        ([HISTORY % ("a", "5 next", STEP % 0)] * 2, "same name.*'a'"),
    ],
)
def test_the_loader_names_what_is_wrong(
    tmp_path: Path, histories: list[str], complaint: str
) -> None:
    file = tmp_path / "histories.json"
    file.write_text(f'{{"histories": [{",".join(histories)}]}}')
    with pytest.raises(ValueError, match=complaint):
        load(file)
