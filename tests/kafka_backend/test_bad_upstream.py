"""A Kafka whose answers make no sense: nothing of it is believed, and everybody gets on.

What a fault has spoilt was stored by Kafka, mostly: so whoever took it for a refusal would store
it again, and whoever believed more than was said would acknowledge what is not there.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Final

import httpx
import pytest

from tests.client.loads import LeasedLoad
from tests.crash.clients import LibrdkafkaLoad, Load
from tests.crash.lives import Retries, wait_for
from tests.crash.seeds import SOAK, new_random
from tests.http_api.appending import RAW, path_of, producer
from tests.kafka_backend import spoiling
from tests.kafka_backend.between import Between
from tests.kafka_backend.loads import HttpLoad
from tests.kafka_backend.spoiling import Fault, Spoil
from tests.kafka_backend.test_clients import new_topic
from tests.kafka_backend.test_kills import get_on, read_back
from tests.kafka_listener.messages import (
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
)
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until
from tests.servers.zookeeper import ZooKeeperServer

pytestmark = [
    needs_kafka, pytest.mark.kafka,
    pytest.mark.timeout(3600 if SOAK else 900),
]  # fmt: skip

PARTITIONS: Final = 2
_ADD_PARTITIONS, _END_TXN = 24, 26
_API_VERSIONS, _DESCRIBE_TRANSACTIONS = 18, 65
#: The default of --io-threads.
_READERS = 8
#: How often each fault strikes: batches of Kafka's clients and of ours are to be among them.
TIMES: Final = 12 if SOAK else 2
_WAIT_S: Final = 300.0
#: Far less than an answer that claims to be larger may make it take.
_MEMORY_KB_MAX: Final = 600_000

_NOT_WAITED_FOR = "a response to no request"
_NONSENSE = "a response of Kafka is invalid"
_NO_ANSWER = "no response in time"


@dataclass(frozen=True)
class Case:
    """A fault, and what the log says of it.

    Attributes:
        spoil: the fault.
        phrase: of it in the log; one of several, where it depends.
        also: what strikes before it each time, so that this is asked at all.
        soak: whether it is for long runs only.
    """

    spoil: Spoil
    phrase: tuple[str, ...]
    also: tuple[tuple[int, Spoil], ...] = ()
    soak: bool = False


#: What became of a batch is not known: the writer is taken again, and the log read.
_LOST = ((PRODUCE, spoiling.lost_of_a_writer),)
#: After this the coordinator is asked for again, too.
_LOST_TWICE = (*_LOST, (_END_TXN, spoiling.lost))
_ANY: Final[dict[str, Case]] = {
    "wrong id": Case(spoiling.wrong_id, (_NOT_WAITED_FOR,)),
    "truncated": Case(spoiling.truncated, (_NONSENSE,)),
    "longer": Case(spoiling.longer, (_NONSENSE,), soak=True),
    "length of 2 GB": Case(spoiling.huge, (_NO_ANSWER,)),
    "negative length": Case(spoiling.negative, ("a response of -",), soak=True),
    "noise": Case(spoiling.noise, ("a response of -", _NO_ANSWER, _NOT_WAITED_FOR)),
    # It may be read as an error of some number.
    "noise behind the id": Case(
        spoiling.noise_behind_the_id, (_NONSENSE, "it is asked again"), soak=True
    ),
    "twice": Case(spoiling.twice, (_NOT_WAITED_FOR,)),
    "never": Case(spoiling.never, (_NO_ANSWER,)),
    "lost": Case(spoiling.lost, ("the connection ended",), soak=True),
}
_PRODUCE: Final[dict[str, Case]] = {
    "other place": Case(spoiling.other_place, (_NONSENSE,)),
    "one place more": Case(spoiling.more_places, (_NONSENSE,)),
    "one place twice": Case(spoiling.same_place_twice, (_NONSENSE,)),
    "one place fewer": Case(spoiling.fewer_places, (_NONSENSE,)),
    "offset -5": Case(spoiling.with_offset(lambda _: -5), ("at offset -5",)),
    "code 999": Case(spoiling.with_code(999), ("error 999",)),
    "code -1": Case(spoiling.with_code(-1), ("UNKNOWN_SERVER_ERROR",), soak=True),
}
_FETCH: Final[dict[str, Case]] = {
    "damaged": Case(spoiling.damaged, ("CRC is", "record format", "batch says"), _LOST),
    "overlapping": Case(spoiling.overlapping, ("after one that goes up to",), _LOST),
    "beyond": Case(spoiling.beyond, (_NONSENSE,), _LOST),
    "half a batch": Case(spoiling.half_a_batch, (_NONSENSE,), _LOST),
    "nothing": Case(spoiling.nothing, (_NONSENSE,), _LOST),
    "other partition": Case(spoiling.other_partition, (_NONSENSE,), _LOST),
}
_METADATA: Final[dict[str, Case]] = {
    "partition -5": Case(spoiling.partition_minus_five, (_NONSENSE,)),
    "partition 2147483647": Case(spoiling.partition_two_billion, (_NONSENSE,)),
    "port 70000": Case(spoiling.port_70000, (_NONSENSE,)),
    "other cluster": Case(spoiling.other_cluster, ("another cluster",)),
}
_INIT: Final[dict[str, Case]] = {
    "PID -7": Case(spoiling.with_pid(-7, 0), (_NONSENSE,), _LOST),
    "PID of ours": Case(spoiling.with_pid(1 << 48 | 5, 0), (_NONSENSE,), _LOST),
    "epoch -3": Case(spoiling.with_pid(7, -3), (_NONSENSE,), _LOST, soak=True),
}
#: Of the other APIs, what may strike any is left to long runs, but for one of each.
_SHORT: Final = {
    FETCH: "truncated", METADATA: "noise behind the id", LIST_OFFSETS: "wrong id",
    INIT_PRODUCER_ID: "truncated", _ADD_PARTITIONS: "wrong id", _END_TXN: "never",
    FIND_COORDINATOR: "truncated",
}  # fmt: skip
_NAMES: Final = {
    PRODUCE: "Produce", FETCH: "Fetch", METADATA: "Metadata", LIST_OFFSETS: "ListOffsets",
    INIT_PRODUCER_ID: "InitProducerId", _ADD_PARTITIONS: "AddPartitionsToTxn", _END_TXN: "EndTxn",
    FIND_COORDINATOR: "FindCoordinator",
}  # fmt: skip


@dataclass(frozen=True)
class Spoilt:
    """A case, and the answers of which API it spoils."""

    key: int
    name: str
    case: Case


def _cases() -> Iterator[Spoilt]:
    own = {PRODUCE: _PRODUCE, FETCH: _FETCH, METADATA: _METADATA, INIT_PRODUCER_ID: _INIT}
    for key in _NAMES:
        also = {PRODUCE: (), METADATA: (), FIND_COORDINATOR: _LOST_TWICE}.get(key, _LOST)
        for name, case in _ANY.items():
            short = not case.soak if key == PRODUCE else _SHORT[key] == name
            yield Spoilt(key, name, replace(case, also=also, soak=not short))
        for name, case in own.get(key, {}).items():
            yield Spoilt(key, name, case)


CASES: Final = [each for each in _cases() if SOAK or not each.case.soak]
#: Those that share their producers, and what is read back: to start and to end takes a while.
GROUPS: Final = {
    "Produce": (PRODUCE,), "Fetch": (FETCH,), "Metadata": (METADATA,),
    "a writer is taken": (LIST_OFFSETS, INIT_PRODUCER_ID, _ADD_PARTITIONS, _END_TXN,
                          FIND_COORDINATOR),
}  # fmt: skip


def loads_of(
    server: PidleaseServer, topic: str, random: Random
) -> list[LibrdkafkaLoad | LeasedLoad | HttpLoad]:
    """One of Kafka's clients, one of ours, and one over HTTP."""
    return [
        LibrdkafkaLoad(server.bootstrap, topic, PARTITIONS, Random(random.random())),
        LeasedLoad(server, topic, PARTITIONS, Random(random.random()), "strict"),
        HttpLoad(server, topic, PARTITIONS, Random(random.random())),
    ]


