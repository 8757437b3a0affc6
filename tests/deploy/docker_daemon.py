"""Builds and runs the image, where a Docker daemon answers."""

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.servers.waiting import until

ROOT: Final = Path(__file__).resolve().parents[2]
#: The image that the Dockerfile builds on, if it is not the Dockerfile's default.
BASE: Final = os.environ.get("TESTS_IMAGE_BASE", "python:3.12-slim")
#: The image with Java 17 that Kafka and ZooKeeper run in.
JAVA_BASE: Final = os.environ.get("TESTS_JAVA_IMAGE_BASE", "eclipse-temurin:17-jre")
_BUILD_TIMEOUT_S: Final = 900
_TIMEOUT_S: Final = 120


def docker(*arguments: str, timeout_s: float = _TIMEOUT_S) -> str:
    """Run docker; return its output."""
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == 0, f"docker {arguments[0]}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


def docker_missing() -> str | None:
    """Return why no image can be built here; None if it can."""
    return _missing(BASE, "TESTS_IMAGE_BASE")


def java_image_missing() -> str | None:
    """Return why no image can be built on one with Java; None if it can."""
    return _missing(JAVA_BASE, "TESTS_JAVA_IMAGE_BASE")


@cache
def _missing(base: str, variable: str) -> str | None:
    if shutil.which("docker") is None:
        return "there is no docker on this machine"
    probe = ["docker", "image", "inspect", base]
    try:
        done = subprocess.run(probe, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        return "the Docker daemon does not answer"
    if done.returncode == 0:
        return None
    if "o such image" in done.stderr:
        return f"this machine has no image {base}: pull it, or name another by {variable}"
    return f"there is no Docker daemon: {done.stderr.strip()}"


def build_image(file: str = "Dockerfile", tag: str = "pidlease:test") -> str:
    """Build an image of deploy/docker; return its tag."""
    return build(ROOT, f"deploy/docker/{file}", tag, BASE)


def build(context: Path, file: str, tag: str, base: str) -> str:
    """Build an image; return its tag.

    Parameters:
        file: its Dockerfile, in the context.
        base: the build argument BASE.
    """
    # The legacy builder, too, must do: the Dockerfiles use nothing of BuildKit's own.
    command = ["docker", "build", "--quiet", "--network", "host", "--build-arg", f"BASE={base}"]
    done = subprocess.run(
        [*command, "--file", str(context / file), "--tag", tag, str(context)],
        env={**os.environ, "DOCKER_BUILDKIT": os.environ.get("DOCKER_BUILDKIT", "0")},
        capture_output=True,
        text=True,
        timeout=_BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return tag


class Container:
    """A container of the image on loopback ports, which stay the same over restarts.

    Attributes:
        bootstrap: HOST:PORT of its Kafka listener.
        http_url: of its HTTP listener.
        http_port: its port.
    """

    def __init__(self, image: str, mount: str, options: Sequence[str]) -> None:
        kafka, http = free_ports(2)
        self.bootstrap = f"{LOOPBACK}:{kafka}"
        self.http_port = http
        self.http_url = f"http://{LOOPBACK}:{http}"
        self.name = f"pidlease-test-{uuid.uuid4().hex[:12]}"
        environ: Mapping[str, str] = {
            "PIDLEASE_INSECURE": "true",
            "PIDLEASE_KAFKA_ADVERTISE": self.bootstrap,
        }
        docker(
            *("run", "--detach", "--name", self.name, "--volume", f"{mount}:/var/lib/pidlease"),
            *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--publish", f"{self.bootstrap}:9092", "--publish", f"{LOOPBACK}:{http}:8080"),
            *(option for name, value in environ.items() for option in ("--env", f"{name}={value}")),
            *options,
            image,
        )

    def wait_healthy(self) -> None:
        """Wait until the image's own health check is content."""

        def healthy() -> bool:
            state = self.state()
            assert state["Running"], self.log()
            return bool(state["Health"]["Status"] == "healthy")

        until(healthy, f"{self.name} to be healthy", 0.2)

    def state(self) -> dict[str, Any]:
        """Return the state, as Docker has it."""
        found: dict[str, Any] = json.loads(
            docker("inspect", "--format", "{{json .State}}", self.name)
        )
        return found

    def kill(self) -> None:
        """Send SIGKILL, and wait until the container has ended."""
        docker("kill", self.name)
        docker("wait", self.name)

    def stop(self, grace_s: int) -> int:
        """Send SIGTERM, and SIGKILL after the grace; return the exit code."""
        docker("stop", "-t", str(grace_s), self.name)
        return int(self.state()["ExitCode"])

    def start(self) -> None:
        """Start it again."""
        docker("start", self.name)

    def log(self) -> str:
        """Return its log of all starts."""
        done = subprocess.run(
            ["docker", "logs", self.name], capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout + done.stderr


@contextmanager
def container(image: str, mount: str, *options: str) -> Iterator[Container]:
    """A running container, removed at the end of the block."""
    found = Container(image, mount, options)
    try:
        yield found
    finally:
        docker("rm", "--force", found.name)


@contextmanager
def volume() -> Iterator[str]:
    """A new volume, removed at the end of the block."""
    name = docker("volume", "create")
    try:
        yield name
    finally:
        docker("volume", "rm", name)
