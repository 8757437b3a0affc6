"""A full disk: a line at once, then counts, and all of them by the stop."""

import json
from pathlib import Path
from typing import Any

import httpx

from tests.http_api.appending import path_of
from tests.http_api.lives import make_topic
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

APPENDS = 300


def lines_of(server: PidleaseServer, event: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in server.log_text().splitlines() if line.startswith("{")]
    return [each for each in found if each["event"] == event]


def test_a_full_disk_does_not_fill_the_log(tmp_path: Path) -> None:
    settings = {"faults": "fail-from before write *t-*/*.log 1", "log_format": "json"}
    with PidleaseServer(tmp_path, settings=settings) as server:
        make_topic(server, 1)
        with httpx.Client(base_url=server.http_url, timeout=WAIT_S) as client:
            for _ in range(APPENDS):
                answer = client.post(path_of(), json={"records": [{"value": "a"}]})
                assert answer.status_code == 503, answer.text
        assert server.log_text().count("fault: fail-from") == APPENDS, "the fault did not fire"
        assert "repeated" not in lines_of(server, "append failed")[0]
        server.stop()
        lines = lines_of(server, "append failed")
        assert len(lines) < APPENDS / 10
        assert sum(each.get("repeated", 1) for each in lines) == APPENDS
        # The system's words, with the path, are in the log only.
        assert str(server.data_dir) in lines[0]["cause"]
