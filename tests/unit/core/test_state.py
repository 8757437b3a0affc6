"""The fold: never judges, keeps five, drags Kafka's low mark along."""

import pytest

from pidlease.core.rules import EPOCH, KAFKA, MONOTONIC, RULES, STRICT, Rules
from pidlease.core.state import (
    BATCHES_KEPT,
    Appended,
    Batch,
    ProducerState,
    fold,
    last_sequence,
    next_sequence,
    span,
)

ALL = list(RULES.values())
EVERY_RULE = pytest.mark.parametrize("rules", ALL, ids=[r.policy.name.lower() for r in ALL])
RESTARTING = pytest.mark.parametrize("rules", [KAFKA, EPOCH], ids=["kafka", "epoch"])
GOING_ON = pytest.mark.parametrize("rules", [STRICT, MONOTONIC], ids=["strict", "monotonic"])
KAFKA_MAX = 2**31 - 1
HALF = 2**30


def send(generation: int, first: int, last: int, crc: int = 0) -> Batch:
    return Batch(generation, first, last, last - first + 1, crc)


@EVERY_RULE
def test_the_first_batch_makes_the_state(rules: Rules) -> None:
    state = fold(rules, None, send(3, 7, 9, crc=5), offset=40, arrival_ms=99)
    assert state == ProducerState(3, 9, 7, (Appended(7, 9, 40, 5),), 99)


@EVERY_RULE
def test_the_same_generation_advances_and_remembers(rules: Rules) -> None:
    state = fold(rules, None, send(3, 0, 1, crc=5), 40, 99)
    state = fold(rules, state, send(3, 2, 2, crc=6), 42, 100)
    assert state == ProducerState(3, 2, 0, (Appended(0, 1, 40, 5), Appended(2, 2, 42, 6)), 100)


@EVERY_RULE
def test_five_are_kept_oldest_first(rules: Rules) -> None:
    state: ProducerState | None = None
    for n in range(12):
        state = fold(rules, state, send(0, n, n), offset=100 + n, arrival_ms=n)
        kept = range(max(0, n - BATCHES_KEPT + 1), n + 1)
        assert [b.offset for b in state.batches] == [100 + k for k in kept]


def test_more_than_five_from_a_snapshot_are_cut() -> None:
    batches = tuple(Appended(n, n, n, 0) for n in range(9))
    state = fold(STRICT, ProducerState(0, 8, 0, batches, 0), send(0, 9, 9), 9, 0)
    assert [b.offset for b in state.batches] == [5, 6, 7, 8, 9]


@EVERY_RULE
def test_a_fold_leaves_the_state_it_was_given(rules: Rules) -> None:
    before = fold(rules, None, send(0, 0, 0), 0, 0)
    copy = ProducerState(*before)
    fold(rules, before, send(0, 1, 1), 1, 1)
    fold(rules, before, send(1, 0, 0), 1, 1)
    assert before == copy


@EVERY_RULE
def test_a_lower_generation_changes_nothing(rules: Rules) -> None:
    state = fold(rules, None, send(3, 0, 1), 0, 0)
    assert fold(rules, state, send(2, 2, 9), 50, 1) is state


@RESTARTING
@pytest.mark.parametrize("generation", [4, 9, 32767])
def test_a_higher_generation_starts_anew(rules: Rules, generation: int) -> None:
    state = fold(rules, None, send(3, 0, 9), 0, 0)
    state = fold(rules, state, send(generation, 0, 1), 10, 1)
    assert state == ProducerState(generation, 1, 0, (Appended(0, 1, 10, 0),), 1)


@RESTARTING
def test_a_higher_generation_resets_the_low_mark(rules: Rules) -> None:
    state = fold(rules, fold(rules, None, send(3, 50, 59), 0, 0), send(4, 7, 9), 10, 0)
    assert (state.high, state.lowest) == (9, 7), "wherever the log says that it began"


@GOING_ON
@pytest.mark.parametrize("generation", [4, 9, 2**62])
def test_a_higher_generation_goes_on(rules: Rules, generation: int) -> None:
    """However far the generation jumps: that it may is for judge, the log is the truth."""
    state = fold(rules, fold(rules, None, send(3, 0, 4), 0, 0), send(generation, 5, 6), 5, 1)
    assert state == ProducerState(generation, 6, 0, (Appended(0, 4, 0, 0), Appended(5, 6, 5, 0)), 1)


