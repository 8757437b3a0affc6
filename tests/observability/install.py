"""Prometheus and promtool: those on PATH, or Debian's package unpacked into build/."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.servers.fetching import fetch_once

_FOLDER: Final = Path(__file__).resolve().parents[2] / "build" / "prometheus"
_PACKAGE: Final = "prometheus"
_INSTALL: Final = "install Prometheus (Debian: apt-get install prometheus)"
_FETCH_TIMEOUT_S: Final = 300


class PrometheusUnavailableError(RuntimeError):
    """There is none, and it cannot be fetched; the message says what to install."""


def tool(name: str) -> Path:
    """The program `prometheus` or `promtool`.

    Raises:
        PrometheusUnavailableError: see there.
    """
    found = shutil.which(name)
    return Path(found) if found else _fetched() / "usr" / "bin" / name


def _fetched() -> Path:
    """The folder with the package's files, filled on first use; by one process at a time."""
    fetch_once(_FOLDER, _FOLDER.is_dir, _unpack)
    return _FOLDER


def _unpack(aside: Path) -> Path:
    """Neither of the two asks for root: nothing is installed."""
    missing = [each for each in ("apt-get", "dpkg-deb") if shutil.which(each) is None]
    if missing:
        raise PrometheusUnavailableError(f"there is no {' and no '.join(missing)}: {_INSTALL}")
    target = aside / "files"
    _run(["apt-get", "download", _PACKAGE], aside)
    packages = list(aside.glob(f"{_PACKAGE}_*.deb"))
    if len(packages) != 1:
        raise PrometheusUnavailableError(f"apt-get brought {len(packages)} packages: {_INSTALL}")
    _run(["dpkg-deb", "-x", str(packages[0]), str(target)], aside)
    return target


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise PrometheusUnavailableError(f"{command[0]}: {done.stderr.strip()[-500:]}: {_INSTALL}")
