"""pidlease.service under a real systemd, in a container: installed, killed, hung, stopped."""

import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.docker_daemon import ROOT, build_image, docker, docker_missing
from tests.deploy.other_images import systemd_image
from tests.docs.snippets import blocks_of_page
from tests.servers.waiting import until

_REASON = docker_missing()
pytestmark = [
    pytest.mark.skipif(_REASON is not None, reason=str(_REASON)), pytest.mark.timeout(900),
]  # fmt: skip

_PAGE: Final = ROOT / "docs" / "operate" / "install.md"
_UNIT: Final = "pidlease.service"
#: A watchdog that a test can wait for.
_SHORT_WATCHDOG: Final = "[Service]\nWatchdogSec=3\n"
#: The container gives its systemd no user namespaces.
_IN_A_CONTAINER: Final = "[Service]\nPrivateUsers=no\n"
#: Each line: what /proc says of a process that has no privilege and gets none.
_UNPRIVILEGED: Final = ("NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000")


class Machine:
    """A container whose first process is systemd."""

    def __init__(self, image: str) -> None:
        self.name = f"pidlease-systemd-{uuid.uuid4().hex[:12]}"
        # systemd mounts. --privileged would ask for more than some machines have.
        docker("run", "--detach", "--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined",
               "--cgroupns", "private", "--tmpfs", "/run", "--tmpfs", "/tmp", "--name", self.name,
               image)  # fmt: skip

    def run(self, script: str) -> str:
        """Run a script as root in the checkout; return its output."""
        return docker("exec", "--workdir", "/checkout", self.name, "bash", "-euc", script)

    def show(self, name: str) -> str:
        """Return a property of the unit."""
        return self.run(f"systemctl show --value --property {name} {_UNIT}")

    def journal(self) -> str:
        """Return what the unit has logged."""
        return self.run(f"journalctl --unit {_UNIT} --no-pager --output cat")

    def wait_serving(self, restarts: int) -> None:
        """Wait until the unit was restarted so often, and serves."""

        def serving() -> bool:
            state = [self.show(name) for name in ("NRestarts", "ActiveState", "StatusText")]
            return state == [str(restarts), "active", "serving"]

        until(serving, f"restart {restarts}", 0.2)


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    build_image()
    found = Machine(systemd_image())
    try:
        until(lambda: _is_up(found), "systemd to be up", 0.2)
        yield found
    finally:
        docker("rm", "--force", "--volumes", found.name)


def _is_up(machine: Machine) -> bool:
    """Whether systemd has started what it starts; some units of a machine fail in a container."""
    probe = ["docker", "exec", machine.name, "systemctl", "is-system-running"]
    done = subprocess.run(probe, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() in ("running", "degraded")


def _install_script() -> str:
    (found,) = [
        each.text for each in blocks_of_page(Path(_PAGE), ROOT) if "systemctl enable" in each.text
    ]
    return found


def test_the_life_of_the_service(machine: Machine) -> None:
    folder = f"/etc/systemd/system/{_UNIT}.d"
    machine.run(f"mkdir {folder}; printf '{_IN_A_CONTAINER}' > {folder}/container.conf")
    status = machine.run(_install_script())
    assert "Active: active (running)" in status
    assert 'Status: "serving"' in status
    machine.wait_serving(0)
    process = machine.show("MainPID")
    facts = machine.run(f"cat /proc/{process}/status")
    for fact in _UNPRIVILEGED:
        assert fact in facts, facts
    assert machine.run(f"stat --format %U /proc/{process}") == "pidlease"
    assert machine.run("stat --format '%U %a' /var/lib/pidlease") == "pidlease 750"

    machine.run("pidlease topics create t && seq 1000 | pidlease produce t --name n")
    machine.run(f"kill -KILL {process}")
    machine.wait_serving(1)
    machine.run("seq 1000 | pidlease produce t --name n")  # again: each is there already
    stored = machine.run("pidlease consume t --from-beginning --exit-at-end").split()
    assert stored == [str(number) for number in range(1, 1001)]

    machine.run(
        f"printf '{_SHORT_WATCHDOG}' > {folder}/watchdog.conf;"
        f" systemctl daemon-reload; systemctl restart {_UNIT}"
    )
    machine.wait_serving(0)  # a restart by an operator counts from 0
    machine.run(f"kill -STOP {machine.show('MainPID')}")
    machine.wait_serving(1)
    assert "Watchdog timeout" in machine.journal()

    machine.run("echo 'snapshot-seconds = 77' >> /etc/pidlease/pidlease.toml")
    machine.run(f"systemctl reload {_UNIT}")
    until(lambda: "settings read again" in machine.journal(), "the reload", 0.2)
    machine.run(f"systemctl stop {_UNIT}")
    assert machine.show("Result") == "success"
    assert "Traceback" not in machine.journal()


def test_a_wrong_setting_ends_the_start_with_a_line_that_names_it(machine: Machine) -> None:
    machine.run("echo 'no-such-setting = 1' >> /etc/pidlease/pidlease.toml")
    machine.run(f"systemctl start {_UNIT} || true")
    until(lambda: machine.show("ActiveState") == "failed", "systemd to give up", 0.2)
    assert "Start request repeated too quickly" in machine.journal()
    assert "no-such-setting" in machine.journal()
    machine.run("sed -i /no-such-setting/d /etc/pidlease/pidlease.toml")
    machine.run(f"systemctl reset-failed {_UNIT}; systemctl start {_UNIT}")
    machine.wait_serving(0)