@EVERY_RULE
def test_within_a_generation_the_last_batch_wins(rules: Rules) -> None:
    """Out of order, with gaps, twice: what stands in the log is folded, never judged."""
    state: ProducerState | None = None
    for offset, (first, last) in enumerate([(20, 29), (50, 50), (50, 50), (30, 31)]):
        state = fold(rules, state, send(0, first, last), offset, 0)
        assert state.high == last
    assert state is not None
    assert [b.offset for b in state.batches] == [0, 1, 2, 3]


def test_next_sequence() -> None:
    assert next_sequence(KAFKA, KAFKA_MAX) == 0
    assert next_sequence(KAFKA, KAFKA_MAX - 1) == KAFKA_MAX
    for rules in ALL:
        assert next_sequence(rules, -1) == 0
        assert next_sequence(rules, 41) == 42
    for rules in (STRICT, MONOTONIC, EPOCH):
        assert next_sequence(rules, KAFKA_MAX) == KAFKA_MAX + 1


def test_last_sequence_wraps_as_kafkas_own_does() -> None:
    assert last_sequence(KAFKA, 2147483637, 21) == 9
    assert last_sequence(KAFKA, KAFKA_MAX, 1) == KAFKA_MAX
    assert last_sequence(KAFKA, KAFKA_MAX, 2) == 0
    assert last_sequence(STRICT, 2147483637, 21) == 2147483657
    assert last_sequence(EPOCH, 5, 1) == 5


@EVERY_RULE
@pytest.mark.parametrize("first", [0, 5, KAFKA_MAX - 20, KAFKA_MAX])
@pytest.mark.parametrize("records", [1, 2, 21, 100])
def test_span_undoes_last_sequence(rules: Rules, first: int, records: int) -> None:
    last = last_sequence(rules, first, records)
    assert span(rules, Batch(0, first, last, records)) == records


@pytest.mark.parametrize("rules", [STRICT, MONOTONIC, EPOCH])
def test_a_range_that_runs_backwards_has_no_span(rules: Rules) -> None:
    assert span(rules, Batch(0, 5, 4, 1)) == 0
    assert span(rules, Batch(0, 5, 0, 1)) < 0


@pytest.mark.parametrize("start", [0, 1, 40, HALF, KAFKA_MAX - 9, KAFKA_MAX])
def test_kafkas_low_mark_stays_for_half_the_space_and_is_then_dragged(start: int) -> None:
    """It follows exactly half the space behind, else it would itself be taken for ahead."""
    modulus = KAFKA_MAX + 1
    quarter = HALF // 2

    def at(distance: int, records: int) -> Batch:
        first = (start + distance) % modulus
        return Batch(0, first, last_sequence(KAFKA, first, records), records)

    state = fold(KAFKA, None, at(0, quarter), 0, 0)
    state = fold(KAFKA, state, at(quarter, quarter), 1, 0)
    assert state.lowest == start, "half the space behind is as far as it may be"
    for quarters in range(2, 12):
        state = fold(KAFKA, state, at(quarters * quarter, quarter), quarters, 0)
        assert (state.high + 1 - state.lowest) % modulus == HALF
    state = fold(KAFKA, state, at(12 * quarter, 1), 12, 0)
    assert (state.high + 1 - state.lowest) % modulus == HALF


@pytest.mark.parametrize("rules", [STRICT, MONOTONIC, EPOCH])
def test_nobody_elses_low_mark_moves(rules: Rules) -> None:
    state = fold(rules, None, send(0, 40, 49), 0, 0)
    for first in (50, 2**31, 2**52):
        state = fold(rules, state, send(0, first, first + 9), 1, 0)
        assert state.lowest == 40


def test_who_was_forgotten_begins_anew() -> None:
    """Once a bug: after a lease's end and a crash, seq 1 passed for the one of the life before."""
    state: ProducerState | None = None
    for offset, seq in enumerate([0, 1, 2, 3, 4, 0]):
        state = fold(EPOCH, state, send(7, seq, seq), offset, 0)
    assert state == ProducerState(7, 0, 0, (Appended(0, 0, 5, 0),), 0)
    for rules in (STRICT, KAFKA, MONOTONIC):
        state = None
        for offset, first in enumerate([0, 1, 0]):
            state = fold(rules, state, send(7, first, first), offset, 0)
        assert state is not None
        assert len(state.batches) == 3, "they do not begin again under the same generation"
