"""Leases, counters, clock and appender: the parts that all partitions share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pidlease.core.producer_names import ProducerNames
from pidlease.engine.appenders.group_appender import AppenderFactory, GroupAppender
from pidlease.engine.event_log import EventLog
from pidlease.engine.leases.leases import Leases
from pidlease.engine.topic_counts import Counts


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """What all partitions share.

    Attributes:
        leases: where new producers are noted.
        counts: where outcomes are counted.
        clock_ms: the time, in ms since 1970.
        judging: off lets every batch through as if it had no PID.
        names: the producer ids of policy epoch.
        appends: how admitted batches come into the log.
        events: logs refused batches.
    """

    leases: Leases
    counts: Counts
    clock_ms: Callable[[], int]
    judging: bool = True
    names: ProducerNames = field(default_factory=ProducerNames)
    appends: AppenderFactory = GroupAppender
    events: EventLog = field(default_factory=EventLog)
