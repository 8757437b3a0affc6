"""An idle server imports little: what it needs later, it imports later."""

import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

#: Each takes memory and time of every start: 50 MB and half a second for pyarrow.
NOT_IMPORTED = (
    "numpy",
    "pandas",
    "pyarrow",
    "httpx",
    "pidlease.client",
    "pidlease.copier",
    "pidlease.kafka.client.kafka_client",
    "pidlease.repair",
    "pidlease.spark",
    "pidlease.storage.snapshot_files",
    "pidlease.verify",
    "proxy.backends.kafka_backend",
    "proxy.cli.status_command",
    "pyspark",
    "rich.progress",
)
_PROGRAM = """
import atexit, sys
atexit.register(lambda: print("imported:", *sorted(sys.modules), flush=True))
from proxy.__main__ import main
main()
"""


def imported_by(server: PidleaseServer, *, produce: bool = False) -> set[str]:
    """Return the modules that a server has imported in its life, its stop included."""
    command = [sys.executable, "-c", _PROGRAM, *server.command()[3:]]
    server.command = lambda: command  # type: ignore[method-assign]
    with server:
        assert server.get("/readyz")[0] == 200
        if produce:
            producer = Producer({"bootstrap.servers": server.bootstrap})
            producer.produce("t", b"record")
            assert producer.flush(WAIT_S) == 0
        assert server.stop() == 0
        line = next(each for each in server.log_text().splitlines() if each.startswith("imported:"))
    return set(line.split()[1:])


@pytest.mark.parametrize("log", ["never started before", "stopped before"])
def test_an_idle_server_imports_little(tmp_path: Path, log: str) -> None:
    if log == "stopped before":
        imported_by(PidleaseServer(tmp_path))
    found = imported_by(PidleaseServer(tmp_path))
    assert "proxy.app" in found
    assert found.isdisjoint(NOT_IMPORTED), sorted(found & set(NOT_IMPORTED))
    assert not list((tmp_path / "data").glob("snapshots/snapshot-*"))


def test_a_server_with_records_writes_a_snapshot_at_its_stop(tmp_path: Path) -> None:
    """So the test before can fail: pyarrow is imported where it is needed."""
    assert "pyarrow.parquet" in imported_by(PidleaseServer(tmp_path), produce=True)
    assert list((tmp_path / "data").glob("snapshots/snapshot-*"))
