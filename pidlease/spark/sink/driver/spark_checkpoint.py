"""Spark's own checkpoint of a streaming query, as far as the sink looks into it.

`offsets/N` is written before micro-batch N begins, and `commits/N` when it is done; each source
has a line of `offsets/N`, behind a version and a line of metadata (Spark's OffsetSeqLog). That of
Spark's Kafka source, and of ours, is {"topic": {"partition": offset}}.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyarrow import fs

from pidlease.spark.errors import SinkError
from pidlease.spark.sink.run_state import Place

_VERSION: Final = "v1"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The newest micro-batch that was begun.

    Attributes:
        number: Spark's batch id.
        starts: the first offset by the source's partition; one that is not there is new,
        ends: and the first behind it.
        committed: the last batch that Spark takes for done; -1: none.
    """

    number: int
    starts: Mapping[Place, int]
    ends: Mapping[Place, int]
    committed: int


def read_micro_batch(checkpoint: str) -> MicroBatch | None:
    """What a checkpoint says; None: nothing was begun yet.

    Parameters:
        checkpoint: its path, or URI.

    Raises:
        SinkError: it cannot be read, or is of a query that the sink does not take.
    """
    system, path = _system(checkpoint)
    try:
        offsets = _numbers(system, f"{path}/offsets")
        if not offsets:
            return None
        newest = max(offsets)
        ends = _offsets(system, f"{path}/offsets/{newest}")
        before = f"{path}/offsets/{newest - 1}"
        starts = _offsets(system, before) if newest - 1 in offsets else {}
        committed = max(_numbers(system, f"{path}/commits"), default=-1)
    except OSError as error:
        raise SinkError(f"checkpoint {checkpoint} cannot be read: {error}") from None
    return MicroBatch(newest, starts, ends, committed)


def query_id(checkpoint: str) -> str:
    """Spark's id of the query that a checkpoint is of; empty: it was never started.

    Raises:
        SinkError: it cannot be read.
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
    found = system.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return {int(each.base_name) for each in found if each.base_name.isdecimal()}


def _offsets(system: fs.FileSystem, path: str) -> dict[Place, int]:
    """The source's offsets.

    Raises:
        SinkError: they are of several sources, or of one that has other offsets.
    """
    with system.open_input_stream(path) as file:
        version, _, *lines = file.read().decode().splitlines()
    if version != _VERSION:
        raise SinkError(f"{path} has version {version}; only {_VERSION} is understood")
    if len(lines) != 1:
        raise SinkError(f"the query reads {len(lines)} sources; give each a query of its own")
    try:
        return {
            Place(topic, int(partition)): int(offset)
            for topic, partitions in json.loads(lines[0]).items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise SinkError(
            f"the query's source has offsets that are no Kafka's ({lines[0][:80]}): the sink takes"
            " its numbers from those of the sources kafka and pidlease only"
        ) from None
