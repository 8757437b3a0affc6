"""The settings of topics and of the server, by Kafka's names, with their values and sources.

A name means the same as in Kafka. Settings that tools often send and that have only one value here
are read-only, and may be set to that value.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pidlease.core.log_config import LogConfig
from pidlease.kafka.codec.metadata import NODE_ID
from pidlease.storage.topics.stream_settings import STREAM_SETTINGS
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
        name: Kafka's, or pidlease's own.
        value: the server's.
        default: the value if the server does not set it.
        text: the documentation that DescribeConfigs returns.
        server_name: the name of the server's setting, if it differs.
        writable: whether a topic may have a value of its own.
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
    """A value of a setting, and the place where it is set."""

    name: str
    value: str
    source: Source


def synonyms(setting: Setting, own: str | None, shared: str | None) -> list[Synonym]:
    """Return the values of a setting; the first is in effect, and hides those that follow.

    Parameters:
        own: the topic's own value.
        shared: the value set for all topics.
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
    """Return the values that a topic stores, with numbers in their plainest form.

    Parameters:
        given: names and values. Read-only settings must have their only value, and are left out.
        settings: those of topics.

    Raises:
        UnfitSettingError: a name is unknown, a value is null or not the only one, or there are too
            many settings.
        SettingError: a value is too long, or not a number where one is needed.
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
    """Return the message for a name that is not known."""
    return f"{_short(name)} is not known here; {_can_be_set(settings)}"


def _can_be_set(settings: Mapping[str, Setting]) -> str:
    names = [
        each.name
        for each in settings.values()
        if each.writable and each.name not in STREAM_SETTINGS
    ]
    if STREAM_SETTINGS.keys() <= settings.keys():
        names.append("pidlease.stream.*")
    return f"a topic can set {', '.join(names)}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


#: Characters of a name or a value in a message: messages are short strings in old versions.
_SHOWN: Final = 100
#: The most settings in a request for one topic; there are fewer settings.
_SETTINGS_MAX: Final = 1000


def topic_settings(config: KafkaListenerConfig) -> dict[str, Setting]:
    """Return the settings of topics, by name, with the server's values."""
    usual, unset = LogConfig(), KafkaListenerConfig(config.cluster)
    log = config.log
    found = (
        Setting(
            "segment.bytes", Kind.INT, str(log.segment_bytes), str(usual.segment_bytes),
            "The size of a segment, in bytes; retention removes whole segments.",
            "log.segment.bytes", writable=True,
        ),
        Setting(
            "retention.ms", Kind.LONG, str(log.retention_ms), str(usual.retention_ms),
            "Records are kept at least this long, in ms; -1: for ever.",
            "log.retention.ms", writable=True,
        ),
        Setting(
            "retention.bytes", Kind.LONG, str(log.retention_bytes), str(usual.retention_bytes),
            "The oldest segments are removed while a partition has more bytes; -1: no limit.",
            "log.retention.bytes", writable=True,
        ),
        Setting(
            "pidlease.fsync", Kind.STRING, log.fsync.value, usual.fsync.value,
            "When appends are fsynced: batch (before the response), interval, or never.",
            writable=True,
        ),
        *_policies(),
        *(
            Setting(name, Kind.STRING, "", "", text, writable=True)
            for name, text in STREAM_SETTINGS.items()
        ),
        Setting(
            "max.message.bytes", Kind.INT,
            str(config.batch_bytes_max), str(unset.batch_bytes_max),
            "The largest batch; a setting of the server.", "message.max.bytes",
        ),
        *_only_values(),
    )  # fmt: skip
    return {each.name: each for each in found}


def shared_settings() -> dict[str, Setting]:
    """Return the settings that can be set for all topics while the server runs, by name."""
    return {each.name: each for each in _policies()}


def _policies() -> tuple[Setting, ...]:
    texts = (
        (
            DEDUPLICATION, Kind.STRING,
            "on: duplicates and sequence gaps are detected; off: all valid batches are appended.",
        ),
        (
            POLICIES, Kind.LIST,
            "Policies of the producers that may write; none means producers without idempotence.",
        ),
        (
            INITIAL, Kind.STRING,
            "The first sequence number of a producer without state: as its policy says, or zero.",
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
            "Retention removes old records; topics are not compacted.", "log.cleanup.policy",
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
    """Return the server's settings, by Kafka's names."""
    cluster = config.cluster
    unset = KafkaListenerConfig(ClusterConfig(cluster.cluster_id, cluster.host, cluster.port))
    of_topics = [
        each._replace(name=each.server_name or each.name, server_name="")
        for each in topic_settings(config).values()
        if each.name not in STREAM_SETTINGS
    ]
    rows: tuple[tuple[str, Kind, str, str, str], ...] = (
        ("node.id", Kind.INT, str(NODE_ID), str(NODE_ID), "The one broker's id."),
        ("broker.id", Kind.INT, str(NODE_ID), str(NODE_ID), "The one broker's id."),
        (
            "advertised.listeners", Kind.STRING, _advertised(cluster), "",
            "The addresses that clients connect to.",
        ),
        (
            "auto.create.topics.enable", Kind.BOOLEAN, _boolean(cluster.auto_create),
            _boolean(unset.cluster.auto_create), "Whether topics are created on first use.",
        ),
        (
            "num.partitions", Kind.INT, str(cluster.default_partitions),
            str(unset.cluster.default_partitions), "Partitions of a topic created without them.",
        ),
        ("default.replication.factor", Kind.INT, "1", "1", "There is one broker."),
        ("delete.topic.enable", Kind.BOOLEAN, "true", "true", "Topics can be deleted."),
        (
            "socket.request.max.bytes", Kind.INT, str(config.request_bytes_max),
            str(unset.request_bytes_max), "The largest request, in bytes.",
        ),
        (
            "fetch.max.bytes", Kind.INT, str(config.fetch_bytes_max), str(unset.fetch_bytes_max),
            "The largest Fetch response, in bytes; its first batch may be larger.",
        ),
        (
            "max.connections", Kind.INT, str(config.connections_max), str(unset.connections_max),
            "The most concurrent connections.",
        ),
        (
            "connections.max.idle.ms", Kind.LONG, str(int(config.idle_seconds * 1000)),
            str(int(unset.idle_seconds * 1000)), "An idle connection is closed after this time.",
        ),
    )  # fmt: skip
    found = [*of_topics, *(Setting(*row) for row in rows)]
    return {each.name: each._replace(writable=False) for each in found}


def _advertised(cluster: ClusterConfig) -> str:
    addresses = cluster.addresses().items()
    return ",".join(f"{name or 'PLAINTEXT'}://{host}:{port}" for name, (host, port) in addresses)


def _boolean(value: bool) -> str:  # noqa: FBT001 - a value, not a switch
    return "true" if value else "false"
