"""What is better said in code than in a golden history, and what the design and the core dispute.

A test marked `contradicts_design` fails on purpose, strictly: it says what the design's words ask
for. Settle each by changing the core or the design; then its mark must go.
"""

import itertools

import pytest

from pidlease.core.judge import (
    ADMIT,
    UNKNOWN,
    WRAPPING_SPAN_MAX,
    Age,
    Kind,
    Verdict,
    judge,
    judge_older,
    malformed,
)
from pidlease.core.rules import EPOCH, KAFKA, MONOTONIC, RULES, STRICT, Rules
from pidlease.core.state import UNKNOWN_CRC, Batch, ProducerState, fold

ALL = list(RULES.values())
EVERY_RULE = pytest.mark.parametrize("rules", ALL, ids=[r.policy.name.lower() for r in ALL])


def state_after(rules: Rules, *batches: Batch) -> ProducerState:
    """The fold of batches, judged or not, each at the offset of its place."""
    state: ProducerState | None = None
    for offset, batch in enumerate(batches):
        state = fold(rules, state, batch, offset, 0)
    assert state is not None
    return state


def send(generation: int, first: int, last: int, crc: int = 0) -> Batch:
    return Batch(generation, first, last, last - first + 1, crc)


@EVERY_RULE
def test_judging_leaves_state_and_batch_as_they_are(rules: Rules) -> None:
    """Kafka's prepare/commit, proved the simple way: what is judged can be judged again."""
    state = state_after(rules, send(1, 0, 4), send(1, 5, 9))
    copy = ProducerState(*state)
    for generation, first, last in itertools.product(range(4), range(12), range(12)):
        batch = send(generation, first, last)
        assert judge(rules, state, batch) == judge(rules, state, batch)
    assert state == copy


@EVERY_RULE
@pytest.mark.parametrize("age", Age)
def test_age_is_not_looked_at_once_something_is_known(rules: Rules, age: Age) -> None:
    state = state_after(rules, send(1, 0, 4))
    for generation, first in itertools.product(range(4), range(8)):
        batch = send(generation, first, first + 1)
        assert judge(rules, state, batch, age) == judge(rules, state, batch, Age.YOUNG)


@EVERY_RULE
def test_without_an_age_a_block_counts_as_old(rules: Rules) -> None:
    """The careful default: "young" is a proof, and nobody brought it."""
    for first in (0, 5):
        batch = send(0, first, first)
        assert judge(rules, None, batch) == judge(rules, None, batch, Age.OLD)


@EVERY_RULE
def test_malformed_says_what_is_wrong_with_the_numbers(rules: Rules) -> None:
    top, generation_top = rules.sequence_max, rules.generation_max
    assert malformed(rules, send(0, 0, 0)) == ""
    assert malformed(rules, send(generation_top, top, top)) == ""
    assert f"0..{generation_top}" in malformed(rules, send(generation_top + 1, 0, 0))
    assert f"0..{top}" in malformed(rules, send(0, top, top + 1))
    assert "-1" in malformed(rules, send(-1, 0, 0))
    assert "0 records" in malformed(rules, Batch(0, 0, 0, 0))
    assert "9 records" in malformed(rules, Batch(0, 0, 2, 9))


def test_malformed_generation_says_both_generations() -> None:
    verdict = judge(STRICT, state_after(STRICT, send(5, 0, 2)), send(7, 3, 3))
    assert (verdict.kind, verdict.generation) == (Kind.MALFORMED, 5)
    assert "7" in verdict.reason
    assert "5" in verdict.reason


@pytest.mark.parametrize("rules", [STRICT, MONOTONIC], ids=["strict", "monotonic"])
@pytest.mark.parametrize("granted", [0, 1, 2, 3, 9])
def test_below_the_binding_nothing_but_fenced_comes_back(rules: Rules, granted: int) -> None:
    """From the grant on: whatever the numbers, the age, and what is known."""
    states = [None, state_after(rules, send(0, 0, 2)), state_after(rules, send(granted, 0, 2))]
    for state, age, first in itertools.product(states, Age, range(5)):
        for generation in range(granted):
            verdict = judge(rules, state, send(generation, first, first), age, granted)
            assert verdict == Verdict(Kind.FENCED, generation=granted)


