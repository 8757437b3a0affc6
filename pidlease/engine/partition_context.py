"""The parts that all partitions share: leases, counters, clock and appenders."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pidlease.core.producer_names import ProducerNames
from pidlease.engine.appenders.group_appender import AppenderFactory, GroupAppender
from pidlease.engine.event_log import EventLog
from pidlease.engine.leases.leases import Leases
from pidlease.engine.topic_counts import Counts


@dataclass(frozen=True, slots=True)
class PartitionContext:
    """The parts that all partitions share.

    Attributes:
        leases: gets new producers.
        counts: gets outcomes.
        clock_ms: the time, in ms since 1970.
        judging: False: every batch is appended as if it had no PID.
        appends: makes a partition's appender.
        events: logs refused batches.
    """

    leases: Leases
    counts: Counts
    clock_ms: Callable[[], int]
    judging: bool = True
    names: ProducerNames = field(default_factory=ProducerNames)
    appends: AppenderFactory = GroupAppender
    events: EventLog = field(default_factory=EventLog)
