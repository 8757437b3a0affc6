"""What is found in a log: batches, and damage in the place of some."""

from typing import NamedTuple

from pidlease.kafka.records.record_batch import BatchHeader


class Stored(NamedTuple):
    """A batch as it stands, intact.

    Attributes:
        segment: the name of its file; empty over the Kafka protocol.
        position: where in that it begins, in bytes; -1 over the Kafka protocol.
        header: its header.
        data: all of it.
    """

    segment: str
    position: int
    header: BatchHeader
    data: memoryview


class Damage(NamedTuple):
    """What is no intact batch, or is missing.

    Attributes:
        segment: the name of the file.
        position: where in that, in bytes.
        offset: what should stand there.
        text: what is wrong, in words.
    """

    segment: str
    position: int
    offset: int
    text: str
