"""`python -m tests.benchmarks.takeover`: how long partitions are not writable when a server goes.

Three servers share a real Kafka. It is the coordinator, or a real ZooKeeper is. A producer writes
to each partition all the time. The figure is the time from the fault to the first acknowledgement
afterwards, or a later and longer time without one, of each partition that the server owned.
With `--producers` that many have appended to the topic before, one record each.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import httpx
import typer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table

from pidlease.testing.server_process import PIDLEASE
from tests.benchmarks.filled_states import fill
from tests.crash.readback import consume
from tests.crash.steady_writes import SteadyWrites
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.supervised import SupervisedServer
from tests.servers.waiting import until
from tests.servers.zookeeper import ZooKeeperServer

_ROOT = Path(__file__).resolve().parents[2]
_SERVERS = 3
#: ZooKeeper's default; with it a session lasts 4 s at least.
_TICK_MS = 2000
_CALM_S = 2.0
#: So long after the last move it is looked at whether a partition waits.
_AFTER_S = 1.0
_FINISH_S = 300.0
#: Between two records of a partition: all together some hundred a second.
_PAUSE_S = {12: 0.02, 100: 0.1, 1000: 1.0}


@dataclass
class Fault:
    """Outages of the partitions of servers that went, by partition and round."""

    name: str
    partitions: int
    outages_s: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Quantiles, in s."""
        found = sorted(self.outages_s)
        quantiles = statistics.quantiles(found, n=100, method="inclusive")
        return {"n": len(found), "p50": quantiles[49], "p99": quantiles[98], "max": found[-1]}


class Cluster:
    """Kafka with a topic, and the producer.

    Parameters:
        asked: servers that are asked for the owners; the first one that answers counts.
    """

    def __init__(
        self, kafka: KafkaServer, asked: Sequence[str], bootstrap: str, partitions: int
    ) -> None:
        self._kafka = kafka
        self._asked = asked
        self.topic = f"takeover-{partitions}-{time.time_ns()}"
        self.partitions = partitions
        # By way of a server: it answers when Kafka's broker shows the topic.
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(self.topic, partitions)])[self.topic].result(60)
        self.writes = SteadyWrites(
            bootstrap, asked[0], self.topic, partitions, _PAUSE_S.get(partitions, 0.1)
        )
        self.writes.start()
        self.settled()

    def rows(self) -> list[dict[str, Any]]:
        """The servers, as one of them has them."""
        for url in self._asked:
            try:
                found: list[dict[str, Any]] = httpx.get(f"{url}/v1/servers", timeout=1).json()[
                    "servers"
                ]
            except (httpx.HTTPError, KeyError, ValueError):
                continue
            return found
        return []

    def row(self, http_url: str) -> dict[str, Any]:
        """A server, as one of them has it; empty: it is no member."""
        return next((each for each in self.rows() if each["http"] == http_url), {})

    def settled(self) -> None:
        """Wait until all own partitions, and each partition is written to."""
        until(lambda: sum(row["slots"] > 0 for row in self.rows()) == _SERVERS, "all to own some")
        self.written()
        time.sleep(_CALM_S)

    def written(self) -> None:
        """Wait until each partition is written to."""
        now = time.monotonic()
        until(lambda: self.writes.each_since(now), "each partition to be written to", 0.01)

    def owned(self, http_url: str, bootstrap: str) -> set[int]:
        """The partitions that a server owns, by Metadata."""
        node_id = self.row(http_url)["node_id"]
        admin = AdminClient({"bootstrap.servers": bootstrap})
        found = admin.list_topics(self.topic, 30).topics[self.topic].partitions
        return {number for number, each in found.items() if each.leader == node_id}

    def measure(self, fault: Fault, owned: set[int], do: Callable[[], None], moved: bool) -> None:
        """Do something to a server, and note the outages of its partitions.

        Parameters:
            moved: whether it then owns nothing; its partitions come back to it otherwise.
        """
        began = time.monotonic()
        do()
        if moved:
            self.written()
        time.sleep(_AFTER_S)
        self.written()
        outages = self.writes.outages(began)
        fault.outages_s += [outages[each] for each in owned]

    def finish(self) -> int:
        """Compare what was acknowledged with what is stored; return how many records."""
        self.writes.finish(_FINISH_S)
        stored = consume(self._kafka.bootstrap, self.topic, self.partitions, markers=True)
        self.writes.ledger.check(stored)
        return len(stored)


@contextmanager
def _upstream(
    folder: Path, *, with_zookeeper: bool
) -> Iterator[tuple[KafkaServer, dict[str, str]]]:
    settings = {
        "coordination": "auto", "shared": "true", "log_level": "info", "ring_capacity": "2000000",
    }  # fmt: skip
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaServer(folder / "kafka"))
        if with_zookeeper:
            zookeeper = ZooKeeperServer(folder / "zookeeper", tick_ms=_TICK_MS)
            settings["zookeeper"] = f"{stack.enter_context(zookeeper).hosts}/p"
        yield kafka, settings


