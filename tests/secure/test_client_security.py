"""pidlease's own clients at a secured server: they log in, and wrong settings are named at once."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pidlease.client import BlockingProducer, LeasedProducer, LeaseRefusedError, ProducerError
from pidlease.client.settings import ProducerOptions
from pidlease.copier import Copier, CopyError, CopySettings
from pidlease.storage.files import RealFiles
from proxy.__main__ import cli
from proxy.security.acls import ACL_FILE, Operation, ResourceKind
from proxy.security.entry_file import EntryFile
from tests.secure.secured import allow
from tests.secure.secured_process import HANG_S, SECRETS, Running, started
from tests.servers.authority import needs_openssl
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import until

pytestmark = needs_openssl


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with started(tmp_path_factory.mktemp("own") / "server", "t", "copied") as made:
        yield made


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PidleaseServer]:
    """A server without TLS and logins."""
    with PidleaseServer(tmp_path_factory.mktemp("plain"), settings={"fsync": "never"}) as server:
        yield server


def _options(running: Running, user: str = "alice", **more: Any) -> ProducerOptions:
    options: dict[str, Any] = {
        "bootstrap_servers": running.server.bootstrap,
        "leases": f"https://{running.server.http_address}",
        "security_protocol": "SASL_SSL",
        "ssl_cafile": running.authority.root.certificate,
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": user,
        "sasl_plain_password": SECRETS.get(user, "wrong"),
        **more,
    }
    return options  # type: ignore[return-value]


def _values(running: Running, topic: str) -> list[str]:
    with running.http("root") as root:
        path = f"/v1/topics/{topic}/partitions/0/records?offset=0"
        return [each["value"] for each in root.get(path).json()["records"]]


# ---------------------------------------------------------------------- producers


async def test_no_right(running: Running) -> None:
    async with LeasedProducer(**_options(running)) as producer:
        with pytest.raises(ProducerError, match="AUTHORIZATION"):
            await producer.send("other", b"x")


async def test_no_login_for_leases(running: Running) -> None:
    """Over http no login is sent; and the port has TLS."""
    url = f"http://{running.server.http_address}"
    producer = LeasedProducer(**_options(running, leases=url))
    with pytest.raises(LeaseRefusedError, match="https://"):
        await producer.start()


async def test_a_mechanism_that_is_not_offered(running: Running) -> None:
    options = _options(running, sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=_Token())
    producer = LeasedProducer(**options)
    with pytest.raises(ProducerError, match="does not know SASL mechanism OAUTHBEARER, but SCRAM"):
        await asyncio.wait_for(producer.start(), HANG_S)


class _Token:
    async def token(self) -> str:
        return "Planted-token"


async def test_an_authority_that_is_not_trusted(running: Running) -> None:
    for options in (
        _options(running, ssl_cafile=running.certificate.certificate),
        _options(running, ssl_cafile=running.certificate.certificate, leases="http://127.0.0.1:1"),
    ):
        producer = LeasedProducer(**options)
        with pytest.raises(ProducerError, match="CERTIFICATE_VERIFY_FAILED"):
            await asyncio.wait_for(producer.start(), HANG_S)


async def test_tls_to_a_port_without(plain: PidleaseServer, running: Running) -> None:
    options = _options(running, bootstrap_servers=plain.bootstrap, leases="http://127.0.0.1:1")
    producer = LeasedProducer(**options)
    with pytest.raises(ProducerError, match="has no TLS"):
        await asyncio.wait_for(producer.start(), HANG_S)


@pytest.mark.parametrize(("wrong", "text"), [
    ({"ssl_cafile": "/absent/ca.pem"}, "/absent/ca.pem"),
    ({"ssl_keyfile": "/absent/key.pem"}, "ssl_keyfile goes with ssl_certfile"),
    ({"ssl_cafile": None}, "needs an ssl_context or ssl_cafile"),
    ({"sasl_mechanism": "OAUTHBEARER"}, "sasl_oauth_token_provider"),
    ({"sasl_plain_password": None}, "sasl_plain_username and sasl_plain_password"),
    ({"security_protocol": "TLS"}, "'TLS' is none of PLAINTEXT"),
])  # fmt: skip
def test_invalid_options(running: Running, wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as caught:
        LeasedProducer(**_options(running, **wrong))
    assert SECRETS["alice"] not in str(caught.value)


# ---------------------------------------------------------------------- the copier


def _copy(running: Running, plain: PidleaseServer, **more: Any) -> CopySettings:
    """A copy out of the secured server into itself, under another name."""
    login = _options(running, "root")
    security = {name: value for name, value in login.items() if name.startswith(("s", "ssl"))}
    return CopySettings(**{
        "source": running.server.bootstrap, "destination": running.server.bootstrap,
        "leases": login["leases"], "group": "copies", "topics": ["t"], "rename": "{topic}.copy",
        "once": True, "source_security": security, **security, **more,
    })  # fmt: skip


async def test_a_copy(running: Running, plain: PidleaseServer) -> None:
    async with LeasedProducer(**_options(running)) as producer:
        await producer.send_and_wait("t", b"to copy")
    await asyncio.wait_for(Copier(_copy(running, plain)).run(), HANG_S)
    assert _values(running, "t.copy") == _values(running, "t")


@pytest.mark.parametrize("side", ["source", "destination"])
async def test_a_copy_with_a_wrong_password(
    running: Running, plain: PidleaseServer, side: str
) -> None:
    settings = _copy(running, plain)
    wrong = {"sasl_plain_password": "Planted-wrong"}
    more = {"source_security": {**settings.source_security, **wrong}} if side == "source" else wrong
    settings = _copy(running, plain, give_up_ms=HANG_S * 10_000, group="refused", **more)
    assert "lanted" not in repr(settings)
    with pytest.raises(CopyError, match=f"the {side} cannot be reached: .* refuses user 'root'"):
        await asyncio.wait_for(Copier(settings).run(), HANG_S)


# ---------------------------------------------------------------------- the command line


def _config(running: Running, folder: Path, user: str = "root", **more: str) -> Path:
    """A file as Kafka's tools have it."""
    properties = {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512",
        "ssl.ca.location": str(running.authority.root.certificate), "sasl.username": user,
        "sasl.password": SECRETS[user], **more,
    }  # fmt: skip
    path = folder / "client.properties"
    lines = [f"{name}={value}" for name, value in properties.items() if value]
    path.write_text("\n".join(["# TLS and login", "client.id = me", *lines, ""]))
    return path


