"""Pidlease's own settings of a Kafka cluster's topics: Kafka does not store them.

They outlive the server. With a coordinator, the cluster's other servers have them, too.
"""

from typing import Final, NamedTuple, Protocol

from pidlease.storage.topics.topic_settings import SettingsChange

#: Used instead of a topic's id for the settings of all topics.
ALL_TOPICS: Final = ""


class TopicBookError(OSError):
    """The settings cannot be read, or may have been saved or not; try again."""


class TopicSettings(NamedTuple):
    """All settings.

    Attributes:
        shared: those of all topics, by name of the setting.
        own: those of single topics, by topic id.
    """

    shared: dict[str, str]
    own: dict[str, dict[str, str]]


class TopicBook(Protocol):
    """Stores the settings. The methods block and run in threads."""

    def version(self) -> object:
        """Return what differs after each change by any server, as of this call or later.

        Raises:
            TopicBookError: this is unknown now.
        """

    def load(self) -> TopicSettings:
        """Read all settings.

        Raises:
            TopicBookError: they cannot be read.
        """

    def change(self, topic: str, topic_id: str, change: SettingsChange) -> dict[str, str]:
        """Change the settings of one topic, durably; return the new ones.

        Parameters:
            topic: the topic's name, stored for the operator only.
            topic_id: the topic's id: a later topic of the same name has its own settings.
                `ALL_TOPICS`: change those of all topics.
            change: makes the new settings from those that are stored. It is called again if another
                server has changed them meanwhile. Its errors are raised; then nothing has changed.

        Raises:
            TopicBookError: they may have been changed or not.
        """
