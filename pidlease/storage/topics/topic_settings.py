"""Topic settings by Kafka's names: a topic's own, and those of all topics."""

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final, NamedTuple

from pidlease.core.log_config import FsyncPolicy, LogConfig
from pidlease.core.pid import Policy
from pidlease.core.rules import RULES
from pidlease.core.topic_policy import NO_PID, TopicPolicy
from pidlease.storage.topics import stream_settings
from pidlease.storage.topics.stream_settings import OF_FORKS, STREAM_SETTINGS
from pidlease.storage.topics.topic_store import Topic

#: Returns the new settings for the former ones.
SettingsChange = Callable[[dict[str, str]], dict[str, str]]

DEDUPLICATION: Final = "pidlease.deduplication"
POLICIES: Final = "pidlease.policies"
INITIAL: Final = "pidlease.initial"

#: The policies' numbers by their names in a list, in the order of a plain list.
_POLICY_NUMBERS: Final[Mapping[str, int]] = {
    "none": NO_PID,
    **{Policy(policy).name.lower(): int(policy) for policy in RULES},
}
#: The values of settings that are not set.
POLICY_DEFAULTS: Final[Mapping[str, str]] = {
    DEDUPLICATION: "on",
    POLICIES: ",".join(_POLICY_NUMBERS),
    INITIAL: "policy",
}

#: Settings that can be set for all topics while the server runs.
SHARED_SETTINGS: Final = tuple(POLICY_DEFAULTS)
#: Settings that a topic may have: Kafka's, and our own.
TOPIC_SETTINGS: Final = (
    "segment.bytes",
    "retention.ms",
    "retention.bytes",
    "pidlease.fsync",
    *SHARED_SETTINGS,
    *STREAM_SETTINGS,
)

#: The settings that are whole numbers.
_NUMBERS: Final = ("segment.bytes", "retention.ms", "retention.bytes")
#: The longest value.
_VALUE_MAX: Final = 1000
#: ASCII digits, as many as a long has: Python's int accepts much more.
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}")
#: Characters of a name or value that an error shows.
_SHOWN: Final = 50


class SettingError(ValueError):
    """An unknown setting, or an invalid value; the message names the setting.

    Attributes:
        setting: its name.
    """

    def __init__(self, setting: str, message: str) -> None:
        super().__init__(message)
        self.setting: Final = setting


def short(value: str) -> str:
    """Return a value as errors show it: quoted, and cut if it is long."""
    return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}..."


def short_name(name: str) -> str:
    """Return a name as errors show it."""
    return name[:_SHOWN]


# ---------------------------------------------------------------------- validation


def config_of(topic: Topic, defaults: LogConfig) -> LogConfig:
    """Return the settings of a topic's log: the server's, and its own where it has some.

    Raises:
        SettingError: a value is not a number, or not an fsync policy.
    """
    own = topic.overrides
    integer = partial(_integer, own)
    return LogConfig(
        segment_bytes=integer("segment.bytes", defaults.segment_bytes, 1024),
        retention_ms=integer("retention.ms", defaults.retention_ms, -1),
        retention_bytes=integer("retention.bytes", defaults.retention_bytes, -1),
        fsync=_fsync(own, defaults.fsync),
    )


def check_settings(overrides: Mapping[str, str]) -> None:
    """Check a topic's own settings.

    Raises:
        SettingError: one is unknown, or its value is invalid.
    """
    for name in overrides:
        _check_known(name, TOPIC_SETTINGS)
    for name in STREAM_SETTINGS:
        if name in overrides and not stream_settings.is_valid(name, overrides[name]):
            raise SettingError(name, f"{name} cannot be {short(overrides[name])}")
    config_of(Topic("-", "", 1, dict(overrides)), LogConfig())
    policy_in_force(overrides, {})


def check_change(
    before: Mapping[str, str], after: Mapping[str, str], *, also: Sequence[str] = ()
) -> None:
    """Check that a client's change of a topic's own settings leaves those that are not for clients.

    Parameters:
        also: further ones that it must leave.

    Raises:
        SettingError: one would be changed.
    """
    for name in (*OF_FORKS, *also):
        if before.get(name) != after.get(name):
            where = "over HTTP" if name in also else "by requests to streams"
            raise SettingError(name, f"{name} is set {where} only")


