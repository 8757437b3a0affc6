"""What is read, whichever it is: a data directory or a cluster."""

import re
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import pyarrow as pa

from pidlease.spark.reader import kafka_batches as kafka
from pidlease.spark.reader import segment_batches as segments
from pidlease.spark.reader.errors import ReadError
from pidlease.spark.reader.kafka_batches import Servers
from pidlease.spark.reader.log_directory import LogDirectory, Span
from pidlease.spark.reader.read_parts import KafkaPart, Part
from pidlease.spark.reader.record_rows import records
from pidlease.spark.reader.send_rows import sends
from pidlease.spark.reader.stored_batch import Damage, Stored
from pidlease.spark.source.settings import SENDS, Choice, SourceSettings
from pidlease.spark.source.source_offsets import Place


class Log(Protocol):
    """The topics of a log. All methods raise ReadError where they cannot be read."""

    def topics(self) -> dict[str, int]:
        """All topics, and how many partitions each has."""

    def spans(self, places: Sequence[Place]) -> dict[Place, Span]:
        """From where to where partitions go."""

    def part(self, place: Place, start: int, end: int) -> Part:
        """What lies between two offsets."""

    def split(self, part: Part) -> Sequence[Part]:
        """A part in as many as can be read side by side."""

    def close(self) -> None:
        """Let go of what is held."""


class DirectoryLog:
    """A data directory's.

    Parameters:
        path: of the directory.
        durable: see `LogDirectory`.
    """

    def __init__(self, path: str, *, durable: bool) -> None:
        self._directory: Final = LogDirectory(path, durable=durable)

    def topics(self) -> dict[str, int]:
        """See `Log`."""
        return self._directory.topics()

    def spans(self, places: Sequence[Place]) -> dict[Place, Span]:
        """See `Log`."""
        return {place: self._directory.span(*place) for place in places}

    def part(self, place: Place, start: int, end: int) -> Part:
        """See `Log`."""
        return self._directory.part(*place, start, end)

    def split(self, part: Part) -> Sequence[Part]:
        """See `Log`: each segment by itself."""
        if isinstance(part, KafkaPart):
            return [part]
        starts = (part.start, *part.segments[1:])
        ends = (*part.segments[1:], part.end)
        return [part.within(*span) for span in zip(starts, ends, strict=True)]

    def close(self) -> None:
        """See `Log`: nothing is held."""


class ServersLog:
    """A cluster's.

    Parameters:
        settings: the source's.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings: Final = settings
        self._servers: Final = Servers(settings.servers, settings.security, settings.seconds)

    def topics(self) -> dict[str, int]:
        """See `Log`."""
        return self._servers.topics()

    def spans(self, places: Sequence[Place]) -> dict[Place, Span]:
        """See `Log`."""
        return self._servers.spans(places)

    def part(self, place: Place, start: int, end: int) -> Part:
        """See `Log`."""
        settings = self._settings
        return KafkaPart(settings.servers, *place, start, end, settings.security, settings.seconds)

    def split(self, part: Part) -> Sequence[Part]:
        """See `Log`: it stays one."""
        return [part]

    def close(self) -> None:
        """See `Log`."""
        self._servers.close()


def open_log(settings: SourceSettings, *, durable: bool) -> Log:
    """What is to be read.

    Parameters:
        durable: of a data directory only what no crash takes away.

    Raises:
        ReadError: it is no data directory.
    """
    if settings.path:
        return DirectoryLog(settings.path, durable=durable)
    return ServersLog(settings)


def chosen(choice: Choice, topics: dict[str, int]) -> list[Place]:
    """The partitions that are read.

    Parameters:
        choice: which.
        topics: all topics, and how many partitions each has.

    Raises:
        ReadError: one is not there.
    """
    if choice.places:
        for topic, partition in choice.places:
            if partition >= topics.get(topic, 0):
                raise ReadError(f"there is no partition {partition} of topic {topic}")
        return list(choice.places)
    names = list(choice.topics)
    if choice.pattern:
        names = [name for name in sorted(topics) if re.fullmatch(choice.pattern, name)]
    if missing := [name for name in names if name not in topics]:
        raise ReadError(f"there is no topic {', '.join(missing)}")
    return [(name, number) for name in names for number in range(topics[name])]


def read(part: Part, settings: SourceSettings) -> Iterator[pa.RecordBatch]:
    """A part's rows.

    Raises:
        ReadError: it cannot be read, or is damaged.
    """
    found: Iterator[Stored | Damage]
    found = kafka.batches(part) if isinstance(part, KafkaPart) else segments.batches(part)
    if settings.rows == SENDS:
        return sends(part, found)
    return records(part, found, headers=settings.include_headers,
                   fail_on_data_loss=settings.fail_on_data_loss)  # fmt: skip
