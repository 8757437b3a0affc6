"""Prometheus and promtool: those on PATH, or Debian's package unpacked into build/."""

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

_BUILD: Final = Path(__file__).resolve().parents[2] / "build"
_FOLDER: Final = _BUILD / "prometheus"
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
    if _FOLDER.is_dir():
        return _FOLDER
    missing = [each for each in ("apt-get", "dpkg-deb") if shutil.which(each) is None]
    if missing:
        raise PrometheusUnavailableError(f"there is no {' and no '.join(missing)}: {_INSTALL}")
    _BUILD.mkdir(parents=True, exist_ok=True)
    with _FOLDER.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _FOLDER.is_dir():
            # Aside, then renamed: a broken download must not look like a whole one.
            with tempfile.TemporaryDirectory(dir=_BUILD, prefix="prometheus-") as aside:
                _unpack(Path(aside)).rename(_FOLDER)
    return _FOLDER


def _unpack(aside: Path) -> Path:
    """Neither of the two asks for root: nothing is installed."""
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
