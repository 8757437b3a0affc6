"""What the topics of a Kafka cluster take, as it was set here: Kafka keeps no such settings.

It outlives the server; and with ZooKeeper it is there for whoever serves the cluster next.
"""

from typing import NamedTuple, Protocol


class TopicBookError(OSError):
    """The settings cannot be read, or they may have been saved, or not; try again."""


class TopicSettings(NamedTuple):
    """All of them.

    Attributes:
        shared: what is set for all topics, by name.
        own: what is set for one, by its id.
    """

    shared: dict[str, str]
    own: dict[str, dict[str, str]]


class TopicBook(Protocol):
    """Where they stand. The methods block, and are called in threads."""

    def load(self) -> TopicSettings:
        """All of them.

        Raises:
            TopicBookError: they cannot be read.
        """

    def save_shared(self, settings: dict[str, str]) -> None:
        """Put what is set for all topics in the place of what was, durably.

        Raises:
            TopicBookError: it may have been saved, or not.
        """

    def save_own(self, topic: str, topic_id: str, settings: dict[str, str]) -> None:
        """The same for one topic.

        Parameters:
            topic: its name, for a person to look at,
            topic_id: and its id: another topic of the name has settings of its own.
            settings: by name.

        Raises:
            TopicBookError: see `save_shared`.
        """
