"""Offsets by partition, and their JSON as Spark's Kafka source writes it: {"topic": {"0": 5}}."""

from collections.abc import Mapping
from typing import NamedTuple

from pidlease.core.topic_partition import TopicPartition

Offsets = dict[TopicPartition, int]
OffsetsJson = dict[str, dict[str, int]]


class OffsetRange(NamedTuple):
    """Consecutive offsets of a partition; `end` is the first offset after them."""

    start: int
    end: int


def offsets_to_json(offsets: Mapping[TopicPartition, int]) -> OffsetsJson:
    """Convert offsets to what `json.dumps` writes."""
    by_topic: OffsetsJson = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, {})[str(partition)] = offset
    return by_topic


def offsets_from_json(by_topic: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Convert offsets from what `json.loads` returns.

    Raises:
        ValueError, TypeError, AttributeError: the JSON has another form.
    """
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, offsets in by_topic.items()
        for partition, offset in offsets.items()
    }
