"""The limit of the connections at the HTTP ports."""

from typing import Any, Final

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pidlease.observability.repeated_lines import LINES

_log = structlog.get_logger(__name__)


class ConnectionLimit:
    """At most so many connections at each HTTP port: an idle one gives way to a new one.

    So clients that only hold connections keep neither others out nor the pings of other servers.
    If no connection is idle, the new one is closed.

    Attributes:
        connections_max: how many there may be.
        ports: the connections of each port.
        closed: how many were closed because of the limit.
    """

    def __init__(self, connections_max: int) -> None:
        self.connections_max = connections_max
        self.ports: Final[list[set[Any]]] = []
        self.closed = 0

    @property
    def open(self) -> int:
        """The number of connections at all ports."""
        return sum(map(len, self.ports))

    def make_room(self, connections: set[Any], new: HttpToolsProtocol) -> bool:
        """Close a connection if there are too many; False: it is the new one.

        Parameters:
            connections: those of the port.
            new: the last one, which is among them.
        """
        if len(connections) <= self.connections_max:
            return True
        self.closed += 1
        idle = next((each for each in connections if each is not new and _is_idle(each)), None)
        LINES.write(_log, "warning", "HTTP connection closed: there are too many", "",
                    connections_max=self.connections_max, was_idle=idle is not None)  # fmt: skip
        if idle is None:
            new.transport.abort()
            return False
        connections.discard(idle)  # what it had asked for has been answered
        idle.shutdown()
        return True


def _is_idle(connection: HttpToolsProtocol) -> bool:
    """Whether a connection has all responses, or no request of which the head has arrived."""
    served = not getattr(connection.cycle, "response_complete", True)
    return not served and not connection.transport.get_write_buffer_size()
