"""Images of what runs beside pidlease: Kafka and ZooKeeper from their jars, Prometheus, systemd."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.deploy.docker_daemon import BASE, JAVA_BASE, ROOT, build
from tests.observability.install import tool
from tests.servers.kafka.install import fetch_jars
from tests.servers.zookeeper.server import fetch_jars as fetch_zookeeper_jars

_FOLDER: Final = Path(__file__).with_name("images")


def kafka_image() -> str:
    """Build the image of Kafka; return its tag."""
    return _build("kafka", JAVA_BASE, "jars", fetch_jars())


def zookeeper_image() -> str:
    """Build the image of ZooKeeper; return its tag."""
    return _build("zookeeper", JAVA_BASE, "jars", fetch_zookeeper_jars())


def systemd_image() -> str:
    """Build the image of a machine with systemd, on that of the server; return its tag."""
    return _build("systemd", BASE, "systemd", ROOT / "deploy" / "systemd")


def prometheus_image() -> str:
    """Build the image of Prometheus; return its tag.

    Raises:
        PrometheusUnavailableError: there is none here.
    """
    return _build("prometheus", BASE, "prometheus", tool("prometheus"))


def _build(name: str, base: str, target: str, source: Path) -> str:
    with TemporaryDirectory() as folder:
        context = Path(folder) / name
        shutil.copytree(_FOLDER / name, context)
        if source.is_dir():
            shutil.copytree(source, context / target)
        else:
            shutil.copy(source, context / target)
        return build(context, "Dockerfile", f"pidlease-{name}:test", base)
