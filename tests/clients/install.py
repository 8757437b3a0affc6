"""What the clients in Go and JavaScript are made of: fetched and built once, into build/clients.

Versions are locked in go/go.sum and node/package-lock.json; which registries answer is the
business of the machine's own settings of go and npm.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.servers.waiting import WAIT_S

_ROOT = Path(__file__).resolve().parents[2]
_BUILD = _ROOT / "build" / "clients"
_GO = Path(__file__).with_name("go")
_NODE = Path(__file__).with_name("node")
_NODE_VERSION_MIN = 18
_TIMEOUT_S = 1200


class InstallError(RuntimeError):
    """Something that is locked could not be fetched or built."""


# ------------------------------------------------------------------ what the machine has


@cache
def go_missing() -> str | None:
    """What to install for the programs in Go; None if everything is there."""
    wanted = _numbers(_found(r"^go (\S+)$", (_GO / "go.mod").read_text()))
    # Asked for in a folder without go.mod: there it does not fetch another one by itself.
    seen = _version_of(["go", "version"], r"go version go(\d+\.\d+)")
    if seen is None or _numbers(seen) < wanted[:2]:
        names = ".".join(map(str, wanted[:2]))
        return f"franz-go and sarama need Go {names} or newer (found: {seen or 'none'})"
    return None


@cache
def node_missing() -> str | None:
    """What to install for the programs in JavaScript; None if everything is there."""
    seen = _version_of(["node", "--version"], r"v(\d+)")
    if seen is None or int(seen) < _NODE_VERSION_MIN or shutil.which("npm") is None:
        return (
            f"kafkajs needs Node.js {_NODE_VERSION_MIN} or newer and npm (found: {seen or 'none'})"
        )
    return None


def _version_of(command: Sequence[str], pattern: str) -> str | None:
    program = shutil.which(command[0])
    if program is None:
        return None
    done = subprocess.run(
        [program, *command[1:]],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        timeout=WAIT_S,
    )
    found = re.search(pattern, done.stdout)
    return found[1] if found else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


# ------------------------------------------------------------------ what is locked


def go_version_of(module: str) -> str:
    """The version of a Go module that go.mod asks for."""
    return _found(rf"^\s*{re.escape(module)} (\S+)$", (_GO / "go.mod").read_text())


def node_version_of(package: str) -> str:
    """The version of an npm package in the lock file."""
    locked: dict[str, Any] = json.loads((_NODE / "package-lock.json").read_text())
    return str(locked["packages"][f"node_modules/{package}"]["version"])


def python_version_of(package: str) -> str:
    """The version of a Python package that the tests are installed with."""
    return _found(
        rf"^{re.escape(package)}==(\S+)", (_ROOT / "requirements" / "dev.txt").read_text()
    )


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise InstallError(f"nothing matches {pattern!r}")
    return found[1]


# ------------------------------------------------------------------ installing


def go_program(name: str) -> Path:
    """The program of that name (a folder of go/), built."""
    return built("go", sorted(_GO.rglob("*.*")), _build_go) / name


def node_modules() -> Path:
    """The folder for NODE_PATH."""
    return npm_packages("node", _NODE) / "node_modules"


def npm_packages(name: str, folder: Path, programs: Sequence[str] = ()) -> Path:
    """The folder with the packages that a folder's lock file names, and with its programs."""
    files = [folder / each for each in ("package.json", "package-lock.json", ".npmrc", *programs)]

    def build(target: Path) -> None:
        for each in files:
            shutil.copy(each, target)
        run(["npm", "ci"], target)

    return built(name, files, build)


def _build_go(target: Path) -> None:
    folders = sorted(f"./{path.parent.relative_to(_GO)}" for path in _GO.rglob("main.go"))
    # Without cgo no C compiler is needed.
    env = {"CGO_ENABLED": "0"}
    run(["go", "build", "-mod=readonly", "-o", f"{target}/", *folders], _GO, env)


def built(name: str, sources: Sequence[Path], build: Callable[[Path], None]) -> Path:
    """The folder that `build` fills, once for each state of the sources.

    Safe to call from several processes: the others wait for the first.
    """
    stamp = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    folder = _BUILD / name
    _BUILD.mkdir(parents=True, exist_ok=True)
    with (_BUILD / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The stamp comes last: what was broken off has none.
        if not (folder / "stamp").exists() or (folder / "stamp").read_text() != stamp:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            build(folder)
            (folder / "stamp").write_text(stamp)
    return folder


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a program, with more variables."""
    return {**os.environ, **more}


def run(command: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> None:
    """Run a command that installs or builds something."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment(env or {}),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise InstallError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
