"""The official client appends and reads while the server is killed: 0 lost, 0 doubled."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

import pytest

from tests.clients.child import Child
from tests.clients.install import environment, node_missing
from tests.crash.readback import consume
from tests.crash.seeds import SOAK, new_random
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S
from tests.streams.stream_programs import installed

#: By live mode; together a thousand in the soak.
_KILLS = 500 if SOAK else 3
_HANG_S = WAIT_S


@pytest.mark.timeout(7200 if SOAK else 180)
@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_nothing_is_lost_or_doubled(tmp_path: Path, live: str) -> None:
    if missing := node_missing():
        pytest.skip(missing)
    random = new_random(f"stream-kills-{live}")
    stop, result = tmp_path / "stop", tmp_path / "result.json"
    settings = {"snapshot_seconds": "1", "stream_poll_seconds": "2"}
    with PidleaseServer(tmp_path, settings=settings) as server:
        url = f"{server.leases}/v1/stream/kills/{live}"
        command = ["node", str(installed() / "exactly_once.js"), url, live, str(stop), str(result)]
        with Child.start("client", command, tmp_path, environment({})) as child:
            for _ in range(_KILLS):
                _flushed(child)  # so that it appends, not only waits
                time.sleep(random.uniform(0, 0.05))
                server.kill9()
                server.restart()
            _flushed(child)
            stop.touch()
            child.process.wait(_HANG_S)
        assert result.exists(), child.out.read_text() + child.out.with_suffix(".err").read_text()
        found = json.loads(result.read_text())
        numbers = list(range(found["appended"]))
        assert found["failures"] == []
        assert found["got"] == numbers
        assert _read(url) == numbers
        server.kill9()
        server.restart()
        assert _read(url) == numbers
        stored = consume(server.bootstrap, f"kills__{live}", 1)
        assert [json.loads(each.value)["n"] for each in stored] == numbers


def _flushed(child: Child) -> None:
    """Wait until the client's next flush is done."""
    before, deadline = child.line_count(), time.monotonic() + _HANG_S
    while child.line_count() == before:
        assert child.running, child.out.with_suffix(".err").read_text()
        assert time.monotonic() < deadline, child.lines()[-3:]
        time.sleep(0.002)


def _read(url: str) -> list[int]:
    """Read the whole stream by catch-up reads; it is closed."""
    numbers: list[int] = []
    offset = "-1"
    while True:
        with urllib.request.urlopen(f"{url}?offset={offset}") as response:
            numbers += [each["n"] for each in json.load(response)]
            offset = response.headers["Stream-Next-Offset"]
            if response.headers["Stream-Closed"] == "true":
                return numbers
