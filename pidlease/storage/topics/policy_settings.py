"""Deduplication, allowed policies and initial rule: what settings say of them, by their names."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from pidlease.core.pid import Policy
from pidlease.core.rules import RULES
from pidlease.core.topic_policy import NO_PID, TopicPolicy
from pidlease.storage.topics.setting_values import SettingError, short

DEDUPLICATION: Final = "pidlease.deduplication"
POLICIES: Final = "pidlease.policies"
INITIAL: Final = "pidlease.initial"

#: The numbers of the policies by the names that stand in a list, in the order of a plain one.
_NUMBERS: Final[Mapping[str, int]] = {
    "none": NO_PID,
    **{Policy(policy).name.lower(): int(policy) for policy in RULES},
}
#: What each is where nobody sets it.
POLICY_DEFAULTS: Final[Mapping[str, str]] = {
    DEDUPLICATION: "on",
    POLICIES: ",".join(_NUMBERS),
    INITIAL: "policy",
}


def policy_in_force(own: Mapping[str, str], shared: Mapping[str, str]) -> TopicPolicy:
    """What a topic takes.

    Parameters:
        own: its own settings, by name; others than these three may be among them.
        shared: those of all topics that have none of their own.

    Raises:
        SettingError: a value makes no sense.
    """
    texts = (own.get(name, shared.get(name, default)) for name, default in POLICY_DEFAULTS.items())
    return _policy(*texts)


@lru_cache(maxsize=1024)
def _policy(deduplication: str, policies: str, initial: str) -> TopicPolicy:
    """One for all topics that say the same: there may be many thousands."""
    return TopicPolicy(
        deduplication=_one_of(DEDUPLICATION, deduplication, ("on", "off")) == "on",
        allowed=frozenset(_NUMBERS[name] for name in _names(policies)),
        starts_at_zero=_one_of(INITIAL, initial, ("policy", "zero")) == "zero",
    )


def _one_of(name: str, value: str, known: tuple[str, str]) -> str:
    if value not in known:
        raise SettingError(name, f"{name} is {' or '.join(known)}, not {short(value)}")
    return value


def plain_policies(value: str) -> str:
    """A list of policies in its plainest form: each once, in one order, without blanks.

    Raises:
        SettingError: it names one that is not known, or none at all.
    """
    names = frozenset(_names(value))
    return ",".join(name for name in _NUMBERS if name in names)


def _names(value: str) -> list[str]:
    """The names in a list of policies.

    Blanks around commas do not count, as in Kafka's lists (ConfigDef.parseType).

    Raises:
        SettingError: see `plain_policies`.
    """
    names = [name.strip() for name in value.split(",")] if value.strip() else []
    for name in names:
        if name not in _NUMBERS:
            known = ", ".join(_NUMBERS)
            raise SettingError(POLICIES, f"{POLICIES} is a list of {known}, not {short(value)}")
    if not names:
        raise SettingError(POLICIES, f"{POLICIES} names one policy at least")
    return names
