"""Packed states: nothing is lost by packing, and they are judged and folded as plain ones."""

from random import Random

import pytest

from pidlease.core.judge import judge
from pidlease.core.packed import (
    NARROW,
    WIDE,
    Packed,
    arrival_of,
    fold_packed,
    judge_packed,
    pack,
    unpack,
)
from pidlease.core.rules import EPOCH, KAFKA, MONOTONIC, RULES, STRICT, Rules
from pidlease.core.state import Appended, Batch, ProducerState, fold

STATE = ProducerState(3, 9, 2, (Appended(0, 4, 100, 7), Appended(5, 9, 105, 8)), 1_700_000_000_000)


def test_a_complete_state_is_small() -> None:
    """What a million of them take hangs on it: 33 bytes around it, in steps of 16."""
    assert (NARROW.size, WIDE.size) == (114, 164)


@pytest.mark.parametrize("rules", RULES.values(), ids=lambda rules: rules.policy.name)
def test_what_is_unpacked_is_what_was_packed(rules: Rules) -> None:
    for count in range(1, 6):
        largest = rules.sequence_max
        batches = tuple(Appended(n, largest - n, 2**62 + n, 2**32 - 1 - n) for n in range(count))
        state = ProducerState(
            rules.generation_max, batches[-1].last, rules.sequence_max, batches, 2**62
        )
        packed = pack(rules, state)
        assert unpack(rules, packed) == state
        assert arrival_of(packed) == 2**62


@pytest.mark.parametrize(
    "state",
    [
        STATE._replace(batches=()),
        STATE._replace(batches=STATE.batches * 3),
        STATE._replace(high=10),
        STATE._replace(generation=2**15),
        STATE._replace(lowest=2**31),
        STATE._replace(batches=(Appended(0, 9, 0, 2**32),)),
    ],
)
def test_a_state_that_no_fold_makes_is_not_packed(state: ProducerState) -> None:
    with pytest.raises(ValueError, match=r"no fold makes|does not fit"):
        pack(KAFKA, state)


def _draw(random: Random, rules: Rules, high: int, generation: int) -> Batch:
    """A batch near what is expected, in every way that there is."""
    modulus = rules.sequence_max + 1
    first = high + 1 + random.choice([0, 0, 0, 0, 0, 1, -1, -3, -12, 5])
    count = random.choice([0, 1, 1, 2, 5])
    last = first + count - 1 + random.choice([0, 0, 0, 0, 1])
    if rules.wraps:
        first, last = first % modulus, last % modulus
    epoch = generation + random.choice([0, 0, 0, 0, 0, 1, -1, 2])
    return Batch(epoch, first, last, count, random.randrange(3))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("rules", [STRICT, KAFKA, MONOTONIC, EPOCH], ids=lambda r: r.policy.name)
def test_packed_is_judged_and_folded_as_plain(rules: Rules, seed: int) -> None:
    """Also around the wrap, and what is appended although it is no successor (the log is truth)."""
    random = Random(f"{rules.policy.name} {seed}")
    state: ProducerState | None = None
    packed: Packed | None = None
    high = rules.sequence_max - 40 if rules.wraps and seed % 2 else -1
    generation = 0
    for offset in range(600):
        batch = _draw(random, rules, high, generation)
        if state is not None and packed is not None:
            assert judge_packed(rules, packed, batch) == judge(rules, state, batch), (seed, batch)
        if not (0 <= batch.generation <= rules.generation_max and batch.first >= 0 <= batch.last):
            continue
        if random.random() < 0.3:
            continue
        state = fold(rules, state, batch, offset, offset)
        packed = fold_packed(rules, packed, batch, offset, offset)
        assert unpack(rules, packed) == state, (seed, batch)
        high, generation = state.high, state.generation
