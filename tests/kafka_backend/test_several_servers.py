"""Faults of three active servers that share a Kafka, under all kinds of load.

No record is lost, doubled or out of order: what Kafka itself has is compared with what the clients
were told. Each fault is counted when it has happened, and each kind must happen.
"""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any, Final

import httpx
import pytest

from pidlease.kafka.records.identity_header import Identity
from pidlease.testing.loopback_ports import LOOPBACK
from tests.copier.sides import CopyProcess
from tests.crash.clients import LibrdkafkaLoad, Load, ToSend
from tests.crash.consumers import Readings, Watcher, group_of
from tests.crash.lives import get_on
from tests.crash.readback import Stored, consume
from tests.crash.seeds import SOAK, new_random
from tests.kafka_backend.copying import Copying
from tests.kafka_backend.named_writers import NamedWriter, check_writers, one_is_left
from tests.kafka_backend.several import PARTITIONS, Member, Several, pause, several
from tests.kafka_listener.batches import batch, identified
from tests.kafka_listener.client import WireClient
from tests.servers.kafka import dump_log_segments
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

pytestmark = [
    needs_kafka, pytest.mark.kafka, pytest.mark.timeout(7200),
    pytest.mark.skipif(not SOAK, reason="takes minutes; run it with TESTS_SOAK=1"),
]  # fmt: skip

_TAKEN: Final = "pidlease_partitions_taken_over_total"
_SILENT: Final = "pidlease_silent_servers_moved_total"
_SESSION_S: Final = 4.0
_STEPS_DOWN: Final = "stepping down from all partitions"
#: Slots divided between one member or two.
_WITHOUT_SOME: Final = re.compile(r"slots divided +members=\[\d+(, \d+)?\] ")


@dataclass
class Round:
    """What a fault works on.

    Attributes:
        number: of the round.
        done: what has happened in all rounds.
    """

    some: Several
    topic: str
    loads: Sequence[Load]
    number: int
    done: Counter[str]

    @property
    def random(self) -> Random:
        return self.some.random

    @property
    def victim(self) -> int:
        """A member's index; each has its turn."""
        return self.number % len(self.some.members)

    @property
    def member(self) -> Member:
        return self.some.members[self.victim]

    def get_on(self) -> None:
        """Wait until Kafka clients get on: the others lease from one member, the victim perhaps."""
        get_on(self.loads[:2], within_s=WAIT_S)

    def owned(self, member: int) -> list[int]:
        """Return the partitions that a member owns by the map."""
        return [each for each in range(PARTITIONS) if self.some.owner(self.topic, each) == member]

    def others_serve(self) -> None:
        """Wait until the other members serve all partitions."""

        def they_do() -> bool:
            served = self.some.served(self.topic, but=self.victim)
            return sum(served) == PARTITIONS

        until(they_do, "the others to serve all partitions")

    def all_serve(self) -> None:
        """Wait until each member serves some."""
        until(lambda: min(self.some.served(self.topic)) > 0, "each to serve some partitions")

    def log_count(self, text: str) -> int:
        return self.log_count_of(re.compile(re.escape(text)))

    def log_count_of(self, pattern: re.Pattern[str]) -> int:
        return sum(len(pattern.findall(each.server.log_text())) for each in self.some.members)


def kill_owner(at: Round) -> None:
    at.member.server.kill9()
    at.others_serve()
    at.get_on()
    at.done["killed"] += 1
    at.member.server.start()
    at.all_serve()


def suspend_owner(at: Round) -> None:
    """Longer than its session; batches in flight arrive at Kafka when others have taken over."""
    gate, process = at.member.kafka, at.member.server.process
    before = gate.stalled_count
    with gate.stalled():
        until(lambda: gate.stalled_count > before, "batches in flight")
        with process.stopped():
            at.others_serve()
            time.sleep(_SESSION_S * (1 + at.random.random()))  # aiokafka waits for it
        if at.random.random() < 0.5:
            pause(at.random, 1.0)
    at.done["suspended"] += 1
    # It was silent, so it gets nothing for 30 s, unless others cannot own anything.
    at.all_serve()


