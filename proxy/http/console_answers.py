"""Makes the responses of the operators' routes from the engine's state.

What grows with the number of partitions or leases is done in slices, and lets other tasks run in
between.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from pidlease import __version__
from pidlease.core.idempotency_keys import is_key_name, key_of_name
from pidlease.core.lease import NO_PID
from pidlease.core.pid import policy_of
from pidlease.core.state import UNKNOWN_CRC
from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.append_outcome import FENCED_FOR_EVER
from pidlease.engine.engine import Engine, wall_clock_ms
from pidlease.engine.lease_service import UnknownPidError
from pidlease.engine.named_leases import UnknownNameError
from pidlease.engine.outcome_history import SAMPLE_SECONDS, OutcomeHistory, totals_of
from pidlease.engine.partition import Partition
from pidlease.engine.recent_events import Event
from pidlease.http_api.console_messages import (
    BatchRow,
    BrokerRow,
    EventRow,
    HistoryAnswer,
    HistorySample,
    LeasesAnswer,
    LeaseState,
    OutcomeRow,
    OutcomesAnswer,
    PartitionState,
    PartitionStatesAnswer,
    ProducerPartition,
    ProducerStateAnswer,
    RefusalGroup,
    RefusalsAnswer,
    State,
    TopicOutcomes,
)
from pidlease.kafka.codec.time_slices import TimeSlices
from pidlease.log.ports import SizedLog
from proxy.http.job_board import JobBoard
from proxy.http.refusal_actions import ACTIONS, runbook_of

#: The owner of partitions of this server.
_THIS_SERVER: Final = "this server"
#: Entries of the lease table that one search looks at; the next request continues.
_SEARCHED_MAX: Final = 20_000
#: Of these, how many before other tasks run.
_SEARCHED_AT_ONCE: Final = 1000


class Broker(NamedTuple):
    """A broker of the Kafka cluster."""

    number: int
    address: str
    connected: bool


@dataclass(frozen=True, slots=True)
class ConsoleSources:
    """What the routes show beside the engine.

    Attributes:
        history: samples of the last hour; None: there are none.
        brokers: returns the brokers of the Kafka cluster; none if the log is embedded.
        jobs: the copies and Spark queries that report to this server.
    """

    history: OutcomeHistory | None = None
    brokers: Callable[[], Sequence[Broker]] = field(default=tuple)
    jobs: JobBoard = field(default_factory=JobBoard)


def _policy(pid: int) -> str:
    policy = policy_of(pid)
    return "" if policy is None else policy.name.lower()


# ---------------------------------------------------------------------- counts


def history_of(history: OutcomeHistory | None, after_ms: int, limit: int) -> HistoryAnswer:
    """Return the samples after a time, in ms since 1970."""
    kept = () if history is None else history.samples
    later = [each for each in kept if each.at_ms > after_ms]
    samples = [
        HistorySample(
            at_ms=each.at_ms, leases=each.leases, lag_seconds=each.lag_seconds,
            **each.counts._asdict(),
        )
        for each in later[:limit]
    ]  # fmt: skip
    return HistoryAnswer(sample_seconds=SAMPLE_SECONDS, samples=samples, more=len(later) > limit)


def outcomes_of(engine: Engine, brokers: Sequence[Broker]) -> OutcomesAnswer:
    """Return all counts since the start."""
    totals = totals_of(engine)
    by_policy: dict[tuple[str, str], int] = {}
    by_topic = []
    for topic, counts in engine.counts.topics():
        outcomes: dict[str, int] = {}
        for (policy, status), number in counts.judged().items():
            outcome = status.value.replace(" ", "_")
            outcomes[outcome] = outcomes.get(outcome, 0) + number
            key = "none" if policy is None else policy.name.lower(), outcome
            by_policy[key] = by_policy.get(key, 0) + number
        by_topic.append(
            TopicOutcomes(
                topic=topic, records=counts.records, bytes=counts.bytes,
                duplicates=outcomes.pop("duplicate", 0), gaps=outcomes.pop("gap", 0),
                fenced=outcomes.pop("fenced", 0), failed=outcomes.pop("failed", 0),
                refused=sum(outcomes.values()) - outcomes.get("appended", 0),
            )
        )  # fmt: skip
    return OutcomesAnswer(
        at_ms=wall_clock_ms(), version=__version__, ready=engine.welcoming,
        topics=len(engine.topics), partitions=engine.partition_count, leases=len(engine.leases),
        records=totals.records, batches=totals.batches, bytes=totals.bytes,
        waited=engine.counts.joined, differing=engine.counts.differing,
        outcomes=[
            OutcomeRow(policy=policy, outcome=outcome, batches=number)
            for (policy, outcome), number in sorted(by_policy.items())
        ],
        by_topic=sorted(by_topic, key=lambda row: row.topic),
        brokers=[
            BrokerRow(broker=each.number, address=each.address, connected=each.connected)
            for each in brokers
        ],
    )  # fmt: skip


# ---------------------------------------------------------------------- partitions


_Found = tuple[TopicPartition, State]


class PartitionSearch:
    """Finds partitions by their topics' names, page by page."""

    def __init__(self) -> None:
        self._version = -1
        self._names: list[str] = []

    async def answer(
        self, engine: Engine, search: str, state: State | None, after: str, limit: int
    ) -> PartitionStatesAnswer:
        """Return a page of partitions.

        Parameters:
            search: a part of the topics' names, in any case.
            state: only partitions in this state; None: in any.
            after: the last partition of the page before.
        """
        found = await self._after(engine, search.lower(), state, _split(after), limit + 1)
        listed = found[:limit]
        sizes = await engine.pool.run(lambda: [_size_of(engine, name) for name, _ in listed])
        rows = [
            _partition_row(engine, name, is_in, size)
            for (name, is_in), size in zip(listed, sizes, strict=True)
        ]
        following = str(listed[-1][0]) if len(found) > limit else None
        return PartitionStatesAnswer(partitions=rows, next=following)

    async def _after(
        self, engine: Engine, search: str, state: State | None, last: TopicPartition, limit: int
    ) -> list[_Found]:
        """Return partitions after a given one, at most `limit`."""
        names, turns = self._topics(engine), TimeSlices()
        found: list[_Found] = []
        for topic in islice(names, bisect_left(names, last.topic), None):
            if turns.due():
                await asyncio.sleep(0)
            if search not in topic.lower():
                continue
            first = last.partition + 1 if topic == last.topic else 0
            for number, partition in islice(enumerate(_partitions(engine, topic)), first, None):
                if turns.due():
                    await asyncio.sleep(0)
                is_in = _state_of(partition)
                if state in (None, is_in):
                    found.append((TopicPartition(topic, number), is_in))
                    if len(found) == limit:
                        return found
        return found

    def _topics(self, engine: Engine) -> list[str]:
        """Return all names in order, those of topics that cannot be read yet included."""
        if self._version != engine.topics_version:  # sorted again only after a change of topics
            self._version = engine.topics_version
            self._names = sorted({*engine.topics, *engine.awaited})
        return self._names