@pytest.mark.parametrize("rules", [STRICT, MONOTONIC], ids=["strict", "monotonic"])
def test_a_grant_changes_nothing_for_the_generation_it_was_given_to(rules: Rules) -> None:
    state = state_after(rules, send(3, 0, 4))
    for first, last in itertools.combinations_with_replacement(range(8), 2):
        batch = send(3, first, last)
        assert judge(rules, state, batch, granted=3) == judge(rules, state, batch)


def test_the_first_ever_needs_no_proof_where_any_start_is_right() -> None:
    for age in (Age.YOUNG, Age.OLD):
        assert judge(MONOTONIC, None, send(0, 123, 130), age) is ADMIT
    assert judge(KAFKA, None, send(0, 123, 130), Age.OLD) is ADMIT
    assert judge(STRICT, None, send(0, 0, 0), Age.OLD) is UNKNOWN


def test_kafkas_hole_is_closed_for_young_blocks() -> None:
    """Batch 1 fails, batch 2 must not come through as the first ever seen: 1 would be lost."""
    late, lost = send(0, 3, 5), send(0, 0, 2)
    assert judge(KAFKA, None, late, Age.YOUNG) == Verdict(Kind.GAP, expected=0)
    assert judge(KAFKA, None, lost, Age.YOUNG) is ADMIT
    assert judge(KAFKA, state_after(KAFKA, lost), late, Age.YOUNG) is ADMIT


@pytest.mark.parametrize("rules", [KAFKA, EPOCH], ids=["kafka", "epoch"])
@pytest.mark.parametrize("step", [1, 2, 3, 1000])
def test_any_step_up_restarts_at_zero_and_only_there(rules: Rules, step: int) -> None:
    state = state_after(rules, send(0, 0, 4))
    assert judge(rules, state, send(step, 0, 9)) is ADMIT
    for first in (1, 4, 5, 6, rules.sequence_max):
        assert judge(rules, state, send(step, first, first)) == Verdict(Kind.GAP, expected=0)


@pytest.mark.parametrize("rules", [STRICT, KAFKA, EPOCH], ids=["strict", "kafka", "epoch"])
def test_a_dense_producer_may_send_exactly_one_sequence(rules: Rules) -> None:
    """Of all first sequences in sight, H + 1 alone is admitted, and gap and overlap name it."""
    state = state_after(rules, send(0, 0, 4), send(0, 5, 9))
    for first, last in itertools.combinations_with_replacement(range(14), 2):
        verdict = judge(rules, state, send(0, first, last))
        assert (verdict.kind is Kind.ADMIT) == (first == 10)
        if verdict.kind in (Kind.GAP, Kind.OVERLAP):
            assert verdict.expected == 10


def test_an_exact_range_of_a_chained_batch_is_its_numbers_not_its_records() -> None:
    """A compacted source may have fewer records on the second reading: a duplicate, counted."""
    state = state_after(STRICT, Batch(0, 0, 9, 5, crc=1))
    verdict = judge(STRICT, state, Batch(0, 0, 9, 4, crc=2))
    assert verdict == Verdict(Kind.DUPLICATE, offset=0, differs=True)


@pytest.mark.parametrize("sequence", [0, 1, 2**30 - 1, 2**30, 2**31 - 1])
def test_kafka_distances_do_not_depend_on_where_the_wrap_is(sequence: int) -> None:
    """Shift a history by any number, modulo 2^31: the verdicts shift with it."""

    def shifted(first: int, records: int) -> Batch:
        at, last = (first + sequence) % 2**31, (first + records - 1 + sequence) % 2**31
        return Batch(0, at, last, records)

    there = state_after(KAFKA, shifted(0, 10), shifted(10, 10))
    here = state_after(KAFKA, send(0, 0, 9), send(0, 10, 19))
    for first in (*range(-3, 24), 20 + 2**30 - 1, 20 + 2**30, -(2**29)):
        for records in (1, 2, 10, 25):
            at, last = first % 2**31, (first + records - 1) % 2**31
            verdict = judge(KAFKA, here, Batch(0, at, last, records))
            if verdict.expected >= 0:
                expected = (verdict.expected + sequence) % 2**31
                verdict = verdict._replace(expected=expected)
            assert judge(KAFKA, there, shifted(first, records)) == verdict, (first, records)