def check_shared(settings: Mapping[str, str]) -> None:
    """Check the settings of all topics.

    Raises:
        SettingError: one cannot be set for all topics, or its value is invalid.
    """
    for name in settings:
        _check_known(name, SHARED_SETTINGS)
    policy_in_force({}, settings)


def _check_known(name: str, known: tuple[str, ...]) -> None:
    if name in known:
        return
    if name in TOPIC_SETTINGS:
        reason = "is given for all topics at the server's start (pidlease serve --help)"
        raise SettingError(name, f"{name} {reason}; while it runs: {', '.join(known)}")
    listed = [each for each in known if each not in STREAM_SETTINGS]
    if len(listed) < len(known):
        listed.append("pidlease.stream.*")
    raise SettingError(name, f"{short_name(name)} cannot be set here; known: {', '.join(listed)}")


def _integer(own: Mapping[str, str], name: str, default: int, smallest: int) -> int:
    if name not in own:
        return default
    try:
        value = int(own[name])
    except ValueError:
        raise SettingError(name, f"{name} is a whole number, not {short(own[name])}") from None
    if not smallest <= value < 2**63 or (name == "segment.bytes" and value >= 2**31):
        raise SettingError(name, f"{name} = {short(own[name])} is out of range")
    return value


def _fsync(own: Mapping[str, str], default: FsyncPolicy) -> FsyncPolicy:
    name = "pidlease.fsync"
    value = own.get(name, default.value)
    try:
        return FsyncPolicy(value)
    except ValueError:
        known = ", ".join(each.value for each in FsyncPolicy)
        raise SettingError(name, f"{name} is one of {known}, not {short(value)}") from None


# ---------------------------------------------------------------------- policies


def policy_in_force(own: Mapping[str, str], shared: Mapping[str, str]) -> TopicPolicy:
    """Return the batches that a topic allows.

    Parameters:
        own: the topic's own settings, by name; may contain others than the three policy settings.
        shared: the settings of all topics.

    Raises:
        SettingError: a value is invalid.
    """
    texts = (own.get(name, shared.get(name, default)) for name, default in POLICY_DEFAULTS.items())
    return _policy(*texts)


@lru_cache(maxsize=1024)
def _policy(deduplication: str, policies: str, initial: str) -> TopicPolicy:
    """Return one object for all topics with the same settings: there may be thousands."""
    return TopicPolicy(
        deduplication=_one_of(DEDUPLICATION, deduplication, ("on", "off")) == "on",
        allowed=frozenset(_POLICY_NUMBERS[name] for name in _names(policies)),
        starts_at_zero=_one_of(INITIAL, initial, ("policy", "zero")) == "zero",
    )


def _one_of(name: str, value: str, known: tuple[str, str]) -> str:
    if value not in known:
        raise SettingError(name, f"{name} is {' or '.join(known)}, not {short(value)}")
    return value


def plain_policies(value: str) -> str:
    """Return a list of policies in plain form: each once, in a fixed order, without blanks.

    Raises:
        SettingError: a policy is unknown, or the list is empty.
    """
    names = frozenset(_names(value))
    return ",".join(name for name in _POLICY_NUMBERS if name in names)


def _names(value: str) -> list[str]:
    """Split a list of policies; ignore blanks around commas, as Kafka does (ConfigDef.parseType).

    Raises:
        SettingError: a policy is unknown, or the list is empty.
    """
    names = [name.strip() for name in value.split(",")] if value.strip() else []
    for name in names:
        if name not in _POLICY_NUMBERS:
            known = ", ".join(_POLICY_NUMBERS)
            raise SettingError(POLICIES, f"{POLICIES} is a list of {known}, not {short(value)}")
    if not names:
        raise SettingError(POLICIES, f"{POLICIES} names one policy at least")
    return names


# ---------------------------------------------------------------------- changes


