"""TLS and SASL towards Kafka: let in, and refused with a reason."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from pidlease.testing.loopback_ports import LOOPBACK
from tests.kafka_backend.test_clients import new_topic, read, write
from tests.servers.authority import Authority, needs_openssl
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S

pytestmark = [needs_kafka, needs_openssl, pytest.mark.kafka]

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_PASSWORD = "it's a=b,c"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A Kafka that asks who is there, on listeners of its own."""
    own = authority.issue("broker", f"IP:{LOOPBACK}")
    store = authority.folder / "broker-store.pem"
    store.write_text(own.key.read_text() + own.certificate.read_text())
    users = f'{_PLAIN} username="x" password="x" user_known="{_PASSWORD}";'
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.root.certificate),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.plain.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.plain.plain.sasl.jaas.config": users,
        "listener.name.scram.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.scram.scram-sha-256.sasl.jaas.config": _SCRAM,
        "listener.name.scram.scram-sha-512.sasl.jaas.config": _SCRAM,
    }
    listeners = {"TLS": "SSL", "MUTUAL": "SSL", "PLAIN": "SASL_SSL", "SCRAM": "SASL_PLAINTEXT"}
    folder = tmp_path_factory.mktemp("secure-kafka")
    with KafkaServer(folder, overrides=settings, listeners=listeners) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        # Mechanism after mechanism: Kafka takes one change of a user at a time.
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            information: Any = ScramCredentialInfo(mechanism, 4096)
            change = UserScramCredentialUpsertion("known", information, _PASSWORD.encode())
            for done in admin.alter_user_scram_credentials([change]).values():
                done.result(WAIT_S)
        yield kafka


def in_front(secure: KafkaServer, folder: Path, listener: str, **settings: str) -> PidleaseServer:
    upstream = {f"upstream_{name}": value for name, value in settings.items()}
    return PidleaseServer(
        folder, settings={"log": "kafka", "upstream": secure.listeners[listener], **upstream}
    )


KNOWN = {"username": "known", "password": _PASSWORD}


@pytest.mark.parametrize(
    ("listener", "sasl", "tls"),
    [("TLS", "none", True), ("MUTUAL", "none", True), ("PLAIN", "PLAIN", True),
     ("SCRAM", "SCRAM-SHA-256", False), ("SCRAM", "SCRAM-SHA-512", False)],
)  # fmt: skip
def test_let_in(
    secure: KafkaServer, authority: Authority, tmp_path: Path, listener: str, sasl: str, *,
    tls: bool,
) -> None:  # fmt: skip
    settings = {"sasl": sasl, **(KNOWN if sasl != "none" else {})}
    if tls:
        settings |= {"tls": "true", "ca": str(authority.root.certificate)}
    if listener == "MUTUAL":
        ours = authority.issue("us")
        settings |= {"certificate": str(ours.certificate), "key": str(ours.key)}
    with in_front(secure, tmp_path, listener, **settings) as server:
        topic = new_topic(server)
        write(server, topic, 100)
        assert len(read(server.bootstrap, topic, 100)) == 100
        assert server.stop() == 0
        assert _PASSWORD not in server.log_text()


@pytest.mark.parametrize(
    ("listener", "settings", "why"),
    [
        ("PLAIN", {"tls": "true", "sasl": "PLAIN", "username": "known", "password": "wrong"},
         "refuses user 'known'"),
        ("SCRAM", {"sasl": "SCRAM-SHA-512", "username": "nobody", "password": "x"},
         "refuses user 'nobody'"),
        ("SCRAM", {"sasl": "PLAIN", **KNOWN}, "does not know SASL mechanism PLAIN, but SCRAM"),
        ("TLS", {}, "does it want TLS"),
        ("MUTUAL", {"tls": "true"}, "Kafka at"),
    ],
)  # fmt: skip
def test_refused(
    secure: KafkaServer, authority: Authority, tmp_path: Path, listener: str,
    settings: dict[str, str], why: str,
) -> None:  # fmt: skip
    if "tls" in settings:
        settings = {**settings, "ca": str(authority.root.certificate)}
    server = in_front(secure, tmp_path, listener, **settings)
    server.launch()
    try:
        assert server.wait_exit() == 2
        assert why in server.log_text()
    finally:
        server.kill9()


def test_who_does_not_say_who_it_is(secure: KafkaServer, tmp_path: Path) -> None:
    """Kafka ends the connection without a word, as it does when it stops: it is waited for."""
    server = in_front(secure, tmp_path, "SCRAM")
    server.launch()
    try:
        server.process.wait_until(lambda: "does it want SASL?" in server.log_text(), 30)
    finally:
        server.kill9()


def test_a_certificate_that_is_not_trusted(secure: KafkaServer, tmp_path: Path) -> None:
    server = in_front(secure, tmp_path, "TLS", tls="true")
    server.launch()
    try:
        assert server.wait_exit() == 2
        assert "certificate verify failed" in server.log_text()
    finally:
        server.kill9()


def test_certificates_that_cannot_be_read(secure: KafkaServer, tmp_path: Path) -> None:
    server = in_front(secure, tmp_path, "TLS", tls="true", ca="/nowhere.pem")
    server.launch()
    try:
        assert server.wait_exit() == 2
        assert "/nowhere.pem" in server.log_text()
    finally:
        server.kill9()
