"""Opens the log that a source reads, in a data directory or on a cluster, and selects its part."""

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Protocol

import pyarrow as pa

from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.errors import ReadError
from pidlease.spark.partition_offsets import OffsetRange, Offsets
from pidlease.spark.reader.kafka_batches import ClusterLog, kafka_batches
from pidlease.spark.reader.log_directory import LogDirectory, segment_batches
from pidlease.spark.reader.log_parts import KafkaPart, LogDamage, Part, StoredBatch
from pidlease.spark.reader.record_rows import records
from pidlease.spark.reader.send_rows import sends
from pidlease.spark.source.settings import (
    EARLIEST,
    LATEST,
    SENDS,
    PartitionChoice,
    SourceSettings,
)

_log = logging.getLogger(__name__)

_READ_THE_REST: Final = "to read what is there, set failOnDataLoss to false"


class SourceLog(Protocol):
    """The topics of a log. All methods raise ReadError if the log cannot be read."""

    def topics(self) -> dict[str, int]:
        """Return all topics, with their number of partitions."""

    def ranges(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        """Return the offsets that partitions have."""

    def part(self, partition: TopicPartition, start: int, end: int) -> Part:
        """Return the part of a partition between two offsets."""

    def split(self, part: Part) -> Sequence[Part]:
        """Split a part into parts that can be read in parallel."""

    def close(self) -> None:
        """Close all connections."""


def open_log(settings: SourceSettings, *, durable: bool) -> SourceLog:
    """Open the log that the settings name.

    Parameters:
        durable: leave out batches of a directory that are not durable yet.

    Raises:
        ReadError: the path is no data directory.
    """
    if settings.path:
        return LogDirectory(settings.path, durable=durable)
    return ClusterLog(settings.servers, settings.security, settings.seconds)


def chosen(choice: PartitionChoice, topics: dict[str, int]) -> list[TopicPartition]:
    """Return the partitions to read.

    Parameters:
        topics: all topics, with their number of partitions.

    Raises:
        ReadError: a partition does not exist.
    """
    if choice.partitions:
        for topic, partition in choice.partitions:
            if partition >= topics.get(topic, 0):
                raise ReadError(f"there is no partition {partition} of topic {topic}")
        return list(choice.partitions)
    names = list(choice.topics)
    if choice.pattern:
        # As Spark's Kafka source does, not as Kafka's consumers do, which match whole names.
        names = [name for name in sorted(topics) if re.search(choice.pattern, name)]
    if missing := [name for name in names if name not in topics]:
        raise ReadError(f"there is no topic {', '.join(missing)}")
    return [TopicPartition(name, number) for name in names for number in range(topics[name])]


def check_complete(name: str, given: int | Offsets, partitions: Iterable[TopicPartition]) -> None:
    """Check that an option gives an offset for each partition that is read, and for no other.

    Raises:
        ReadError: it does not.
    """
    if isinstance(given, int):
        return
    wrong = sorted(set(partitions) ^ set(given))
    if wrong:
        problem = "is given there, and not read" if wrong[0] in given else "is not given there"
        raise ReadError(
            f"{name} gives an offset for each partition that is read: {wrong[0]} {problem}"
        )


def resolved(given: int | Offsets, partition: TopicPartition, available: OffsetRange) -> int:
    """Return the offset that an option means for a partition.

    Parameters:
        available: the offsets that the partition has.
    """
    offset = given if isinstance(given, int) else given[partition]
    if offset == EARLIEST:
        return available.start
    return available.end if offset == LATEST else offset


def report_loss(text: str, settings: SourceSettings, remedy: str = _READ_THE_REST) -> None:
    """Report that requested offsets do not exist, or not any more.

    Parameters:
        remedy: what to do, for the error.

    Raises:
        ReadError: option failOnDataLoss is set.
    """
    if settings.fail_on_data_loss:
        raise ReadError(f"{text}; {remedy}")
    _log.warning("%s; it is left out", text)


def read(part: Part, settings: SourceSettings) -> Iterator[pa.RecordBatch]:
    """Read a part's rows.

    Raises:
        ReadError: the part cannot be read, or is damaged.
    """
    batches: Iterator[StoredBatch | LogDamage]
    batches = kafka_batches(part) if isinstance(part, KafkaPart) else segment_batches(part)
    if settings.rows == SENDS:
        return sends(part, batches)
    return records(part, batches, headers=settings.include_headers,
                   fail_on_data_loss=settings.fail_on_data_loss)  # fmt: skip