def _run(*command: str, stdin: str = "", **env: str) -> tuple[int, str]:
    """Run a command; return its exit code, and its output and errors in one line."""
    unset = {name: None for name in os.environ if name.startswith("PIDLEASE_")}
    done = CliRunner().invoke(
        cli, list(command), input=stdin, env={**unset, "COLUMNS": "300", **env}
    )
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output.replace("\n", " ")


def _addresses(running: Running) -> dict[str, str]:
    return {"PIDLEASE_URL": f"https://{running.server.http_address}",
            "PIDLEASE_SERVERS": running.server.bootstrap}  # fmt: skip


def test_commands(running: Running, tmp_path: Path) -> None:
    env = {**_addresses(running), "PIDLEASE_COMMAND_CONFIG": str(_config(running, tmp_path))}
    runs: tuple[tuple[tuple[str, ...], str], ...] = (
        (("topics", "create", "by-cli"), "created by-cli"),
        (("topics", "alter", "by-cli", "--partitions", "2"), "2 partitions"),
        (("topics", "list"), "by-cli"),
        (("topics", "describe", "by-cli"), "by-cli"),
        (("topics", "alter", "by-cli", "retention.ms=1000000"), "1000000"),
        (("produce", "by-cli", "--partition", "0"), "1 records stored"),
        (("consume", "by-cli", "--from-beginning", "--exit-at-end"), "over the command line"),
        (("status",), "ready"),
        (("top", "--once"), "by-cli"),
        (("topics", "delete", "by-cli"), "deleted by-cli"),
    )
    for command, text in runs:
        code, output = _run(*command, stdin="over the command line\n", **env)
        assert (code, text in output) == (0, True), (command, output)
    assert "shares no cluster" in _run("servers", **env)[1]


def test_the_login_in_the_environment(running: Running, tmp_path: Path) -> None:
    path = _config(running, tmp_path, **{"sasl.username": "", "sasl.password": ""})
    login = {"PIDLEASE_USER": "root", "PIDLEASE_PASSWORD": SECRETS["root"]}
    option = ("--command-config", str(path))
    for command in (("topics", "list"), ("consume", "t", "--from-beginning", "--exit-at-end")):
        assert _run(*command, *option, **_addresses(running), **login)[0] == 0
        assert "sasl.username" in _run(*command, *option, **_addresses(running))[1]


