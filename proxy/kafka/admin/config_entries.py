"""The settings of topics and of the server by Kafka's names: what they are, and their sources.

Kafka's names stand for the same things here. Those that tools like to send, and that have only one
value here, are described as read-only, and may be set to that value.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pidlease.core.log_config import LogConfig
from pidlease.kafka.codec.metadata import NODE_ID
from pidlease.storage.topics.topic_settings import (
    DEDUPLICATION,
    INITIAL,
    POLICIES,
    POLICY_DEFAULTS,
    plain_setting,
)
from proxy.kafka.listener_config import ClusterConfig, KafkaListenerConfig


@enum.unique
class Kind(enum.IntEnum):
    """The type of a value (DescribeConfigsResponse.ConfigType)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    LIST = 7


@enum.unique
class Source(enum.IntEnum):
    """The source of a value (DescribeConfigsResponse.ConfigSource)."""

    TOPIC = 1
    ALL_BROKERS = 3
    SERVER = 4
    DEFAULT = 5


class Setting(NamedTuple):
    """A setting of a topic or of the server.

    Attributes:
        name: Kafka's, or one of our own.
        kind: the type of its value.
        value: what the server is set to.
        default: what it is where it is unset.
        text: what it does.
        server_name: what it is called as a setting of the server.
        writable: whether a topic may have another value.
    """

    name: str
    kind: Kind
    value: str
    default: str
    text: str
    server_name: str = ""
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Synonym:
    """One place where a value may be set; the first of a list counts."""

    name: str
    value: str
    source: Source


def synonyms(setting: Setting, own: str | None, shared: str | None) -> list[Synonym]:
    """Where a setting's value comes from; the first counts, and hides those that follow.

    Parameters:
        setting: the server's.
        own: the topic's own value, if it has one.
        shared: the value that is set for all topics, if one is.
    """
    found = []
    name = setting.server_name or setting.name
    if own is not None:
        found.append(Synonym(setting.name, own, Source.TOPIC))
    if shared is not None:
        found.append(Synonym(name, shared, Source.ALL_BROKERS))
    if setting.value != setting.default:
        found.append(Synonym(name, setting.value, Source.SERVER))
    found.append(Synonym(name, setting.default, Source.DEFAULT))
    return found


class UnfitSettingError(Exception):
    """A setting that a topic cannot have; the message says why."""


def own_settings(
    given: Sequence[tuple[str, str | None]], settings: Mapping[str, Setting]
) -> dict[str, str]:
    """What a topic has of its own; read-only settings must have the value that they have anyway.

    Parameters:
        given: names and values.
        settings: of topics.

    Returns:
        What is to be stored: numbers in their plainest form.

    Raises:
        UnfitSettingError: a name is not known; a value is null, or another than the only one;
            there are too many.
        SettingError: a value is too long, or no number where there must be one.
    """
    if len(given) > _SETTINGS_MAX:
        raise UnfitSettingError(f"{len(given)} settings are too many; {_can_be_set(settings)}")
    own = {}
    for name, value in given:
        setting = settings.get(name)
        if setting is None:
            raise UnfitSettingError(unknown(name, settings))
        if value is None:
            raise UnfitSettingError(f"{name} has no value")
        if setting.writable:
            own[name] = plain_setting(name, value)
        elif value != setting.value:
            reason = f"{name} is {setting.value} here and cannot be {_short(value)}"
            raise UnfitSettingError(f"{reason}; {_can_be_set(settings)}")
    return own


def unknown(name: str, settings: Mapping[str, Setting]) -> str:
    """What is said of a name that is not known."""
    return f"{_short(name)} is not known here; {_can_be_set(settings)}"


def _can_be_set(settings: Mapping[str, Setting]) -> str:
    names = [each.name for each in settings.values() if each.writable]
    return f"a topic can set {', '.join(names)}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


#: How much of a name, or a value, is returned: messages are short strings in old versions.
_SHOWN: Final = 100
#: The most settings of one topic: there are fewer.
_SETTINGS_MAX: Final = 1000