def coordinator_away(at: Round) -> None:
    """For a minute: leases go on to the end of the block, and members step down after a session."""
    leases = f"{at.member.server.http_url}/v1/leases"
    wanted = {"topic": at.topic, "partition": at.owned(at.victim)[0]}
    before = at.log_count(_STEPS_DOWN)
    zookeeper = at.some.zookeeper
    assert zookeeper is not None
    zookeeper.kill9()
    pids = [httpx.post(leases, json=wanted, timeout=WAIT_S).json()["pid"] for _ in range(20)]
    assert len(set(pids)) == len(pids)
    at.done["leased meanwhile"] += len(pids)
    until(lambda: at.log_count(_STEPS_DOWN) >= before + 3, "all members to step down")
    time.sleep(60)
    zookeeper.start()
    at.done["coordinator away"] += 1
    at.all_serve()


def cut_from_coordinator(at: Round) -> None:
    before = at.log_count(_STEPS_DOWN)
    gate = at.member.zookeeper
    assert gate is not None
    with gate.cut() if at.random.random() < 0.5 else gate.stalled():
        until(lambda: at.log_count(_STEPS_DOWN) > before, "it to step down")
        at.others_serve()
        at.get_on()
        pause(at.random, 3.0)
    at.done["cut from the coordinator"] += 1
    at.all_serve()


def cut_from_peers(at: Round) -> None:
    """The others do not reach it, and move its slots; it reaches them, Kafka and ZooKeeper.

    Not the registrar: a server that was replaced as one replaces none that puts its row for ten
    minutes (ADR 38), and faults before this one may have done that to both of the others.
    """
    if _row_of(at.some, "registrar") is at.member:
        at = replace(at, number=at.number + 1)
    before = at.some.metric(_SILENT)
    gate = at.member.peers
    with gate.cut() if at.random.random() < 0.5 else gate.stalled():
        until(lambda: at.some.metric(_SILENT) > before, "its slots to be moved")
        at.others_serve()
        at.get_on()
    at.done["cut from its peers"] += 1
    at.all_serve()


def move_slots(at: Round) -> None:
    """To random members, and half of the time back at once."""
    random, some = at.random, at.some
    where = {each: random.randrange(3) for each in range(PARTITIONS) if random.random() < 0.6}
    before = {each: some.owner(at.topic, each) for each in where}
    some.move(at.topic, where)
    at.done["moved"] += sum(before[each] != where[each] for each in where)
    if random.random() < 0.5:
        pause(random, random.choice([0.002, 0.05, 0.3]))
        some.move(at.topic, before)
        at.done["moved back"] += 1
    pause(random, 1.2)


def move_slots_of_a_zombie(at: Round) -> None:
    """A member's batches in flight are stalled while its slots move, and perhaps come back."""
    random, some = at.random, at.some
    away = {each: (at.victim + random.randrange(1, 3)) % 3 for each in at.owned(at.victim)}
    if not away:
        some.move(at.topic, {random.randrange(PARTITIONS): at.victim})
        return
    before = at.member.kafka.stalled_count
    with at.member.kafka.stalled():
        pause(random, 0.2)
        some.move(at.topic, away)
        pause(random, random.choice([0.3, 2.0, 7.0]))
        if random.random() < 0.6:
            some.move(at.topic, dict.fromkeys(away, at.victim))
            at.done["moved back"] += 1
        pause(random, 0.5)
    at.done["stalled"] += at.member.kafka.stalled_count - before
    at.done["moved"] += len(away)


def suspend_for_a_moment(at: Round) -> None:
    """It does not notice that its slots have moved, and perhaps have come back."""
    away = {each: (at.victim + at.random.randrange(1, 3)) % 3 for each in at.owned(at.victim)}
    with at.member.server.process.stopped():
        at.some.move(at.topic, away)
        pause(at.random, at.random.choice([0.3, 1.2]))
        if at.random.random() < 0.5:
            at.some.move(at.topic, dict.fromkeys(away, at.victim))
    at.done["suspended"] += 1
    at.done["moved"] += len(away)


def restart_all(at: Round) -> None:
    """One after the other, by the way of an operator: no application notices."""
    for each in at.some.members:
        assert each.server.stop() == 0
        assert re.search(r"drained +slots_left=0", each.server.log_text())
        each.server.start()
        at.all_serve()
    at.done["rolling restart"] += 1


