"""Counts since the start, as plain numbers: they are on the hot path."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pidlease.core.pid import Policy
from pidlease.engine.append_outcome import Status
from pidlease.kafka.codec.time_slices import TimeSlices
from pidlease.kafka.records.record_batch import records_of_batches
from pidlease.observability.histogram import Histogram

#: What topics beyond the limit are called; no topic can be.
OTHERS: Final = "(others)"
#: The number of topics with counts of their own.
TOPICS_MAX: Final = 200

#: What became of a batch, under which policy; None: no PID, or none known.
Became = tuple[Policy | None, Status]


@dataclass(slots=True)
class TopicCounts:
    """Of one topic.

    Attributes:
        verdicts: outcomes other than appended, by policy.
        appended: batches appended, by the policy's number; 0: no PID. Apart from the others,
            for hashing members of an enum calls Python.
        by_http: those that came by the HTTP listener; the others came by Kafka's.
        batches: batches appended.
        records: records in them.
        bytes: bytes of them.
        failed: batches that were sent to the log, and are not, or perhaps not, in it.
        read_batches: batches that consumers were given.
        read_records: records in them, by their offsets: removed ones count.
        read_bytes: bytes of them.
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

    def judged(self) -> dict[Became, int]:
        """All outcomes."""
        policies = (None, *Policy)
        appended = {(policies[i], Status.APPENDED): n for i, n in enumerate(self.appended) if n}
        return {**self.verdicts, **appended}


async def count_read(counts: TopicCounts, data: bytes) -> None:
    """Count what a consumer was given; of very many batches a part at a time."""
    counts.read_bytes += len(data)
    turns = TimeSlices()
    for records in records_of_batches(data):
        counts.read_batches += 1
        counts.read_records += records
        if turns.due():
            await asyncio.sleep(0)


class Counts:
    """Over all partitions.

    Attributes:
        appends: appends, each of one batch or more.
        joined: retries that waited for their original.
        differing: duplicates by their numbers, with other bytes.
        append_seconds: of appends to a log of our own.
        forward_seconds: from a batch sent on to Kafka's answer.
        forward_failures: batches that Kafka did not, or perhaps not, append, by error code.
        writers_taken: writers of partitions that were taken, or renewed.
        writers_fenced: those that another server took.
        lease_seconds: of leases that were granted or refused, by listener.
    """

    def __init__(self) -> None:
        self.appends = 0
        self.joined = 0
        self.differing = 0
        self.append_seconds: Final = Histogram()
        self.forward_seconds: Final = Histogram()
        self.forward_failures: Final[Counter[int]] = Counter()
        self.writers_taken = 0
        self.writers_fenced = 0
        self.lease_seconds: Final = {"http": Histogram(), "kafka": Histogram()}
        self._topics: Final[dict[str, TopicCounts]] = {}

    def of(self, topic: str) -> TopicCounts:
        """A topic's own, or those that topics beyond the limit share.

        A topic that is deleted keeps its own, for they may not go down before a restart.
        """
        if topic not in self._topics and len(self._topics) >= TOPICS_MAX:
            topic = OTHERS
        return self._topics.setdefault(topic, TopicCounts())

    def topics(self) -> Iterator[tuple[str, TopicCounts]]:
        """All topics with counts, by the name that is shown."""
        yield from self._topics.items()

    def forwarded(self, began: float, code: int, offset: int) -> None:
        """Count an answer of Kafka's.

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
        """Batches appended, to all topics."""
        return sum(each.batches for each in self._topics.values())
