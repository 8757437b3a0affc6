"""A partition of a topic, by name."""

from typing import Final, NamedTuple

#: Kafka's internal topics (org.apache.kafka.common.internals.Topic). No producer writes to them.
INTERNAL_TOPICS: Final = frozenset(
    ("__consumer_offsets", "__transaction_state", "__share_group_state")
)


class TopicPartition(NamedTuple):
    """A partition's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
