"""Reads Spark's own checkpoint of a streaming query.

Spark writes `offsets/N` before micro-batch N begins, and `commits/N` when it is done. After a
version and a line of metadata, `offsets/N` has a line for each source (Spark's OffsetSeqLog).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyarrow import fs

from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.errors import SinkError
from pidlease.spark.partition_offsets import OffsetRange, Offsets, offsets_from_json

_VERSION: Final = "v1"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The newest micro-batch that was begun, or a table that is written once.

    Attributes:
        number: Spark's batch id; -1: a table.
        ranges: by source partition; a start of -1: the partition is new, and its start unknown.
        committed: the last batch that Spark has committed; -1: none.
    """

    number: int
    ranges: Mapping[TopicPartition, OffsetRange]
    committed: int


def read_micro_batch(checkpoint: str) -> MicroBatch | None:
    """Read the newest micro-batch of a checkpoint; None if none was begun yet.

    Parameters:
        checkpoint: its path, or URI.

    Raises:
        SinkError: the checkpoint cannot be read, its query does not suit the sink, or the source
            was cut.
    """
    system, path = _system(checkpoint)
    try:
        numbers = _numbers(system, f"{path}/offsets")
        if not numbers:
            return None
        newest = max(numbers)
        ends = _offsets(system, f"{path}/offsets/{newest}")
        before = f"{path}/offsets/{newest - 1}"
        starts = _offsets(system, before) if newest - 1 in numbers else {}
        committed = max(_numbers(system, f"{path}/commits"), default=-1)
    except OSError as error:
        raise SinkError(f"checkpoint {checkpoint} cannot be read: {error}") from None
    ranges = {each: OffsetRange(starts.get(each, -1), end) for each, end in ends.items()}
    batch = MicroBatch(newest, ranges, committed)
    check_forward(batch, starts)
    return batch


def check_forward(batch: MicroBatch, read: Mapping[TopicPartition, int]) -> None:
    """Check that no partition of the source goes back: its sequence numbers would be used again.

    Sources allow that if their option failOnDataLoss is false.

    Parameters:
        read: the offsets up to which partitions had been read.

    Raises:
        SinkError: a partition's end is below that.
    """
    for partition, (_, end) in sorted(batch.ranges.items()):
        if end < read.get(partition, 0):
            raise SinkError(
                f"micro-batch {batch.number} ends at {end} of {partition} of the source, which had"
                f" been read up to {read[partition]}: it was cut or recreated, and its new records"
                " would count as rows that were stored before. Begin with a new checkpoint: to a"
                " new topic (option topic) to copy everything again, or with option append, and"
                " with startingOffsets of what is missing"
            )


def query_id(checkpoint: str) -> str:
    """Read Spark's id of the query of a checkpoint; empty if the query was never started.

    Raises:
        SinkError: the checkpoint cannot be read.
    """
    system, path = _system(checkpoint)
    try:
        with system.open_input_stream(f"{path}/metadata") as file:
            return str(json.loads(file.read())["id"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError) as error:
        raise SinkError(f"checkpoint {checkpoint} cannot be read: {error}") from None


def _system(checkpoint: str) -> tuple[fs.FileSystem, str]:
    if "://" not in checkpoint:
        return fs.LocalFileSystem(), checkpoint.removeprefix("file:").rstrip("/")
    try:
        system, path = fs.FileSystem.from_uri(checkpoint)
    except (ValueError, OSError) as error:
        raise SinkError(f"checkpoint {checkpoint} cannot be reached: {error}") from None
    return system, path.rstrip("/")


def _numbers(system: fs.FileSystem, folder: str) -> set[int]:
    files = system.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return {int(each.base_name) for each in files if each.base_name.isdecimal()}


def _offsets(system: fs.FileSystem, path: str) -> Offsets:
    """Read the source's offsets from a file.

    Raises:
        SinkError: there are several sources, or one with offsets of another form.
    """
    with system.open_input_stream(path) as file:
        version, _, *lines = file.read().decode().splitlines()
    if version != _VERSION:
        raise SinkError(f"{path} has version {version}; only {_VERSION} is understood")
    if len(lines) != 1:
        raise SinkError(f"the query reads {len(lines)} sources; give each a query of its own")
    try:
        return offsets_from_json(json.loads(lines[0]))
    except (ValueError, AttributeError, TypeError):
        raise SinkError(
            f"the query's source has offsets that are no Kafka's ({lines[0][:80]}): the sink takes"
            " its numbers from those of the sources kafka and pidlease only"
        ) from None
