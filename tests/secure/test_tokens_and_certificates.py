"""All our clients at a server that wants a certificate of each client, and a token."""

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pidlease.client import BlockingProducer, LeasedProducer, LeaseRefusedError, ProducerError
from pidlease.client.errors import LeaseUnavailableError
from pidlease.client.lease_client import LeaseClient
from pidlease.client.settings import settings_of
from pidlease.copier import Copier, CopySettings
from tests.secure.secured_process import HANG_S, SECRETS, Running, started
from tests.secure.tokens import AUDIENCE, ISSUER, Issuer, serving_keys
from tests.servers.authority import needs_openssl

pytestmark = needs_openssl
_OPTIONS: Final = ("security_protocol", "ssl_cafile", "ssl_certfile", "ssl_keyfile",
                   "sasl_mechanism", "sasl_oauth_token_provider")  # fmt: skip


class _Token:
    """A provider as aiokafka's users write it; the user root may do everything."""

    def __init__(self, *tokens: str) -> None:
        self._tokens = tokens
        self.asked = 0

    async def token(self) -> str:
        self.asked += 1
        return self._tokens[min(self.asked, len(self._tokens)) - 1]


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="module")
def keys(issuer: Issuer) -> Iterator[str]:
    """The URL of the issuer's keys."""
    with serving_keys(issuer) as url:
        yield url


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, keys: str) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("tokens") / "server"
    settings = {
        "sasl_enabled_mechanisms": "OAUTHBEARER,SCRAM-SHA-512", "ssl_client_auth": "required",
        "ssl_client_ca": str(folder / "root.pem"), "sasl_oauthbearer_jwks_endpoint_url": keys,
        "sasl_oauthbearer_expected_audience": AUDIENCE, "connections_max_reauth_ms": "0",
        "sasl_oauthbearer_expected_issuer": ISSUER,
    }  # fmt: skip
    with started(folder, "t", settings=settings) as made:
        yield made


def _options(running: Running, provider: object, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap_servers": running.server.bootstrap,
        "leases": f"https://{running.server.http_address}", "security_protocol": "SASL_SSL",
        "ssl_cafile": running.authority.root.certificate,
        "ssl_certfile": running.client.certificate, "ssl_keyfile": running.client.key,
        "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": provider, **more,
    }  # fmt: skip


def _values(running: Running, topic: str) -> list[str]:
    with running.http("root") as root:
        path = f"/v1/topics/{topic}/partitions/0/records?offset=0"
        return [each["value"] for each in root.get(path).json()["records"]]


async def test_producers(running: Running, issuer: Issuer) -> None:
    provider = _Token(issuer.token())
    async with LeasedProducer(**_options(running, provider)) as producer:
        await producer.send_and_wait("t", b"leased")

    def block() -> None:
        with BlockingProducer(**_options(running, provider)) as producer:
            producer.send_and_wait("t", b"blocking")

    await asyncio.to_thread(block)
    assert _values(running, "t")[:2] == ["leased", "blocking"]
    assert provider.asked > 1, "each login asks for a token"


async def test_a_copy(running: Running, issuer: Issuer) -> None:
    provider = _Token(issuer.token(sub="root"))
    options = _options(running, provider)
    async with LeasedProducer(**options) as producer:
        await producer.send_and_wait("t", b"to copy")
    security = {name: options[name] for name in _OPTIONS}
    settings = CopySettings(
        source=running.server.bootstrap, destination=running.server.bootstrap,
        leases=options["leases"], group="copies", topics=["t"], rename="{topic}.copy", once=True,
        source_security=security, **security,
    )  # fmt: skip
    await asyncio.wait_for(Copier(settings).run(), HANG_S)
    assert _values(running, "t.copy") == _values(running, "t")


async def test_the_spark_sink_connects_and_leases(
    running: Running, issuer: Issuer, tmp_path: Path
) -> None:
    """As its driver does; a token comes from a file."""
    pytest.importorskip("pyspark")
    from pidlease.spark.sink.run_preparation import connect
    from pidlease.spark.sink.settings import read_settings

    token = _private(tmp_path / "token", issuer.token(sub="root"))
    given = {f"kafka.{name}": value for name, value in _properties(running, token).items()}
    settings = read_settings({
        **given, "kafka.bootstrap.servers": running.server.bootstrap, "topic": "t",
        "leases": f"https://{running.server.http_address}", "checkpointLocation": str(tmp_path),
    })  # fmt: skip
    async with connect(settings) as preparation:
        assert "t" in await preparation._cluster.topics()
        assert (await preparation._leases.lease_pid("t", 0)).pid > 0


# ---------------------------------------------------------------------- the command line


