"""The server dies between any two steps, once at each; a real client goes on through all of it."""

import http.client
import signal
import socket
import time
from fnmatch import fnmatch
from pathlib import Path
from random import Random

import pytest

from pidlease.testing.loopback_ports import LOOPBACK
from tests.crash import raw, recorded
from tests.crash.clients import Load
from tests.crash.lives import (
    HANG_S,
    SETTINGS,
    Retries,
    finish,
    loads_for,
    server_in,
    verify,
    wait_for,
)
from tests.crash.points import NEW, PARTITIONS, TOPIC, Point, points
from tests.crash.readback import check_directory, check_pids, consume
from tests.crash.seeds import SOAK, new_random
from tests.servers.pidlease import PidleaseServer

#: PIDs that never wrote, looked at in each life: the oldest, and the newest.
_VIRGINS = 2


class Chain:
    """One directory, one client, and many lives."""

    def __init__(self, server: PidleaseServer, fsync: str, random: Random) -> None:
        self.server = server
        self.random = random
        self.settings = {
            **SETTINGS,
            "segment_bytes": "8192",
            "fsync": fsync,
            "default_partitions": str(PARTITIONS),
        }
        self.retries = Retries(server)
        self.loads: list[Load] = []
        self.pids: list[int] = []
        self.made: list[str] = []
        #: Offsets of a group that were told to be committed, and the last that was asked for.
        self.committed: list[int] = []
        self.offset = 0
        #: Changes of what is set for all topics: told to be made, and asked for.
        self.defaults: list[int] = []
        self.asked_defaults = -1
        #: What was granted to a name.
        self.granted: list[tuple[int, int]] = []

    def die_at(self, point: Point) -> None:
        """One life: start with the fault, come by it, and die of it."""
        if point.trigger == "traffic" and not self.loads:
            self.loads = loads_for(self.server.bootstrap, TOPIC, PARTITIONS, self.random)
            for load in self.loads:
                load.start()
        new = f"extra{len(self.made)}"
        fault = point.fault.replace(NEW, new)
        said = self._said()
        self.server.settings = {**self.settings, "faults": fault}
        self.retries.new_life()
        self.server.launch()
        self._wait_ready()
        if self.server.alive and point.trigger != "start":
            self._use()
            self._trigger(point.trigger, new)
        self._wait_dead(fault)
        action, when, operation, pattern, number = fault.split()
        lines = self.server.log_text()[said:].splitlines()
        reports = [line.split() for line in lines if line.startswith("fault: ")]
        assert len(reports) == 1, (fault, reports)
        _, *told, path, count = reports[0]
        assert told == [action, when, operation], (fault, reports)
        assert count == f"#{number}"
        assert fnmatch(path, pattern), (fault, reports)

    def _said(self) -> int:
        log = self.server.process.log_path
        return len(self.server.log_text()) if log.exists() else 0

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + HANG_S
        while self.server.alive:
            try:
                # Ready may be said a moment before the Kafka port is open.
                if self.server.get("/readyz")[0] == 200:
                    socket.create_connection((LOOPBACK, self.server.kafka_port)).close()
                    return
            except (OSError, http.client.HTTPException):
                pass
            assert time.monotonic() < deadline, "never ready"
            time.sleep(0.02)

    def _use(self) -> None:
        """Look at PIDs that were leased in earlier lives, and lease another one."""
        virgins = [*self.pids[:1], *self.pids[-1:]][:_VIRGINS]
        if any(load.ledger.acknowledged_count for load in self.loads):
            raw.quietly(raw.check_virgins(self.server, TOPIC, PARTITIONS, virgins))
            raw.quietly(raw.grant(self.server, TOPIC, self.granted))
        if self.committed:
            raw.quietly(raw.check_committed(self.server, TOPIC, self.committed))
        if self.asked_defaults >= 0:
            raw.quietly(raw.check_defaults(self.server, self.asked_defaults, self.defaults))
        raw.quietly(raw.lease(self.server, 1, self.pids))

    def _trigger(self, trigger: str, new: str) -> None:
        if trigger == "topic":
            self.made.append(new)
            raw.quietly(raw.make_topic(self.server, new, 1))
        elif trigger == "defaults":
            self.asked_defaults += 1
            raw.quietly(raw.set_defaults(self.server, self.asked_defaults, self.defaults))
        elif trigger == "name":
            raw.quietly(raw.grant(self.server, TOPIC, self.granted))
        elif trigger == "lease":
            raw.quietly(raw.lease(self.server, 60, self.pids))
        elif trigger == "commit":
            deadline = time.monotonic() + HANG_S
            while self.server.alive:
                assert time.monotonic() < deadline, "no commit came by the fault"
                self.offset += 1
                raw.quietly(raw.commit(self.server, TOPIC, self.offset, self.committed))
        elif trigger == "stop":
            self.server.process.stop(HANG_S)

    def _wait_dead(self, fault: str) -> None:
        wait_for(lambda: not self.server.alive, f"{fault!r} to fire", self.retries.look)
        code = self.server.wait_exit()
        assert code == -signal.SIGKILL, f"{fault}: ended with {code}"

    def end(self) -> None:
        """A life without a fault: the client finishes, everything is there."""
        server = self.server
        self.retries.new_life()
        server.restart(self.settings)
        for load in self.loads:
            load.finish(HANG_S)
        self.retries.look()
        self._check_pids()
        raw.surely(raw.check_committed(server, TOPIC, self.committed))
        assert len(self.committed) > 10
        raw.surely(raw.check_defaults(server, self.asked_defaults, self.defaults))
        assert self.defaults
        for _ in range(2):
            raw.surely(raw.grant(server, TOPIC, self.granted))
        assert len(self.granted) > 20
        for topic in self.made:
            raw.surely(raw.make_topic(server, topic, 1))
            raw.surely(raw.lease(server, 1, self.pids))
            raw.surely(raw.begin(server, topic, 0, self.pids[-1], b"extra/0/0"))
            assert [each.value for each in consume(server.bootstrap, topic, 1)] == [b"extra/0/0"]
        finish(server, TOPIC, PARTITIONS, self.loads)
        verify(server.data_dir)

    def _check_pids(self) -> None:
        """No PID was leased twice, and those that never wrote start at 0, whenever leased."""
        server = self.server
        assert len(set(self.pids)) == len(self.pids)
        raw.surely(raw.check_virgins(server, TOPIC, PARTITIONS, self.pids))
        clients = check_pids(server.data_dir)
        assert len(clients) == len(self.loads), "each client keeps its one PID"
        assert not clients.keys() & set(self.pids), "a PID was leased to two"
        for pid in self.random.sample(self.pids, min(10, len(self.pids))):
            partition = self.random.randrange(PARTITIONS)
            text = b"virgin%d/%d/0" % (pid, partition)
            raw.surely(raw.begin(server, TOPIC, partition, pid, text))
            self.pids.remove(pid)


