"""Metrics and health on an address of their own, in the clear and with logins."""

import ssl
from pathlib import Path

import httpx
import pytest

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from proxy.security.acls import Operation, ResourceKind
from tests.secure.secured import allow, write_acls
from tests.secure.secured_process import SECRETS, Running, started
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S, until

_HANG_S = WAIT_S


def _get(address: str, path: str) -> httpx.Response:
    return httpx.get(f"http://{address}{path}", timeout=_HANG_S)


def test_metrics_leave_the_listener_of_clients(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    own = f"{LOOPBACK}:{port}"
    with PidleaseServer(tmp_path, settings={"metrics_listen": own}) as server:
        found = _get(own, "/metrics")
        assert found.status_code == 200
        assert found.headers["content-type"].startswith("text/plain")
        assert "pidlease_ready 1.0" in found.text
        for path in ("/healthz", "/readyz"):
            assert _get(own, path).status_code == 200
            assert httpx.head(f"http://{own}{path}", timeout=_HANG_S).status_code == 200
            assert _get(server.http_address, path).status_code == 200
        assert _get(server.http_address, "/metrics").status_code == 404
        assert "/metrics" not in _get(server.http_address, "/openapi.json").json()["paths"]
        # Nothing else is served there.
        for path in ("/v1/status", "/v1/topics", "/", "/docs", "/openapi.json", "/v1/stream/s"):
            assert _get(own, path).status_code == 404, path
        assert f"metrics={own}" in server.log_text()


def test_an_address_in_use_ends_the_start(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    own = f"{LOOPBACK}:{port}"
    with PidleaseServer(tmp_path / "first", settings={"metrics_listen": own}):
        second = PidleaseServer(tmp_path / "second", settings={"metrics_listen": own})
        with pytest.raises(Exception, match="--metrics-listen"):
            second.start()


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_SSL"])
def test_beside_secured_listeners(tmp_path: Path, protocol: str) -> None:
    """Without TLS, everything there is for whoever reaches it; with a login, it needs the right."""
    (port,) = free_ports(1)
    own = f"{LOOPBACK}:{port}"
    settings = {"metrics_listen": own, "metrics_security_protocol": protocol}
    with started(tmp_path / "server", "t", settings=settings) as running:
        with running.http("root") as root:
            assert root.get("/metrics").status_code == 404
            assert root.get("/v1/status").status_code == 200
        if protocol == "PLAINTEXT":
            assert "pidlease_ready 1.0" in _get(own, "/metrics").text
            assert _get(own, "/readyz").json() == {"status": "ready"}
            assert _get(own, "/v1/status").status_code == 404
            return
        with pytest.raises(httpx.TransportError):
            _get(own, "/metrics")
        assert _own(running, own, None, "/metrics").status_code == 401
        assert _own(running, own, None, "/healthz").status_code == 200
        assert _own(running, own, "root", "/metrics").status_code == 200
        assert _own(running, own, "root", "/v1/status").status_code == 404
        assert _own(running, own, "alice", "/metrics").status_code == 403
        write_acls(
            running.data,
            allow("alice", Operation.DESCRIBE, ResourceKind.CLUSTER, "kafka-cluster"),
        )
        until(
            lambda: _own(running, own, "alice", "/metrics").status_code == 200,
            "the new right to count",
        )


def _own(running: Running, address: str, user: str | None, path: str) -> httpx.Response:
    context = ssl.create_default_context(cafile=str(running.authority.root.certificate))
    auth = (user, SECRETS[user]) if user else None
    with httpx.Client(verify=context, timeout=_HANG_S, auth=auth) as client:
        return client.get(f"https://{address}{path}")
