"""A server process with TLS, SASL and ACLs, and its clients' settings."""

import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
from aiokafka.helpers import create_ssl_context
from typing_extensions import override

from proxy.security.acls import Operation, ResourceKind
from tests.secure.secured import allow, write_acls
from tests.servers.authority import Authority, Certificate
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

_T, _G, _NAME = ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.TRANSACTIONAL_ID
HANG_S: Final = WAIT_S
SECRETS: Final = {"alice": "Al1ce-planted-secret", "root": "Root-planted-secret"}


class TlsServer(PidleaseServer):
    """A server whose HTTP listener has TLS."""

    client: Certificate

    @override
    def get(self, path: str) -> tuple[int, str]:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(self.client.certificate, self.client.key)
        with httpx.Client(verify=context, timeout=HANG_S) as client:
            try:
                response = client.get(f"https://{self.http_address}{path}")
            except httpx.TransportError as error:
                raise OSError(str(error)) from error
            return response.status_code, response.text


class Running:
    """A server with TLS, SASL and ACLs, and the certificates."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.authority = Authority(folder)
        self.certificate = self.authority.issue("server", "IP:127.0.0.1", "DNS:localhost")
        self.client = self.authority.issue("client")
        self.data = folder / "data"
        for user, password in SECRETS.items():
            self.users("add", user, password=password)
        write_acls(
            self.data, allow("alice", Operation.WRITE, _T, "t"),
            allow("alice", Operation.READ, _T, "t"), allow("alice", Operation.READ, _G, "g"),
            allow("alice", Operation.WRITE, _NAME, "alice-1"),
        )  # fmt: skip
        self.server = TlsServer(
            folder, data_dir=self.data,
            settings={
                "kafka_security_protocol": "SASL_SSL", "http_security_protocol": "SASL_SSL",
                "ssl_certificate": str(self.certificate.certificate),
                "ssl_key": str(self.certificate.key),
                "sasl_enabled_mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
                "acls": "file", "super_users": "User:root", "audit_log": str(folder / "audit"),
                "log_level": "debug", "fsync": "never", "connections_max_reauth_ms": "3000",
                **(settings or {}),
            },
        )  # fmt: skip
        self.server.client = self.client

    def users(self, *command: str, password: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-m", "proxy", "users", *command, "--data-dir", str(self.data)],
            input=f"{password}\n", capture_output=True, text=True, check=True, timeout=HANG_S,
        )  # fmt: skip
        return done.stdout + done.stderr

    def http(self, user: str = "") -> httpx.Client:
        context = create_ssl_context(cafile=str(self.authority.root.certificate))
        context.load_cert_chain(self.client.certificate, self.client.key)
        return httpx.Client(
            base_url=f"https://{self.server.http_address}", verify=context, timeout=HANG_S,
            auth=(user, SECRETS[user]) if user else None,
        )  # fmt: skip

    def librdkafka(self, user: str, mechanism: str, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.server.bootstrap, "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.root.certificate), "sasl.mechanism": mechanism,
            "sasl.username": user, "sasl.password": SECRETS.get(user, "wrong"), **more,
        }  # fmt: skip

    def aiokafka(self, user: str, mechanism: str, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.server.bootstrap, "security_protocol": "SASL_SSL",
            "ssl_context": create_ssl_context(cafile=str(self.authority.root.certificate)),
            "sasl_mechanism": mechanism, "sasl_plain_username": user,
            "sasl_plain_password": SECRETS.get(user, "wrong"), **more,
        }  # fmt: skip


_RunningT = TypeVar("_RunningT", bound=Running)


@contextmanager
def running(made: _RunningT, *topics: str) -> Iterator[_RunningT]:
    """Start a server with some topics; it is killed at the end of the block."""
    try:
        made.server.start()
        with made.http("root") as root:
            for topic in topics:
                assert root.post("/v1/topics", json={"name": topic}).status_code == 201
        yield made
    finally:
        made.server.kill9()


@contextmanager
def started(
    folder: Path, *topics: str, settings: Mapping[str, str] | None = None
) -> Iterator[Running]:
    """Start a server with some topics; it is killed at the end of the block."""
    with running(Running(folder, settings), *topics) as made:
        yield made
