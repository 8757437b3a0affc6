"""The messages of the HTTP listener about topics and settings, for servers and clients."""

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, RootModel

from pidlease.http_api.lease_messages import Message, Partition, Topic

#: The most topics in one response.
TOPICS_MAX: Final = 200
#: The most partitions in one response: in front of Kafka, its brokers are asked for each.
PARTITIONS_MAX: Final = 200
#: The most settings in one request; there are fewer.
SETTINGS_MAX: Final = 100

Source = Literal["topic", "all topics", "start", "default"]


class SettingsChange(RootModel[dict[str, str | None]]):
    """Names of settings and their new values; null: remove the setting here (RFC 7396)."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        json_schema_extra={"examples": [{"pidlease.deduplication": "off", "retention.ms": None}]},
    )

    root: Annotated[dict[str, str | None], Field(min_length=1, max_length=SETTINGS_MAX)]


class NewTopic(Message):
    """A topic to create."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "orders", "partitions": 3}]})

    name: Topic
    partitions: Annotated[
        int | None, Field(ge=1, le=2**31 - 1, description="null: the server's default")
    ] = None
    settings: Annotated[
        dict[str, str],
        Field(max_length=SETTINGS_MAX, description="the topic's own settings, by name"),
    ] = Field(default_factory=dict)


class SettingRow(Message):
    """A setting in force."""

    value: str
    source: Source = Field(
        description="set for the topic, for all topics, at the server's start, or nowhere"
    )


class SettingsAnswer(Message):
    """The settings in force for topics without settings of their own."""

    settings: dict[str, SettingRow] = Field(description="by name")


class TopicAnswer(Message):
    """A topic with its settings in force."""

    name: str
    partitions: int
    settings: dict[str, SettingRow] = Field(description="by name")


class TopicsAnswer(Message):
    """Topics, in the order of their names."""

    topics: list[TopicAnswer]
    more: bool = Field(description="whether there are more after the last one")


class PartitionRow(Message):
    """The offsets of a partition."""

    partition: Partition
    log_start: int | None = Field(description="the first offset in the log; null: unknown")
    log_end: int | None = Field(
        description="the offset after the last record that may be read; null: unknown"
    )
    reason: str = Field(
        description="why the partition is stopped, or its offsets are unknown; empty: neither"
    )


class PartitionsAnswer(Message):
    """Partitions of a topic, in the order of their numbers."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "partitions": [{"partition": 0, "log_start": 0, "log_end": 17, "reason": ""}],
                    "more": False,
                }
            ]
        }
    )

    partitions: list[PartitionRow]
    more: bool = Field(description="whether there are more after the last one")
