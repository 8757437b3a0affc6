"""What a topic may set for itself, by Kafka's names."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from pidlease.storage.ports import FsyncPolicy, LogConfig
from pidlease.storage.topics import Topic


def config_of(topic: Topic, defaults: LogConfig) -> LogConfig:
    """The settings of a topic: the server's, with the topic's own in their place.

    Raises:
        ValueError: a value is no number, or no fsync policy.
    """
    own = topic.overrides
    integer = partial(_integer, own)
    return LogConfig(
        segment_bytes=integer("segment.bytes", defaults.segment_bytes, 1024),
        retention_ms=integer("retention.ms", defaults.retention_ms, -1),
        retention_bytes=integer("retention.bytes", defaults.retention_bytes, -1),
        fsync=_fsync(own, defaults.fsync),
    )


#: What a topic may set, by Kafka's names and one of our own.
TOPIC_SETTINGS: Final = ("segment.bytes", "retention.ms", "retention.bytes", "pidlease.fsync")


#: Of them, those that are whole numbers.
_NUMBERS: Final = ("segment.bytes", "retention.ms", "retention.bytes")
#: How much of a value is told back.
_SHOWN: Final = 50


def check_settings(overrides: dict[str, str]) -> None:
    """Check a topic's own settings, as they are given or were stored before.

    Raises:
        ValueError: one is not known, or its value makes no sense.
    """
    for name in overrides:
        if name not in TOPIC_SETTINGS:
            raise ValueError(
                f"{name[:_SHOWN]} cannot be set here; known: {', '.join(TOPIC_SETTINGS)}"
            )
    config_of(Topic("-", "", 1, overrides), LogConfig())


def _integer(own: dict[str, str], name: str, default: int, smallest: int) -> int:
    if name not in own:
        return default
    try:
        value = int(own[name])
    except ValueError:
        raise ValueError(f"{name} is a whole number, not {_short(own[name])}") from None
    if not smallest <= value < 2**63 or (name == "segment.bytes" and value >= 2**31):
        raise ValueError(f"{name} = {_short(own[name])} is out of range")
    return value


def _fsync(own: dict[str, str], default: FsyncPolicy) -> FsyncPolicy:
    value = own.get("pidlease.fsync", default.value)
    try:
        return FsyncPolicy(value)
    except ValueError:
        known = ", ".join(each.value for each in FsyncPolicy)
        raise ValueError(f"pidlease.fsync is one of {known}, not {_short(value)}") from None


def _short(value: str) -> str:
    return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}..."


def plain(topic: Topic) -> Topic:
    """A topic with its numbers in their plainest form: others were stored by earlier versions."""
    own = dict(topic.overrides)
    for name in _NUMBERS:
        with suppress(ValueError):  # told when its partitions are opened
            own |= {name: str(int(own[name]))} if name in own else {}
    return topic if own == topic.overrides else replace(topic, overrides=own)
