"""The table of the policies, against the design's words (PIDs and policies, Judging)."""

import dataclasses

import pytest

from pidlease.core.pid import Policy
from pidlease.core.rules import EPOCH, KAFKA, MONOTONIC, RULES, STRICT, Start


def test_doors_may_bring_all_policies_but_the_writer() -> None:
    assert set(RULES) == set(Policy) - {Policy.WRITER}


@pytest.mark.parametrize("policy", RULES)
def test_a_row_stands_under_its_own_policy(policy: Policy) -> None:
    assert RULES[policy].policy is policy


def test_number_widths() -> None:
    assert STRICT.sequence_max == 2**63 - 1, "64-bit numbers"
    assert KAFKA.sequence_max == 2**31 - 1, "31-bit numbers"
    assert KAFKA.generation_max == 2**15 - 1, "an int16 on the wire"
    assert EPOCH.sequence_max == EPOCH.generation_max == 2**53 - 1, "53-bit numbers: JSON"
    assert all(rules.sequence_max < 2**63 for rules in RULES.values()), "int64 in the snapshot"
    assert all(rules.generation_max < 2**63 for rules in RULES.values())


def test_who_wraps_restarts_and_has_holes() -> None:
    def having(field: str) -> set[Policy]:
        return {policy for policy, rules in RULES.items() if getattr(rules, field)}

    assert having("wraps") == {Policy.KAFKA}
    assert having("restarts") == {Policy.KAFKA, Policy.EPOCH}
    assert having("holes") == {Policy.MONOTONIC}
    assert having("low_mark") == {Policy.KAFKA, Policy.EPOCH}
    assert Policy.STRICT in having("ranges")


def test_where_an_unknown_producer_starts() -> None:
    starts = {p: (r.start_young, r.start_old) for p, r in RULES.items()}
    assert starts == {
        Policy.STRICT: (Start.AT_ZERO, Start.NOWHERE),
        Policy.KAFKA: (Start.AT_ZERO, Start.ANYWHERE),
        Policy.MONOTONIC: (Start.ANYWHERE, Start.ANYWHERE),
        Policy.EPOCH: (Start.AT_ZERO, Start.AT_ZERO),
    }


def test_rows_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        STRICT.holes = True  # type: ignore[misc]
    assert not STRICT.holes
    assert MONOTONIC.holes


def test_what_wraps_wraps_at_a_power_of_two() -> None:
    """Half the number space decides what is behind; it must be a whole number."""
    for rules in RULES.values():
        if rules.wraps:
            modulus = rules.sequence_max + 1
            assert modulus & (modulus - 1) == 0
