"""Deduplication, allowed policies and initial rule: what their settings say."""

import pytest

from pidlease.core.log_config import FsyncPolicy, LogConfig
from pidlease.core.pid import Policy
from pidlease.core.topic_policy import NO_PID, TopicPolicy
from pidlease.storage.topics.stream_settings import STREAM_SETTINGS
from pidlease.storage.topics.topic_settings import (
    POLICY_DEFAULTS,
    SHARED_SETTINGS,
    TOPIC_SETTINGS,
    SettingError,
    SettingSource,
    change_of_own,
    change_of_shared,
    check_settings,
    check_shared,
    plain_policies,
    plain_setting,
    policy_in_force,
    settings_in_force,
)

OFF = {"pidlease.deduplication": "off"}
ZERO = {"pidlease.initial": "zero"}
SOME = {"pidlease.policies": "none,kafka"}


def test_where_nothing_is_set_it_is_as_it_was_before_there_were_settings() -> None:
    assert policy_in_force({}, {}) == policy_in_force(POLICY_DEFAULTS, {}) == TopicPolicy()
    assert policy_in_force({"retention.ms": "5"}, {}).takes_all


def test_what_values_say() -> None:
    assert policy_in_force(OFF, {}) == TopicPolicy(deduplication=False)
    assert policy_in_force(ZERO, {}) == TopicPolicy(starts_at_zero=True)
    found = policy_in_force(SOME, {})
    assert found == TopicPolicy(allowed=frozenset((NO_PID, int(Policy.KAFKA))))
    assert not found.takes_all
    for name in ("strict", "kafka", "monotonic", "epoch"):
        only = policy_in_force({"pidlease.policies": name}, {})
        assert only.allowed == {int(Policy[name.upper()])}


def test_a_topics_own_go_before_those_of_all() -> None:
    shared = {**OFF, **ZERO, **SOME}
    assert policy_in_force({}, shared) == policy_in_force(shared, {})
    found = policy_in_force({"pidlease.deduplication": "on"}, shared)
    assert (found.deduplication, found.starts_at_zero, len(found.allowed)) == (True, True, 2)


def test_topics_that_say_the_same_share_one() -> None:
    assert policy_in_force(OFF, {}) is policy_in_force({}, OFF)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ("kafka", "kafka"),
        (" kafka ,\tstrict ", "strict,kafka"),
        ("epoch,none,epoch", "none,epoch"),
        ("monotonic,epoch,kafka,strict,none", POLICY_DEFAULTS["pidlease.policies"]),
    ],
)
def test_lists_in_their_plainest_form(value: str, plain: str) -> None:
    assert plain_policies(value) == plain_setting("pidlease.policies", value) == plain


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("pidlease.deduplication", "true", "on or off, not 'true'"),
        ("pidlease.deduplication", "ON", "on or off"),
        ("pidlease.deduplication", "", "on or off, not ''"),
        ("pidlease.initial", "one", "policy or zero, not 'one'"),
        ("pidlease.policies", "", "one policy at least"),
        ("pidlease.policies", " ", "one policy at least"),
        ("pidlease.policies", "kafka,", "none, strict, kafka, monotonic, epoch, not 'kafka,'"),
        ("pidlease.policies", "writer", "not 'writer'"),
        ("pidlease.policies", "KAFKA", "not 'KAFKA'"),
        ("pidlease.policies", "2", "not '2'"),
        ("pidlease.policies", "x" * 999, "not 'xxxxx"),
    ],
)
def test_values_that_make_no_sense_are_told_with_the_setting(
    name: str, value: str, said: str
) -> None:
    changes = (change_of_own({name: value}), change_of_shared({name: value}))
    for check in (
        lambda: check_settings({name: value}),
        lambda: check_shared({name: value}),
        lambda: policy_in_force({name: value}, {}),
        lambda: changes[0]({}),
        lambda: changes[1]({}),
    ):
        with pytest.raises(SettingError) as error:
            check()
        assert error.value.setting == name
        assert str(error.value).startswith(name)
        assert said in str(error.value)
        assert len(str(error.value)) < 200


def test_only_some_can_be_set_for_all_topics() -> None:
    assert tuple(POLICY_DEFAULTS) == SHARED_SETTINGS
    for name in set(TOPIC_SETTINGS) - set(SHARED_SETTINGS):
        for change in (change_of_shared({name: "5"}), change_of_shared({name: None})):
            with pytest.raises(SettingError, match=f"{name} is given .* at the server's start"):
                change({})
    for change in (change_of_own({"no.such": "5"}), change_of_own({"no.such": None})):
        with pytest.raises(SettingError, match=r"no\.such cannot be set here"):
            change({})


def test_changes_leave_the_rest_as_it_is() -> None:
    own = {"retention.ms": "5", **OFF}
    change = change_of_own({"pidlease.deduplication": None, "pidlease.policies": "kafka,strict"})
    assert change(own) == {"retention.ms": "5", "pidlease.policies": "strict,kafka"}
    assert own == {"retention.ms": "5", **OFF}, "what was there before is untouched"
    assert change_of_own({"retention.ms": "007"})({}) == {"retention.ms": "7"}
    assert change_of_own({"retention.ms": None})({}) == {}
    assert change_of_shared({**SOME, "pidlease.initial": None})(ZERO) == SOME


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", " 5"),
        ("retention.ms", "1_000"),
        ("retention.ms", "\u0661"),
        ("retention.ms", "x" * 1001),
        ("segment.bytes", "1"),
        ("pidlease.fsync", "maybe"),
        ("pidlease.policies", "kafka," * 200),
    ],
)
def test_values_are_given_in_plain_form_only(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=name) as error:
        change_of_own({name: value})({})
    assert error.value.setting == name


def test_who_set_what_is_in_force() -> None:
    own = {"retention.ms": "5", "pidlease.initial": "zero"}
    shared = {"pidlease.initial": "policy", "pidlease.deduplication": "off"}
    log = LogConfig(segment_bytes=4096, fsync=FsyncPolicy.NEVER)
    found = settings_in_force(own, shared, log)
    assert found == {
        "segment.bytes": ("4096", SettingSource.START),
        "retention.ms": ("5", SettingSource.TOPIC),
        "retention.bytes": ("-1", SettingSource.DEFAULT),
        "pidlease.fsync": ("never", SettingSource.START),
        "pidlease.deduplication": ("off", SettingSource.ALL_TOPICS),
        "pidlease.policies": ("none,strict,kafka,monotonic,epoch", SettingSource.DEFAULT),
        "pidlease.initial": ("zero", SettingSource.TOPIC),
    }
    assert tuple(found) == tuple(n for n in TOPIC_SETTINGS if n not in STREAM_SETTINGS)