# --- Where the core and the words of the design part -------------------------------------------


@pytest.mark.parametrize("rules", [r for r in ALL if r is not EPOCH], ids=lambda r: r.policy.name)
def test_an_exact_one_of_the_last_five_is_a_duplicate_even_where_it_would_be_next(
    rules: Rules,
) -> None:
    """Rule 5 asks for the last five first. It shows where the fold ("the last batch wins") moved
    H back: a log that holds a batch twice already would get its successor twice as well. (But for
    policy epoch, whose producers begin at 0 again when they were forgotten.)"""
    state = state_after(rules, send(0, 0, 4), send(0, 5, 9), send(0, 0, 4))
    assert state.high == 4
    assert judge(rules, state, send(0, 5, 9)) == Verdict(Kind.DUPLICATE, offset=1)


def test_kafka_batches_are_too_short_to_meet_themselves_on_the_way_round() -> None:
    """Five that span all of Kafka's numbers would let a new batch at H + 1 have the range of a kept
    one, and it would be lost as a duplicate; so the longest span is bounded, far above any real
    batch. (Found by the machine of tests/property.)"""
    half = Batch(0, 0, 2**30 - 1, 2**30)
    assert judge(KAFKA, None, half, Age.YOUNG).kind is Kind.MALFORMED
    longest = Batch(0, 0, WRAPPING_SPAN_MAX - 1, WRAPPING_SPAN_MAX)
    assert judge(KAFKA, None, longest, Age.YOUNG) is ADMIT
    assert 6 * WRAPPING_SPAN_MAX < 2**31


@pytest.mark.parametrize(("first", "last", "records"), [(0, 9, 5), (10, 11, 1)])
def test_monotonic_ids_may_have_holes_inside_a_batch(first: int, last: int, records: int) -> None:
    """The ids are the producer's own (message ids, file offsets); see docs/adr."""
    assert judge(MONOTONIC, None, Batch(0, first, last, records), Age.YOUNG) is ADMIT


def test_kafka_batch_longer_than_half_the_space_is_malformed() -> None:
    """It begins below H and reaches beyond it. `duplicate` would tell the client that all was
    accepted, and lose it."""
    state = state_after(KAFKA, send(0, 0, 9))
    assert judge(KAFKA, state, send(0, 5, 2**30 + 100)).kind is Kind.MALFORMED


@EVERY_RULE
def test_a_state_that_may_lack_later_batches_shows_no_gap(rules: Rules) -> None:
    """What it has is a duplicate all the same, and what is below its low mark a gap."""
    state = state_after(rules, send(1, 5, 9), send(1, 10, 14))
    for batch in (send(1, 15, 19), send(1, 20, 24), send(3, 0, 4), send(3, 20, 24)):
        verdict = judge_older(rules, state, batch)
        goes_back = not rules.restarts and batch.first == 0
        assert verdict.kind is (Kind.DUPLICATE if goes_back else Kind.ADMIT), batch
    assert judge_older(rules, state, send(1, 10, 14)) == Verdict(Kind.DUPLICATE, offset=1)
    assert judge_older(rules, state, send(1, 12, 16)).kind is Kind.OVERLAP
    below = judge_older(rules, state, send(1, 0, 4)).kind
    assert below is (Kind.GAP if rules.low_mark else Kind.DUPLICATE)
    assert judge_older(rules, state, send(0, 20, 24)).kind is Kind.FENCED
    assert judge_older(rules, state, send(3, 20, 24), granted=2).kind is Kind.MALFORMED
    assert judge_older(rules, state, send(1, 20, 18)).kind is Kind.MALFORMED


def test_what_is_not_known_of_either_differs_from_nothing() -> None:
    for known, sent in ((1, UNKNOWN_CRC), (UNKNOWN_CRC, 1), (UNKNOWN_CRC, UNKNOWN_CRC)):
        state = state_after(STRICT, Batch(0, 0, 0, 1, crc=known))
        assert judge(STRICT, state, Batch(0, 0, 0, 1, crc=sent)) == Verdict(
            Kind.DUPLICATE, offset=0
        )
