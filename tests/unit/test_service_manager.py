"""What a server reports over NOTIFY_SOCKET, to a real socket."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from proxy.service_manager import ServiceManager, ServiceState
from tests.servers.waiting import WAIT_S

_LOADING = ServiceState(started=False, text="loading the snapshot")
_SERVING = ServiceState(started=True, text="serving")
_PID = 7


class Listener:
    """A service manager's socket."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(WAIT_S)
        self.socket.bind(address)

    def next(self) -> list[str]:
        """The fields of the next report."""
        return self.socket.recv(65536).decode().split("\n")

    def pending(self) -> list[list[str]]:
        """All reports that are there."""
        found = []
        self.socket.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                found.append(self.next())
        self.socket.settimeout(WAIT_S)
        return found


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    found = Listener(str(tmp_path / "notify"))
    with found.socket:
        yield found


def _manager(listener: Listener, **environ: str) -> ServiceManager:
    address = listener.socket.getsockname()
    found = ServiceManager.from_environment({"NOTIFY_SOCKET": address, **environ}, _PID)
    assert found is not None
    return found


def test_without_a_socket_nothing_is_made() -> None:
    assert ServiceManager.from_environment({"WATCHDOG_USEC": "1000000"}, _PID) is None
    assert ServiceManager.from_environment({"NOTIFY_SOCKET": ""}, _PID) is None
    assert ServiceManager.from_environment({"NOTIFY_SOCKET": "vsock:2:1"}, _PID) is None


def test_the_reports_of_a_life(listener: Listener) -> None:
    manager = _manager(listener, WATCHDOG_USEC="30000000", WATCHDOG_PID=str(_PID))
    for state in (_LOADING, _LOADING, _SERVING, _SERVING):
        manager.report(state)
    manager.stopping()
    manager.report(ServiceState(started=False, text="starting"))
    manager.close()
    assert listener.pending() == [
        ["STATUS=loading the snapshot", "EXTEND_TIMEOUT_USEC=60000000", "WATCHDOG=1"],
        ["EXTEND_TIMEOUT_USEC=60000000", "WATCHDOG=1"],
        ["STATUS=serving", "READY=1", "WATCHDOG=1"],
        ["WATCHDOG=1"],
        ["STOPPING=1", "STATUS=stopping"],
        ["WATCHDOG=1"],
    ]


def test_a_status_is_one_line(listener: Listener) -> None:
    manager = _manager(listener)
    manager.report(ServiceState(started=True, text="Kafka unreachable\nREADY=0"))
    manager.close()
    assert listener.pending() == [["STATUS=Kafka unreachable READY=0", "READY=1"]]


@pytest.mark.parametrize(
    "watchdog",
    [{}, {"WATCHDOG_USEC": "9000000", "WATCHDOG_PID": "8"}, {"WATCHDOG_USEC": "soon"}],
    ids=["none", "of another process", "no number"],
)
def test_without_a_watchdog_a_server_that_serves_is_silent(
    listener: Listener, watchdog: dict[str, str]
) -> None:
    manager = _manager(listener, **watchdog)
    manager.report(_SERVING)
    manager.report(_SERVING)
    manager.close()
    assert listener.pending() == [["STATUS=serving", "READY=1"]]


def test_an_abstract_address() -> None:
    name = f"pidlease-test-{time.time_ns()}"
    listener = Listener(f"\0{name}")
    with listener.socket:
        manager = ServiceManager.from_environment({"NOTIFY_SOCKET": f"@{name}"}, _PID)
        assert manager is not None
        manager.report(_SERVING)
        manager.close()
        assert listener.pending() == [["STATUS=serving", "READY=1"]]


async def test_a_loop_that_hangs_reports_nothing(listener: Listener) -> None:
    manager = _manager(listener, WATCHDOG_USEC="30000")
    running = asyncio.create_task(manager.run(lambda: _SERVING))
    for _ in range(3):
        assert "WATCHDOG=1" in await asyncio.to_thread(listener.next)
    listener.pending()
    time.sleep(0.2)  # noqa: ASYNC251 - the loop hangs, for six times the watchdog's period
    assert listener.pending() == []
    assert "WATCHDOG=1" in await asyncio.to_thread(listener.next)
    running.cancel()
    manager.close()


def test_a_manager_that_has_gone(listener: Listener, tmp_path: Path) -> None:
    """The server goes on."""
    manager = _manager(listener)
    (tmp_path / "notify").unlink()
    manager.report(_SERVING)
    manager.close()
    assert listener.pending() == []
