"""A copy while copiers, destination and source are killed, stopped and replaced, by seed."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.copier.sides import CopyProcess, Filler, check_same, more_arrived
from tests.crash.seeds import SOAK, new_random
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

pytestmark = [needs_kafka, pytest.mark.kafka, pytest.mark.timeout(7200 if SOAK else 900)]

#: Of each kind.
FAULTS = 8 if SOAK else 1
COUNT = 1_000_000 if SOAK else 40_000
PER_SECOND = 4_000
#: What a copier says when it has partitions.
_JOINED = "are this copier's"
#: A line of its progress, every few seconds.
_PROGRESS = " records copied"
#: Attempts to stop a copier while it has batches in flight.
_TRIES = 8
FENCED = 3
_SESSION_S = 6


@dataclass
class Faults:
    """What can happen, and what came of it."""

    folder: Path
    source: KafkaServer
    server: PidleaseServer
    group: str
    topic: str
    random: Random
    copiers: list[CopyProcess] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    begun: int = 0

    def kinds(self) -> dict[str, Callable[[], None]]:
        """All of them."""
        return {
            "copier killed": self.kill_copier,
            "copier killed twice": self.kill_twice,
            "destination killed": self.kill_server,
            "source killed": self.kill_source,
            "copier stopped": self.stop_copier,
            "one more copier": self.rebalance,
        }

    def copier(self) -> CopyProcess:
        """One more at work."""
        self.begun += 1
        copier = CopyProcess(
            self.folder / f"copier-{self.begun}", self.source.bootstrap, self.server,
            "--topics", self.topic, "--rename", "{topic}.copy", "--group", self.group,
            "--session-seconds", str(_SESSION_S), "--commit-seconds", "0.3",
        ).start()  # fmt: skip
        self.copiers.append(copier)
        return copier

    def kill_copier(self) -> None:
        """In the middle of its work; another one goes on."""
        more_arrived(self.server)
        self._kill()
        self.copier()
        more_arrived(self.server)

    def kill_twice(self) -> None:
        """The second one as soon as it has leased, before anything of it was accepted."""
        more_arrived(self.server)
        self._kill()
        self.server.kill9()
        second = self.copier()
        time.sleep(self.random.random() * _SESSION_S)
        assert second.process.alive
        self._kill()
        self.copier()
        self.server.start()
        more_arrived(self.server)

    def kill_server(self) -> None:
        """With batches under way."""
        more_arrived(self.server)
        self.server.kill9()
        time.sleep(self.random.random())
        self.server.start()
        more_arrived(self.server)

    def kill_source(self) -> None:
        """The only broker."""
        more_arrived(self.server)
        self.source.process.kill9()
        time.sleep(self.random.random())
        self.source.start()
        more_arrived(self.server)

    def stop_copier(self) -> None:
        """Until another one has gone on; then it comes back, and has to leave."""
        for _ in range(_TRIES):
            more_arrived(self.server)
            first = self.copiers.pop()
            with first.process.stopped():
                second = self.copier()
                until(partial(self._took_over, second), "a successor at work")
            lines = first.text.count(_PROGRESS)
            until(partial(_has_gone_on, first, lines), "it to leave, or to go on")
            # With nothing in flight it is not fenced: it joins the group again, as another copier.
            code = first.process.stop(WAIT_S) if first.process.alive else first.process.returncode
            more_arrived(self.server)
            if code == FENCED:
                assert f":{second.process.pid}:" in first.text, first.text[-2000:]
                return
            assert code == 0, first.text[-2000:]
        raise AssertionError(f"a copier was stopped {_TRIES} times, and never fenced")

    def rebalance(self) -> None:
        """Partitions move while batches are in flight, there and back."""
        more_arrived(self.server)
        other = self.copier()
        until(lambda: _JOINED in other.text, "partitions to move")
        time.sleep(self.random.random() * 2)
        self.copiers.remove(other)
        assert other.process.stop(WAIT_S) == 0, other.text[-2000:]
        more_arrived(self.server)

    def _took_over(self, copier: CopyProcess) -> bool:
        return copier.text.count("/s,") > 0 and "lag" in copier.text and _copied(copier) > 0

    def _kill(self) -> None:
        copier = self.copiers.pop()
        assert copier.process.alive, copier.text[-3000:]
        copier.process.kill9()


def _has_gone_on(copier: CopyProcess, lines: int) -> bool:
    """Return whether a copier has ended, as one that is fenced, or has shown its progress again."""
    return not copier.process.alive or copier.text.count(_PROGRESS) > lines + 1


def _has_begun(copier: CopyProcess) -> bool:
    return bool(copier.text)


def _copied(copier: CopyProcess) -> int:
    lines = [line for line in copier.text.splitlines() if _PROGRESS in line]
    return int(lines[-1].split()[0].replace(",", "")) if lines else 0


def test_onto_the_embedded_log(source: KafkaServer, server: PidleaseServer, tmp_path: Path) -> None:
    run(source, server, tmp_path, "copy-crashes")


def test_onto_a_server_in_front_of_kafka(
    source: KafkaServer, in_front: PidleaseServer, tmp_path: Path
) -> None:
    """Whose Kafka is the source's own: it dies on both sides at once."""
    run(source, in_front, tmp_path, "copy-in-front", None if SOAK else 2)


def run(
    source: KafkaServer,
    server: PidleaseServer,
    folder: Path,
    topic: str,
    kinds: int | None = None,
) -> None:
    """Everything, in any order, while the source is written; then both sides are compared.

    Parameters:
        kinds: so many kinds of faults, chosen at random; None: all.
    """
    random = new_random(topic)
    server.start()
    filler = Filler(source.bootstrap, topic, COUNT, random, PER_SECOND).start()
    faults = Faults(folder, source, server, f"group-{topic}", topic, random)
    try:
        _go_through(faults, filler, kinds)
    finally:
        for copier in faults.copiers:
            copier.process.kill9()


def _go_through(faults: Faults, filler: Filler, kinds: int | None) -> None:
    source, server, folder, topic = faults.source, faults.server, faults.folder, faults.topic
    random = faults.random
    faults.copier()
    every = list(faults.kinds().items())
    due = random.sample(every, kinds or len(every)) * FAULTS
    random.shuffle(due)
    for name, happen in due:
        time.sleep(random.random())
        assert filler.at_work
        happen()
        faults.done[name] += 1
        print(f"{name}: {filler.sent} at the source")
    filler.finish()
    for copier in faults.copiers:
        # Before its first line it has no handler for SIGTERM.
        until(partial(_has_begun, copier), "the copier to begin")
        assert copier.process.stop(WAIT_S) == 0, copier.text[-2000:]
    options = "--topics", topic, "--rename", "{topic}.copy", "--group", faults.group
    last = CopyProcess(folder / "last", source.bootstrap, server, *options, "--once")
    assert last.run() == 0, last.text[-2000:]
    assert check_same(source, topic, server, f"{topic}.copy") == filler.sent >= COUNT
    compared = CopyProcess(folder / "compared", source.bootstrap, server, *options, "--verify")
    assert compared.run() == 0, compared.text
    print(dict(faults.done))
    assert server.stop() == 0
