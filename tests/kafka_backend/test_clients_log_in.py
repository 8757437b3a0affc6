"""Six clients log in by each mechanism, in front of a Kafka that itself wants TLS and a login.

A login counts for three seconds, so clients renew it, or connect anew, under load; and the server's
certificate is replaced meanwhile. Each acknowledged record is there once (attack 12).
"""

from __future__ import annotations

import os
import signal
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import pytest

from pidlease.testing.loopback_ports import LOOPBACK
from tests.clients.child import Child, wait_for
from tests.clients.client import READER, Client, Consuming, Producing
from tests.clients.judge import check_exactly_once
from tests.clients.login import Login
from tests.secure.secured import PASSWORDS, write_acls, write_users
from tests.secure.secured_process import TlsServer
from tests.secure.tokens import AUDIENCE, ISSUER, Issuer, serving_keys
from tests.servers.authority import Authority, Certificate, needs_openssl
from tests.servers.kafka import KafkaServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

pytestmark = [needs_kafka, needs_openssl, pytest.mark.kafka, pytest.mark.timeout(900)]

_MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER")
_CLIENTS: Final = tuple(READER)
#: By each producer.
_COUNT: Final = 20_000
_PARTITIONS: Final = 2
_REAUTH_MS: Final = 3000
#: Producers are held so often and so long, one after the other: so each outlives its login.
_HOLDS: Final = 4
_HOLD_S: Final = 1.5
_UPSTREAM_PASSWORD: Final = "upstream-secret"


@dataclass
class _Running:
    folder: Path
    authority: Authority
    own: Certificate
    server: TlsServer
    token_file: Path

    def login(self, mechanism: str) -> Login:
        ca = self.authority.root.certificate
        if mechanism == "OAUTHBEARER":
            return Login(ca, mechanism, token_file=self.token_file)
        return Login(ca, mechanism, "alice", PASSWORDS["alice"])

    def logins(self, mechanism: str) -> float:
        """How often clients have logged in so far."""
        return self.server.metric(
            "pidlease_logins_total", listener="kafka", mechanism=mechanism, outcome="success"
        )

    def replace_certificate(self) -> None:
        new = self.authority.issue(f"server-{time.monotonic_ns()}", f"IP:{LOOPBACK}")
        self.own.key.write_bytes(new.key.read_bytes())
        self.own.certificate.write_bytes(new.certificate.read_bytes())
        before = self.server.log_text().count("certificates reloaded")
        os.kill(self.server.pid, signal.SIGHUP)
        until(lambda: self.server.log_text().count("certificates reloaded") > before, "the reload")


@contextmanager
def _secure_kafka(folder: Path, authority: Authority) -> Iterator[tuple[KafkaServer, str]]:
    """A Kafka with a listener that wants TLS and a password, and that listener's address."""
    own = authority.issue("broker", f"IP:{LOOPBACK}")
    store = authority.folder / "broker-store.pem"
    store.write_text(own.key.read_text() + own.certificate.read_text())
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required"
        f' username="x" password="x" user_pidlease="{_UPSTREAM_PASSWORD}";'
    )
    settings = {
        "ssl.keystore.type": "PEM", "ssl.keystore.location": str(store),
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": jaas,
        "listener.name.secure.connections.max.reauth.ms": str(_REAUTH_MS),
    }  # fmt: skip
    listeners = {"SECURE": "SASL_SSL"}
    with KafkaServer(folder / "kafka", overrides=settings, listeners=listeners) as kafka:
        yield kafka, kafka.listeners["SECURE"]


def _server(
    folder: Path, authority: Authority, own: Certificate, settings: Mapping[str, str]
) -> TlsServer:
    data = folder / "data"
    write_users(data, *PASSWORDS)
    write_acls(data)
    common = {
        "ssl_certificate": str(own.certificate), "ssl_key": str(own.key),
        "ssl_client_ca": str(authority.root.certificate), "super_users": "User:alice;User:root",
        "ssl_principal_mapping_rules": "RULE:^CN=([a-z]+)$/$1/", "acls": "file",
        "http_security_protocol": "SASL_SSL", "audit_log": str(folder / "audit"),
        "log_level": "info",
    }  # fmt: skip
    server = TlsServer(folder, data_dir=data, settings={**common, **settings})
    server.client = authority.issue("of-root", subject="root")
    return server


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Running]:
    folder = tmp_path_factory.mktemp("six-log-in")
    authority, issuer = Authority(folder), Issuer()
    token_file = folder / "token"
    token_file.write_text(issuer.token())
    own = authority.issue("server", f"IP:{LOOPBACK}")
    with ExitStack() as stack:
        keys = stack.enter_context(serving_keys(issuer))
        _, upstream = stack.enter_context(_secure_kafka(folder, authority))
        server = _server(folder, authority, own, {
            "log": "kafka", "upstream": upstream, "upstream_tls": "true",
            "upstream_ca": str(authority.root.certificate), "upstream_sasl": "PLAIN",
            "upstream_username": "pidlease", "upstream_password": _UPSTREAM_PASSWORD,
            "kafka_security_protocol": "SASL_SSL", "ssl_client_auth": "requested",
            "sasl_enabled_mechanisms": ",".join(_MECHANISMS),
            "sasl_oauthbearer_jwks_endpoint_url": keys,
            "sasl_oauthbearer_expected_audience": AUDIENCE,
            "sasl_oauthbearer_expected_issuer": ISSUER,
            "connections_max_reauth_ms": str(_REAUTH_MS),
        })  # fmt: skip
        stack.callback(server.kill9)
        server.start()
        yield _Running(folder, authority, own, server, token_file)
        assert server.stop() == 0
        text = server.log_text() + (folder / "audit").read_text()
        for secret in (*PASSWORDS.values(), _UPSTREAM_PASSWORD, token_file.read_text()):
            assert secret not in text


