"""The crashes: from outside by kill -9, and from inside between append and answer."""

import asyncio
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from deploy.demo.behind import Behind
from deploy.demo.clients import Client
from deploy.demo.proxy_process import DemoError, Proxy


@dataclass(frozen=True, slots=True)
class Crash:
    """A way to die.

    Attributes:
        name: as it is told.
        fault: the plan that the server is started with; empty: it is killed from outside.
        of_broker: whether it is the Kafka behind that is killed.
    """

    name: str
    fault: str = ""
    of_broker: bool = False


KILL: Final = Crash("kill -9")
#: In the log, not yet fsynced, not answered.
AFTER_WRITE: Final = Crash("dies between write and answer", "kill after write *.log 250")
#: In the log, durable, not answered.
AFTER_FSYNC: Final = Crash("dies between fsync and answer", "kill after fsync *.log 250")
PLAN: Final = (KILL, AFTER_WRITE, KILL, AFTER_FSYNC, KILL, KILL)
BROKER: Final = Crash("kill -9 of Kafka", of_broker=True)
#: In front of Kafka, where the log is Kafka's affair.
PLAN_IN_FRONT: Final = (KILL, BROKER, KILL, KILL, BROKER, KILL)

#: How long the server lives between two crashes, at least, once both clients are served again.
_CALM_S: Final = 3.0
_SERVED_S: Final = 40.0
#: How long a broker is down, at least.
_BROKER_DOWN_S: Final = 1.0
_MOMENT_S: Final = 20.0
#: Both clients at once is the better moment; one of them will do when it does not come soon.
_BOTH_S: Final = 3.0
_FAULT_S: Final = 30.0
_LOOK_S: Final = 0.001
_LOOKS_BEFORE_DEATH: Final = 10
#: By then a client has read whatever a dead server had still answered.
_SETTLE_S: Final = 0.15
_STRAYS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Kill:
    """A crash that took place.

    Attributes:
        crash: how.
        life: the life of the proxy that it ended.
        batches: in flight at that moment, by the clients' own counters.
        records: given to the clients before it and without an answer when the server was dead.
        down_s: how long until it was ready again.
    """

    crash: Crash
    life: int
    batches: int
    records: int
    down_s: float

    @property
    def in_flight(self) -> bool:
        """Whether it hit something.

        The counters alone would not do: an answer may have been on its way back already.
        """
        return self.records > 0 and self.batches > 0