def memory_kb(pid: int) -> int:
    """The most that a process has had in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def strike(between: Between, loads: Sequence[Load], retries: Retries, spoilt: Spoilt) -> None:
    """Have it strike, and everybody get on, several times; and look at what the log says."""
    server, spoiler, case = between.server, between.spoiler, spoilt.case
    before, struck = len(server.log_text()), len(spoiler.struck)
    what = f"{_NAMES[spoilt.key]}: {spoilt.name}"
    for _ in range(TIMES):
        for key, spoil in case.also:
            after = spoiler.random.randrange(8) if key == PRODUCE else 0
            spoiler.arm(Fault("before it", key, spoil, after))
        after = spoiler.random.randrange(8 if spoilt.key == PRODUCE else 1)
        spoiler.arm(Fault(spoilt.name, spoilt.key, case.spoil, after))
        wait_for(lambda: not spoiler.pending, f"{what} to strike", retries.look)
        get_on(loads, retries, _WAIT_S)
    log = server.log_text()[before:]
    assert len(spoiler.struck) - struck == TIMES * (1 + len(case.also))
    assert any(phrase in log for phrase in case.phrase), f"{what}: {case.phrase} is not in the log"
    assert "Traceback" not in log, what


@pytest.mark.parametrize("group", GROUPS)
def test_answers_are_spoilt(between: Between, group: str) -> None:
    random = new_random(f"spoilt {group}")
    server, spoiler = between.server, between.spoiler
    pid = server.pid
    topic = new_topic(server, PARTITIONS)
    retries = Retries(server)
    retries.new_life()
    spoiler.random = random
    cases = [each for each in CASES if each.key in GROUPS[group]]
    random.shuffle(cases)
    loads = loads_of(server, topic, random)
    for load in loads:
        load.start()
    try:
        get_on(loads, retries)
        for each in cases:
            print(_NAMES[each.key], each.name)
            strike(between, loads, retries, each)
    finally:
        spoiler.disarm()
        for load in loads:
            load.ending.set()
    stored = read_back(between.kafka.bootstrap, topic, PARTITIONS, loads, _WAIT_S)
    print(f"{len(cases)} faults, {len(stored)} records, {retries.total:.0f} duplicates")
    assert (server.pid, server.alive) == (pid, True)
    assert memory_kb(pid) < _MEMORY_KB_MAX


def test_several_servers_need_a_kafka_that_reports_writers(
    between: Between, tmp_path: Path
) -> None:
    """Kafka before 3.0 has no DescribeTransactions, and says so in ApiVersions.

    When it has, the server reads partitions under writers that its ZooKeeper does not know: more of
    them at once than there are threads for reading.
    """
    topic = new_topic(between.server, partitions=_READERS + 1)
    until(lambda: all(_appended(between.server, topic, each) for each in range(_READERS + 1)),
          "a record under the writer of each partition")  # fmt: skip
    settings = {"upstream": between.spoiler.bootstrap, "log": "kafka", "shared": "true"}
    with ZooKeeperServer(tmp_path / "zookeeper") as zookeeper:
        settings["zookeeper"] = f"{zookeeper.hosts}/p"
        server = PidleaseServer(tmp_path / "server", settings=settings)
        between.spoiler.always[_API_VERSIONS] = spoiling.without_api(_DESCRIBE_TRANSACTIONS)
        try:
            server.launch()
            assert server.wait_exit() == 2
        finally:
            del between.spoiler.always[_API_VERSIONS]
        assert "--shared needs Kafka 3.0 or newer, and broker" in server.log_text()
        server.start()  # now it has it again
        assert server.stop() == 0


def _appended(server: PidleaseServer, topic: str, partition: int) -> bool:
    """Append a record under the partition's writer; False: try again."""
    url = f"{server.http_url}{path_of(topic, partition)}"
    headers = {**RAW, **producer("reader", 0, 0)}
    return httpx.post(url, content=b"x", headers=headers, timeout=WAIT_S).status_code == 200  # type: ignore[arg-type]