def topic_settings(config: KafkaListenerConfig) -> dict[str, Setting]:
    """What a topic has, by name, with the server's values."""
    usual, unset = LogConfig(), KafkaListenerConfig(config.cluster)
    log = config.log
    found = (
        Setting(
            "segment.bytes", Kind.INT, str(log.segment_bytes), str(usual.segment_bytes),
            "The size of a segment; records are removed a segment at a time.",
            "log.segment.bytes", writable=True,
        ),
        Setting(
            "retention.ms", Kind.LONG, str(log.retention_ms), str(usual.retention_ms),
            "Records are kept at least this long, in ms; -1: for ever.",
            "log.retention.ms", writable=True,
        ),
        Setting(
            "retention.bytes", Kind.LONG, str(log.retention_bytes), str(usual.retention_bytes),
            "The oldest segments are removed while a partition is larger; -1: whatever its size.",
            "log.retention.bytes", writable=True,
        ),
        Setting(
            "pidlease.fsync", Kind.STRING, log.fsync.value, usual.fsync.value,
            "What an answer waits for: batch (the disk), interval or never (the system).",
            writable=True,
        ),
        *_policies(),
        Setting(
            "max.message.bytes", Kind.INT,
            str(config.batch_bytes_max), str(unset.batch_bytes_max),
            "The largest batch; a setting of the server.", "message.max.bytes",
        ),
        *_only_values(),
    )  # fmt: skip
    return {each.name: each for each in found}


def shared_settings() -> dict[str, Setting]:
    """What can be set for all topics while the server runs, by name."""
    return {each.name: each for each in _policies()}


def _policies() -> tuple[Setting, ...]:
    texts = (
        (
            DEDUPLICATION, Kind.STRING,
            "Whether batches are judged: on, or off (all are appended, repeated or not).",
        ),
        (
            POLICIES, Kind.LIST,
            "Policies of the producers that may write; none: producers that are not idempotent.",
        ),
        (
            INITIAL, Kind.STRING,
            "Where a producer begins of which nothing is known: as its policy says, or at zero.",
        ),
    )  # fmt: skip
    return tuple(
        Setting(name, kind, POLICY_DEFAULTS[name], POLICY_DEFAULTS[name], text, writable=True)
        for name, kind, text in texts
    )


def _only_values() -> tuple[Setting, ...]:
    return (
        Setting(
            "cleanup.policy", Kind.LIST, "delete", "delete",
            "Old records are removed; topics are not compacted.", "log.cleanup.policy",
        ),
        Setting(
            "compression.type", Kind.STRING, "producer", "producer",
            "Batches are stored as they were sent.",
        ),
        Setting(
            "message.timestamp.type", Kind.STRING, "CreateTime", "CreateTime",
            "Records keep the timestamps of their producers.", "log.message.timestamp.type",
        ),
        Setting(
            "min.insync.replicas", Kind.INT, "1", "1", "There is one broker.",
        ),
    )  # fmt: skip


def server_settings(config: KafkaListenerConfig) -> dict[str, Setting]:
    """What the server is set to, by Kafka's names for it."""
    cluster = config.cluster
    unset = KafkaListenerConfig(ClusterConfig(cluster.cluster_id, cluster.host, cluster.port))
    of_topics = [
        each._replace(name=each.server_name or each.name, server_name="")
        for each in topic_settings(config).values()
    ]
    rows: tuple[tuple[str, Kind, str, str, str], ...] = (
        ("node.id", Kind.INT, str(NODE_ID), str(NODE_ID), "The one broker's id."),
        ("broker.id", Kind.INT, str(NODE_ID), str(NODE_ID), "The one broker's id."),
        (
            "advertised.listeners", Kind.STRING, f"PLAINTEXT://{cluster.host}:{cluster.port}", "",
            "The address that clients connect to.",
        ),
        (
            "auto.create.topics.enable", Kind.BOOLEAN, _boolean(cluster.auto_create),
            _boolean(unset.cluster.auto_create), "Whether topics are made on first use.",
        ),
        (
            "num.partitions", Kind.INT, str(cluster.default_partitions),
            str(unset.cluster.default_partitions), "Partitions of a topic that does not say.",
        ),
        ("default.replication.factor", Kind.INT, "1", "1", "There is one broker."),
        ("delete.topic.enable", Kind.BOOLEAN, "true", "true", "Topics can be deleted."),
        (
            "socket.request.max.bytes", Kind.INT, str(config.request_bytes_max),
            str(unset.request_bytes_max), "The largest request.",
        ),
        (
            "fetch.max.bytes", Kind.INT, str(config.fetch_bytes_max), str(unset.fetch_bytes_max),
            "The most that one answer to a Fetch holds, beyond its first batch.",
        ),
        (
            "max.connections", Kind.INT, str(config.connections_max), str(unset.connections_max),
            "Clients at once.",
        ),
        (
            "connections.max.idle.ms", Kind.LONG, str(int(config.idle_seconds * 1000)),
            str(int(unset.idle_seconds * 1000)), "An idle connection is closed after this time.",
        ),
    )  # fmt: skip
    found = [*of_topics, *(Setting(*row) for row in rows)]
    return {each.name: each._replace(writable=False) for each in found}


def _boolean(value: bool) -> str:  # noqa: FBT001 - a value, not a switch
    return "true" if value else "false"
