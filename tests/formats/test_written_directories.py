"""This version reads the data directories of earlier ones, knows their duplicates, and appends."""

import asyncio
import json
import struct
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from deploy.package.archives import unpack
from pidlease.testing.loopback_ports import LOOPBACK
from tests.crash.readback import consume
from tests.formats.directory_writer import BATCHES, value
from tests.kafka_listener.client import WireClient
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

_ROOT: Final = Path(__file__).resolve().parents[2]
_DIRECTORIES: Final = sorted((_ROOT / "tests" / "data" / "directories").glob("*.tar.xz"))
_BYTES_MAX: Final = 100_000
#: Retention and leases go by the clock: nothing of the directories has ended yet.
_SETTINGS: Final = {"fsync": "never", "retention_ms": "-1", "lease_seconds": "315360000"}
_LENGTH_AT: Final = 8


def _stored_batches(path: Path) -> list[bytes]:
    """The batches of a segment, as their producers sent them: with base offset 0."""
    data, found = path.read_bytes(), []
    while data:
        (length,) = struct.unpack_from(">i", data, _LENGTH_AT)
        size = _LENGTH_AT + 4 + length
        found.append(bytes(8) + data[8:size])
        data = data[size:]
    return found


async def _sent_again(server: PidleaseServer, batches: list[bytes]) -> list[tuple[int, int]]:
    """The error code and the offset of each."""
    async with await WireClient.connect(LOOPBACK, server.kafka_port) as client:
        answers = [await client.produce("kafka", batch) for batch in batches]
    return [(answer.code, answer.offset) for answer in answers]


def _append(server: PidleaseServer, number: int) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{server.http_url}/v1/topics/http/partitions/0/records",
        data=value("http", number),
        headers={
            "Content-Type": "application/octet-stream", "Producer-Id": "till-7",
            "Producer-Epoch": "0", "Producer-Seq": str(number),
        },
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        found: dict[str, Any] = json.load(response)
    return found


def test_they_are_small() -> None:
    assert len(_DIRECTORIES) >= 3
    assert all(path.stat().st_size < _BYTES_MAX for path in _DIRECTORIES)


@pytest.mark.parametrize("archive", _DIRECTORIES, ids=lambda path: path.name.split(".tar")[0])
def test_this_version_goes_on(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as packed:
        unpack(packed, tmp_path)
    data = tmp_path / "data"
    sent = _stored_batches(data / "logs" / "kafka-0" / f"{0:020}.log")
    assert len(sent) == BATCHES
    topics = sorted(path.stem for path in (data / "topics").glob("*.json"))
    with PidleaseServer(tmp_path, data_dir=data, settings=_SETTINGS) as server:
        for topic in topics:
            expected = [value(topic, number) for number in range(BATCHES)]
            assert [each.value for each in consume(server.bootstrap, topic, 1)] == expected
        # Before the snapshot, and after it: each batch that was stored is a duplicate.
        assert asyncio.run(_sent_again(server, sent)) == [(0, offset) for offset in range(BATCHES)]
        producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
        producer.produce("kafka", value("kafka", BATCHES), partition=0)
        assert producer.flush(WAIT_S) == 0
        if "http" in topics:
            last = BATCHES - 1
            assert _append(server, last) == {"offset": last, "duplicate": True}
            assert _append(server, BATCHES) == {"offset": BATCHES, "duplicate": False}
        for topic in topics:
            assert len(consume(server.bootstrap, topic, 1)) == BATCHES + 1
        assert server.stop() == 0
    verify = [sys.executable, "-m", "proxy", "verify", "--data-dir", str(data)]
    done = subprocess.run(verify, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
