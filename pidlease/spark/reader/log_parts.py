"""The parts in which logs are read, one for each task, and what a part contains.

Spark sends parts to its workers.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pidlease.kafka.client.kafka_options import Security
from pidlease.kafka.records.record_batch import BatchHeader


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """A part of a partition in a data directory.

    Attributes:
        data_dir: the directory, as workers find it.
        segments: base offsets of its segments, in order.
        start: the first offset.
        end: the first offset after it.
    """

    data_dir: str
    topic: str
    partition: int
    segments: tuple[int, ...]
    start: int
    end: int

    def within(self, start: int, end: int) -> "SegmentPart":
        """Return the part of it between two offsets, without segments that have none of them."""
        start, end = max(start, self.start), min(end, self.end)
        next_bases = (*self.segments[1:], end)
        kept = [
            base
            for base, next_base in zip(self.segments, next_bases, strict=True)
            if base < end and (next_base > start or next_base == end)
        ]
        return replace(self, segments=tuple(kept), start=start, end=end)


@dataclass(frozen=True, slots=True)
class KafkaPart:
    """A part of a partition that is read over the Kafka protocol.

    Attributes:
        servers: HOST:PORT, or several with commas.
        start: the first offset.
        end: the first offset after it.
        seconds: how long requests to the servers are retried.
    """

    servers: str
    topic: str
    partition: int
    start: int
    end: int
    security: Security = field(default=(), repr=False)
    seconds: float = 60.0


Part = SegmentPart | KafkaPart


def name_of(part: Part) -> str:
    """Return the name of a part's partition."""
    return f"{part.topic}-{part.partition}"


class StoredBatch(NamedTuple):
    """An intact batch.

    Attributes:
        segment: the name of its file; empty over the Kafka protocol.
        position: its position in the file, in bytes; -1 over the Kafka protocol.
        data: the batch with its header.
    """

    segment: str
    position: int
    header: BatchHeader
    data: memoryview


class LogDamage(NamedTuple):
    """A position of the log without an intact batch.

    Attributes:
        segment: the name of the file.
        position: in the file, in bytes.
        offset: the offset that was expected there.
        text: what is wrong.
    """

    segment: str
    position: int
    offset: int
    text: str
