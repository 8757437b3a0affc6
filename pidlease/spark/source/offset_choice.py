"""Which offsets options mean, and what is said where they are not there."""

import logging
from collections.abc import Iterable

from pidlease.spark.reader.errors import ReadError
from pidlease.spark.reader.log_directory import Span
from pidlease.spark.source.settings import SourceSettings
from pidlease.spark.source.source_offsets import EARLIEST, LATEST, Offsets, Place

_log = logging.getLogger(__name__)


def check_complete(name: str, given: int | Offsets, places: Iterable[Place]) -> None:
    """See that an option's offsets are of the partitions that are read: of these, and of all.

    Raises:
        ReadError: they are not.
    """
    if isinstance(given, int):
        return
    wrong = sorted(set(places) ^ set(given))
    if wrong:
        topic, partition = wrong[0]
        problem = "is given there, and not read" if wrong[0] in given else "is not given there"
        raise ReadError(f"{name} gives an offset for each partition that is read: {topic}-"
                        f"{partition} {problem}")  # fmt: skip


def resolved(given: int | Offsets, place: Place, span: Span) -> int:
    """The offset that an option means for a partition."""
    offset = given if isinstance(given, int) else given[place]
    if offset == EARLIEST:
        return span.start
    return span.end if offset == LATEST else offset


def lost(text: str, settings: SourceSettings) -> None:
    """Say that what was asked for is not there (any more).

    Raises:
        ReadError: that ends the job.
    """
    if settings.fail_on_data_loss:
        raise ReadError(f"{text}; to read what is there, set failOnDataLoss to false")
    _log.warning("%s; it is left out", text)
