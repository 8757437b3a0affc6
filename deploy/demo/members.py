"""The demo's third part in front of Kafka: three active servers share the cluster.

One is killed, one is suspended for longer than its session with ZooKeeper, and one is stopped in
order. Two producers write to all partitions meanwhile; one of them notes how long no record of a
partition was acknowledged.
"""

import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from typing_extensions import override

from deploy.demo.audit import Tally, compare, total
from deploy.demo.outcome import Verdict, new_table
from deploy.demo.screen import Screen
from deploy.demo.story import SETTINGS
from deploy.demo.upstream import Upstream
from tests.copier.sides import make_topic
from tests.crash.clients import LibrdkafkaLoad
from tests.crash.ledger import Ledger, identity
from tests.crash.readback import Stored, consume
from tests.crash.steady_writes import SteadyWrites
from tests.servers.pidlease import PidleaseServer, not_started
from tests.servers.waiting import WAIT_S, until

_TOPIC: Final = "members"
_PARTITIONS: Final = 12
_NAMES: Final = "abc"
_POLL_S: Final = 0.02
#: How long all goes well before each fault.
_CALM_S: Final = 1.0


@dataclass(frozen=True)
class Fault:
    """What happened to a server.

    Attributes:
        server: its name.
        how: in words.
        partitions: how many it owned.
        outage_s: the longest time without an acknowledgement on one of them.
    """

    server: str
    how: str
    partitions: int
    outage_s: float


@dataclass(frozen=True)
class MembersVerdict(Verdict):
    """The result.

    Attributes:
        rows: the servers in the end, as /v1/servers shows them.
    """

    faults: Sequence[Fault]
    tally: Tally
    rows: Sequence[dict[str, Any]]

    @override
    def checks(self) -> Iterator[tuple[str, bool]]:
        for name, figure in self._figures().items():
            yield f"{figure} records {name}", figure > 0
        yield f"{self.tally.foreign} records stored that no client sent", self.tally.foreign > 0
        for fault in self.faults:
            yield (
                f"server {fault.server} owned nothing: its fault proved nothing",
                (not fault.partitions),
            )
        yield "a server owns no slot in the end", any(not row["slots"] for row in self.rows)

    @override
    def tables(self) -> Mapping[str, Table]:
        figures = "its partitions", "not writable, s"
        faults = new_table(["server", "what happened"], figures)
        for each in self.faults:
            faults.add_row(each.server, each.how, f"{each.partitions}", f"{each.outage_s:.2f}")
        members = new_table(["server", "Kafka clients", "HTTP"], ["node", "slots", "partitions"])
        for row in self.rows:
            members.add_row(
                row["server"], row["kafka"], row["http"],
                f"{row['node_id']}", f"{row['slots']}", f"{row['partitions']}",
            )  # fmt: skip
        return {
            "Three servers: what was done to each, and for how long its partitions refused": faults,
            "The servers in the end, and the slots that each owns": members,
        }

    @override
    def summary(self) -> str:
        how = ", ".join(f"{each.outage_s:.1f} s {each.how}" for each in self.faults)
        figures = ", ".join(f"{name} {figure}" for name, figure in self._figures().items())
        return (
            f"demo, part three: {len(self.rows)} servers, sent {self.tally.sent}, stored"
            f" {self.tally.stored}, a partition was not writable for at most {how}; {figures}"
        )

    def _figures(self) -> dict[str, int]:
        tally = self.tally
        return {"lost": tally.lost, "doubled": tally.doubled, "out of order": tally.out_of_order}


