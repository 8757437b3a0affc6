"""The demo's first part: two clients send all rows through a server that crashes."""

import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console

from deploy.demo.audit import audit
from deploy.demo.clients import AiokafkaClient, Client, LibrdkafkaClient, Pace, log_into
from deploy.demo.crashes import BROKER, PLAN, PLAN_IN_FRONT, Crasher
from deploy.demo.ledger import Ledger
from deploy.demo.outcome import Outcome
from deploy.demo.rows import CLIENTS, PARTITIONS, TOPICS, Record, load_records
from deploy.demo.screen import Screen
from deploy.demo.upstream import Upstream
from tests.copier.sides import make_topic
from tests.crash.lives import Retries
from tests.crash.readback import Stored, consume
from tests.servers.pidlease import not_started
from tests.servers.waiting import WAIT_S

#: The settings of all servers of the demo.
SETTINGS: Final = {"fsync": "batch", "snapshot_seconds": "3"}
#: The file with the metrics of a run, in its directory.
METRICS: Final = "metrics.prom"
_SHOW_S: Final = 0.2


def run_demo(
    console: Console, directory: Path, seconds: float, upstream: Upstream | None = None
) -> int:
    """Run the first part in an emptied directory; return the exit code.

    Parameters:
        seconds: how long sending lasts.
        upstream: Kafka, if it is the log; then it is killed, too, and read back.
    """
    new_directory(directory)
    records = load_records()
    plan = PLAN_IN_FRONT if upstream else PLAN
    settings = {**SETTINGS, **(upstream.settings if upstream else {})}
    with (
        Screen(console, {client: len(mine) for client, mine in records.items()}) as screen,
        not_started(directory, **settings) as server,
    ):
        lives = Retries(server)
        crasher = Crasher(lives, screen.log, plan, upstream)
        _send(crasher, records, screen, seconds)
        source = "from Kafka itself" if upstream else "from the server"
        screen.log(f"all acknowledged; reading everything back, {source}")
        stored = read_topics(
            upstream.kafka.bootstrap if upstream else server.bootstrap, markers=upstream is not None
        )
        (directory / METRICS).write_text(server.get("/metrics")[1])
        server.stop()
    ledgers = [client.ledger for client in crasher.clients]
    return Outcome(
        audit(ledgers, stored), crasher.kills, int(lives.total),
        [failure for ledger in ledgers for failure in ledger.failures],
        broker_kills_min=plan.count(BROKER), by_life=lives.lives,
    ).conclude(console)  # fmt: skip


def new_directory(directory: Path) -> None:
    """Remove an earlier run's files from a directory, and let the clients log into it."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(directory / "data", ignore_errors=True)
    for log in ("pidlease.log", "clients.log"):
        (directory / log).unlink(missing_ok=True)
    log_into(directory / "clients.log")


def make_topics(bootstrap: str) -> None:
    """Create the topics of the data sets."""
    for topic in TOPICS:
        make_topic(bootstrap, topic, PARTITIONS)


def read_topics(bootstrap: str, suffix: str = "", *, markers: bool = False) -> list[Stored]:
    """Read back the topics of the data sets, or with a suffix, their copies."""
    return [
        Stored(topic, each.partition, each.offset, each.value, each.key)
        for topic in TOPICS
        for each in consume(bootstrap, topic + suffix, PARTITIONS, markers=markers)
    ]


def _send(
    crasher: Crasher, records: dict[str, list[Record]], screen: Screen, seconds: float
) -> None:
    """Send all records, through all crashes, until each is acknowledged."""
    server = crasher.lives.server
    began = time.monotonic()
    crasher.start(crasher.plan[0].fault)
    took = time.monotonic() - began
    screen.log(f"the server is ready after {took:.1f} s, pid {server.pid}, data {server.data_dir}")
    make_topics(server.bootstrap)
    pace = Pace(seconds, lambda: crasher.left)
    kinds: tuple[type[Client], ...] = (LibrdkafkaClient, AiokafkaClient)
    crasher.clients = clients = [
        kind(server.bootstrap, pace.bursts(records[name]))
        for kind, name in zip(kinds, CLIENTS, strict=True)
    ]
    for client in clients:
        client.start()
    with _watched(crasher.lives, screen, [client.ledger for client in clients]):
        crasher.run()
        for client in clients:
            client.join(WAIT_S)
    crasher.lives.look()


@contextmanager
def _watched(lives: Retries, screen: Screen, ledgers: Sequence[Ledger]) -> Iterator[None]:
    """Show the progress and count the duplicates during the block, in a thread."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_SHOW_S):
            lives.look()
            screen.show(ledgers, lives.total)

    thread = threading.Thread(target=watch, name="watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
