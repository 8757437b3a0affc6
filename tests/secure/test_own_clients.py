"""pidlease's own clients in front of a secured server: the producer, the commands, the copier."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import pytest
from aiokafka.helpers import create_ssl_context

from pidlease.client import LeasedProducer, ProducerError
from pidlease.client.settings import ProducerOptions, settings_of
from pidlease.kafka.client import bootstrap
from tests.secure.secured_process import HANG_S, SECRETS, Running, started
from tests.servers.authority import needs_openssl
from tests.servers.pidlease import PidleaseServer

pytestmark = needs_openssl
_RECORDS: Final = 300


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with started(tmp_path_factory.mktemp("own") / "server", "t", "t.copy") as made:
        yield made


def _options(running: Running, user: str, mechanism: str, **more: Any) -> dict[str, Any]:
    url = f"https://{running.server.http_address}"
    return running.aiokafka(user, mechanism, leases=url, **more)


def _run(
    running: Running,
    *command: str,
    user: str = "alice",
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
) -> tuple[int, bytes, str]:
    """Run a command as a user; return its exit code, output and errors."""
    variables = {
        **{name: text for name, text in os.environ.items() if not name.startswith("PIDLEASE_")},
        "PIDLEASE_SERVERS": running.server.bootstrap,
        "PIDLEASE_URL": f"https://{running.server.http_address}",
        "PIDLEASE_SECURITY_PROTOCOL": "SASL_SSL", "PIDLEASE_USER": user,
        "PIDLEASE_PASSWORD": SECRETS.get(user, "wrong-secret"),
        "SSL_CERT_FILE": str(running.authority.root.certificate), **(env or {}),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "proxy", *command], input=stdin, capture_output=True,
        env=variables,
        timeout=HANG_S, check=False,
    )  # fmt: skip
    text = done.stderr.decode()
    for secret in ("wrong-secret", *SECRETS.values()):
        assert secret not in text, "a password is shown"
    return done.returncode, done.stdout, text


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
async def test_a_producer_logs_in_for_leases_and_records(running: Running, mechanism: str) -> None:
    name = "alice-1" if mechanism == "SCRAM-SHA-512" else None
    async with LeasedProducer(**_options(running, "alice", mechanism, name=name)) as producer:
        sent = [await producer.send("t", f"{mechanism} {each}".encode()) for each in range(20)]
        assert not any([(await each).duplicate for each in sent])
        assert producer.pid > 0


async def test_records_outlive_kills_and_the_end_of_a_login(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login counts three seconds here. It is not renewed: the server closes the connection."""
    monkeypatch.setattr(bootstrap, "_LOGIN_PART", (1000.0, 1000.0))
    async with LeasedProducer(**_options(running, "alice", "SCRAM-SHA-256")) as producer:
        first = await producer.send_and_wait("t", b"first")
        for number in range(_RECORDS):
            await producer.send("t", f"kill {number}".encode())
            if number == _RECORDS // 2:
                await asyncio.to_thread(running.server.kill9)
                await asyncio.to_thread(running.server.start)
        while producer.metrics.reconnects < 2:
            assert not (await producer.send_and_wait("t", b"more")).duplicate
            await asyncio.sleep(0.05)
        await producer.flush()
    code, out, text = _run(
        running, "consume", "t", "--offset", str(first.offset), "--partition", str(first.partition),
        "--exit-at-end",
    )  # fmt: skip
    assert code == 0, text
    kills = [line for line in out.decode().splitlines() if line.startswith("kill ")]
    assert kills == [f"kill {number}" for number in range(_RECORDS)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"sasl_plain_password": "wrong-secret"}, "refuses user 'alice'"),
        ({"sasl_mechanism": "PLAIN", "sasl_plain_username": "nobody"}, "refuses user 'nobody'"),
        ({"security_protocol": "SSL"}, "wants a login: the security protocol is SASL_SSL"),
        ({"security_protocol": "PLAINTEXT"}, "has TLS: the security protocol is SSL or SASL_SSL"),
    ],
)
async def test_a_wrong_login_is_named_and_no_secret_shown(
    running: Running, more: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = _options(running, "alice", "SCRAM-SHA-256", request_timeout_ms=HANG_S * 10_000) | more
    producer = LeasedProducer(**options)
    with pytest.raises(ProducerError, match=re.escape(said)) as caught:
        await asyncio.wait_for(producer.start(), HANG_S)
    shown = f"{caught.value}{producer!r}{settings_of(cast(ProducerOptions, options))}{caplog.text}"
    for secret in ("wrong-secret", *SECRETS.values()):
        assert secret not in shown


def test_the_commands_log_in_by_the_environment(running: Running) -> None:
    lines = b"".join(b"line %d\n" % number for number in range(200))
    code, _, text = _run(running, "produce", "t", stdin=lines)
    assert code == 0, text
    code, out, text = _run(running, "consume", "t", "--from-beginning", "--exit-at-end")
    assert code == 0, text
    assert [each for each in out.splitlines() if each.startswith(b"line ")] == lines.splitlines()
    code, out, text = _run(running, "topics", "create", "made", user="root")
    assert code == 0, text
    code, _, text = _run(running, "topics", "delete", "made", user="root")
    assert code == 0, text


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"PIDLEASE_PASSWORD": "wrong-secret"}, "refuses user 'alice'"),
        ({"PIDLEASE_SASL_MECHANISM": "GSSAPI"}, "PIDLEASE_SASL_MECHANISM 'GSSAPI' is none of"),
        ({"PIDLEASE_SECURITY_PROTOCOL": "TLS"}, "PIDLEASE_SECURITY_PROTOCOL 'TLS' is none of"),
        ({"PIDLEASE_USER": ""}, "PIDLEASE_USER and PIDLEASE_PASSWORD are needed"),
        ({"PIDLEASE_SECURITY_PROTOCOL": "PLAINTEXT"}, "has TLS: the security protocol is SSL"),
        ({"SSL_CERT_FILE": os.devnull}, "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_a_wrong_login_is_said_at_once(running: Running, more: dict[str, str], said: str) -> None:
    code, out, text = _run(running, "consume", "t", "--exit-at-end", env=more)
    assert (code, out) == (2, b"")
    assert said in text
    assert text.count("\n") == 1, text


def test_a_copy_into_a_secured_server(running: Running, tmp_path: Path) -> None:
    with PidleaseServer(tmp_path) as source:
        lines = b"".join(b"copied %d\n" % number for number in range(500))
        plain = {"PIDLEASE_SERVERS": source.bootstrap, "PIDLEASE_URL": source.http_url,
                 "PIDLEASE_SECURITY_PROTOCOL": "PLAINTEXT"}  # fmt: skip
        code, _, text = _run(running, "produce", "t", stdin=lines, env=plain)
        assert code == 0, text
        for _ in range(2):  # the second one has nothing to do
            code, _, text = _run(
                running, "copy", "--from", source.bootstrap, "--to", running.server.bootstrap,
                "--leases", f"https://{running.server.http_address}", "--topics", "t", "--rename",
                "{topic}.copy", "--group", "g", "--once", user="root",
            )  # fmt: skip
            assert code == 0, text
    code, out, text = _run(
        running, "consume", "t.copy", "--from-beginning", "--exit-at-end", user="root"
    )
    assert (code, out) == (0, lines), text


def test_the_options_of_a_producer_are_checked() -> None:
    context = create_ssl_context()
    given = {"bootstrap_servers": "a:1", "leases": "https://a"}
    for more, said in (
        ({"security_protocol": "TLS"}, "security_protocol 'TLS' is none of"),
        ({"security_protocol": "SASL_SSL", "ssl_context": context}, "needs sasl_plain_username"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "X"}, "sasl_mechanism 'X'"),
    ):
        options: dict[str, Any] = {**given, **more}
        with pytest.raises(ValueError, match=said):
            LeasedProducer(**options)