@dataclass
class Crasher:
    """Works off a plan of crashes, one life of the proxy for each.

    Parameters:
        proxy: the victim; it runs, started with the first crash's fault.
        clients: whose batches have to be in flight.
        tell: told of everything.
        plan: the crashes.
        behind: the Kafka behind, where there is one.
    """

    proxy: Proxy
    clients: Sequence[Client]
    tell: Callable[[str], None]
    plan: Sequence[Crash] = PLAN
    behind: Behind | None = None
    kills: list[Kill] = field(default_factory=list)
    strays: list[Kill] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Crashes still to come."""
        return len(self.plan) - len(self.kills)

    async def run(self) -> None:
        """All of them; one that hit nothing is made again.

        Raises:
            DemoError: one could not be made.
        """
        queue = deque(self.plan)
        while queue:
            first = queue[0]
            if first.of_broker:
                kill = await self._crash_broker(first)
            else:
                kill = await self._crash(first, queue)
            if kill.in_flight:
                queue.popleft()
                self.kills.append(kill)
            else:
                self.strays.append(kill)
            if len(self.strays) > _STRAYS_MAX:
                raise DemoError("the kills keep missing: nothing was in flight")
            self._tell(kill)

    async def _crash(self, crash: Crash, queue: deque[Crash]) -> Kill:
        batches = await (self._fault(crash) if crash.fault else self._moment())
        if not crash.fault:
            self.proxy.kill_now()
        given = self._unacknowledged()
        began = time.monotonic()
        life = self.proxy.life
        await self._expect_killed(crash)
        await asyncio.sleep(_SETTLE_S)
        records = self._still(given)
        hit = Kill(crash, life, batches, records, 0).in_flight
        following = queue[1] if hit and len(queue) > 1 else None if hit else crash
        await self.proxy.start(following.fault if following else "")
        return Kill(crash, life, batches, records, time.monotonic() - began)

    async def _crash_broker(self, crash: Crash) -> Kill:
        """Kill the Kafka behind; the proxy goes on, and so do the clients."""
        if self.behind is None:
            raise DemoError("there is no Kafka behind")
        batches = await self._moment()
        self.behind.kill_now()
        given = self._unacknowledged()
        began = time.monotonic()
        await asyncio.sleep(_BROKER_DOWN_S)
        records = self._still(given)
        await self.behind.restart()
        return Kill(crash, self.proxy.life, batches, records, time.monotonic() - began)

    def _unacknowledged(self) -> list[set[bytes]]:
        """What has no answer; with nothing awaited since a kill, the books of that very moment."""
        return [set(client.ledger.unacknowledged) for client in self.clients]

    def _still(self, given: list[set[bytes]]) -> int:
        """How much of that has no answer yet."""
        now = self._unacknowledged()
        return sum(len(before & each) for before, each in zip(given, now, strict=True))

    async def _moment(self) -> int:
        """Wait for a moment in which the clients have batches in flight; how many."""
        await served(self.clients)
        await asyncio.sleep(_CALM_S)
        began = time.monotonic()
        while (waited := time.monotonic() - began) < _MOMENT_S:
            batches = [client.batches_in_flight() for client in self.clients]
            if all(batches) or (waited > _BOTH_S and any(batches)):
                return sum(batches)
            if not self.proxy.alive:
                raise DemoError(f"the proxy died when nobody killed it; {self.proxy.tail()}")
            await asyncio.sleep(_LOOK_S)
        raise DemoError(f"within {_MOMENT_S:.0f} s the clients never had batches in flight")

    async def _fault(self, crash: Crash) -> int:
        """Wait until the server has died by itself; the batches in flight then.

        The clients notice the death as soon as we do and count anew, so it is what they said just
        before it. At least one was in flight: the batch at the fault point itself.
        """
        death = asyncio.create_task(self._expect_killed(crash))
        said: deque[int] = deque([1], maxlen=_LOOKS_BEFORE_DEATH)
        deadline = time.monotonic() + _FAULT_S
        while not death.done():
            if time.monotonic() > deadline:
                death.cancel()
                raise DemoError(f"the fault point was never reached: {crash.fault}")
            said.append(sum(client.batches_in_flight() for client in self.clients))
            await asyncio.sleep(_LOOK_S)
        death.result()
        return max(1, *said)

    async def _expect_killed(self, crash: Crash) -> None:
        code = await self.proxy.ended()
        if code != -signal.SIGKILL:
            raise DemoError(f"{crash.name}: the proxy ended with {code}; {self.proxy.tail()}")
        if crash.fault and "fault: kill" not in self.proxy.log_of_life():
            raise DemoError(f"{crash.name}: it died, but not there; {self.proxy.tail()}")

    def _tell(self, kill: Kill) -> None:
        number = f"crash {len(self.kills)} of {len(self.plan)}" if kill.in_flight else "missed"
        self.tell(
            f"{number}: {kill.crash.name}, {kill.batches} batches in flight,"
            f" {kill.records} records unacknowledged; ready again after {kill.down_s:.1f} s"
        )


async def served(clients: Sequence[Client]) -> None:
    """Wait until each client has had an answer from now on.

    Raises:
        DemoError: one has had none.
    """
    before = [len(client.ledger.offsets) for client in clients]
    deadline = time.monotonic() + _SERVED_S
    while any(
        len(client.ledger.offsets) == count for client, count in zip(clients, before, strict=True)
    ):
        if time.monotonic() > deadline:
            raise DemoError(f"a client was not served for {_SERVED_S:.0f} s")
        await asyncio.sleep(_LOOK_S)
