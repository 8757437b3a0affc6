"""The handling of the proxy's process, tried on a stub that speaks just enough HTTP."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.servers.pidlease import PidleaseServer
from tests.servers.process import ServerError

_STUB = """
import http.server, os, signal, sys
if os.environ.get("PIDLEASE_FAULTS"):
    sys.exit("died at the fault point")
METRICS = b'# TYPE a counter\\na_total{door="http",topic="t"} 2\\na_total{door="kafka"} 3\\nb 1\\n'
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(METRICS if self.path == "/metrics" else b"")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class _Stub(PidleaseServer):
    def command(self) -> list[str]:
        return [sys.executable, "-c", _STUB, str(self.http_port)]


def test_it_keeps_its_ports_over_a_crash_and_a_clean_stop(tmp_path: Path) -> None:
    with _Stub(tmp_path) as server:
        ports, pid = (server.kafka_port, server.http_port), server.pid

        server.kill9()
        assert not server.alive
        assert server.wait_exit() == -signal.SIGKILL
        server.restart()

        assert (server.kafka_port, server.http_port) == ports
        assert server.pid != pid
        assert server.get("/readyz")[0] == 200
        assert server.stop() == 7
    assert not server.alive


def test_metrics_by_sample_and_as_sums(tmp_path: Path) -> None:
    with _Stub(tmp_path) as server:
        assert server.metrics() == {
            'a_total{door="http",topic="t"}': 2,
            'a_total{door="kafka"}': 3,
            "b": 1,
        }
        assert server.metric("a_total") == 5
        assert server.metric("a_total", door="http") == 2
        assert server.metric("nothing") == 0


def test_a_server_that_dies_at_the_start_says_why_at_once(tmp_path: Path) -> None:
    server = _Stub(tmp_path, settings={"faults": "anywhere"})
    with pytest.raises(ServerError, match=r"ended with 1.*\n.*died at the fault point"):
        server.start()
    assert "died at the fault point" in server.log_text()

    server.restart(settings={})
    assert server.alive
    server.stop()


def test_settings_of_the_developers_shell_do_not_leak_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIDLEASE_FAULTS", "anywhere")
    with _Stub(tmp_path) as server:
        assert server.alive
