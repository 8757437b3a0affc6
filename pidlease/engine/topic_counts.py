"""Counts of batches and records since the start; plain numbers, because this is the hot path."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pidlease.core.pid import Policy
from pidlease.engine.append_outcome import Status
from pidlease.engine.recent_events import RecentEvents
from pidlease.observability.histogram import Histogram

#: The label of all topics beyond the limit; no topic can have this name.
OTHERS: Final = "(others)"
#: The most topics with counts of their own.
TOPICS_MAX: Final = 200

#: A batch's policy and outcome; None: the batch has no PID, or one without a policy.
Became = tuple[Policy | None, Status]


@dataclass(slots=True)
class TopicCounts:
    """The counts of one topic.

    Attributes:
        verdicts: batches by policy and outcome, except those appended.
        appended: batches appended, by the policy's number; 0: no PID. It is apart from `verdicts`
            because hashing a member of an enum calls Python.
        by_http: batches of the HTTP listener, by policy and outcome; the others came by the Kafka
            listener.
        batches: batches appended.
        records: records in the batches appended.
        bytes: bytes of the batches appended.
        failed: batches that were sent to the log, and are not, or perhaps not, in it.
        read_batches: batches that consumers read.
        read_records: records in the batches that consumers read, by the batch headers.
        read_bytes: bytes of the batches that consumers read.
    """

    verdicts: dict[Became, int] = field(default_factory=dict)
    appended: list[int] = field(default_factory=lambda: [0] * (len(Policy) + 1))
    by_http: Counter[Became] = field(default_factory=Counter)
    batches: int = 0
    records: int = 0
    bytes: int = 0
    failed: int = 0
    read_batches: int = 0
    read_records: int = 0
    read_bytes: int = 0

    def count(self, policy: Policy | None, status: Status) -> None:
        """Count an outcome."""
        key = (policy, status)
        self.verdicts[key] = self.verdicts.get(key, 0) + 1

    def read(self, size: int, batches: int, records: int) -> None:
        """Count batches that a consumer read.

        Parameters:
            size: in bytes; over HTTP with the beginning of a further batch.
        """
        self.read_bytes += size
        self.read_batches += batches
        self.read_records += records

    def judged(self) -> dict[Became, int]:
        """Return the batches by policy and outcome, those appended included."""
        policies = (None, *Policy)
        appended = {(policies[i], Status.APPENDED): n for i, n in enumerate(self.appended) if n}
        return {**self.verdicts, **appended}


class Counts:
    """The counts over all partitions.

    Attributes:
        appends: appends, each of one batch or more.
        joined: retries that waited for their original.
        epochs_raised: batches of Kafka clients under a higher epoch than their preceding one.
        differing: duplicates by their sequence numbers, with other bytes.
        append_seconds: durations of appends to the embedded log.
        forward_seconds: durations from sending a batch to Kafka until Kafka's response.
        forward_failures: batches that Kafka did not, or perhaps not, append, by error code.
        writers_taken: takeovers of partitions' writers by this server, renewals included.
        writers_fenced: takeovers of partitions' writers from this server by another one.
        lease_seconds: durations of lease requests, granted or refused, by listener.
        recent: the last batches that were not appended, and the last leases.
    """

    def __init__(self) -> None:
        self.appends = 0
        self.joined = 0
        self.differing = 0
        self.epochs_raised = 0
        self.append_seconds: Final = Histogram()
        self.forward_seconds: Final = Histogram()
        self.forward_failures: Final[Counter[int]] = Counter()
        self.writers_taken = 0
        self.writers_fenced = 0
        self.lease_seconds: Final = {"http": Histogram(), "kafka": Histogram()}
        self.recent: Final = RecentEvents()
        self._topics: Final[dict[str, TopicCounts]] = {}

    def of(self, topic: str) -> TopicCounts:
        """Return a topic's counts, or the counts that all topics beyond the limit share.

        A deleted topic keeps its counts: they must not go down before a restart.
        """
        if topic not in self._topics and len(self._topics) >= TOPICS_MAX:
            topic = OTHERS
        return self._topics.setdefault(topic, TopicCounts())

    def topics(self) -> Iterator[tuple[str, TopicCounts]]:
        """Yield all counts by topic, with their label."""
        yield from self._topics.items()

    def forwarded(self, began: float, code: int, offset: int) -> None:
        """Count a response of Kafka to a batch.

        Parameters:
            began: when the batch was sent, by time.monotonic.
            code: Kafka's error code.
            offset: the offset of the batch; -1: it is unknown, or there is none.
        """
        self.forward_seconds.observe(time.monotonic() - began)
        if code or offset < 0:
            self.forward_failures[code] += 1

    @property
    def batches(self) -> int:
        """The batches appended to all topics."""
        return sum(each.batches for each in self._topics.values())
