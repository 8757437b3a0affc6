"""What is wrong on the command line or on the disk: exit code 2 and one clear line."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from proxy.__main__ import cli
from tests.servers.authority import Authority, needs_openssl
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

_ROOT = Path(__file__).resolve().parents[2]
_USAGE = 2


@pytest.fixture(autouse=True)
def _quiet_shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the developer's shell says must not leak in; nor the server's taste in switching."""
    for name in [name for name in os.environ if name.startswith("PIDLEASE_")]:
        monkeypatch.delenv(name)
    # Loggers are kept for good once they are used: not with the runner's own stderr behind them.
    monkeypatch.setattr("proxy.serve_command.configure_logs", lambda _: None)
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def _serve(
    *options: str, env: Mapping[str, str] | None = None, ports: bool = True
) -> tuple[int, str]:
    """Exit code of `pidlease serve`, and the one line that it tells."""
    listen: list[str] = []
    if ports:
        kafka, http = free_ports(2)
        listen = ["--kafka-listen", f"{LOOPBACK}:{kafka}", "--http-listen", f"{LOOPBACK}:{http}"]
    done = CliRunner().invoke(cli, ["serve", *listen, *options], env=env)
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    # Once a bug: what bounds a stop ended the process that had asked, a minute later.
    assert not [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
    return done.exit_code, _told(done.output)


def _told(output: str) -> str:
    assert "Traceback" not in output, output
    told = [line for line in output.splitlines() if line.startswith("pidlease:")]
    assert len(told) == 1, output
    return told[0]


@pytest.fixture
def never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what must be found before anything is opened."""

    def started(settings: object) -> None:
        raise AssertionError(f"it was taken: {settings}")

    monkeypatch.setattr("proxy.serve_command.run_server", started)


def test_the_exit_code_of_the_real_thing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        address = f"{LOOPBACK}:{taken.getsockname()[1]}"
        http = f"{LOOPBACK}:{free_ports(1)[0]}"
        command = ["-m", "proxy", "serve", "--data-dir", str(tmp_path / "data")]
        done = subprocess.run(
            [sys.executable, *command, "--kafka-listen", address, "--http-listen", http],
            cwd=_ROOT, capture_output=True, text=True, check=False, timeout=WAIT_S,
        )  # fmt: skip
    assert done.returncode == _USAGE
    assert address in _told(done.stderr)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--fsync", "sometimes"), "fsync"),
        (("--kafka-listen", "9092"), "HOST:PORT"),
        (("--kafka-listen", "127.0.0.1:99999"), "kafka_listen"),
        (("--kafka-listen", "127.0.0.1:0"), "kafka"),
        (("--kafka-listen", "0.0.0.0:80:90"), "HOST:PORT"),
        (("--http-listen", "::1:8080"), "in brackets"),
        (("--kafka-listen", "[::1:9092"), "in brackets"),
        (("--segment-bytes", "17"), "segment_bytes"),
        (("--lease-seconds", "0"), "lease_seconds"),
        (("--lease-seconds", "inf"), "lease_seconds"),
        (("--lease-seconds", "nan"), "lease_seconds"),
        (("--lease-seconds", "1e30"), "lease_seconds"),
        (("--flush-seconds", "inf"), "flush_seconds"),
        (("--ring-capacity", "-1"), "ring_capacity"),
        (("--ring-capacity", "many"), "ring_capacity"),
        (("--memory-bytes-max", "10"), "memory_bytes_max"),
        (("--group-max-session-seconds", "5"), "group_max_session_seconds"),
        (("--group-initial-rebalance-seconds", "-1"), "group_initial_rebalance_seconds"),
        (("--offsets-max", "0"), "offsets_max"),
        (("--faults", "explode now"), "explode"),
        (("--config", "/nonexistent.toml"), "/nonexistent.toml"),
        (("--config", "/"), "/"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("never_started")
def test_settings_that_make_no_sense(tmp_path: Path, options: tuple[str, ...], reason: str) -> None:
    code, line = _serve("--data-dir", str(tmp_path / "data"), *options)
    assert code == _USAGE
    assert reason in line
    assert not (tmp_path / "data" / "meta.json").exists()


@pytest.mark.parametrize("which", ["--kafka-listen", "--http-listen"])
def test_listening_beyond_this_machine_has_to_be_asked_for(tmp_path: Path, which: str) -> None:
    code, line = _serve("--data-dir", str(tmp_path), which, f"0.0.0.0:{free_ports(1)[0]}")
    assert (code, "--insecure" in line) == (_USAGE, True), line


def test_an_address_that_nobody_can_connect_to_is_not_advertised(tmp_path: Path) -> None:
    listen = f"0.0.0.0:{free_ports(1)[0]}"
    code, line = _serve("--data-dir", str(tmp_path), "--kafka-listen", listen, "--insecure")
    assert (code, "--kafka-advertise" in line) == (_USAGE, True), line


@pytest.mark.parametrize(
    ("home", "folder"),
    [("data", "data"), ("relative", "home/.local/share"), ("", "home/.local/share")],
)
def test_without_a_data_directory_it_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str, folder: str
) -> None:
    taken: list[Path] = []
    monkeypatch.setattr(
        "proxy.serve_command.run_server", lambda settings, _: taken.append(settings.data_dir)
    )
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / home) if home == "data" else home)
    assert CliRunner().invoke(cli, ["serve"]).exit_code == 0
    assert taken == [tmp_path / folder / "pidlease"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'colour = "red"', "unknown setting colour"),
        (b"snapshot-secods = 3", "unknown setting snapshot-secods; did you mean snapshot-seconds?"),
        (b"[kafka]\nlisten = 1", "unknown setting kafka"),
        (b"io-threads = 1\nio_threads = 2", "io_threads is given twice"),
        (b"fsync = ", "config.toml"),
        (b'fsync = "sometimes"', "fsync"),
        (b"lease_seconds = [1]", "lease_seconds"),
        (b"\xff\xfe\x00", "config.toml"),
    ],
    ids=["unknown", "typing error", "table", "twice", "syntax", "value", "type", "binary"],
)
@pytest.mark.usefixtures("never_started")
def test_a_config_file_that_makes_no_sense(tmp_path: Path, content: bytes, reason: str) -> None:
    config = tmp_path / "config.toml"
    config.write_bytes(content)
    code, line = _serve("--data-dir", str(tmp_path / "data"), "--config", str(config))
    assert (code, reason in line) == (_USAGE, True), line


def test_the_flag_goes_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    """Each value is wrong in its own way, so that the complaint tells which one was taken."""
    config = tmp_path / "config.toml"
    config.write_text('fsync = "of-the-file"\ndata-dir = "/of-the-file"\n')
    env = {"PIDLEASE_FSYNC": "of-the-environment"}
    options = ("--config", str(config))
    assert "of-the-flag" in _serve(*options, "--fsync", "of-the-flag", env=env)[1]
    assert "of-the-environment" in _serve(*options, env=env)[1]
    env = {"pidlease_fsync": "of-lower-case"}
    assert "of-lower-case" in _serve(*options, env=env)[1]
    assert "of-the-file" in _serve(*options)[1]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("PIDLEASE_FSYNK", "unknown variable PIDLEASE_FSYNK; did you mean PIDLEASE_FSYNC?"),
        ("PIDLEASE_COLOUR_OF_THE_SKY", "unknown variable PIDLEASE_COLOUR_OF_THE_SKY"),
        ("PIDLEASE_PORT_OF_KAFKA", "unknown variable PIDLEASE_PORT_OF_KAFKA"),
    ],
)
@pytest.mark.usefixtures("never_started")
def test_an_unknown_variable(tmp_path: Path, name: str, reason: str) -> None:
    code, line = _serve("--data-dir", str(tmp_path / "data"), env={name: "x"})
    assert (code, reason in line) == (_USAGE, True), line


def test_variables_of_others_are_no_settings(tmp_path: Path) -> None:
    """Those of a service called pidlease, as Kubernetes sets them; and of other commands."""
    env = {
        "PIDLEASE_SERVICE_HOST": "10.0.0.1",
        "PIDLEASE_SERVICE_PORT": "9092",
        "PIDLEASE_SERVICE_PORT_HTTP": "8080",
        "PIDLEASE_PORT": "tcp://10.0.0.1:9092",
        "PIDLEASE_PORT_9092_TCP_ADDR": "10.0.0.1",
        "PIDLEASE_KAFKA_SERVICE_HOST": "10.0.0.1",
        "PIDLEASE_KAFKA_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "PIDLEASE_URL": "http://127.0.0.1:1",
        "PIDLEASE_SERVERS": "127.0.0.1:1",
        "PIDLEASE_FROM_PASSWORD": "secret",
    }
    code, line = _serve("--data-dir", str(tmp_path / "data"), "--fsync", "x", env=env)
    assert (code, "fsync" in line) == (_USAGE, True), line


@pytest.mark.parametrize("which", ["--kafka-listen", "--http-listen"])
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "before Kafka is waited for"])
def test_a_port_in_use(tmp_path: Path, which: str, *, waits: bool) -> None:
    """A server that waits for Kafka, or for another server's end, is to serve at once then."""
    nobody = f"{LOOPBACK}:{free_ports(1)[0]}"
    log = ("--log", "kafka", "--upstream", nobody) if waits else ()
    with socket.socket() as taken:
        taken.bind((LOOPBACK, 0))
        taken.listen()
        address = f"{LOOPBACK}:{taken.getsockname()[1]}"
        code, line = _serve("--data-dir", str(tmp_path / "data"), which, address, *log)
    assert (code, which in line, address in line) == (_USAGE, True, True), line


def test_both_doors_on_one_port(tmp_path: Path) -> None:
    address = f"{LOOPBACK}:{free_ports(1)[0]}"
    code, line = _serve(
        "--data-dir", str(tmp_path / "data"), "--kafka-listen", address,
        "--http-listen", address, ports=False,
    )  # fmt: skip
    assert (code, address in line) == (_USAGE, True), line


def test_a_data_directory_in_use(tmp_path: Path) -> None:
    with PidleaseServer(tmp_path) as first:
        code, line = _serve("--data-dir", str(first.data_dir))
        assert (code, "in use" in line, str(first.pid) in line) == (_USAGE, True, True), line
        assert first.get("/readyz")[0] == 200
    # And it is free again behind a clean stop.
    assert "in use" not in _serve("--data-dir", str(first.data_dir), "--fsync", "x")[1]


def test_a_data_directory_full_of_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.odt").write_text("mine")
    code, line = _serve("--data-dir", str(tmp_path))
    assert (code, "thesis.odt" in line) == (_USAGE, True), line
    assert [each.name for each in tmp_path.iterdir()] == ["thesis.odt"]


@needs_openssl
@pytest.mark.parametrize("there", [False, True])
def test_an_audit_log_in_a_new_data_directory(tmp_path: Path, there: bool) -> None:
    """It is made before the other files, and is none of another program."""
    certificate = Authority(tmp_path).issue("server", f"IP:{LOOPBACK}")
    data = tmp_path / "data"
    if there:
        data.mkdir()
    settings = {
        "kafka_security_protocol": "SASL_SSL", "http_security_protocol": "SASL_SSL",
        "ssl_certificate": str(certificate.certificate), "ssl_key": str(certificate.key),
        "audit_log": str(data / "audit.log"),
    }  # fmt: skip
    server = PidleaseServer(tmp_path / "server", data_dir=data, settings=settings)
    server.launch()
    try:
        server.process.wait_until(lambda: " serving " in server.log_text(), 300)
    finally:
        server.kill()
    assert {"audit.log", "lock", "meta.json"} <= {each.name for each in data.iterdir()}


def test_an_empty_file_system_is_no_foreign_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "lost+found").mkdir(parents=True)
    (data / ".keep").touch()
    with PidleaseServer(tmp_path) as server:
        assert server.get("/readyz")[0] == 200


