"""`pidlease status` against a real server."""

import json
from pathlib import Path

from confluent_kafka import Producer
from typer.testing import CliRunner, Result

from proxy.__main__ import cli
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S


def status(server: PidleaseServer, *options: str) -> Result:
    """Run the command in this process: its own start costs more than all the rest."""
    return CliRunner().invoke(cli, ["status", "--url", server.http_url, *options])


def produce(server: PidleaseServer, topic: str, count: int) -> None:
    config = {"bootstrap.servers": server.bootstrap, "enable.idempotence": True, "linger.ms": 0}
    producer = Producer(config)
    for number in range(count):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(WAIT_S) == 0


def test_ready_stopped_and_gone(tmp_path: Path) -> None:
    server = PidleaseServer(tmp_path)
    with server:
        produce(server, "orders", 20)
        answer = status(server, "--json")
        assert (answer.exit_code, answer.stderr) == (0, "")
        found = json.loads(answer.stdout)
        assert found["partitions"][0]["end_offset"] == 20
        assert (found["producers"], found["leases"]["granted"]) == (1, 1)
        shown = status(server)
        assert shown.exit_code == 0
        assert all(each in shown.stdout for each in ("orders", "ready", "slots", "none yet"))

    gone = status(server)
    assert (gone.exit_code, gone.stdout) == (2, "")
    assert "no pidlease answers" in gone.stderr

    log = server.data_dir / "logs" / "orders-0" / "00000000000000000000.log"
    content = bytearray(log.read_bytes())
    content[100:108] = b"\xff" * 8
    log.write_bytes(content)
    for name in (".index", ".timeindex"):
        log.with_suffix(name).write_bytes(b"")
    with server:
        stopped = status(server)
        assert stopped.exit_code == 1
        assert "orders-0 is stopped: " in stopped.stdout
        assert "is damaged at byte 0" in stopped.stdout
