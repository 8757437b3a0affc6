"""`pidlease verify` on directories that a real server wrote for a real client."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from typer.testing import CliRunner

from proxy.__main__ import cli
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

SETTINGS = {
    "segment_bytes": "40000",
    "snapshot_batches": "60",
    "snapshot_seconds": "1",
    "default_partitions": "2",
    "fsync": "never",
}


def verify(path: Path) -> tuple[int, dict[str, Any], str]:
    """Run the command in this process: a server's start costs enough time."""
    before = tree(path)
    done = CliRunner().invoke(cli, ["verify", "--data-dir", str(path), "--json"])
    # The server that has the directory in use may well change it.
    assert done.exit_code == 2 or tree(path) == before
    return done.exit_code, json.loads(done.stdout or "{}"), done.stderr


def producer_of(server: PidleaseServer) -> Producer:
    config = {
        "bootstrap.servers": server.bootstrap,
        "enable.idempotence": True,
        "batch.num.messages": 10,
        "linger.ms": 1,
        "log_level": 0,
        "retry.backoff.ms": 20,
        "reconnect.backoff.max.ms": 100,
    }
    return Producer(config)


def tree(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(each): (each.stat().st_mtime_ns, each.read_bytes() if each.is_file() else b"")
        for each in [path, *path.rglob("*")]
    }


def send(producer: Producer, count: int) -> None:
    for number in range(count):
        producer.produce("orders", b"%d" % number + b"x" * 200)
        producer.poll(0)


def _flush_a_little(producer: Producer) -> None:
    """Until some of it is there, and most of it is not."""
    left = len(producer)
    deadline = time.monotonic() + 10
    while len(producer) > left - 100 and time.monotonic() < deadline:
        producer.poll(0.005)


def test_what_a_server_wrote(tmp_path: Path) -> None:
    server = PidleaseServer(tmp_path, settings=SETTINGS)
    with server:
        producer = producer_of(server)
        send(producer, 2000)
        assert producer.flush(WAIT_S) == 0
        code, _, complaint = verify(server.data_dir)
        assert code == 2
        assert f"is in use by process {server.pid}; stop that one first" in complaint
        server.stop()
        _look_after_a_clean_stop(server.data_dir)
        _look_at_a_damaged_copy(server.data_dir, tmp_path / "copy")

        server.restart()
        another = producer_of(server)
        send(producer, 1500)
        send(another, 1500)
        _flush_a_little(producer)
        server.kill9()
        code, answer, _ = verify(server.data_dir)
        assert (code, answer["findings"], answer["clean_stop"]) == (0, [], False)
        assert 2000 < answer["totals"]["records"] < 5000

        server.restart()
        assert producer.flush(WAIT_S) == another.flush(WAIT_S) == 0
        server.stop()
    code, answer, _ = verify(server.data_dir)
    assert (code, answer["findings"], answer["clean_stop"]) == (0, [], True)
    assert (answer["totals"]["producers"], answer["totals"]["records"]) == (2, 5000)


def _look_after_a_clean_stop(path: Path) -> None:
    code, answer, _ = verify(path)
    assert (code, answer["findings"], answer["notes"]) == (0, [], [])
    assert answer["clean_stop"]
    totals = answer["totals"]
    assert (totals["partitions"], totals["records"], totals["producers"]) == (2, 2000, 1)
    assert totals["segments"] > 4
    assert totals["snapshots"] >= 1
    command = (str(Path(sys.executable).with_name("pidlease")), "verify", "--data-dir", str(path))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2,000" in done.stdout


def _look_at_a_damaged_copy(path: Path, copy: Path) -> None:
    shutil.copytree(path, copy)
    log = max(copy.glob("logs/*/*.log"), key=lambda each: each.stat().st_size)
    content = bytearray(log.read_bytes())
    content[1000] ^= 1
    log.write_bytes(content)
    code, answer, _ = verify(copy)
    assert code == 1
    assert [finding["kind"] for finding in answer["findings"]] == ["damaged"]
    assert answer["findings"][0]["file"] == str(log.relative_to(copy))