def _row_of(some: Several, part: str) -> Member | None:
    """Return the member that has a part, such as to decide; None: none has."""
    rows = httpx.get(f"{some.members[0].server.http_url}/v1/servers", timeout=WAIT_S).json()
    address = next((each["http"] for each in rows["servers"] if each[part]), "")
    return next((each for each in some.members if address.endswith(f":{each.peers.port}")), None)


def kill_decider(at: Round) -> None:
    """In the middle of a move that it decides."""
    some, random = at.some, at.random
    decider = _row_of(some, "decides")
    assert decider is not None
    other = random.choice([each for each in some.members if each is not decider])
    node = some.node_ids()[some.members.index(other)]
    version = some.slots().version

    def drain(*, draining: bool) -> None:
        url = f"{other.server.http_url}/v1/servers/{node}"
        until(
            lambda: (
                httpx.patch(url, json={"draining": draining}, timeout=WAIT_S).status_code == 200
            ),
            "the command",
        )

    thread = Thread(target=drain, kwargs={"draining": True})
    thread.start()
    if random.random() < 0.5:
        until(lambda: some.slots().version > version, "the first move", poll_s=0.001)
    else:
        pause(random, 0.1)
    decider.server.kill9()
    thread.join(WAIT_S)
    at.get_on()
    assert node not in some.slots().owners
    at.done["decider killed"] += 1
    decider.server.start()
    drain(draining=False)
    at.all_serve()


def two_deciders(at: Round) -> None:
    """The oldest member does not hear the answers of the others, which replace it; both decide."""
    some = at.some
    before = at.log_count_of(_WITHOUT_SOME)
    gates = [each.peers for each in some.members]
    with ExitStack() as stack:
        for gate in gates:
            stack.enter_context(gate.stalled())
        time.sleep(2 + at.random.random())
        # All find all others silent, and each would divide the slots. What they do at last may
        # be logged when they hear each other again.
    at.done["apart"] += 1
    at.all_serve()
    at.done["decided"] += at.log_count_of(_WITHOUT_SOME) - before


def kill_broker(at: Round) -> None:
    """While partitions are taken over."""
    some, random = at.some, at.random
    where = {each: (some.owner(at.topic, each) + 1) % 3 for each in range(PARTITIONS)}
    some.move(at.topic, where)
    pause(random, 0.4)
    some.kafka.process.kill9()
    pause(random, 1.0)
    if some.zookeeper is not None and random.random() < 0.5:  # else the map is in Kafka itself
        some.move(at.topic, {each: (owner + 1) % 3 for each, owner in where.items()})
    some.kafka.start()
    at.done["broker killed"] += 1


@dataclass(frozen=True)
class Fault:
    """A fault, how often it strikes, and what must have happened by then."""

    strike: Callable[[Round], None]
    times: int
    happens: Sequence[str]


FAULTS: Final = {
    "killed in turn": Fault(kill_owner, 20, ("killed",)),
    "suspended beyond the session": Fault(suspend_owner, 10, ("suspended",)),
    "coordinator away": Fault(coordinator_away, 3, ("coordinator away",)),
    "cut from the coordinator": Fault(cut_from_coordinator, 10, ("cut from the coordinator",)),
    "cut from its peers": Fault(cut_from_peers, 10, ("cut from its peers",)),
    "moved": Fault(move_slots, 300, ("moved", "moved back")),
    "moved from a zombie": Fault(move_slots_of_a_zombie, 60, ("moved", "stalled")),
    "rolling restarts": Fault(restart_all, 3, ("rolling restart",)),
    "decider killed": Fault(kill_decider, 20, ("decider killed",)),
    "two deciders": Fault(two_deciders, 20, ("apart", "decided")),
    "broker killed": Fault(kill_broker, 20, ("broker killed",)),
}


#: Faults of a coordinator of its own.
_OF_ZOOKEEPER: Final = ("coordinator away", "cut from the coordinator")


@pytest.fixture(scope="module", params=["zookeeper", "kafka"])
def some(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Several]:
    """Three members; all run at the beginning and the end of each test."""
    random = new_random("several-servers")
    folder = tmp_path_factory.mktemp("several")
    with several(folder, random, 0.02, coordination=request.param) as running:
        yield running
        assert [each.server.stop() for each in running.members] == [0, 0, 0]


