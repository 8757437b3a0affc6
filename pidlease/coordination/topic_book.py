"""Pidlease's own settings of a Kafka cluster's topics: Kafka does not store them.

They outlive the server. With ZooKeeper the next server of the cluster has them, too.
"""

from typing import NamedTuple, Protocol


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

    def load(self) -> TopicSettings:
        """Read all settings.

        Raises:
            TopicBookError: they cannot be read.
        """

    def save_shared(self, settings: dict[str, str]) -> None:
        """Replace the settings of all topics, durably.

        Raises:
            TopicBookError: they may have been saved or not.
        """

    def save_own(self, topic: str, topic_id: str, settings: dict[str, str]) -> None:
        """Replace the settings of one topic, durably.

        Parameters:
            topic: the topic's name, stored for the operator only.
            topic_id: the topic's id: a later topic of the same name has its own settings.
            settings: by name.

        Raises:
            TopicBookError: they may have been saved or not.
        """
