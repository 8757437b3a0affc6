"""The compose files: what they mount and set exists, and they are started."""

import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from pidlease.client import BlockingProducer
from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from proxy.configuration.settings import Settings
from tests.deploy.docker_daemon import (
    BASE,
    ROOT,
    build_image,
    docker_missing,
    java_image_missing,
)
from tests.deploy.other_images import kafka_image, prometheus_image
from tests.observability.dashboards import asked
from tests.observability.install import PrometheusUnavailableError, tool
from tests.observability.prometheus import PrometheusApi
from tests.observability.test_panels import check_all
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import until

_FOLDER: Final = ROOT / "deploy" / "compose"
_FILES: Final = ("pidlease.yml", "kafka.yml")
_SETTINGS: Final = {f"PIDLEASE_{name.upper()}" for name in Settings.model_fields}


@cache
def _compose() -> list[str] | None:
    """The command: the plugin of docker, or the program of its own; None: there is none."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) is None:
            continue
        asked = [*command, "version"]
        if subprocess.run(asked, capture_output=True, timeout=60, check=False).returncode == 0:
            return command
    return None


needs_compose = pytest.mark.skipif(_compose() is None, reason="there is no docker compose")


def _services(file: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((_FOLDER / file).read_text())["services"]
    return found


@pytest.mark.parametrize("file", _FILES)
def test_what_it_mounts_is_there(file: str) -> None:
    for service in _services(file).values():
        for mount in service.get("volumes", []):
            source = mount.partition(":")[0]
            assert not source.startswith(".") or (_FOLDER / source).exists(), mount


@pytest.mark.parametrize("file", _FILES)
def test_its_settings_are_the_servers(file: str) -> None:
    services = _services(file)
    own = {name for name in services["pidlease"]["environment"] if name.startswith("PIDLEASE_")}
    assert own <= _SETTINGS
    grace = int(services["pidlease"]["stop_grace_period"].removesuffix("s"))
    assert grace > Settings.model_fields["stop_seconds"].default


@pytest.mark.parametrize("file", _FILES)
def test_no_port_is_open_to_other_machines(file: str) -> None:
    for service in _services(file).values():
        assert all(each.startswith("127.0.0.1:") for each in service.get("ports", []))


def test_its_scrapes() -> None:
    """The rules are mounted beside the configuration, as in the container."""
    scrapes = yaml.safe_load((_FOLDER / "prometheus.yml").read_text())
    assert [each["job_name"] for each in scrapes["scrape_configs"]] == ["pidlease"]
    source = yaml.safe_load((_FOLDER / "grafana-datasources.yml").read_text())["datasources"][0]
    assert source["jsonData"]["timeInterval"] == scrapes["global"]["scrape_interval"]


@pytest.mark.parametrize("folder", [_FOLDER, ROOT / "deploy" / "grafana" / "provisioning"])
def test_grafana_knows_what_is_provisioned(folder: Path) -> None:
    """The fields that its documentation of provisioning has; it ignores others without a word."""
    source = {"name", "type", "access", "orgId", "uid", "url", "isDefault", "jsonData", "editable"}
    provider = {
        "name", "orgId", "folder", "folderUid", "type", "disableDeletion",
        "updateIntervalSeconds", "allowUiUpdates", "options",
    }  # fmt: skip
    checked = 0
    for path in (*folder.glob("grafana-*.yml"), *folder.glob("*/*.yml")):
        found = yaml.safe_load(path.read_text())
        assert found.pop("apiVersion") == 1
        for each in found.pop("datasources", []):
            assert each.keys() <= source
            assert each["jsonData"].keys() <= {"timeInterval", "httpMethod"}
            checked += 1
        for each in found.pop("providers", []):
            assert each.keys() <= provider
            assert each["options"].keys() <= {"path", "foldersFromFilesStructure"}
            checked += 1
        assert not found
    assert checked


def test_promtool_accepts_its_scrapes(tmp_path: Path) -> None:
    try:
        promtool = tool("promtool")
    except PrometheusUnavailableError as error:
        pytest.skip(str(error))
    shutil.copy(_FOLDER / "prometheus.yml", tmp_path)
    shutil.copy(ROOT / "deploy" / "prometheus" / "alerts.yml", tmp_path)
    command = [str(promtool), "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_compose
@pytest.mark.parametrize("file", _FILES)
def test_compose_accepts_it(file: str) -> None:
    _run("--file", str(_FOLDER / file), "config", "--quiet")


def _run(*arguments: str, **environ: str) -> str:
    command = _compose()
    assert command is not None
    done = subprocess.run(
        [*command, *arguments],
        env={**os.environ, "BASE": BASE, **environ},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def _up(file: str, *services: str, **environ: str) -> Iterator[tuple[str, str]]:
    """Start some services of a file, or all; yields the addresses of pidlease's listeners."""
    kafka, http = (str(port) for port in free_ports(2))
    environ = {**environ, "IMAGE": build_image(), "KAFKA_PORT": kafka, "HTTP_PORT": http}
    project = ("--project-name", f"pidlease{kafka}", "--file", str(_FOLDER / file))
    try:
        _run(*project, "up", "--detach", "--no-build", *services, **environ)
        yield f"localhost:{kafka}", f"http://localhost:{http}"
    except BaseException:
        print(_run(*project, "logs", "--no-color", **environ))
        raise
    finally:
        _run(*project, "down", "--volumes", **environ)


