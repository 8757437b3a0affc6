"""What the tests of this package do with a server over its lives, and at the end."""

import http.client
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.crash.clients import Accounted, AiokafkaLoad, LibrdkafkaLoad, Load
from tests.crash.readback import Stored, check_directory, check_pids, consume
from tests.crash.seeds import SOAK
from tests.servers.pidlease import PidleaseServer

#: So long everybody may take at most to get on after a restart; beyond that it hangs.
HANG_S = 300.0
_POLL_S = 0.01
#: A look costs the server some milliseconds: not at every poll.
_LOOK_EVERY = 8
_ROOT = Path(__file__).resolve().parents[2]

#: Small segments, so that it rolls; snapshots as often as they can come; nothing expires.
SETTINGS = {
    "segment_bytes": "16384",
    "snapshot_batches": "1",
    "flush_seconds": "0.2",
    "retention_ms": "-1",
    "log_level": "info" if SOAK else "warning",
}


@dataclass
class Retries:
    """Duplicates that the server caught, over all its lives; it forgets them when it dies."""

    server: PidleaseServer
    lives: list[float] = field(default_factory=list)

    @property
    def total(self) -> float:
        """All that were seen; the last few of a life may be missing."""
        return sum(self.lives)

    def new_life(self) -> None:
        """The next numbers begin at 0 again."""
        self.lives.append(0)

    def look(self) -> None:
        """Take note of where the counter stands; it may not answer any more."""
        life = len(self.lives) - 1  # another one may begin meanwhile, in another thread
        try:
            found = self.server.metric("pidlease_batches_judged_total", outcome="duplicate")
        except (OSError, RuntimeError, http.client.HTTPException):
            return
        self.lives[life] = max(self.lives[life], found)


@contextmanager
def server_in(folder: Path) -> Iterator[PidleaseServer]:
    """A server that is not started yet, and does not outlive the test."""
    server = PidleaseServer(folder)
    try:
        yield server
    finally:
        server.kill9()


def wait_for(happened: Callable[[], bool], what: str, look: Callable[[], None]) -> None:
    """Wait until something happened; `look` is done all the while."""
    deadline = time.monotonic() + HANG_S
    polls = 0
    while not happened():
        assert time.monotonic() < deadline, f"waited {HANG_S} s for {what}"
        if polls % _LOOK_EVERY == 0:
            look()
        polls += 1
        time.sleep(_POLL_S)


def get_on(
    clients: Sequence[Accounted],
    look: Callable[[], None] = lambda: None,
    within_s: float = HANG_S,
    poll_s: float = 0.05,
) -> None:
    """Wait until each client has had an acknowledgement from now on, and none a failure.

    Parameters:
        look: done all the while.
    """
    before = [client.ledger.acknowledged_count for client in clients]
    deadline = time.monotonic() + within_s
    while True:
        for client in clients:
            assert not client.ledger.failures, (client.ledger.name, client.ledger.failures[:5])
        stuck = [client.ledger.name for client, count in zip(clients, before, strict=True)
                 if client.ledger.acknowledged_count <= count]  # fmt: skip
        if not stuck:
            return
        assert time.monotonic() < deadline, f"{stuck} had no acknowledgement for {within_s} s"
        look()
        time.sleep(poll_s)


def rounds(least: int, happened: Callable[[], bool]) -> Iterator[int]:
    """Number rounds of faults: at least so many, and more until what has to happen has.

    A fault that hits nothing proves nothing; how many do depends on the machine. Four times as many
    are the end: the test then says what never happened.
    """
    for number in range(4 * least):
        if number >= least and happened():
            return
        yield number


def loads_for(bootstrap: str, topic: str, partitions: int, random: Random) -> list[Load]:
    """One of each client."""
    kinds = (LibrdkafkaLoad, AiokafkaLoad)
    return [kind(bootstrap, topic, partitions, Random(random.random())) for kind in kinds]


def finish(server: PidleaseServer, topic: str, partitions: int, loads: list[Load]) -> list[Stored]:
    """Let the clients finish, read everything back, stop, and look at the directory."""
    for load in loads:
        load.finish(HANG_S)
    stored = consume(server.bootstrap, topic, partitions)
    for load in loads:
        load.ledger.check(stored)
    assert server.stop() == 0
    check_directory(server.data_dir)
    check_pids(server.data_dir)
    return stored


def verify(data_dir: Path) -> None:
    """`pidlease verify`, as it is on the command line."""
    command = [sys.executable, "-m", "proxy", "verify", "--data-dir", str(data_dir)]
    done = subprocess.run(
        command, check=False, cwd=_ROOT, capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