def _split(cursor: str) -> TopicPartition:
    """Return where a list continues; before all partitions if the cursor is empty."""
    topic, _, number = cursor.rpartition("-")
    return TopicPartition(topic, int(number or -1))


def _partitions(engine: Engine, topic: str) -> Sequence[Partition | None]:
    """Return the partitions of a topic as they are now; None: it cannot be read yet."""
    known = engine.partitions_of(topic)
    if known:
        return tuple(known)
    awaited = engine.awaited.get(topic)
    return (None,) * (0 if awaited is None else awaited.partitions)


def _state_of(partition: Partition | None) -> State:
    if partition is None:
        return "awaited"
    if partition.log.stopped:
        return "stopped"
    return "taken_over" if partition.taken_over else "serving"


def _size_of(engine: Engine, name: TopicPartition) -> int | None:
    """Return the size of a partition; None: it is unknown. Blocks."""
    partition = engine.partition(*name)
    if partition is None or not isinstance(partition.log, SizedLog):
        return None
    try:
        return partition.log.size_bytes()
    except OSError:
        return None  # a segment was removed meanwhile, or the disk fails: the log says so elsewhere


_REASONS: Final[dict[State, str]] = {
    "serving": "",
    "stopped": "",
    "taken_over": "another server has taken over as the writer",
    "awaited": "it cannot be read yet",
}


def _owner_of(engine: Engine, name: TopicPartition, state: State) -> str:
    """Return the server that writes to a partition; empty: it is unknown."""
    shared = engine.shared_cluster
    if shared is not None:
        member = shared.owner_of(name)
        if member is None:
            return ""
        return _THIS_SERVER if member.node_id == shared.node_id else member.server
    if state == "awaited":
        return ""
    return "another server" if state == "taken_over" else _THIS_SERVER


