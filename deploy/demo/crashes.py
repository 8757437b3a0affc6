"""The crashes: kill -9 from outside, and fault points between append and response."""

import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from deploy.demo import DemoError
from deploy.demo.clients import Client
from deploy.demo.upstream import Upstream
from tests.crash.lives import Retries, get_on
from tests.servers.process import ServerProcess
from tests.servers.waiting import WAIT_S, until


@dataclass(frozen=True, slots=True)
class Crash:
    """A kind of crash.

    Attributes:
        fault: the fault plan that the server is started with; empty: it is killed from outside.
        of_broker: whether Kafka is killed instead.
    """

    name: str
    fault: str = ""
    of_broker: bool = False


KILL: Final = Crash("kill -9")
#: In the log, not yet fsynced, no response sent.
AFTER_WRITE: Final = Crash("dies between write and answer", "kill after write *.log 250")
#: In the log, durable, no response sent.
AFTER_FSYNC: Final = Crash("dies between fsync and answer", "kill after fsync *.log 250")
PLAN: Final = (KILL, AFTER_WRITE, KILL, AFTER_FSYNC, KILL, KILL)
BROKER: Final = Crash("kill -9 of Kafka", of_broker=True)
#: With Kafka as the log, where pidlease has no files to crash at.
PLAN_IN_FRONT: Final = (KILL, BROKER, KILL, KILL, BROKER, KILL)

#: The least time between two crashes, from when both clients are served again.
_CALM_S: Final = 3.0
#: How long a broker is down, at least.
_BROKER_DOWN_S: Final = 1.0
#: How long to wait until both clients have batches in flight; after that, one of them is enough.
_BOTH_S: Final = 3.0
_LOOK_S: Final = 0.001
_LOOKS_BEFORE_DEATH: Final = 10
#: How long until a client has read every response that a dead server had still sent.
_SETTLE_S: Final = 0.15
_STRAYS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Kill:
    """A crash that took place.

    Attributes:
        life: the number, from 1, of the proxy process that it ended.
        batches: in flight at that moment, by the clients' own counters.
        records: given to the clients before it, and unacknowledged when the server was dead.
        down_s: how long until the server was ready again.
    """

    crash: Crash
    life: int
    batches: int
    records: int
    down_s: float = 0.0

    @property
    def in_flight(self) -> bool:
        """Whether batches were in flight, and records of them without a response."""
        return self.records > 0 and self.batches > 0


@dataclass
class Crasher:
    """Makes the crashes of a plan, one for each process of the proxy.

    Parameters:
        lives: the processes of the proxy; the first is started with the first crash's fault.
        log: shows a line.
        upstream: Kafka, if it is the log.
        clients: their batches have to be in flight at a crash.
    """

    lives: Retries
    log: Callable[[str], None]
    plan: Sequence[Crash] = PLAN
    upstream: Upstream | None = None
    clients: Sequence[Client] = ()
    kills: list[Kill] = field(default_factory=list)
    strays: list[Kill] = field(default_factory=list)
    _log_begins: int = 0

    @property
    def left(self) -> int:
        """The number of crashes still to come."""
        return len(self.plan) - len(self.kills)

    def run(self) -> None:
        """Make all crashes; repeat one without batches in flight.

        Raises:
            DemoError: a crash could not be made.
        """
        while self.left:
            crash = self.plan[len(self.kills)]
            kill = self._crash_broker(crash) if crash.of_broker else self._crash(crash)
            (self.kills if kill.in_flight else self.strays).append(kill)
            if len(self.strays) > _STRAYS_MAX:
                raise DemoError("the kills keep missing: nothing was in flight")
            number = f"crash {len(self.kills)} of {len(self.plan)}" if kill.in_flight else "missed"
            self.log(
                f"{number}: {crash.name}, {kill.batches} batches in flight,"
                f" {kill.records} records unacknowledged; ready again after {kill.down_s:.1f} s"
            )

    def start(self, fault: str) -> None:
        """Start the next process of the proxy, with a fault plan; empty: without fault points."""
        server = self.lives.server
        server.settings.pop("faults", None)
        self.lives.new_life()
        server.restart(server.settings | ({"faults": fault} if fault else {}))

    def _crash(self, crash: Crash) -> Kill:
        server = self.lives.server
        batches, records = self._fault() if crash.fault else self._kill9(server.process)
        began = time.monotonic()
        if (code := server.wait_exit()) != -signal.SIGKILL:
            raise DemoError(f"{crash.name}: the proxy ended with {code}")
        log = server.log_text()
        if crash.fault and "fault: kill" not in log[self._log_begins :]:
            raise DemoError(f"{crash.name}: it died, but not there")
        self._log_begins = len(log)
        kill = Kill(crash, len(self.lives.lives), batches, records)
        following = self.plan[len(self.kills) + kill.in_flight :]
        self.start(following[0].fault if following else "")
        return replace(kill, down_s=time.monotonic() - began)

    def _crash_broker(self, crash: Crash) -> Kill:
        """Kill Kafka, and start it again; the proxy and the clients go on."""
        if self.upstream is None:
            raise DemoError("there is no upstream Kafka")
        kill = Kill(crash, len(self.lives.lives), *self._kill9(self.upstream.kafka.process))
        began = time.monotonic()
        time.sleep(_BROKER_DOWN_S)
        self.upstream.kafka.start()
        return replace(kill, down_s=time.monotonic() - began)

    def _unacknowledged(self) -> list[set[bytes]]:
        return [set(client.ledger.unacknowledged) for client in self.clients]

    def _still(self, given: list[set[bytes]]) -> int:
        """Return how many of these records are still unacknowledged."""
        now = self._unacknowledged()
        return sum(len(before & each) for before, each in zip(given, now, strict=True))

    def _in_flight(self) -> list[int]:
        return [client.batches_in_flight() for client in self.clients]

    def _kill9(self, process: ServerProcess) -> tuple[int, int]:
        """Kill a process with batches in flight; return the batches and the unacknowledged records.

        It is stopped first (SIGSTOP), until the clients have read all responses that it had sent:
        then the unacknowledged records are known. If there are none, it continues.
        """
        get_on(self.clients, within_s=WAIT_S, poll_s=_LOOK_S)
        time.sleep(_CALM_S)
        both_until = time.monotonic() + _BOTH_S
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if not process.alive:
                raise DemoError("it ended before it was killed" + process.tail())
            batches = self._in_flight()
            if all(batches) or (any(batches) and time.monotonic() > both_until):
                given = self._unacknowledged()
                with process.stopped():
                    time.sleep(_SETTLE_S)
                    if records := self._still(given):
                        process.kill9()
                        return sum(batches), records
            time.sleep(_LOOK_S)
        raise DemoError(f"within {WAIT_S:.0f} s the clients never had batches in flight")

    def _fault(self) -> tuple[int, int]:
        """Wait until the fault has killed the server; return batches and records in flight.

        The clients reset their counters when they notice the death, so these are the counts just
        before it. At least one batch was in flight: the one at the fault point.
        """
        counts = deque([1], maxlen=_LOOKS_BEFORE_DEATH)

        def died() -> bool:
            counts.append(sum(self._in_flight()))
            return not self.lives.server.alive

        until(died, "the server to die at its fault point", _LOOK_S)
        given = self._unacknowledged()
        time.sleep(_SETTLE_S)
        return max(1, *counts), self._still(given)