def run_members(console: Console, directory: Path, upstream: Upstream) -> int:
    """Run the third part in a directory; return the exit code."""
    settings = {**SETTINGS, **upstream.settings, "shared": "true", "log_level": "info"}
    with Screen(console, {}) as screen, ExitStack() as stack:
        servers = [
            stack.enter_context(not_started(directory / name, **settings)) for name in _NAMES
        ]
        for each in servers:
            each.launch()
        for each in servers:
            each.wait_ready(WAIT_S)
        make_topic(servers[0].bootstrap, _TOPIC, _PARTITIONS)
        bootstrap = ",".join(each.bootstrap for each in servers)
        # The last server's turn is the last one: leases come from it.
        steady = SteadyWrites(bootstrap, servers[-1].http_url, _TOPIC, _PARTITIONS)
        clients = [LibrdkafkaLoad(bootstrap, _TOPIC, _PARTITIONS, Random(1)), steady]  # noqa: S311
        for client in clients:
            client.start()
        screen.log(
            f"{len(servers)} servers share the cluster; two producers write to all partitions"
        )
        faults = [
            _faulty(screen, servers, steady, number, how)
            for number, how in enumerate(("after kill -9", "after SIGSTOP", "during a stop"))
        ]
        for client in clients:
            client.finish(WAIT_S)
        screen.log("all acknowledged; reading everything back, from Kafka itself")
        stored = consume(upstream.kafka.bootstrap, _TOPIC, _PARTITIONS, markers=True)
        rows = _rows(servers[-1])
        for each in reversed(servers):
            each.stop()
    return MembersVerdict(faults, _tally([each.ledger for each in clients], stored), rows).conclude(
        console
    )


def _faulty(
    screen: Screen, servers: Sequence[PidleaseServer], steady: SteadyWrites, number: int, how: str
) -> Fault:
    """Do something to a server, let it come back, and return how long partitions waited."""
    time.sleep(_CALM_S)
    server = servers[number]
    teller = servers[number - 1]
    owned = _owned(teller, server)
    began = time.monotonic()
    back: Callable[[], None] = server.start
    if how == "after kill -9":
        server.kill9()
    elif how == "after SIGSTOP":
        server.process.pause()
        back = partial(os.kill, server.pid, signal.SIGCONT)
    else:
        server.stop()
    until(lambda: not _owned(teller, server), "the others to own its partitions", _POLL_S)
    taken = time.monotonic()
    until(lambda: steady.each_since(taken), "each partition to be written to", _POLL_S)
    outage_s = max(steady.outages(began).values())
    screen.log(
        f"server {_NAMES[number]}: {how}, its {owned} partitions have other owners;"
        f" the longest wait of a partition was {outage_s:.2f} s"
    )
    if how == "after SIGSTOP":
        # As long as its session lives, it would get no slots before 30 s of answers.
        until(lambda: not _is_member(teller, server), "its session to end", _POLL_S)
    back()
    until(lambda: _owned(teller, server) > 0, "it to own partitions again", _POLL_S)
    now = time.monotonic()
    until(lambda: steady.each_since(now), "each partition to be written to", _POLL_S)
    return Fault(_NAMES[number], how, owned, outage_s)


def _rows(server: PidleaseServer) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(server.get("/v1/servers")[1])["servers"]
    return rows


def _is_member(teller: PidleaseServer, server: PidleaseServer) -> bool:
    return any(row["http"] == server.http_url for row in _rows(teller))


def _owned(teller: PidleaseServer, server: PidleaseServer) -> int:
    """How many partitions a server owns, as another one has it."""
    return sum(row["partitions"] for row in _rows(teller) if row["http"] == server.http_url)


def _tally(ledgers: Sequence[Ledger], stored: Sequence[Stored]) -> Tally:
    """Compare what was given to the clients with what is stored."""
    found: defaultdict[tuple[str, int], list[tuple[bytes, bytes]]] = defaultdict(list)
    for each in sorted(stored, key=lambda each: each.offset):
        name, partition, number = identity(each.value)
        where = partition if partition == each.partition else -1
        found[name, where].append((name.encode(), b"%d" % number))
    tallies = []
    for ledger in ledgers:
        for partition, given in ledger.given.items():
            wanted = [(ledger.name.encode(), b"%d" % number) for number in range(given)]
            tallies.append(compare(wanted, found.pop((ledger.name, partition), [])))
    foreign = sum(map(len, found.values()))
    return total([*tallies, Tally(stored=foreign, foreign=foreign)])