def _partition_row(
    engine: Engine, name: TopicPartition, state: State, size: int | None
) -> PartitionState:
    partition = engine.partition(*name)
    if partition is None:
        return PartitionState(
            topic=name.topic, partition=name.partition, state="awaited",
            reason=_REASONS["awaited"], owner=_owner_of(engine, name, state), writer="",
            log_start=None, log_end=None, size_bytes=None, producers=0, in_flight=0,
        )  # fmt: skip
    writer = partition.writer
    return PartitionState(
        topic=name.topic, partition=name.partition, state=state,
        reason=partition.log.stopped or _REASONS[state],
        owner=_owner_of(engine, name, state),
        writer="" if writer is None else f"{writer.pid} epoch {writer.epoch}",
        log_start=partition.log.start_offset,
        log_end=None if partition.incomplete else partition.readable_end,
        size_bytes=size, producers=len(partition.producers), in_flight=partition.in_flight,
    )  # fmt: skip


# ---------------------------------------------------------------------- producers


def number_of_producer(engine: Engine, pid: int, name: str) -> int:
    """Return the number under which a producer's state is kept.

    Raises:
        UnknownNameError: no producer has this id.
    """
    if pid >= 0:
        return pid
    found = engine.names.find(name)
    if found is None:
        raise UnknownNameError(f"no producer has the id {name[:100]!r} here")
    return found


def producer_answer(engine: Engine, pid: int, after: str, limit: int) -> ProducerStateAnswer:
    """Return a producer's state.

    Raises:
        UnknownPidError: there is no lease of it here.
    """
    leases = engine.leases
    lease = leases.lease_of(pid)
    if lease is None:
        raise UnknownPidError("this server has no lease of the PID: it has ended, or never was")
    last = _split(after)
    names = sorted(
        each.name
        for each in leases.partitions_of(pid)
        if isinstance(each, Partition) and each.name > last
    )
    listed = names[:limit]
    rows = (_producer_row(engine, pid, each) for each in listed)
    fence = leases.fences.get(pid)
    own_id = engine.names.name(pid)
    former = engine.naming.former(pid)
    return ProducerStateAnswer(
        pid=NO_PID if own_id else pid,
        name=own_id or engine.naming.names.get(pid, ""),
        policy=_policy(pid),
        granted_ms=lease.granted_ms if lease.granted_ms >= 0 else None,
        ends_ms=leases.expire_ms(pid),
        fence=None if fence is None or fence >= FENCED_FOR_EVER else fence,
        replaced=fence is not None and fence >= FENCED_FOR_EVER,
        former=former if former >= 0 else None,
        partitions=[each for each in rows if each is not None],
        next=str(listed[-1]) if len(names) > limit else None,
    )


def _producer_row(engine: Engine, pid: int, name: TopicPartition) -> ProducerPartition | None:
    partition = engine.partition(*name)
    state = None if partition is None else partition.producer(pid)
    if partition is None or state is None:
        return None
    return ProducerPartition(
        topic=name.topic,
        partition=name.partition,
        generation=state.generation,
        last_sequence=state.high,
        last_offset=state.batches[-1].offset,
        last_write_ms=state.arrival_ms,
        in_flight=partition.is_in_flight(pid),
        batches=[
            BatchRow(
                first_sequence=each.first, last_sequence=each.last, offset=each.offset,
                crc=None if each.crc == UNKNOWN_CRC else f"{each.crc:08x}",
            )
            for each in state.batches
        ],
    )  # fmt: skip


# ---------------------------------------------------------------------- events


def _kind(event: Event) -> str:
    return event.kind.replace(" ", "_")


def page_of_events(
    engine: Engine, newest_first: Collection[Event], before: int, limit: int
) -> tuple[list[EventRow], int | None]:
    """Return a page of events, and the number before which the next one begins."""
    found = list(islice((e for e in newest_first if e.number < before), limit + 1))
    rows = [_event_row(engine, each) for each in found[:limit]]
    return rows, rows[-1].number if len(found) > limit else None


def _event_row(engine: Engine, event: Event) -> EventRow:
    is_key = is_key_name(event.name)
    # A stand-in PID means nothing outside of this process: the producer has its own id.
    stands_in = is_key or engine.names.find(event.name) == event.pid
    row = EventRow(
        number=event.number,
        at_ms=event.at_ms,
        kind=_kind(event),
        pid=NO_PID if stands_in else event.pid,
        name=event.name or engine.naming.names.get(event.pid, ""),
        topic=event.topic,
        partition=_known(event.partition),
        generation=_known(event.generation),
        first_sequence=_known(event.first_sequence),
        last_sequence=_known(event.last_sequence),
        expected=_known(event.expected),
        known_generation=_known(event.known_generation),
        former=_known(event.former),
        reason=event.reason,
    )
    return row.model_copy(update=_of_key(event.name)) if is_key else row