def _private(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path


def _properties(running: Running, token: Path) -> dict[str, str]:
    own = running.folder / "client-store.pem"
    _private(own, running.client.key.read_text() + running.client.certificate.read_text())
    return {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
        "ssl.ca.location": str(running.authority.root.certificate),
        "ssl.keystore.location": str(own),
    }  # fmt: skip


def _run(running: Running, *command: str, stdin: str = "", **more: str) -> tuple[int, str, str]:
    inherited = {name: text for name, text in os.environ.items() if "PIDLEASE_" not in name}
    addresses = {"PIDLEASE_URL": f"https://{running.server.http_address}",
                 "PIDLEASE_SERVERS": running.server.bootstrap}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "proxy", *command], input=stdin, capture_output=True, text=True,
        env={**inherited, **addresses, **more}, timeout=HANG_S, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_commands(running: Running, issuer: Issuer, tmp_path: Path) -> None:
    token = _private(tmp_path / "token", issuer.token(sub="root"))
    lines = [f"{name}={value}" for name, value in _properties(running, token).items()]
    config = _private(tmp_path / "client.properties", "\n".join(lines))
    for command, out in (
        (("topics", "create", "by-cli"), "created by-cli"),
        (("produce", "by-cli"), "1 records stored"),
        (("consume", "by-cli", "--from-beginning", "--exit-at-end"), "line"),
        (("status",), "ready"),
        (("topics", "delete", "by-cli"), "deleted by-cli"),
    ):
        code, found, errors = _run(
            running, *command, "--command-config", str(config), stdin="line\n"
        )
        assert (code, out in found + errors) == (0, True), (command, found, errors)


def test_a_token_of_the_environment(running: Running, issuer: Issuer, tmp_path: Path) -> None:
    """TLS is openssl's and has no certificate of the client: the server says that it wants one."""
    login = {"PIDLEASE_SECURITY_PROTOCOL": "SASL_SSL", "PIDLEASE_SASL_MECHANISM": "OAUTHBEARER",
             "SSL_CERT_FILE": str(running.authority.root.certificate)}  # fmt: skip
    code, _, errors = _run(running, "topics", "delete", "absent", **login)
    assert (code, "PIDLEASE_TOKEN_FILE or PIDLEASE_TOKEN is needed" in errors) == (2, True), errors
    token = issuer.token(sub="root")
    file = _private(tmp_path / "token", token)
    for given in ({"PIDLEASE_TOKEN": token}, {"PIDLEASE_TOKEN_FILE": str(file)}):
        code, _, errors = _run(running, "topics", "delete", "absent", **login, **given)
        assert (code, "certificate" in errors.lower()) == (2, True), errors
        assert token not in errors


# ---------------------------------------------------------------------- what does not fit


@pytest.mark.parametrize(("wrong", "text"), [
    ({"sasl_oauth_token_provider": _Token("Planted-token")}, "refuses the token"),
    ({"ssl_certfile": None, "ssl_keyfile": None, "leases": "http://127.0.0.1:1"}, "certificate"),
    ({"ssl_certfile": None, "ssl_keyfile": None}, "certificate"),
])  # fmt: skip
async def test_a_wrong_start_fails_at_once(
    running: Running, issuer: Issuer, wrong: dict[str, Any], text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    options = _options(running, _Token(issuer.token()), request_timeout_ms=HANG_S * 10_000) | wrong
    producer = LeasedProducer(**options)
    with pytest.raises((ProducerError, LeaseRefusedError), match=f"(?i){text}") as caught:
        await asyncio.wait_for(producer.start(), HANG_S)
    shown = f"{caught.value}{caplog.text}{producer!r}{settings_of(options)}"  # type: ignore[arg-type]
    for secret in ("Planted-token", *SECRETS.values()):
        assert secret not in shown


async def test_a_lease_without_a_certificate_is_an_error_of_its_own(running: Running) -> None:
    """By TLS 1.3 the alert comes after the handshake; httpx does not make it one of its errors."""
    url = f"https://{running.server.http_address}"
    trusted = ssl.create_default_context(cafile=running.authority.root.certificate)
    async with LeaseClient(url, ssl_context=trusted) as leases:
        with pytest.raises(LeaseUnavailableError, match="does it want a certificate"):
            await leases.lease_pid("t", 0)


def test_a_key_with_a_password_is_refused(running: Running, tmp_path: Path) -> None:
    """OpenSSL would ask for the password at the terminal, and hang elsewhere."""
    key = tmp_path / "locked.key"
    subprocess.run(["openssl", "ec", "-in", str(running.client.key), "-aes128", "-passout",
                    "pass:x", "-out", str(key)], check=True, capture_output=True)  # fmt: skip
    with pytest.raises(ValueError, match="the key has a password"):
        LeasedProducer(**_options(running, _Token("x"), ssl_keyfile=key))
