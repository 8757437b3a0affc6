"""The messages of the HTTP door about topics and their settings, for the door and for clients."""

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, RootModel

from pidlease.http_api.lease_messages import Message

#: Topics in one answer.
TOPICS_MAX: Final = 200
#: Settings in one request; there are fewer.
SETTINGS_MAX: Final = 100

Source = Literal["topic", "all topics", "start", "default"]


class SettingsChange(RootModel[dict[str, str | None]]):
    """Names of settings and their new values; null: it is no longer set here (RFC 7396)."""

    model_config = ConfigDict(strict=True, frozen=True)

    root: Annotated[dict[str, str | None], Field(min_length=1, max_length=SETTINGS_MAX)]


class SettingRow(Message):
    """A setting that is in force."""

    value: str
    source: Source = Field(
        description="who set it: the topic, somebody for all topics, the server's start, or nobody"
    )


class SettingsAnswer(Message):
    """The settings that are in force for all topics that have none of their own."""

    settings: dict[str, SettingRow] = Field(description="by name")


class TopicAnswer(Message):
    """A topic with the settings that are in force."""

    name: str
    partitions: int
    settings: dict[str, SettingRow] = Field(description="by name")


class TopicsAnswer(Message):
    """Topics, in the order of their names."""

    topics: list[TopicAnswer]
    more: bool = Field(description="whether there are more behind the last one")
