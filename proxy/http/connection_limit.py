"""The limit of the connections at the HTTP ports.

Clients that only hold connections keep no others out, for an idle connection gives way to a new
one. Another active server that is kept out for 1.5 s loses its partitions. So its connections do
not give way, and a few more than the limit may send a request, which shows the sender.
"""

from collections import OrderedDict
from typing import Final, Protocol

import structlog

from pidlease.observability.repeated_lines import LINES

#: More connections than the limit, of servers that share a cluster. Each server opens a few.
_RESERVE: Final = 64

_log = structlog.get_logger(__name__)


class Connection(Protocol):
    """A connection, from the beginning of its TLS handshake."""

    def is_of_member(self) -> bool:
        """Whether its last request is one by which another active server stays a member."""

    def give_way(self) -> bool:
        """End it while it is idle; False: it ends when the client has read its last response."""


class ConnectionLimit:
    """How many connections there may be at each HTTP port.

    Parameters:
        shared: whether there may be other active servers.

    Attributes:
        connections_max: how many there may be.
        reserve: how many more there may be until their first requests have come.
        ports: the connections of each port.
        closed: how many were closed because of the limit.
    """

    def __init__(self, connections_max: int, *, shared: bool = False) -> None:
        self.connections_max = connections_max
        self.reserve: Final = _RESERVE if shared else 0
        self.ports: Final[list[PortConnections]] = []
        self.closed = 0

    @property
    def open(self) -> int:
        """The number of connections at all ports."""
        return sum(len(each.connections) for each in self.ports)

    def add_port(self) -> "PortConnections":
        """Limit the connections of one more port."""
        self.ports.append(PortConnections(self))
        return self.ports[-1]


class PortConnections:
    """The connections of one port.

    Attributes:
        connections: all but those that are being closed and have all responses.
    """

    def __init__(self, limit: ConnectionLimit) -> None:
        self._limit: Final = limit
        self.connections: Final[set[Connection]] = set()
        #: Without a request in progress, those that have been so for the longest first.
        self._idle: Final[OrderedDict[Connection, bool]] = OrderedDict()
        #: Those beyond the limit that have sent no request, the oldest first.
        self._unproven: Final[OrderedDict[Connection, bool]] = OrderedDict()

    def opened(self, new: Connection) -> bool:
        """Note a new connection; False: close it, there are too many."""
        limit = self._limit
        self.connections.add(new)
        if len(self.connections) <= limit.connections_max or self._close_idle():
            self._idle[new] = True
            return True
        if len(self.connections) > limit.connections_max + limit.reserve:
            oldest = self._unproven.popitem(last=False)[0] if self._unproven else new
            self.connections.discard(oldest)
            self._note_closed(was_idle=False)
            if oldest is new:
                return False
            oldest.give_way()
        self._unproven[new] = True
        return True

    def began(self, connection: Connection) -> bool:
        """Note that a request is served; False: refuse it, and close the connection."""
        if self._idle.pop(connection, False) or not self._unproven.pop(connection, False):
            return True
        if len(self.connections) <= self._limit.connections_max or connection.is_of_member():
            return True
        self._note_closed(was_idle=False)
        return False

    def rested(self, connection: Connection) -> None:
        """Note that a connection has the responses to all its requests."""
        self._idle[connection] = True

    def closed(self, connection: Connection) -> None:
        """Note the end of a connection."""
        self.connections.discard(connection)
        self._idle.pop(connection, None)
        self._unproven.pop(connection, None)

    def _close_idle(self) -> bool:
        """Close an idle connection; False: there is none."""
        while self._idle:
            oldest, _ = self._idle.popitem(last=False)
            if self._limit.reserve and oldest.is_of_member():
                continue  # it is looked at again after its next request
            self._note_closed(was_idle=True)
            if oldest.give_way():
                self.connections.discard(oldest)
                return True
        return False

    def _note_closed(self, *, was_idle: bool) -> None:
        limit = self._limit
        limit.closed += 1
        LINES.write(_log, "warning", "HTTP connection closed: there are too many", "",
                    connections_max=limit.connections_max, was_idle=was_idle)  # fmt: skip
