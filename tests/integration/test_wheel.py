"""The wheel, in an empty environment: the client alone, then with the server."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.readback import consume
from tests.servers.pidlease import PidleaseServer

_ROOT = Path(__file__).resolve().parents[2]
#: What a producer does not need: 300 MB.
_SERVER_ONLY = {"fastapi", "kazoo", "pyarrow", "rich", "typer", "uvicorn", "uvloop"}

_PRODUCER = """
import sys
import pidlease.copier
from pidlease.client import BlockingProducer

with BlockingProducer(bootstrap_servers=sys.argv[1], leases=sys.argv[2], name="wheel") as producer:
    print(producer.send_and_wait("t", b"from the wheel", partition=0).offset)
"""
_KILLED = """
from pidlease.client import BlockingProducer

def test_a_kill(pidlease_server):
    servers, leases = pidlease_server.bootstrap_servers, pidlease_server.leases
    with BlockingProducer(bootstrap_servers=servers, leases=leases, name="n") as producer:
        producer.send_and_wait("t", b"1", partition=0)
        pidlease_server.kill()
        second = producer.send("t", b"2", partition=0)
        pidlease_server.restart()
        assert second.result(timeout=300).offset == 1
"""


class Environment:
    """A virtual environment without this source tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self._locked = folder.with_suffix(".txt")
        versions = re.findall(
            r"^\S+==\S+", (_ROOT / "requirements/dev.txt").read_text(), re.MULTILINE
        )
        self._locked.write_text("\n".join(versions))
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)

    def install(self, *packages: str) -> None:
        """Install packages in the locked versions."""
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
        target = ["--python", str(self.python), "install", "-c", str(self._locked), *packages]
        done = subprocess.run([*pip, *target], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def run(self, *arguments: str, fails: bool = False) -> str:
        """Run its Python; return the output."""
        hidden = ("PIDLEASE_", "PYTHON", "PYTEST")
        env = {name: text for name, text in os.environ.items() if not name.startswith(hidden)}
        done = subprocess.run(
            [str(self.python), *arguments],
            check=False, cwd=self.folder, env=env, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, check=True, cwd=_ROOT, capture_output=True)
    (built,) = folder.glob("*.whl")
    return str(built)


@pytest.fixture(scope="module")
def client_only(tmp_path_factory: pytest.TempPathFactory, wheel: str) -> Environment:
    environment = Environment(tmp_path_factory.mktemp("environments") / "client")
    environment.install(wheel)
    return environment


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PidleaseServer]:
    with PidleaseServer(tmp_path_factory.mktemp("server"), settings={"fsync": "never"}) as running:
        yield running


def test_the_client_alone(client_only: Environment, server: PidleaseServer) -> None:
    listed = "import importlib.metadata as m; print(*(d.name.lower() for d in m.distributions()))"
    installed = set(client_only.run("-c", listed).split())
    assert "pidlease" in installed
    assert installed & _SERVER_ONLY == set()
    assert client_only.run("-c", _PRODUCER, server.bootstrap, server.leases) == "0\n"
    assert [each.value for each in consume(server.bootstrap, "t", 1)] == [b"from the wheel"]


def test_its_metadata(client_only: Environment) -> None:
    # The text itself: some versions of Python cannot print a message with a long description.
    read = "import importlib.metadata as m; print(m.distribution('pidlease').read_text('METADATA'))"
    text = client_only.run("-c", read)
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    for label, url in project["urls"].items():
        assert f"Project-URL: {label}, {url}\n" in text
    for classifier in project["classifiers"]:
        assert f"Classifier: {classifier}\n" in text
    assert "License-Expression: Apache-2.0\n" in text
    assert "Description-Content-Type: text/markdown\n" in text


def test_it_says_what_to_install(client_only: Environment) -> None:
    client_only.install("pytest")
    for command in (["-m", "proxy", "serve"], ["-c", "import pidlease.testing"]):
        text = client_only.run(*command, fails=True)
        assert text.endswith("pip install 'pidlease[server]'\n")


def test_the_server(client_only: Environment, wheel: str) -> None:
    """After the others: it adds to their environment."""
    client_only.install(f"{wheel}[server]")
    tests = client_only.folder / "tests"
    tests.mkdir()
    (tests / "test_killed.py").write_text(_KILLED)
    assert "1 passed" in client_only.run("-m", "pytest", "-p", "pidlease.testing", str(tests))
    assert "serve" in client_only.run(str(client_only.folder / "bin" / "pidlease"), "--help")


def test_what_is_beside_the_code(client_only: Environment) -> None:
    share = client_only.folder / "share" / "pidlease"
    alerts = _ROOT / "deploy" / "prometheus" / "alerts.yml"
    assert (share / "prometheus" / "alerts.yml").read_bytes() == alerts.read_bytes()
    dashboards = _ROOT / "deploy" / "grafana" / "dashboards"
    for each in dashboards.iterdir():
        assert (share / "grafana" / "dashboards" / each.name).read_bytes() == each.read_bytes()
    assert list(client_only.folder.glob("lib/*/site-packages/pidlease/py.typed"))
