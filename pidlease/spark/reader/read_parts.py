"""The parts in which logs are read: each is one task's work. They travel to Spark's workers."""

from dataclasses import dataclass, field, replace
from typing import Final

#: How a cluster is reached: settings by Kafka's names, without `kafka.`.
Security = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """A part of a partition in a data directory.

    Attributes:
        data_dir: the directory, as workers find it.
        topic: the topic.
        partition: its number.
        segments: base offsets of the segments that it lies in, in their order.
        start: the first offset,
        end: and the first behind it.
    """

    data_dir: str
    topic: str
    partition: int
    segments: tuple[int, ...]
    start: int
    end: int

    def within(self, start: int, end: int) -> "SegmentPart":
        """What of it lies between two offsets; nothing of segments that hold none of it."""
        start, end = max(start, self.start), min(end, self.end)
        behind = (*self.segments[1:], end)
        kept = [
            base
            for base, next_base in zip(self.segments, behind, strict=True)
            if base < end and (next_base > start or next_base == end)
        ]
        return replace(self, segments=tuple(kept), start=start, end=end)


@dataclass(frozen=True, slots=True)
class KafkaPart:
    """A part of a partition that is read over the Kafka protocol.

    Attributes:
        servers: HOST:PORT, or several with commas.
        topic: the topic.
        partition: its number.
        start: the first offset,
        end: and the first behind it.
        security: how the servers are reached.
        seconds: how long they are asked again when they do not answer.
    """

    servers: str
    topic: str
    partition: int
    start: int
    end: int
    security: Security = field(default=(), repr=False)
    seconds: float = 60.0

    def within(self, start: int, end: int) -> "KafkaPart":
        """What of it lies between two offsets."""
        return replace(self, start=max(start, self.start), end=min(end, self.end))


Part = SegmentPart | KafkaPart

#: Beyond any offset.
OFFSET_MAX: Final = 2**63 - 1


def name_of(part: Part) -> str:
    """What a part's partition is called, for messages."""
    return f"{part.topic}-{part.partition}"
