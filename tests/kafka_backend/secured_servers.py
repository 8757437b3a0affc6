"""Two active servers with TLS and logins, their clients, and those that try to pose as a server."""

import base64
import http.client
import ssl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx

from pidlease.http_api.ping_messages import PING_PATH
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.http.forwarding_headers import CLIENT, FORWARDED
from tests.client.loads import LeasedLoad
from tests.crash.clients import LibrdkafkaLoad, Load
from tests.http_api.appending import path_of
from tests.kafka_backend.loads import TIMEOUT_S, HttpLoad
from tests.secure.secured import PASSWORDS, write_users
from tests.secure.secured_process import TlsServer
from tests.servers.authority import Authority, Certificate
from tests.servers.kafka import KafkaServer
from tests.servers.waiting import WAIT_S

_HERE: Final = f"IP:{LOOPBACK}"
_USER: Final = "alice"


class SecuredPair:
    """Two servers, `a` and `b`, with a certificate each."""

    def __init__(self, folder: Path, kafka: KafkaServer) -> None:
        self.authority = Authority(folder)
        self.ca = str(self.authority.root.certificate)
        self._clients = {
            each: self.authority.issue(f"of-{each}", subject=each) for each in (_USER, "root")
        }
        self.a, self.b = (self._server(folder / name, name, kafka) for name in "ab")

    @property
    def servers(self) -> tuple[TlsServer, TlsServer]:
        return self.a, self.b

    def _server(self, folder: Path, name: str, kafka: KafkaServer) -> TlsServer:
        folder.mkdir()
        own = self.authority.issue(name, _HERE)
        write_users(folder / "data", *PASSWORDS)
        server = TlsServer(folder, data_dir=folder / "data", settings={
            "log": "kafka", "upstream": kafka.bootstrap, "upstream_metadata_seconds": "0.5",
            "coordination": "kafka", "shared": "true", "kafka_security_protocol": "SASL_SSL",
            "http_security_protocol": "SASL_SSL", "ssl_certificate": str(own.certificate),
            "ssl_key": str(own.key), "ssl_client_ca": self.ca, "ssl_client_auth": "requested",
            "ssl_principal_mapping_rules": "RULE:^CN=([a-z]+)$/$1/",
            "server_principals": "User:a;User:b", "acls": "kafka", "super_users": "User:root",
            "snapshot_batches": "100", "log_level": "info",
        })  # fmt: skip
        server.client = self._clients["root"]
        return server

    def new_certificate(self, server: TlsServer, name: str) -> None:
        """Replace the certificate of a server; it is reloaded by the server itself."""
        made = self.authority.issue(f"new-{name}", _HERE, subject=name)
        for source, setting in zip(made, ("ssl_certificate", "ssl_key"), strict=True):
            source.replace(server.settings[setting])

    def context(self, certificate: Certificate | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context

    def http(self, server: TlsServer, user: str = "") -> httpx.Client:
        return httpx.Client(
            base_url=f"https://{server.http_address}", verify=self.context(), timeout=WAIT_S,
            auth=(user, PASSWORDS[user]) if user else None,
        )  # fmt: skip

    def loads(self, topic: str, partitions: int, random: Random) -> list[Load]:
        """By Kafka's protocol, under a leased name, and by HTTP at a random server."""
        bootstrap = ",".join(each.bootstrap for each in self.servers)
        by_kafka = LibrdkafkaLoad(bootstrap, topic, partitions, random, settings={
            "security.protocol": "SASL_SSL", "ssl.ca.location": self.ca,
            "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": _USER,
            "sasl.password": PASSWORDS[_USER],
        })  # fmt: skip
        named = LeasedLoad(
            self.a, topic, partitions, Random(random.random()), "named", name="named",
            bootstrap_servers=bootstrap, leases=f"https://{self.a.http_address}",
            security_protocol="SASL_SSL", ssl_cafile=self.ca, sasl_mechanism="SCRAM-SHA-256",
            sasl_plain_username=_USER, sasl_plain_password=PASSWORDS[_USER],
        )  # fmt: skip
        by_http = _AnyServerLoad(self, topic, partitions, Random(random.random()))
        return [by_kafka, named, by_http]

    def intruders(self) -> Iterator[tuple[str, ssl.SSLContext, httpx.BasicAuth | None]]:
        """Everyone but a server: with and without a login, and with certificates of others."""
        yield "without a login", self.context(), None
        for user in (_USER, "root"):
            yield f"{user} by password", self.context(), httpx.BasicAuth(user, PASSWORDS[user])
            yield f"{user} by certificate", self.context(self._clients[user]), None

    def check_intruders(self, topic: str, other: Certificate) -> int:
        """Try each route between servers as each intruder; how many requests were refused.

        Parameters:
            other: a certificate with a server's name, of an authority that no server trusts.
        """
        tried = 0
        marks = {FORWARDED: "1"}
        forged = {**marks, CLIENT: "principal=User%3Aroot&host=127.0.0.1"}
        for server in self.servers:
            url = f"https://{server.http_address}"
            for who, context, auth in self.intruders():
                with httpx.Client(verify=context, auth=auth, timeout=WAIT_S) as client:
                    for method, path, body in _between_servers(topic):
                        for headers in (marks, forged, {CLIENT: forged[CLIENT]}):
                            found = client.request(method, url + path, headers=headers, json=body)
                            assert found.status_code == 401, (who, method, path, found.text)
                            assert "only an active server may send this" in found.text
                            tried += 1
            with httpx.Client(verify=self.context(other), timeout=WAIT_S) as client:
                for method, path, body in _between_servers(topic):
                    try:
                        found = client.request(method, url + path, headers=marks, json=body)
                    except httpx.TransportError:
                        tried += 1
                    else:
                        raise AssertionError(found)
            with httpx.Client(timeout=WAIT_S) as client:
                try:
                    found = client.get(f"http://{server.http_address}{PING_PATH}", headers=marks)
                except httpx.TransportError:
                    tried += 1
                else:
                    raise AssertionError(found)
        return tried


def _between_servers(topic: str) -> Sequence[tuple[str, str, Any]]:
    records = {"records": [{"value": "intruder"}]}
    return (
        ("GET", f"{PING_PATH}?to=1&version=1", None),
        ("POST", path_of(topic, 0), records),
        ("POST", f"/v1/topics/{topic}/records", records),
        ("GET", path_of(topic, 0), None),
        ("POST", "/v1/leases", {"topic": topic, "partition": 0, "name": "named"}),
        ("PATCH", "/v1/servers/1", {"draining": True}),
    )


class _AnyServerLoad(HttpLoad):
    """Each connection is to another server, by chance, and serves a few requests."""

    def __init__(self, pair: SecuredPair, topic: str, partitions: int, random: Random) -> None:
        super().__init__(pair.a, topic, partitions, random)
        self._pair = pair
        self._context = pair.context()
        login = base64.b64encode(f"{_USER}:{PASSWORDS[_USER]}".encode()).decode()
        self.login = {"Authorization": f"Basic {login}"}

    def connected(self) -> http.client.HTTPConnection:
        """A new connection to a server chosen by chance."""
        server = self._random.choice(self._pair.servers)
        return http.client.HTTPSConnection(
            LOOPBACK, server.http_port, timeout=TIMEOUT_S, context=self._context
        )

    def _append(self, partition: int, seq: int, value: bytes) -> bool:
        if self._connection is not None and self._random.random() < 0.2:
            self._connection.close()
            self._connection = None
        return super()._append(partition, seq, value)


@contextmanager
def secured_pair(folder: Path, kafka: KafkaServer) -> Iterator[SecuredPair]:
    """Two running servers; they are killed at the end of the block if they still run."""
    with ExitStack() as stack:
        pair = SecuredPair(folder, kafka)
        for each in pair.servers:
            stack.callback(each.kill9)
            each.start()
        yield pair