@needs_compose
@pytest.mark.skipif(docker_missing() is not None, reason=str(docker_missing()))
def test_pidlease_alone() -> None:
    with _up("pidlease.yml") as (bootstrap, url):

        def ready() -> bool:
            try:
                with urllib.request.urlopen(f"{url}/readyz", timeout=5) as response:
                    return bool(response.status == 200)
            except OSError:
                return False

        until(ready, "the server to be ready", 0.2)
        with BlockingProducer(bootstrap_servers=bootstrap, leases=url) as producer:
            assert producer.send_and_wait("t", b"1", partition=0).offset == 0


@needs_compose
@needs_kafka
@pytest.mark.skipif(java_image_missing() is not None, reason=str(java_image_missing()))
@pytest.mark.skipif(docker_missing() is not None, reason=str(docker_missing()))
def test_in_front_of_kafka() -> None:
    """All but Grafana, of which no image can be made: what its dashboard asks for is there."""
    try:
        images = {"KAFKA_IMAGE": kafka_image(), "PROMETHEUS_IMAGE": prometheus_image()}
    except PrometheusUnavailableError as error:
        pytest.skip(str(error))
    (port,) = free_ports(1)
    services = ("kafka", "pidlease", "producer", "prometheus")
    prometheus = PrometheusApi(f"{LOOPBACK}:{port}")
    with _up("kafka.yml", *services, PROMETHEUS_PORT=str(port), **images):

        def appended() -> float:
            try:
                found = prometheus.query("sum(pidlease_batches_judged_total)")
            except OSError:
                return 0
            return found[0][1] if found else 0

        until(lambda: appended() > 0, "the first batches", 0.5)
        seen = appended()
        until(lambda: appended() > seen, "the dashboard to move", 0.5)
        check_all(prometheus, asked("pidlease-overview"))
        assert prometheus.rules()
        until(lambda: all(each["health"] == "ok" for each in prometheus.rules()), "the rules", 0.5)
        assert not prometheus.firing()


def test_the_producer_ends_with_its_reader() -> None:
    """Otherwise nothing restarts it: its container came up before the server."""
    command = _services("kafka.yml")["producer"]["command"][0]
    (script, reader) = command.replace("sleep 1", "sleep 0.1").split("|")
    assert "pidlease produce" in reader
    script = script.replace("pidlease status", "true")
    done = subprocess.run(["sh", "-c", f"{script}| true"], timeout=120, check=False)
    assert done.returncode == 0


def test_variables_have_defaults() -> None:
    """`docker compose up` needs none."""
    for file in _FILES:
        text = (_FOLDER / file).read_text()
        assert re.findall(r"\$\{\w+\}|\$\w", text) == []