def _of_key(name: str) -> dict[str, object]:
    """Return how the event of a key differs: its numbers mean nothing to people."""
    numbers = "generation", "first_sequence", "last_sequence", "expected", "known_generation"
    return {"name": "", "idempotency_key": key_of_name(name), **dict.fromkeys(numbers)}


def _known(number: int) -> int | None:
    """Return a number; None: it is not known, or above all numbers that a producer can have."""
    return number if 0 <= number < FENCED_FOR_EVER else None


def kept_refusals(engine: Engine, kind: str, topic: str) -> list[Event]:
    """Return the refusals of a kind and a topic, the newest first; empty: of all."""
    return [
        each
        for each in reversed(engine.counts.recent.refusals)
        if kind in ("", _kind(each)) and topic in ("", each.topic)
    ]


def refusals_answer(
    engine: Engine, newest_first: Sequence[Event], before: int, limit: int
) -> RefusalsAnswer:
    """Return a page of refusals, and all of them by their kind."""
    rows, following = page_of_events(engine, newest_first, before, limit)
    return RefusalsAnswer(groups=_groups(newest_first), refusals=rows, next=following)


def _groups(newest_first: Sequence[Event]) -> list[RefusalGroup]:
    """Group refusals by their kind, the most frequent first."""
    groups: dict[str, list[Event]] = {}
    for each in newest_first:
        groups.setdefault(each.kind, []).append(each)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        RefusalGroup(
            kind=_kind(of_kind[0]), count=len(of_kind), first_ms=of_kind[-1].at_ms,
            last_ms=of_kind[0].at_ms, action=ACTIONS[kind].text, runbook=runbook_of(kind),
        )
        for kind, of_kind in ordered
    ]  # fmt: skip


# ---------------------------------------------------------------------- leases


async def find_leases(
    engine: Engine, search: str, after: int, limit: int, *, named: bool
) -> tuple[list[LeaseState], int | None]:
    """Return leases from a position of the lease table on, and the position after them.

    The work is bounded: a search may return few leases, or none, and go on.
    """
    ring = engine.leases.ring
    search, named = search.lower(), named or bool(search)
    found: list[LeaseState] = []
    position, left = max(after, ring.head), _SEARCHED_MAX
    while left > 0:
        at_once = min(_SEARCHED_AT_ONCE, left, limit - len(found))
        start = max(position, ring.head)
        position, pids = ring.read(start, _SEARCHED_AT_ONCE if named else at_once)
        if not pids:
            return found, None
        for index, pid in enumerate(pids):
            row = _lease_row(engine, pid, search, named=named)
            if row is not None:
                found.append(row)
                if len(found) == limit:
                    following = start + index + 1
                    return found, following if following < ring.head + len(ring) else None
        left -= len(pids)
        await asyncio.sleep(0)
    return found, position if position < ring.head + len(ring) else None


def _lease_row(engine: Engine, pid: int, search: str, *, named: bool) -> LeaseState | None:
    """Return a lease; None: it is not among those searched for."""
    own_id = engine.names.name(pid)
    name = own_id or engine.naming.names.get(pid, "")
    if named and (not name or search not in name.lower()):
        return None
    lease = engine.leases.lease_of(pid)
    if lease is None:
        return None
    return LeaseState(
        pid=NO_PID if own_id else pid,
        name=name,
        policy=_policy(pid),
        granted_ms=lease.granted_ms if lease.granted_ms >= 0 else None,
        ends_ms=engine.leases.expire_ms(pid),
        partitions=len(engine.leases.partitions_of(pid)),
    )


def leases_answer(engine: Engine, listed: list[LeaseState], following: int | None) -> LeasesAnswer:
    """Return the lease table, with some of its leases."""
    leases, blocks = engine.leases, engine.leases.blocks
    return LeasesAnswer(
        used=len(leases.ring),
        capacity=leases.ring.capacity,
        lease_seconds=leases.lease_ms / 1000,
        granted={policy.name.lower(): count for policy, count in leases.granted_by.items()},
        refused={reason.replace(" ", "_"): count for reason, count in leases.refused.items()},
        ended=leases.expired,
        names=len(engine.naming.names),
        block_left=blocks.left,
        block_seconds=blocks.prefetch_seconds,
        block_failures=blocks.prefetch_failures,
        block_error=blocks.prefetch_error,
        leases=listed,
        next=following,
    )