def _separate(
    kafka: KafkaServer,
    settings: dict[str, str],
    folder: Path,
    partitions: int,
    rounds: int,
    producers: int,
) -> list[Fault]:
    """Servers of their own: killed, suspended, stopped, and drained by a command."""
    names = ("kill -9", "SIGSTOP", "stop by SIGTERM", "`pidlease servers drain`")
    faults = [Fault(name, partitions) for name in names]
    with ExitStack() as stack:
        servers = [
            stack.enter_context(in_front_of(kafka, folder / f"{number}", **settings))
            for number in range(_SERVERS)
        ]
        for each in servers:
            each.start()
        teller, *victims = servers
        bootstrap = ",".join(each.bootstrap for each in servers)
        cluster = Cluster(kafka, [teller.http_url], bootstrap, partitions)
        if producers:
            began = time.monotonic()
            fill(servers, cluster.topic, partitions, producers)
            print(f"{producers} producers appended within {time.monotonic() - began:.0f} s")
            cluster.settled()
        for number in range(rounds):
            for fault in faults:
                _one(cluster, fault, victims[number % len(victims)], teller)
        print(f"{cluster.finish()} records, each once and in order")
        for each in servers:
            each.stop()
    return faults


def _one(cluster: Cluster, fault: Fault, victim: PidleaseServer, teller: PidleaseServer) -> None:
    owned = cluster.owned(victim.http_url, teller.bootstrap)
    assert owned
    url = victim.http_url
    back: Callable[[], object] = victim.start
    do: Callable[[], object]
    if fault.name == "kill -9":
        do = victim.kill9
    elif fault.name == "SIGSTOP":
        do, back = victim.process.pause, lambda: os.kill(victim.pid, signal.SIGCONT)
    elif fault.name == "stop by SIGTERM":
        do = victim.stop
    else:
        do = lambda: _command("drain", str(cluster.row(url)["node_id"]), teller)  # noqa: E731
        back = lambda: _command("undrain", str(cluster.row(url)["node_id"]), teller)  # noqa: E731

    def done() -> None:
        do()
        until(lambda: not cluster.row(url).get("slots"), "the others to own its slots", 0.02)

    cluster.measure(fault, owned, done, moved=True)
    back()
    cluster.settled()


def _command(name: str, node_id: str, server: PidleaseServer) -> None:
    command = [*PIDLEASE, "servers", name, node_id, "--url", server.http_url]
    subprocess.run(command, check=True, cwd=_ROOT, stdout=subprocess.DEVNULL)


def _workers(
    kafka: KafkaServer, settings: dict[str, str], folder: Path, partitions: int, rounds: int
) -> list[Fault]:
    """Workers of one supervisor, which starts a killed one again before its session ends."""
    fault = Fault("kill -9 of a worker", partitions)
    settings = settings | {"log": "kafka", "upstream": kafka.bootstrap}
    del settings["shared"]
    server = SupervisedServer(folder / "workers", _SERVERS, **settings)
    try:
        server.start()
        server.wait_complete()
        urls = [f"http://127.0.0.1:{server.http_port + each}" for each in range(1, _SERVERS + 1)]
        cluster = Cluster(kafka, urls[:1], server.bootstrap, partitions)
        for number in range(rounds):
            worker = 2 + number % (_SERVERS - 1)
            owned = cluster.owned(urls[worker - 1], server.bootstrap)
            assert owned
            before = server.pid_of(worker)

            def kill(pid: int = before, worker: int = worker) -> None:
                os.kill(pid, signal.SIGKILL)
                until(lambda: server.pid_of(worker) not in (0, pid), "the worker to come back")

            cluster.measure(fault, owned, kill, moved=True)
            cluster.settled()
            time.sleep(30)  # or its next start would be delayed for longer
        print(f"{cluster.finish()} records, each once and in order")
        server.stop(_FINISH_S)
    finally:
        server.kill9()
    return [fault]


def main(
    partitions: Annotated[list[int] | None, typer.Option(help="Of the topic; repeatable.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Of each fault.")] = 5,
    *,
    zookeeper: Annotated[bool, typer.Option(help="ZooKeeper is the coordinator.")] = False,
    workers: Annotated[bool, typer.Option(help="Also kill workers of one supervisor.")] = True,
    producers: Annotated[int, typer.Option(min=0, help="Others with a state.")] = 0,
) -> None:
    """Measure, print a table, and write build/takeover.json."""
    faults: list[Fault] = []
    with (
        TemporaryDirectory(prefix="takeover-") as folder,
        _upstream(Path(folder), with_zookeeper=zookeeper) as (kafka, settings),
    ):
        for count in partitions or [12, 100]:
            below = Path(folder) / f"{count}"
            faults += _separate(kafka, settings, below, count, rounds, producers)
            if workers:
                faults += _workers(kafka, settings, below, count, rounds)
    table = Table("fault", "partitions", "n", "p50, s", "p99, s", "max, s")
    for each in faults:
        found = each.figures()
        texts = [f"{found[name]:.2f}" for name in ("p50", "p99", "max")]
        table.add_row(each.name, f"{each.partitions}", f"{found['n']:.0f}", *texts)
    Console(width=100).print(table)
    target = _ROOT / "build" / "takeover.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps([vars(each) | each.figures() for each in faults], indent=1))


if __name__ == "__main__":
    typer.run(main)
