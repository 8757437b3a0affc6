"""The coordinator's interface for several active servers: its members, and the map of slots."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from pidlease.core.slots import SLOTS, SlotMap

#: The format of the map and of members. A server refuses a newer map.
_FORMAT: Final = 1


class MembersError(Exception):
    """The members or the map cannot be read or changed now; try again."""


class MembershipLostError(MembersError):
    """This server can be no member any more. Its process must end; the message says what to do."""


class MapConflictError(Exception):
    """The map has changed since it was read. Read it again."""


class Member(NamedTuple):
    """An active server.

    Attributes:
        node_id: its id as a broker; kept in its data directory.
        server: its name, for the operator: host:process.
        kafka_host: the host name that clients of its default listener connect to.
        kafka_port: the port that clients of its default listener connect to.
        http_url: where other members reach its HTTP port: http://HOST:PORT.
        draining: whether it is about to leave, and must get no slots.
        joined: the order in which the members joined: the lowest one is the oldest.
        listeners: name, host and port of each named listener, the default one first; empty: its
            only listener has no name.
    """

    node_id: int
    server: str
    kafka_host: str
    kafka_port: int
    http_url: str
    draining: bool = False
    joined: int = 0
    listeners: tuple[tuple[str, str, int], ...] = ()

    def kafka_address(self, listener: str, *, default: bool) -> tuple[str, int] | None:
        """Return what clients of a listener connect to; None: the member has no such listener.

        A member without names is of an earlier version, or not yet restarted with names: its only
        address counts for the default listener.

        Parameters:
            listener: the name; empty: the only one of a server without names.
            default: whether it is the default listener of the server that the client requests.
        """
        for name, host, port in self.listeners:
            if name == listener:
                return host, port
        if default and not (self.listeners and listener):
            return self.kafka_host, self.kafka_port
        return None

    def shown_kafka(self) -> str:
        """Return what Kafka clients connect to, as an operator reads it."""
        if not self.listeners:
            return f"{self.kafka_host}:{self.kafka_port}"
        return ",".join(f"{name}://{host}:{port}" for name, host, port in self.listeners)


class SharedView(NamedTuple):
    """The members and the map, as of one read.

    Attributes:
        members: by node id.
        slots: the map.
        stranger: the name of a server without --shared that serves the cluster; empty: none.
        registrar: the HTTP address of the member that writes the coordinator's rows; empty: none
            does, as they are in ZooKeeper.
    """

    members: dict[int, Member]
    slots: SlotMap
    stranger: str = ""
    registrar: str = ""


class Members(Protocol):
    """The members that share a Kafka cluster. All methods block, and run in threads."""

    def node_id(self) -> int:
        """Assign a node id that no other server ever gets.

        Raises:
            MembersError: none can be assigned now.
        """

    def join(self, member: Member) -> None:
        """Become a member, or change this server's own entry.

        The first call replaces the entry of an earlier process of the data directory, whether or
        not that has ended: after a kill, its session goes on for a while.

        Raises:
            MembershipLostError: another process has replaced this one.
            MembersError: it may have been done, or not.
        """

    def leave(self) -> None:
        """Stop being a member.

        Raises:
            MembersError: it may have been done, or not.
        """

    def read(self) -> SharedView:
        """Read members and map, as of this call or later; join again if the session had ended.

        Raises:
            MembershipLostError: another process has replaced this one, or it can read no more.
            MembersError: they cannot be read now.
        """

    def slots(self) -> SlotMap:
        """Read the map alone, as of this call or later.

        Raises:
            MembershipLostError: as of `read`.
            MembersError: it cannot be read now.
        """

    def write(self, slots: SlotMap) -> SlotMap:
        """Write the map, on condition that its version is still the one it was read at.

        Returns:
            The map with its new version.

        Raises:
            MapConflictError: it has changed meanwhile.
            MembersError: it may have been written, or not.
        """

    def watch(self, changed: Callable[[], None]) -> None:
        """Call a function, in any thread, soon after members or map have changed.

        A change may be missed: read them from time to time as well.
        """


def member_fields(member: Member) -> dict[str, Any]:
    """Return what is stored of a member, except the order in which it joined."""
    fields = {
        "version": _FORMAT, "node_id": member.node_id, "server": member.server,
        "kafka": [member.kafka_host, member.kafka_port], "http": member.http_url,
        "draining": member.draining,
    }  # fmt: skip
    if member.listeners:
        fields["listeners"] = [list(each) for each in member.listeners]
    return fields


def member_of(fields: Mapping[str, Any], joined: int) -> Member:
    """Return the member that is stored.

    Raises:
        ValueError, KeyError, TypeError: something else is.
    """
    host, port = fields["kafka"]
    return Member(
        int(fields["node_id"]), str(fields["server"]), str(host), int(port), str(fields["http"]),
        bool(fields["draining"]), joined,
        tuple((str(name), str(at), int(to)) for name, at, to in fields.get("listeners", ())),
    )  # fmt: skip


def replaced_by(other: Member) -> MembershipLostError:
    """Return the error of a member that another process has replaced."""
    return MembershipLostError(
        f"another server, {other.server} ({other.http_url}), uses this data directory or a copy of"
        f" it, and is node {other.node_id} now, so this one has stepped down; stop one of the two,"
        " and start it with a directory of its own"
    )


def map_fields(slots: SlotMap) -> dict[str, Any]:
    """Return what is stored of a map, except its version."""
    return {"version": _FORMAT, "owners": slots.owners, "epochs": slots.epochs,
            "members": slots.members}  # fmt: skip


def map_of(fields: Mapping[str, Any], version: int) -> SlotMap:
    """Return the map that is stored.

    Raises:
        ValueError, KeyError, TypeError: it is of a newer format, or no map.
    """
    if int(fields["version"]) > _FORMAT:
        raise ValueError(f"the map has format {fields['version']}; this version reads {_FORMAT}")
    owners, epochs = (tuple(map(int, fields[name])) for name in ("owners", "epochs"))
    if len(owners) != SLOTS or len(epochs) != SLOTS:
        raise ValueError(f"the map has {len(owners)} slots, not {SLOTS}")
    return SlotMap(owners, epochs, tuple(map(int, fields["members"])), version)
