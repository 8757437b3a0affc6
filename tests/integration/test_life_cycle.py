"""Starting and stopping the real process."""

import json
import os
import select
import signal
import socket
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from pidlease.testing.loopback_ports import LOOPBACK
from tests.http_api.appending import RAW, path_of
from tests.http_api.appending import producer as http_producer
from tests.http_api.lives import ask
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S, until

#: See `proxy.app`.
NOT_IN_TIME = 3


def test_told_to_stop_while_it_recovers(tmp_path: Path) -> None:
    """It goes at once, and the next start finds everything."""
    server = PidleaseServer(tmp_path)
    server.process.forks = False
    with server:
        producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
        for n in range(100):
            producer.produce("t", str(n).encode(), partition=0)
        assert producer.flush(WAIT_S) == 0
        server.kill9()
        # Every fsync takes long: it is still at its start when it is told to stop.
        server.settings["faults"] = "slow=1.5 before fsync_folder * 1"
        server.launch()
        server.process.wait_until(lambda: "faults are on" in server.log_text(), 20)
        assert server.stop(20) == 0
        assert "serving" not in server.log_text().rpartition("faults are on")[2]
        server.settings.pop("faults")
        server.restart()
        assert server.metric("pidlease_producers") == 1


def connects(server: PidleaseServer) -> bool:
    """Whether a Kafka client comes in."""
    try:
        socket.create_connection((LOOPBACK, server.kafka_port), 5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_it_is_not_ready_before_its_doors_close(tmp_path: Path) -> None:
    """Who balances load sees it in time."""
    with PidleaseServer(tmp_path, settings={"stop_delay_seconds": "4"}) as server:
        producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
        producer.produce("t", b"in time")
        assert producer.flush(WAIT_S) == 0
        os.kill(server.pid, signal.SIGTERM)
        until(lambda: server.get("/readyz")[0] == 503, "the end of readiness")
        assert connects(server)
        assert server.get("/metrics")[0] == 200
        headers = {**RAW, **http_producer("p", 0, 0)}
        assert ask(server, "POST", path_of("t"), b"late, and taken", headers)[0] == 200
        producer.produce("t", b"late, and taken")
        assert producer.flush(WAIT_S) == 0
        assert server.wait_exit() == 0
    with PidleaseServer(tmp_path) as server:
        assert server.metric("pidlease_producers") == 2


def test_a_stop_that_hangs_ends(tmp_path: Path) -> None:
    """A disk that does not answer: it ends within the bound, and what was acknowledged is there."""
    with PidleaseServer(tmp_path) as server:
        producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
        producer.produce("t", b"acknowledged")
        assert producer.flush(WAIT_S) == 0
        server.restart({"faults": "slow=60 before rename */snapshots/* 1", "stop_seconds": "2"})
        producer.produce("t", b"another")
        assert producer.flush(WAIT_S) == 0
        began = time.monotonic()
        os.kill(server.pid, signal.SIGTERM)
        assert server.wait_exit(30) == NOT_IN_TIME
        assert time.monotonic() - began < 30
        assert "the stop took too long" in server.log_text()
        server.restart({})
        assert server.metric("pidlease_producers") == 1
        assert end_offset(server) == 2


def end_offset(server: PidleaseServer) -> int:
    """Of the one partition."""
    partitions = json.loads(server.get("/v1/status")[1])["partitions"]
    return int(partitions[0]["end_offset"])


def test_settings_are_read_again(tmp_path: Path) -> None:
    """At SIGHUP; what makes no sense leaves those before, what needs a restart is told."""
    config = tmp_path / "pidlease.toml"
    config.write_text('log-level = "warning"\n')
    server = PidleaseServer(tmp_path / "server", settings={"log_format": "json"})
    command = [*server.command(), "--config", str(config)]
    server.command = lambda: command  # type: ignore[method-assign]

    def events() -> list[dict[str, object]]:
        lines = server.log_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def told(event: str) -> dict[str, object] | None:
        return next((each for each in events() if each["event"] == event), None)

    with server:
        assert told("serving") is None
        config.write_text('log-level = "debug"\nsnapshot-seconds = 0.5\nring-capacity = 10\n')
        os.kill(server.pid, signal.SIGHUP)
        until(lambda: told("these settings take effect at the next start") is not None, "SIGHUP")
        assert told("these settings take effect at the next start")["settings"] == ["ring_capacity"]  # type: ignore[index]
        # It is told before it takes effect, at the level of before.
        producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
        producer.produce("t", b"changes something")
        assert producer.flush(WAIT_S) == 0
        until(lambda: told("snapshot") is not None, "a snapshot, told at the new level")
        config.write_text('log-level = "loud"\n')
        os.kill(server.pid, signal.SIGHUP)
        event = "the settings are invalid; the previous ones stay in force"
        until(lambda: told(event) is not None, "the refusal")
        assert "log_level" in str(told(event))
        assert server.get("/readyz")[0] == 200
        config.write_text("connections-max = 1\n")
        os.kill(server.pid, signal.SIGHUP)
        until(lambda: _gives_way(server), "the limit of HTTP connections")


def _gives_way(server: PidleaseServer) -> bool:
    """Whether an idle HTTP connection ends when there is another one."""
    address = LOOPBACK, server.http_port
    with socket.create_connection(address) as old, socket.create_connection(address):
        return bool(select.select([old], [], [], 0.2)[0])


@pytest.mark.parametrize("name", ["stop_seconds", "stop_delay_seconds"])
def test_a_bound_that_makes_no_sense(tmp_path: Path, name: str) -> None:
    server = PidleaseServer(tmp_path, settings={name: "-1"})
    server.launch()
    assert server.wait_exit() == 2
    assert name in server.log_text()