@pytest.fixture(scope="module")
def with_certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Running]:
    """A server with the embedded log, at which a certificate is the login."""
    folder = tmp_path_factory.mktemp("six-certificates")
    authority = Authority(folder)
    own = authority.issue("server", f"IP:{LOOPBACK}")
    server = _server(folder, authority, own, {
        "kafka_security_protocol": "SSL", "ssl_client_auth": "required", "fsync": "never",
    })  # fmt: skip
    with server:
        yield _Running(folder, authority, own, server, folder / "no-token")
        assert server.stop() == 0


def _topic(running: _Running, name: str) -> str:
    """A topic, made over HTTP: so no library has to."""
    context = ssl.create_default_context(cafile=str(running.authority.root.certificate))
    context.load_cert_chain(*running.server.client)
    with httpx.Client(
        base_url=f"https://{running.server.http_address}", verify=context, timeout=WAIT_S,
        auth=("root", PASSWORDS["root"]),
    ) as client:  # fmt: skip
        made = client.post("/v1/topics", json={"name": name, "partitions": _PARTITIONS})
        assert made.status_code == 201, made.text
    return name


@pytest.mark.parametrize("client", _CLIENTS, ids=str)
def test_each_mechanism_under_load(running: _Running, client: Client) -> None:
    if (missing := client.missing()) is not None:
        pytest.skip(missing)
    topic = _topic(running, f"by-{client.name}")
    folder, server = running.folder / client.name, running.server
    with ExitStack() as stack:
        children = []
        for stream, mechanism in enumerate(_MECHANISMS):
            login = running.login(mechanism)
            what = Producing(server.bootstrap, topic, "none", stream, _COUNT, login)
            call = client.producer(what, folder)
            child = Child.start(f"producer-{mechanism}", call.command, folder, call.env)
            children.append(stack.enter_context(child))
        before: dict[str, float] = {}
        for number in range(_HOLDS):
            _hold(children, number, _COUNT // _HOLDS)
            if number == 0:
                before = {each: running.logins(each) for each in _MECHANISMS}
                running.replace_certificate()
            time.sleep(_HOLD_S)  # the time of a login passes, and nothing else
            for each in children:
                each.process.send_signal(signal.SIGCONT)
        lines = [child.finish(WAIT_S) for child in children]
    again = {each: running.logins(each) for each in _MECHANISMS}
    assert all(again[each] > before[each] for each in _MECHANISMS), (before, again)
    acked = {
        stream: [told for line in printed if (told := client.acked(line))]
        for stream, printed in enumerate(lines)
    }
    consuming = Consuming(
        server.bootstrap, topic, f"group-{client.name}", _COUNT * len(_MECHANISMS),
        login=running.login("SCRAM-SHA-512"),
    )  # fmt: skip
    call = client.consumer(consuming, folder)
    with Child.start("consumer", call.command, folder, call.env) as child:
        read = [found for line in child.finish(WAIT_S) if (found := client.read(line))]
    check_exactly_once(acked, read, _COUNT)


def _hold(children: list[Child], number: int, part: int) -> None:
    """Stop each producer that has written a part more than when it was held last."""
    waiting = list(children)

    def held() -> bool:
        for each in [each for each in waiting if each.line_count() > 1 + number * part]:
            assert each.running or number, "it has ended before it was held once"
            each.process.send_signal(signal.SIGSTOP)
            waiting.remove(each)
        return not waiting

    wait_for(held, "each producer to write", WAIT_S, children)


@pytest.mark.parametrize("client", _CLIENTS, ids=str)
def test_a_certificate_is_a_login(with_certificates: _Running, client: Client) -> None:
    if (missing := client.missing()) is not None:
        pytest.skip(missing)
    running, count = with_certificates, 1000
    topic, folder = _topic(running, f"by-{client.name}"), running.folder / client.name
    own = running.authority.issue(f"of-{client.name}", subject="alice")
    login = Login(running.authority.root.certificate, certificate=own.certificate, key=own.key)
    produce = client.producer(
        Producing(running.server.bootstrap, topic, "none", 0, count, login), folder
    )
    with Child.start("producer", produce.command, folder, produce.env) as child:
        acked = [told for line in child.finish(WAIT_S) if (told := client.acked(line))]
    consume = client.consumer(
        Consuming(running.server.bootstrap, topic, "group", count, login=login), folder
    )
    with Child.start("consumer", consume.command, folder, consume.env) as child:
        read = [found for line in child.finish(WAIT_S) if (found := client.read(line))]
    check_exactly_once({0: acked}, read, count)
    assert running.logins("TLS") >= 2