def test_a_data_directory_of_a_newer_version(tmp_path: Path) -> None:
    meta = {"format": 99, "cluster_id": "later"}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    code, line = _serve("--data-dir", str(tmp_path))
    assert (code, "newer version" in line) == (_USAGE, True), line
    assert json.loads((tmp_path / "meta.json").read_text()) == meta


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"format": "one", "cluster_id": "x"}', b"\xff", b""], ids=str
)
def test_a_damaged_identity(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "meta.json").write_bytes(content)
    code, line = _serve("--data-dir", str(tmp_path))
    assert (code, "meta.json" in line) == (_USAGE, True), line


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    code, line = _serve("--data-dir", str(tmp_path / "data"))
    assert (code, str(tmp_path / "data") in line) == (_USAGE, True), line


def test_a_read_only_data_directory(tmp_path: Path) -> None:
    """Where root may write anyway, the file port refuses instead of the system."""
    faults: tuple[str, ...] = ()
    (tmp_path / "data").mkdir(mode=0o555)
    if os.geteuid() == 0:
        faults = ("--faults", "fail-from=EROFS before * * 1")
    code, line = _serve("--data-dir", str(tmp_path / "data"), *faults)
    assert (code, str(tmp_path / "data") in line) == (_USAGE, True), line


def test_the_kernels_own_read_only_directory() -> None:
    code, line = _serve("--data-dir", "/proc/pidlease")
    assert (code, "/proc/pidlease" in line) == (_USAGE, True), line
