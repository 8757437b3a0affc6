"""All short histories over a small alphabet, none left out, against the oracle.

Judging has no memory but the state, and a batch that is not admitted leaves the state as it is
(asserted at every node). So a history with refused batches ends where the one without them does,
and walking the tree of admitted batches, with every letter of the alphabet judged at every node,
covers all histories of that many steps in any interleaving with refusals.

A failure prints the batch and all that was accepted before it; nothing is random here.
"""

import itertools
from collections.abc import Iterator

import pytest

from tests.crash.seeds import SOAK
from tests.property.both import Both, assert_state
from tests.property.oracle import KAFKA_NUMBERS, POLICY_NAMES, PolicyName, Sent

#: Steps of a history; one more in a soak.
DEEPER = 1 if SOAK else 0
KAFKA_MAX = KAFKA_NUMBERS - 1

NAMED: tuple[PolicyName, ...] = ("strict", "monotonic")


def ranges(numbers: list[int], policy: PolicyName) -> Iterator[tuple[int, int, int]]:
    """All (first, last, count of numbers) within a run of consecutive numbers."""
    for i, j in itertools.combinations_with_replacement(range(len(numbers)), 2):
        yield numbers[i], numbers[j], j - i + 1
    if policy == "strict":  # chained ranges: one record for many numbers
        for i, j in itertools.combinations(range(len(numbers)), 2):
            yield numbers[i], numbers[j], 1


def alphabet(policy: PolicyName, numbers: list[int], generations: range) -> list[Sent]:
    return [
        Sent(generation, first, last, count)
        for generation in generations
        for first, last, count in ranges(numbers, policy)
    ]


def walk(both: Both, letters: list[Sent], steps: int) -> int:
    """Judge every letter here, and go on from each that is admitted.

    Returns:
        How many batches were judged.
    """
    assert_state(both.oracle, both.state)
    if steps == 0:
        return 0
    judged = len(letters)
    for sent in letters:
        here = both.copy()
        if here.arrive(sent).kind == "admit":
            judged += walk(here, letters, steps - 1)
        else:
            assert here.state is both.state, f"{sent} was refused, yet it changed {both.state}"
    return judged


CASES = [(policy, -1) for policy in POLICY_NAMES] + list(itertools.product(NAMED, (0, 1, 2)))


@pytest.mark.parametrize("age", ["young", "old", "never"])
@pytest.mark.parametrize(("policy", "granted"), CASES)
def test_all_histories_of_three_generations(policy: PolicyName, granted: int, age: str) -> None:
    """Sequences 0..3, generations 0..2 (and 3 to see two steps up), a grant at any of them."""
    letters = alphabet(policy, [0, 1, 2, 3], range(4))
    assert walk(Both(policy, age, granted), letters, 4 + DEEPER) >= len(letters)


@pytest.mark.parametrize("first_granted", [-1, 0, 1])
@pytest.mark.parametrize("then_granted", [1, 2, 3])
@pytest.mark.parametrize("policy", NAMED)
def test_all_histories_with_a_grant_in_the_middle(
    policy: PolicyName, first_granted: int, then_granted: int
) -> None:
    """One batch, then the name is leased again, then three more."""
    letters = alphabet(policy, [0, 1, 2, 3], range(5))
    for opening in letters:
        both = Both(policy, "young", first_granted)
        if both.arrive(opening).kind != "admit":
            continue
        both.oracle.granted = max(first_granted, then_granted)
        walk(both, letters, 3 + DEEPER)


@pytest.mark.parametrize(
    "numbers",
    [
        [KAFKA_MAX - 1, KAFKA_MAX, 0, 1],
        [KAFKA_MAX - 2, KAFKA_MAX - 1, KAFKA_MAX, 0],
        [KAFKA_MAX, 0, 1, 2],
    ],
    ids=["middle", "late", "early"],
)
def test_all_kafka_histories_across_the_wrap(numbers: list[int]) -> None:
    letters = alphabet("kafka", numbers, range(3))
    far = [Sent(0, n, n, 1) for n in (2**30 - 1, 2**30, 2**30 + 1)]
    assert walk(Both("kafka", "old"), letters + far, 4 + DEEPER) > len(letters)


def test_all_kafka_histories_in_great_strides() -> None:
    """Once round in eight strides, each edge probed: the low mark is dragged along, and what is
    exactly half the numbers away is behind."""
    stride = 2**28
    starts = range(0, KAFKA_NUMBERS, stride)
    letters = [Sent(0, start, start + stride - 1, stride) for start in starts]
    for start in starts:
        letters += [Sent(0, n % KAFKA_NUMBERS, n % KAFKA_NUMBERS, 1) for n in (start - 1, start)]
    assert walk(Both("kafka", "young"), letters, 10 + DEEPER) > 10 * len(letters)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_all_histories_of_seven_single_records(policy: PolicyName) -> None:
    """Longer than the five that are kept: every batch is forgotten at some node. Two kinds of
    bytes for the first record, so that what differs is told from what does not."""
    numbers = list(range(7))
    letters = [Sent(0, n, n, 1) for n in numbers] + [Sent(0, 0, 0, 1, crc=9), Sent(0, 0, 1, 2)]
    assert walk(Both(policy, "young"), letters, 7 + DEEPER) > len(letters)


def test_the_walk_finds_a_planted_error() -> None:
    """A tree walk that judges nothing passes everything; this one does not."""
    both = Both("strict", "young")
    both.oracle.policy = "epoch"  # the oracle now has the rule of another policy
    with pytest.raises(AssertionError, match="the core says"):
        walk(both, alphabet("strict", [0, 1, 2], range(2)), 2)