@pytest.mark.parametrize("name", FAULTS)
def test_faults(some: Several, name: str) -> None:
    if some.zookeeper is None and name in _OF_ZOOKEEPER:
        pytest.skip("there is no ZooKeeper")
    fault = FAULTS[name]
    some.random = new_random(f"several-{name}")
    topic = some.topic(f"{name.replace(' ', '-')}-{some.members[0].server.kafka_port}")
    done: Counter[str] = Counter()
    taken = some.metric(_TAKEN)
    began = time.monotonic()
    with some.loads(topic) as loads:
        get_on(loads, within_s=WAIT_S)
        for number in range(fault.times):
            fault.strike(Round(some, topic, loads, number, done))
            if number % 10 == 9 or fault.times < 100:
                get_on(loads, within_s=WAIT_S)
        get_on(loads, within_s=WAIT_S)
        stored = some.read_back(topic, loads)
    print(f"{name}: {dict(done)}, {len(stored)} records, {time.monotonic() - began:.0f} s")
    some.drop(topic)
    assert all(done[each] for each in fault.happens), done
    assert name in ("broker killed", "killed in turn") or some.metric(_TAKEN) != taken


@pytest.mark.parametrize("policy", ["strict", "monotonic"])
def test_grants_of_one_name(some: Several, policy: str) -> None:
    """By all members, while its partitions move, members stall, and former producers write on.

    Once a bug: two producers had one generation, and records of one passed for the other's.
    """
    random = some.random = new_random(f"several-grants-{policy}")
    topic = some.topic(f"grants-{policy}-{some.members[0].server.kafka_port}")
    writers: list[NamedWriter] = []
    done: Counter[str] = Counter()
    for number in range(60):
        for _ in range(random.choice([1, 2, 3])):
            writer = NamedWriter(
                len(writers), topic, PARTITIONS, Random(random.random()), policy=policy,
                bootstrap=some.bootstrap, leases=random.choice(some.members).server.http_url,
            )  # fmt: skip
            writers.append(writer)
            writer.start()
        for _ in range(random.randint(1, 3)):
            strike = random.choice([move_slots, move_slots_of_a_zombie, suspend_for_a_moment])
            strike(Round(some, topic, (), number, done))
        until(partial(one_is_left, writers), "one of the producers to be left")
    count = check_writers(writers, partial(_read, some, topic), PARTITIONS, policy)
    print(f"{policy}: {dict(done)}, {count} records of {len(writers)} producers")
    assert done["moved"]
    assert len(writers) > 2