@pytest.mark.parametrize(("more", "text"), [
    ({"sasl.password": "Planted-wrong"}, "refuses user 'root'"),
    ({"ssl.ca.location": "/absent/ca.pem"}, "/absent/ca.pem is not there"),
    ({"sasl.mechanism": "GSSAPI"}, "sasl.mechanism 'GSSAPI' is none of"),
    ({"ssl.key.location": "/key"}, "put the key into the file of ssl.keystore.location"),
    ({"ssl.cas": "/key"}, "ssl.cas is not known"),
    ({"security.protocol": "TLS"}, "security.protocol 'TLS' is none of"),
])  # fmt: skip
def test_wrong_files(running: Running, tmp_path: Path, more: dict[str, str], text: str) -> None:
    path = _config(running, tmp_path, **more)
    for command in (("status",), ("produce", "t"), ("topics", "delete", "absent")):
        option = ("--command-config", str(path))
        code, output = _run(*command, *option, **_addresses(running), stdin="x\n")
        assert (code, text in output) == (2, True), (command, output)
        assert "lanted" not in output


def test_a_certificate_that_is_not_trusted(running: Running) -> None:
    code, output = _run("status", **_addresses(running))
    assert (code, "CERTIFICATE_VERIFY_FAILED" in output) == (2, True), output
    assert "--command-config" in output


def test_a_copy_by_the_command_line(
    running: Running, plain: PidleaseServer, tmp_path: Path
) -> None:
    """Out of a secured server into one without logins, and compared."""
    path = _config(running, tmp_path)
    command = (
        sys.executable, "-m", "proxy", "copy", "--from", running.server.bootstrap, "--to",
        plain.bootstrap, "--leases", plain.http_url, "--topics", "t", "--group", "cli", "--once",
        "--from-command-config", str(path),
    )  # fmt: skip
    with BlockingProducer(**_options(running)) as producer:
        producer.send_and_wait("t", b"to copy by the command line")
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert (done.returncode, "copied" in done.stdout) == (0, True), done


def test_a_consumer_whose_user_is_removed_ends(running: Running, tmp_path: Path) -> None:
    """It tried again for ever, and said nothing."""
    data = running.server.data_dir
    acls = EntryFile(RealFiles(), data / "security", ACL_FILE)
    acls.change(
        lambda known: {*known, allow("leaver", Operation.READ, ResourceKind.TOPIC, "t"),
                       allow("leaver", Operation.DESCRIBE, ResourceKind.TOPIC, "t")}
    )  # fmt: skip
    option = ("--data-dir", str(data))
    assert _run("users", "add", "leaver", *option, stdin="Leaving-1\n")[0] == 0
    login = {"sasl.username": "leaver", "sasl.password": "Leaving-1"}
    with BlockingProducer(**_options(running)) as producer:
        producer.send_and_wait("t", b"for the one who leaves")
    command = [sys.executable, "-m", "proxy", "consume", "t", "--from-beginning",
               "--command-config", str(_config(running, tmp_path, **login))]  # fmt: skip
    env = {**os.environ, **_addresses(running)}
    status = "status", "--command-config", str(_config(running, tmp_path, **login))

    def refusal() -> str:
        return _run(*status, **_addresses(running))[1]

    # The server has noticed the user; status needs a right that the user has not.
    until(lambda: "no right to describe cluster" in refusal(), "the user's login")
    assert "--command-config" not in refusal(), "the login is right"
    output = tmp_path / "output"
    with output.open("wb") as opened:
        consumer = subprocess.Popen(command, env=env, stdout=opened, stderr=subprocess.PIPE)
    try:
        until(lambda: b"for the one who leaves" in output.read_bytes(), "the first record")
        assert _run("users", "remove", "leaver", *option)[0] == 0
        _, errors = consumer.communicate(timeout=HANG_S)
    finally:
        consumer.kill()
        consumer.communicate()
    assert (consumer.returncode, b"refuses user 'leaver'" in errors) == (2, True), errors


def test_no_secret_is_shown(running: Running, tmp_path: Path) -> None:
    """In no list of processes, and in nothing that a server or a client wrote."""
    path = _config(running, tmp_path)
    command = [sys.executable, "-m", "proxy", "consume", "t", "--command-config", str(path)]
    env = {**os.environ, **_addresses(running)}
    consumer = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        shown = Path(f"/proc/{consumer.pid}/cmdline")
        if shown.exists():
            until(lambda: b"consume" in shown.read_bytes(), "the command line")
            assert not any(each.encode() in shown.read_bytes() for each in SECRETS.values())
    finally:
        consumer.kill()
        consumer.communicate()
    with running.http("root") as root:
        texts = [root.get(path).text for path in ("/v1/status", "/metrics")]
    texts += [each.read_bytes().decode("latin-1") for each in running.folder.rglob("*")
              if each.is_file()]  # fmt: skip
    for secret in (*SECRETS.values(), "Planted-wrong", "Planted-token"):
        assert not any(secret in text for text in texts)