@pytest.mark.timeout(7200 if SOAK else 900)
@pytest.mark.parametrize("fsync", ["batch", "interval", "never"] if SOAK else ["batch"])
def test_a_kill_between_any_two_steps(tmp_path: Path, fsync: str) -> None:
    random = new_random(f"points-{fsync}")
    with server_in(tmp_path) as server:
        chain = Chain(server, fsync, random)
        for point in points(random, all_sides=SOAK, durable=fsync != "never"):
            try:
                chain.die_at(point)
                # It takes longer and longer: not after each life.
                made = (server.data_dir / "meta.json").exists()  # the first lives die before that
                if made and len(chain.retries.lives) % 8 == 0:
                    check_directory(server.data_dir)
            except AssertionError as error:
                raise AssertionError(f"{point}: {error}") from error
        chain.end()
        lives = len(chain.retries.lives)
        print(f"{lives} lives, {len(chain.pids)} PIDs leased, {chain.retries.total:.0f} duplicates")
        assert chain.retries.total > 0


class RecordedServer(PidleaseServer):
    """A server that writes down every operation it passes."""

    def command(self) -> list[str]:
        """See `PidleaseServer`."""
        return [part if part != "proxy" else recorded.__name__ for part in super().command()]


def test_the_list_of_points_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a server does to its directory in its life is a step to die at."""
    steps = tmp_path / "steps"
    monkeypatch.setenv(recorded.VARIABLE, str(steps))
    server = RecordedServer(tmp_path)
    server.settings = {**SETTINGS, "segment_bytes": "2048", "faults": recorded.NO_FAULT}
    pids: list[int] = []
    for life in range(2):
        server.start()
        raw.surely(raw.make_topic(server, TOPIC, PARTITIONS))
        raw.surely(raw.lease(server, 51, pids))
        for pid in pids[-8:]:
            raw.surely(raw.begin(server, TOPIC, 0, pid, b"." * 1000))
        raw.surely(raw.commit(server, TOPIC, life, []))
        raw.surely(raw.set_defaults(server, life, []))
        raw.surely(raw.grant(server, TOPIC, []))
        time.sleep(0.7)
        assert server.stop() == 0, life
    done = {tuple(line.split(" ", 1)) for line in steps.read_text().splitlines()}
    known = {point.step for point in points(Random(0), all_sides=True)}
    # The names above the directory are the operating system's; a folder's name is fsynced with it.
    missing = {
        (operation, path)
        for operation, path in done
        if str(server.data_dir) in path
        and not any(
            operation == other and fnmatch(path, pattern.replace(NEW, TOPIC))
            for other, pattern in known
        )
    }
    assert not missing, sorted(missing)
    assert len(done) > 100