async def test_first_batches(some: Several) -> None:
    """Of many PIDs, leased at one member, and sent to another one at once, while slots move."""
    some.random = new_random("several-first")
    name = f"first-{some.members[0].server.kafka_port}"
    topic = await asyncio.to_thread(partial(some.topic, name, retention_ms="-1"))
    codes: Counter[int] = Counter()
    gaps_s: list[float] = []
    for each in some.members:
        if each.zookeeper is not None:
            each.zookeeper.delay_s = 0.02  # what others lease is learned late
    moving = asyncio.create_task(_move_on(some, topic))
    at_once = asyncio.Semaphore(20)
    count = 3000

    async def one(number: int) -> tuple[int, bytes]:
        async with at_once:
            return await _first_batch(some, topic, number, codes, gaps_s)

    due = await asyncio.gather(*(one(number) for number in range(count)))
    moving.cancel()
    for each in some.members:
        if each.zookeeper is not None:
            each.zookeeper.delay_s = 0.0
    stored = await asyncio.to_thread(
        partial(consume, some.kafka.bootstrap, topic, PARTITIONS, markers=True)
    )
    assert Counter((each.partition, each.value) for each in stored) == Counter(due)
    assert codes.keys() <= {0, *_PASSING}, codes
    print(f"{count} PIDs, codes {dict(codes)}, sent after {max(gaps_s) * 1000:.1f} ms at most")
    assert sorted(gaps_s)[count // 2] < 0.01


#: What a client gets while partitions move.
_PASSING: Final = frozenset((5, 6, 7, 13, 14, 19))


async def _move_on(some: Several, topic: str) -> None:
    random = some.random
    while True:
        where = {each: random.randrange(3) for each in range(PARTITIONS) if random.random() < 0.4}
        await asyncio.to_thread(some.move, topic, where)
        await asyncio.sleep(random.random() * 0.8)


async def _first_batch(
    some: Several, topic: str, number: int, codes: Counter[int], gaps_s: list[float]
) -> tuple[int, bytes]:
    """Lease a PID, and send its only batch: over HTTP and policy strict, or as a Kafka client."""
    random, value = some.random, b"%d" % number
    partition, to = random.randrange(PARTITIONS), random.randrange(3)
    leases = random.choice(some.members).server
    async with AsyncExitStack() as stack:
        ways = [
            await stack.enter_async_context(
                await WireClient.connect(LOOPBACK, each.server.kafka_port)
            )
            for each in some.members
        ]
        if number % 2:
            wanted = {"topic": topic, "partition": partition}
            lease = await asyncio.to_thread(_lease, leases.http_url, wanted)
            identity = Identity(lease["pid"], "", lease["generation"], 0, 0)
            leased = time.monotonic()
            data = identified([value], identity)
        else:
            way = await stack.enter_async_context(
                await WireClient.connect(LOOPBACK, leases.kafka_port)
            )
            pid = await way.lease()
            leased = time.monotonic()
            data = batch([value], pid, 0, 0)
        gaps_s.append(time.monotonic() - leased)
        while True:
            answer = await ways[to].produce(topic, data, partition=partition)
            codes[answer.code] += 1
            if answer.code not in _PASSING:
                assert answer.code == 0, answer
                return partition, value
            to = (to + 1) % 3
            await asyncio.sleep(0.02)


def _lease(url: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """Lease a PID; the member may have none at the moment."""
    while True:
        answer = httpx.post(f"{url}/v1/leases", json=wanted, timeout=WAIT_S)
        if answer.status_code == 200:
            found: dict[str, Any] = answer.json()
            return found
        assert answer.status_code == 503, answer.text


def test_groups_and_copies(some: Several, tmp_path: Path) -> None:
    """A group, a transactional copy and a copier go on while slots move and members restart."""
    random = some.random = new_random("several-copies")
    # No other policies: their writers' markers would take offsets.
    source = some.topic(f"source-{some.members[0].server.kafka_port}")
    target = some.topic(f"target-{some.members[0].server.kafka_port}")
    feed = LibrdkafkaLoad(some.bootstrap, source, PARTITIONS, Random(random.random()), "feed")
    copying = Copying(some.bootstrap, source, target, f"copying-{source}", random)
    readings = Readings(PARTITIONS)
    group = f"readers-{source}"
    readers = group_of(some.bootstrap, group, source, readings, random)
    watcher = Watcher(some.bootstrap, group, source, readings)
    copier = CopyProcess(
        tmp_path / "copier", some.kafka.bootstrap, some.members[0].server, "--topics", source,
        "--rename", "{topic}.copy", "--group", f"copier-{source}", "--commit-seconds", "0.3",
    ).start()  # fmt: skip
    copy = f"{source}.copy"
    feed.start()
    copying.start()
    for each in (*readers, watcher):
        each.start()
    done: Counter[str] = Counter()
    for number in range(40):
        # No zombies: a response to a commit that arrives late looks like one that comes too late.
        for topic in (source, target, copy):
            move_slots(Round(some, topic, (), number, done))
        if number % 20 == 10:
            restart_all(Round(some, source, (), number, done))
        before = _counts(copying, readings, feed)

        def all_got_on(before: tuple[int, int, int] = before) -> bool:
            for topic, partition in feed.astray:
                some.move(topic, {partition: random.randrange(3)})
                done["led back"] += 1
            feed.astray = set()
            return _all_got_on(before, copying, readings, feed)

        try:
            until(all_got_on, "all to get on", 0.2)
        except AssertionError:
            print(f"before {before}, now {_counts(copying, readings, feed)}; the feed:")
            print(feed.state())
            raise
    feed.finish(WAIT_S)
    stored = consume(some.kafka.bootstrap, source, PARTITIONS, markers=True)
    feed.ledger.check(stored)
    due = _values(stored)
    for name in (target, copy):
        until(partial(_has_all, some, name, len(stored)), f"{name} to be complete", 2.0)
        assert _values(_read(some, name)) == due, name
    until(lambda: sum(readings.seen.values()) >= len(stored), "all to be committed")
    copying.finish(WAIT_S)
    assert copier.process.stop(WAIT_S) == 0, copier.text[-2000:]
    for each in (*readers, watcher):
        each.finish(WAIT_S)
    assert not readings.faults, readings.faults[:5]
    assert {each.value for each in stored} <= readings.values
    print(f"{dict(done)}, {len(stored)} records, {dict(copying.done)}, {readings.commits} commits")
    assert done["moved"]
    assert done["rolling restart"] == 2


def _counts(copying: Copying, readings: Readings, feed: LibrdkafkaLoad) -> tuple[int, int, int]:
    return copying.ledger.acknowledged_count, readings.commits, feed.ledger.acknowledged_count


def _all_got_on(
    before: tuple[int, int, int], copying: Copying, readings: Readings, feed: LibrdkafkaLoad
) -> bool:
    copying.look()
    assert not copying.ledger.failures, (copying.ledger.failures, copying.state())
    assert not readings.faults, readings.faults[:5]
    now = _counts(copying, readings, feed)
    return all(count > former for count, former in zip(now, before, strict=True))


def _read(some: Several, topic: str) -> list[Stored]:
    return consume(some.kafka.bootstrap, topic, PARTITIONS, markers=True)


def _has_all(some: Several, topic: str, count: int) -> bool:
    return len(_read(some, topic)) >= count


def _values(stored: Sequence[Stored]) -> list[list[bytes]]:
    """By partition, in their order."""
    return [[each.value for each in stored if each.partition == n] for n in range(PARTITIONS)]


#: Kafka forgets a producer at once if its records are old.
_FORGETFUL: Final = {
    "producer.id.expiration.ms": "2000",
    "producer.id.expiration.check.interval.ms": "300",
    "log.retention.ms": "-1",
}
_HOUR_MS: Final = 3_600_000


class _OldRecords(LibrdkafkaLoad):
    """Writes records with old timestamps, and repeats them at another server after a second."""

    def _send(self, record: ToSend) -> None:
        topic, partition, _, value = record
        self._producer.produce(
            topic, value, partition=partition, timestamp=int(time.time() * 1000) - _HOUR_MS,
            on_delivery=partial(self._on_delivery, value),
        )  # fmt: skip


def test_a_suspended_owner_and_a_forgetful_kafka(tmp_path: Path) -> None:
    """Once a bug: what came before the suspension was sent after it, and stored again."""
    random = new_random("several-old")
    with several(tmp_path, random, 0.01, overrides=_FORGETFUL) as some:
        topic = some.topic("old")
        loads = [
            _OldRecords(
                some.bootstrap, topic, PARTITIONS, Random(random.random()), f"old{number}",
                settings={"request.timeout.ms": 1000, "socket.timeout.ms": 1000},
            )
            for number in range(4)
        ]  # fmt: skip
        for each in loads:
            each.start()
        get_on(loads, within_s=WAIT_S)
        done: Counter[str] = Counter()
        for number in range(12):
            at = Round(some, topic, loads, number, done)
            some.move(topic, {each: (each + number) % 3 for each in range(PARTITIONS)})
            at.all_serve()
            pause(random, 1.0)
            with at.member.server.process.stopped():
                at.others_serve()
                time.sleep(2 + 6 * random.random())
            get_on(loads, within_s=WAIT_S)
            done["suspended"] += 1
        for each in loads:
            each.finish(WAIT_S)
        # A client may raise its epoch, and repeat records that it had no answer for: as with Kafka.
        stored = {each.value for each in _read(some, topic)}
        assert len(stored) == sum(each.ledger.given_count for each in loads)
        files = [
            file
            for n in range(PARTITIONS)
            for file in some.kafka.partition_dir(topic, n).glob("*.log")
        ]
    batches = [
        (path, each.producer_id, each.producer_epoch, each.base_sequence)
        for path, found in dump_log_segments(files).files.items() for each in found.batches
        if not each.is_control
    ]  # fmt: skip
    doubled = [each for each, count in Counter(batches).items() if count > 1]
    print(f"{dict(done)}, {len(stored)} records in {len(batches)} batches")
    assert not doubled, doubled[:5]
