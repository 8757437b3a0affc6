"""The way back that docs/operate/upgrade.md promises, by the formats of the stored things.

No older version runs here. What this version writes into a directory of a release has the formats
of that release; and this version, being the older one, skips or refuses what a newer one wrote.
"""

import asyncio
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from crc32c import crc32c

from deploy.package.archives import unpack
from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.crash.readback import consume
from tests.formats.directory_writer import BATCHES, value
from tests.formats.test_written_directories import _SETTINGS, _sent_again, _stored_batches
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

_ROOT: Final = Path(__file__).resolve().parents[2]
_FOLDER: Final = _ROOT / "tests" / "data" / "directories"
#: Directories of releases; the others are of versions between two releases.
_RELEASES: Final = sorted(_FOLDER.glob("[0-9]*.tar.xz"))
_USAGE: Final = 2


def _unpacked(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as packed:
        unpack(packed, folder)
    return folder / "data"


def _inner(path: Path, name: str) -> dict[str, Any]:
    """The content of a file that has a CRC."""
    found: dict[str, Any] = json.loads(json.loads(path.read_text())[name])
    return found


def _with_crc(content: dict[str, Any], name: str, crc: str) -> str:
    text = json.dumps(content, sort_keys=True)
    return json.dumps({crc: crc32c(text.encode()), name: text})


def _manifests(data: Path) -> list[Path]:
    """Those of all snapshots, the oldest first."""
    return sorted(data.glob("snapshots/*/manifest.json"))


def _formats(data: Path) -> dict[str, object]:
    """What an older version looks at before it reads the rest."""
    manifests = [_inner(path, "manifest") for path in _manifests(data)]
    topics = [_inner(path, "topic") for path in sorted(data.glob("topics/*.json"))]
    return {
        # The directory's server was killed, so it left no mark of a clean stop.
        "entries": {path.name for path in data.iterdir()} - {"clean-stop"},
        "meta": {json.loads((data / "meta.json").read_text())["format"]},
        "snapshots": {each["format"] for each in manifests},
        "crc_rule": {each.get("crc_rule") for each in manifests},
        "manifest": {name for each in manifests for name in each},
        "topic": {name for each in topics for name in each},
        "overrides": {name for each in topics for name in each["overrides"]},
    }


def _content(data: Path) -> dict[Path, bytes]:
    """All files but the lock."""
    return {
        path: path.read_bytes()
        for path in data.rglob("*")
        if path.is_file() and path.name != "lock"
    }


def _append(server: PidleaseServer, number: int) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
    producer.produce("kafka", value("kafka", number), partition=0)
    assert producer.flush(WAIT_S) == 0


def _refused(data: Path) -> str:
    """Start a server, which does not start; return its error."""
    command = [sys.executable, "-m", "proxy", "serve", "--data-dir", str(data)]
    kafka, http = (f"{LOOPBACK}:{port}" for port in free_ports(2))
    listen = ["--kafka-listen", kafka, "--http-listen", http]
    environ = {name: text for name, text in os.environ.items() if "PIDLEASE_" not in name}
    done = subprocess.run(
        [*command, *listen],
        env=environ,
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == _USAGE, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("archive", _RELEASES, ids=lambda path: path.name.split(".tar")[0])
def test_what_this_version_writes_has_the_formats_of_the_release(
    archive: Path, tmp_path: Path
) -> None:
    """A format that was raised since must have a row of its own in the table of the docs."""
    data = _unpacked(archive, tmp_path)
    before = _formats(data)
    written = {path.parent.name for path in _manifests(data)}
    with PidleaseServer(tmp_path, data_dir=data, settings=_SETTINGS) as server:
        _append(server, BATCHES)
        assert server.stop() == 0
    assert {path.parent.name for path in _manifests(data)} > written
    # The release leaves out the checksums of another rule (docs/operate/upgrade.md, Roll back).
    assert _formats(data) == {**before, "crc_rule": {2, 3}}


@pytest.mark.parametrize("archive", _RELEASES, ids=lambda path: path.name.split(".tar")[0])
def test_after_a_roll_back_a_newer_snapshot_is_skipped(archive: Path, tmp_path: Path) -> None:
    """Forward, and back: the log has what the skipped snapshot had."""
    data = _unpacked(archive, tmp_path)
    with PidleaseServer(tmp_path, data_dir=data, settings=_SETTINGS) as server:
        _append(server, BATCHES)
        assert server.stop() == 0
        newest = _manifests(data)[-1]
        manifest = _inner(newest, "manifest")
        newest.write_text(
            _with_crc({**manifest, "format": manifest["format"] + 1}, "manifest", "crc32c")
        )
        sent = _stored_batches(data / "logs" / "kafka-0" / f"{0:020}.log")
        server.restart()
        log = (tmp_path / "pidlease.log").read_text()
        assert "snapshot skipped" in log
        assert "is newer than" in log
        answers = asyncio.run(_sent_again(server, sent))
        assert answers == [(0, offset) for offset in range(BATCHES + 1)]
        _append(server, BATCHES + 1)
        stored = [each.value for each in consume(server.bootstrap, "kafka", 1)]
        assert stored == [value("kafka", number) for number in range(BATCHES + 2)]
        assert server.stop() == 0
    # It takes no number of a snapshot that it could not read.
    assert _manifests(data)[-1] > newest


@pytest.mark.parametrize("archive", _RELEASES, ids=lambda path: path.name.split(".tar")[0])
def test_a_newer_directory_is_refused_and_nothing_is_changed(archive: Path, tmp_path: Path) -> None:
    data = _unpacked(archive, tmp_path)
    meta = data / "meta.json"
    meta.write_text(json.dumps({**json.loads(meta.read_text()), "format": 2}))
    before = _content(data)
    assert "install the newer one" in _refused(data)
    assert _content(data) == before


@pytest.mark.parametrize("archive", _RELEASES, ids=lambda path: path.name.split(".tar")[0])
def test_a_newer_topic_setting_is_refused_and_nothing_is_changed(
    archive: Path, tmp_path: Path
) -> None:
    data = _unpacked(archive, tmp_path)
    path = data / "topics" / "kafka.json"
    topic = {**_inner(path, "topic"), "overrides": {"of_a_newer_version": "1"}}
    path.write_text(_with_crc(topic, "topic", "crc"))
    before = _content(data)
    assert "of_a_newer_version" in _refused(data)
    assert _content(data) == before
