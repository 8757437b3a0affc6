"""The speed of a rebuild with many producers."""

import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pidlease.core.pid import Policy, make_pid
from pidlease.log.ports import NewBatch
from pidlease.spark.rebuild.snapshot_rebuild import rebuild_directory
from pidlease.storage.files import RealFiles
from pidlease.storage.snapshots import SnapshotStore
from tests.spark.audit.logs import Logs, Origin, encoded

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARTITIONS: Final = 4
_AT_ONCE: Final = 1_000
_SEGMENT_BYTES: Final = 16 << 20
_NOW_MS: Final = 1_800_000_000_000


class RebuildFigures(NamedTuple):
    """The results.

    Attributes:
        producers: each with a state.
        sends: of all producers.
        seconds: from the log to the durable snapshot.
        peak_bytes: the most memory that this process had (not Spark's own).
    """

    producers: int
    sends: int
    seconds: float
    peak_bytes: int


def fill(path: Path, producers: int, sends: int) -> None:
    """Write a log of kafka producers, with sends of one record each."""
    with Logs(path, _SEGMENT_BYTES) as logs:
        logs.topic("t", _PARTITIONS)
        for first in range(sends):
            for begin in range(0, producers, _AT_ONCE):
                numbers = range(begin, min(begin + _AT_ONCE, producers))
                partition = begin // _AT_ONCE % _PARTITIONS
                logs.append("t", partition, [_send(number, first) for number in numbers])


def _send(number: int, first: int) -> NewBatch:
    return encoded(Origin(make_pid(Policy.KAFKA, 1 + number)), 0, first, 1)


def measure(
    spark: "SparkSession", folder: Path, producers: int = 1_000_000, sends: int = 2
) -> RebuildFigures:
    """Fill a log and rebuild its snapshot.

    Parameters:
        spark: the session.
        folder: an empty folder for the log.
        producers: how many.
        sends: of each.

    Raises:
        AssertionError: not all are in the snapshot.
    """
    path = folder / "data"
    fill(path, producers, sends)
    begun = time.perf_counter()
    rebuilt = rebuild_directory(spark, path, None, _NOW_MS)
    seconds = time.perf_counter() - begun
    states = SnapshotStore(RealFiles(), path / "snapshots").load(rebuilt.manifest.number).producers
    if sum(map(len, states.values())) != producers or rebuilt.leases != producers:
        raise AssertionError(f"{rebuilt.manifest.rows} of {producers} producers")
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return RebuildFigures(producers, producers * sends, seconds, peak)
