"""Producer ids: the policy can be read off, Kafka's own never meet ours, JSON keeps them."""

import json

import pytest

from pidlease.core.pid import BLOCK_SIZE, NO_PIDS, Policy, make_pid, number_of, policy_of

LARGEST_N = 2**48 - 1


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("n", [1, 2, 100, 101, 2**31, 2**32 + 7, LARGEST_N])
def test_there_and_back(policy: Policy, n: int) -> None:
    pid = make_pid(policy, n)
    assert policy_of(pid) is policy
    assert number_of(pid) == n


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("n", [0, -1, LARGEST_N + 1, 2**63])
def test_numbers_outside_the_sequence_are_refused(policy: Policy, n: int) -> None:
    with pytest.raises(ValueError, match=str(n)):
        make_pid(policy, n)


def test_the_numbers_on_the_wire_and_in_the_log_never_change() -> None:
    """They stand in logs and snapshots for ever."""
    assert {p.name: p.value for p in Policy} == {
        "STRICT": 1,
        "KAFKA": 2,
        "MONOTONIC": 3,
        "EPOCH": 4,
        "WRITER": 5,
    }
    assert make_pid(Policy.STRICT, 1) == 281474976710657
    assert BLOCK_SIZE == 100


@pytest.mark.parametrize("policy", Policy)
def test_the_largest_survives_json_numbers(policy: Policy) -> None:
    pid = make_pid(policy, LARGEST_N)
    assert pid < 2**53
    assert int(float(pid)) == pid
    assert json.loads(json.dumps(pid), parse_int=lambda text: int(float(text))) == pid


@pytest.mark.parametrize("pid", [1, 1000, 2**31, LARGEST_N])
def test_kafkas_own_range_has_no_policy(pid: int) -> None:
    assert policy_of(pid) is None


@pytest.mark.parametrize("pid", [*NO_PIDS, -2, -(2**48), -(2**63), -(2**48) + 1])
def test_no_pid_and_negative_ids_have_no_policy(pid: int) -> None:
    assert policy_of(pid) is None


@pytest.mark.parametrize("policy", [0, 6, 7, 31, 2**15 - 1])
def test_unknown_policies_are_told_apart(policy: int) -> None:
    assert policy_of(policy << 48 | 5) is None


@pytest.mark.parametrize("policy", Policy)
def test_number_zero_is_nobody(policy: Policy) -> None:
    assert policy_of(policy << 48) is None


def test_no_pids_are_zero_and_minus_one() -> None:
    assert {0, -1} == NO_PIDS
