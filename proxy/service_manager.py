"""Reports the server's state to the service manager: sd_notify(3), on the socket NOTIFY_SOCKET."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import structlog

from pidlease.observability.repeated_lines import LINES, kind_of

#: The longest time between two reports, in seconds.
_INTERVAL_S: Final = 5.0
#: Reports within the time after which the watchdog ends the process. systemd advises two.
_REPORTS_PER_WATCHDOG: Final = 3
#: How much time each report of an incomplete start asks for, in microseconds.
_START_EXTENSION_US: Final = 60_000_000

_log = structlog.get_logger(__name__)


class ServiceState(NamedTuple):
    """The state of the server, for its service manager.

    Attributes:
        started: the start is complete: the server serves or stands by.
        text: one line for `systemctl status`.
    """

    started: bool
    text: str


class ServiceManager:
    """The service manager that started this process, for example systemd.

    The reports come from a task of the event loop. If the loop hangs they end, and the watchdog
    ends the process. Before the start is complete they extend its time limit.

    Parameters:
        address: path of the manager's socket; "@" begins a name in the abstract namespace. Or a
            socket that is connected to it.
        watchdog_s: time without a report after which the manager ends the process; 0: it does not.
    """

    def __init__(self, address: str | socket.socket, watchdog_s: float = 0.0) -> None:
        self.watchdog_seconds: Final = watchdog_s
        self._watched: Final = watchdog_s > 0
        limit = watchdog_s / _REPORTS_PER_WATCHDOG if self._watched else _INTERVAL_S
        self._interval_s: Final = min(limit, _INTERVAL_S)
        self._address: Final = _sent_to(address)
        self._socket: Final = (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            if isinstance(address, str)
            else address
        )
        self._socket.settimeout(0)
        self._started = False
        self._stopping = False
        self._text = ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], pid: int) -> "ServiceManager | None":
        """Return the manager that NOTIFY_SOCKET names; None: there is none.

        Parameters:
            pid: of this process. A watchdog of another process (WATCHDOG_PID) is not ours.
        """
        address = environ.get("NOTIFY_SOCKET", "")
        if not address:
            return None
        if address[0] not in "/@":
            _log.warning("NOTIFY_SOCKET is no Unix socket: the server reports nothing there",
                         address=address)  # fmt: skip
            return None
        watchdog_us = environ.get("WATCHDOG_USEC", "0")
        if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
            watchdog_us = "0"
        if not watchdog_us.isascii() or not watchdog_us.isdecimal():
            _log.warning("WATCHDOG_USEC is no number: the watchdog gets no reports",
                         value=watchdog_us)  # fmt: skip
            watchdog_us = "0"
        return cls(address, int(watchdog_us) / 1e6)

    async def run(self, state: Callable[[], ServiceState]) -> None:
        """Report the state again and again, until it is cancelled."""
        while True:
            self.report(state())
            await asyncio.sleep(self._interval_s)

    def report(self, state: ServiceState) -> None:
        """Report the state; the text only if it is another one."""
        fields = []
        if state.text != self._text and not self._stopping:
            self._text = state.text
            fields.append(f"STATUS={' '.join(state.text.splitlines())}")
        if state.started and not self._started:
            self._started = True
            fields.append("READY=1")
        if not self._started and not self._stopping:
            fields.append(f"EXTEND_TIMEOUT_USEC={_START_EXTENSION_US}")
        if self._watched:
            fields.append("WATCHDOG=1")
        if fields:
            self._send(fields)

    def stopping(self) -> None:
        """Report that a stop has begun."""
        self._stopping = True
        self._send(["STOPPING=1", "STATUS=stopping"])

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _send(self, fields: list[str]) -> None:
        report = "\n".join(fields).encode()
        try:
            if self._address:
                self._socket.sendto(report, self._address)
            else:
                self._socket.send(report)
        except OSError as error:
            # The server goes on without its manager. A watchdog that gets no report ends it.
            LINES.write(_log, "warning", "the service manager got no report", kind_of(error),
                        error=str(error))  # fmt: skip


def _sent_to(address: str | socket.socket) -> str:
    """Return the address of each report; empty: the socket is connected."""
    if not isinstance(address, str):
        return ""
    return f"\0{address[1:]}" if address.startswith("@") else address
