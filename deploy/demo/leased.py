"""The demo's second part: a producer that remembers nothing but its name.

It leases its PID, from ZooKeeper if available, and appends under policy strict. The producer is
killed, then the proxy, then both at once; each time the producer leases by its name again and
resumes. Finally it is stopped (SIGSTOP), a successor takes over the name, and it wakes up: a zombie
with records in flight.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from typing_extensions import override

from deploy.demo import DemoError
from deploy.demo.audit import Tally, compare, rows_by_partition
from deploy.demo.screen import Screen
from deploy.demo.story import SETTINGS
from deploy.demo.takeover import FENCED, PROGRESS_S, Lives, TakeoverVerdict, last_line
from deploy.demo.upstream import Upstream, coordinator
from tests.copier.sides import make_topic
from tests.crash.readback import Stored, consume
from tests.servers.pidlease import PidleaseServer, not_started
from tests.servers.process import ServerProcess

_NAME: Final = "demo/orders"
_TOPIC: Final = "leased"
_COUNTS: Final = [5_000, 5_000]
#: Records that a process has acknowledged before it is killed.
_PART: Final = 1_500
_DOWN_S: Final = 0.3
_ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Verdict(TakeoverVerdict):
    """The result.

    Attributes:
        source: where the PIDs came from.
        counts: the number of records for each partition.
        lives: the number of the producer's processes.
        pids: the producer's PIDs; one, if its name got the same each time.
        resumed: the sequence numbers where its processes resumed, except the first.
    """

    source: str
    counts: Sequence[int]
    stored: Sequence[Stored]
    lives: int
    producer_kills: int
    proxy_kills: int
    pids: frozenset[int]
    resumed: Sequence[int]

    @override
    def tallies(self) -> dict[str, Tally]:
        found = rows_by_partition(self.stored)
        return {
            f"{partition}": compare(
                [(b"", b"%d/%d" % (partition, number)) for number in range(count)],
                found[_TOPIC, partition],
            )
            for partition, count in enumerate(self.counts)
        }

    @override
    def checks(self) -> Iterator[tuple[str, bool]]:
        yield from super().checks()
        yield f"the name brought {len(self.pids)} PIDs", len(self.pids) != 1
        text = "no life went on where the one before it was: the kills proved nothing"
        yield text, not any(self.resumed)

    @override
    def tables(self) -> Mapping[str, Table]:
        line = "The records of one name over all its processes, and what the log has of them"
        return {line: self.table("partition", "sent", "stored")}

    @override
    def summary(self) -> str:
        return (
            f"demo, part two: PIDs from {self.source}, sent {self.total.sent}, stored"
            f" {self.total.stored}, producer killed {self.producer_kills} times, resumed by name"
            f" {self.lives - 1} times, server killed {self.proxy_kills} times, {self.ending()}"
        )


def run_leased(console: Console, directory: Path, upstream: Upstream | None = None) -> int:
    """Run the second part in an emptied directory; return the exit code.

    Parameters:
        upstream: Kafka, if it is the log; None: the embedded log.
    """
    shutil.rmtree(directory, ignore_errors=True)
    with Screen(console, {}) as screen, ExitStack() as stack:
        settings = dict(SETTINGS)
        if upstream is not None:
            source = upstream.source
            settings |= upstream.settings
        else:
            source, hosts = stack.enter_context(coordinator(directory / "zookeeper", screen.log))
            settings |= {"zookeeper": hosts} if hosts else {}
        server = stack.enter_context(not_started(directory, **settings))
        lives = stack.enter_context(Lives(screen, lambda number: _Life(server, number)))
        zombie = _kill_everything(server, lives, screen)
        process = lives.newest.process
        if ended := process.wait_exit(PROGRESS_S):
            raise DemoError(f"the last producer ended with {ended}{process.tail()}")
        stored = consume(server.bootstrap, _TOPIC, len(_COUNTS), markers=upstream is not None)
        server.stop()
    return Verdict(
        source=source, counts=_COUNTS, stored=stored,
        lives=len(lives.all), producer_kills=lives.kills, proxy_kills=2,
        pids=frozenset(life.pid for life in lives.all),
        resumed=[number for life in lives.all[1:] for number in life.resumed.values()],
        zombie=last_line(zombie), fenced=zombie.process.returncode == FENCED,
    ).conclude(console)  # fmt: skip


class _Life:
    """One process of the producer, observed by the lines of its log."""

    def __init__(self, server: PidleaseServer, number: int) -> None:
        log = server.directory / f"producer-{number}.log"
        self.process = ServerProcess("the producer", log, _ROOT)
        self.process.start(
            [sys.executable, "-m", "deploy.demo.leased_producer", server.bootstrap, server.http_url,
             _NAME, _TOPIC, *map(str, _COUNTS)],
            os.environ,
        )  # fmt: skip
        self.kill9 = self.process.kill9
        self.stopped = self.process.stopped

    @property
    def acknowledged(self) -> int:
        """The number of its acknowledged records."""
        return max((count for (count,) in self._figures("acknowledged")), default=0)

    @property
    def resumed(self) -> dict[int, int]:
        """The sequence number where each partition resumed."""
        return {partition: number for partition, number, _ in self._figures("resumed")}

    @property
    def pid(self) -> int:
        """The leased PID."""
        return max(pid for _, _, pid in self._figures("resumed"))

    def progress(self, count: int) -> None:
        """Wait until this number of records is acknowledged."""
        self.process.wait_until(lambda: self.acknowledged >= count, PROGRESS_S)

    def _figures(self, word: str) -> list[list[int]]:
        whole_lines = self.process.log_path.read_text().rpartition("\n")[0].splitlines()
        found = [line.split() for line in whole_lines]
        return [[int(figure) for figure in line[1:]] for line in found if line[:1] == [word]]


def _kill_everything(server: PidleaseServer, lives: Lives[_Life], screen: Screen) -> _Life:
    """Kill the producer, the proxy and both, then replace the producer; return the stopped one."""

    def begin() -> _Life:
        life = lives.begin()
        life.progress(1)
        places = ", ".join(f"{number} of partition {each}" for each, number in life.resumed.items())
        how = "leased" if len(lives.all) == 1 else "came back by its name: goes on at"
        screen.log(f"the producer {how} PID {life.pid}, {places}")
        return life

    def kill(also: str = "") -> None:
        lives.kill()
        count = lives.newest.acknowledged
        screen.log(f"kill -9 of the producer{also}, {count} acknowledged in its life")

    server.start()
    make_topic(server.bootstrap, _TOPIC, len(_COUNTS))
    begin().progress(_PART)
    kill()
    life = begin()
    life.progress(_PART)
    server.kill9()
    screen.log("kill -9 of the server under the producer")
    time.sleep(_DOWN_S)
    server.start()
    life.progress(life.acknowledged + _PART // 2)
    server.kill9()
    kill(" together with the server")
    server.start()
    begin().progress(_PART // 2)
    return lives.replace(
        "the producer is stopped in the middle (SIGSTOP); another one takes its name", begin
    )
