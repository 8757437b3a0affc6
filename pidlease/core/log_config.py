"""Settings of a topic's log, and when an append is acknowledged."""

import enum
from dataclasses import dataclass


@enum.unique
class FsyncPolicy(enum.Enum):
    """When an append counts as acknowledged.

    BATCH: when it is on the disk; appends that wait together share one fsync. INTERVAL: when the
    operating system has it, and it is fsynced within an interval. NEVER: when the operating
    system has it; a power cut may take it back, a crash of the process does not.
    """

    BATCH = "batch"
    INTERVAL = "interval"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """One topic's settings of the log.

    Attributes:
        segment_bytes: a new segment is begun where the last would grow beyond this.
        retention_ms: segments with only older records are removed; -1: never.
        retention_bytes: the oldest segments leave while a partition is larger; -1: never.
        fsync: when an append counts.
    """

    segment_bytes: int = 1 << 30
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    fsync: FsyncPolicy = FsyncPolicy.BATCH
