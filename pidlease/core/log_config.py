"""Settings of a topic's log, and when an append is acknowledged."""

import enum
from dataclasses import dataclass


@enum.unique
class FsyncPolicy(enum.Enum):
    """When an append is acknowledged.

    BATCH: after an fsync; appends that wait for it share one. INTERVAL: after the write; an fsync
    follows within an interval. NEVER: after the write. With the last two, a power cut may lose
    acknowledged appends; a crash of the process does not.
    """

    BATCH = "batch"
    INTERVAL = "interval"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of one topic's log.

    Attributes:
        segment_bytes: a new segment begins before the last one would grow beyond this.
        retention_ms: segments with only older records are removed; -1: never.
        retention_bytes: the oldest segments are removed while a partition is larger; -1: never.
        fsync: when an append is acknowledged.
    """

    segment_bytes: int = 1 << 30
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    fsync: FsyncPolicy = FsyncPolicy.BATCH