def plain_setting(name: str, value: str) -> str:
    """Return a value in plain form, as it is stored and shown.

    Raises:
        SettingError: the value is too long, or not a number or list where one is needed.
    """
    if len(value) > _VALUE_MAX:
        raise SettingError(
            name, f"{short_name(name)} has {_VALUE_MAX} characters at most, not {len(value)}"
        )
    if name == POLICIES:
        return plain_policies(value)
    if name not in _NUMBERS:
        return value
    if not _NUMBER.fullmatch(value):
        raise SettingError(name, f"{name} is a whole number, not {short(value)}")
    return str(int(value))


def change_of_own(given: Mapping[str, str | None]) -> SettingsChange:
    """Return a change of a topic's own settings; the value None removes one.

    The change raises SettingError for an unknown name or an invalid value.
    """
    return partial(_merged, given, TOPIC_SETTINGS, check_settings)


def change_by_client(given: Mapping[str, str | None]) -> SettingsChange:
    """Return a client's change of a topic's own settings; the value None removes one.

    The change raises SettingError for an unknown name, an invalid value, or a setting that is not
    for clients.
    """

    def change(before: dict[str, str]) -> dict[str, str]:
        after = change_of_own(given)(before)
        check_change(before, after)
        return after

    return change


def given_at_creation(given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the settings that a client gives a new topic, if all are for clients.

    Raises:
        SettingError: one is not for clients.
    """
    check_change({}, given)
    return given


def change_of_shared(given: Mapping[str, str | None]) -> SettingsChange:
    """Return a change of the settings of all topics; the value None removes one.

    The change raises SettingError for an unknown name or an invalid value.
    """
    return partial(_merged, given, SHARED_SETTINGS, check_shared)


def _merged(
    given: Mapping[str, str | None],
    known: tuple[str, ...],
    check: Callable[[Mapping[str, str]], None],
    before: dict[str, str],
) -> dict[str, str]:
    settings = dict(before)
    for name, value in given.items():
        _check_known(name, known)
        if value is None:
            settings.pop(name, None)
        else:
            settings[name] = plain_setting(name, value)
    check(settings)
    return settings


# ---------------------------------------------------------------------- sources


@enum.unique
class SettingSource(enum.Enum):
    """The source of a value: the topic, all topics, the server's start, or the default."""

    TOPIC = "topic"
    ALL_TOPICS = "all topics"
    START = "start"
    DEFAULT = "default"


class SettingInForce(NamedTuple):
    """A setting's value, and its source."""

    value: str
    source: SettingSource


def settings_in_force(
    own: Mapping[str, str], shared: Mapping[str, str], log: LogConfig | None
) -> dict[str, SettingInForce]:
    """Return all settings of a topic, with their sources.

    Parameters:
        own: the topic's own settings.
        shared: the settings of all topics.
        log: the settings given at the server's start; None: those of the log are left out, because
            they are Kafka's.
    """
    usual = _at_start(LogConfig())
    started = POLICY_DEFAULTS if log is None else _at_start(log)
    in_force = {}
    # Those of streams have no default.
    for name in (*started, *(each for each in STREAM_SETTINGS if each in own)):
        if name in own:
            in_force[name] = SettingInForce(own[name], SettingSource.TOPIC)
        elif name in shared:
            in_force[name] = SettingInForce(shared[name], SettingSource.ALL_TOPICS)
        elif started[name] != usual[name]:
            in_force[name] = SettingInForce(started[name], SettingSource.START)
        else:
            in_force[name] = SettingInForce(usual[name], SettingSource.DEFAULT)
    return in_force


def _at_start(log: LogConfig) -> dict[str, str]:
    """Return the values of all settings as given at the server's start."""
    return {
        "segment.bytes": str(log.segment_bytes),
        "retention.ms": str(log.retention_ms),
        "retention.bytes": str(log.retention_bytes),
        "pidlease.fsync": log.fsync.value,
        **POLICY_DEFAULTS,
    }


def plain(topic: Topic) -> Topic:
    """Return a topic with its numbers in plain form: earlier versions stored them as given."""
    own = dict(topic.overrides)
    for name in _NUMBERS:
        with suppress(ValueError):  # reported when its partitions are opened
            own |= {name: str(int(own[name]))} if name in own else {}
    return topic if own == topic.overrides else replace(topic, overrides=own)
