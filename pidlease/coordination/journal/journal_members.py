"""The members that share a Kafka cluster, and the map of slots, in a journal.

    member/7      {"server": ..., "kafka": [host, port], "http": ..., "session": ..., ...}
    map/          {"version": 1, "owners": [...], "epochs": [...], "members": [...], "change": 5}
    count/nodes   {"next": 8}
    count/joins   {"next": 12}

A member's row is removed when its session has ended. The map's changes are counted in it, and the
order in which the members joined in their rows.
"""

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from typing_extensions import override

from pidlease.coordination.journal.journal import (
    OWNER,
    SESSION,
    Fields,
    Journal,
    JournalConflictError,
    JournalError,
    Row,
)
from pidlease.coordination.members import (
    MapConflictError,
    Member,
    Members,
    MembersError,
    MembershipLostError,
    SharedView,
    map_fields,
    map_of,
    member_fields,
    member_of,
    replaced_by,
)
from pidlease.core.slots import EMPTY_MAP, SlotMap

Result = TypeVar("Result")

_MEMBER: Final = "member"
_MAP: Final = "map"
_COUNT: Final = "count"
_NODES: Final = "nodes"
_JOINS: Final = "joins"
#: How often something is tried while other servers are faster.
_ATTEMPTS_MAX: Final = 100


class JournalMembers(Members):
    """Members and map in a journal.

    Parameters:
        stranger: returns the name of a server without --shared that serves the cluster; empty:
            none.
    """

    def __init__(self, journal: Journal, stranger: Callable[[], str]) -> None:
        self._journal: Final = journal
        self._stranger: Final = stranger
        self._lock: Final = threading.Lock()
        #: This server, from its join to its leave.
        self._self: Member | None = None

    @override
    def node_id(self) -> int:
        return self._try(self._next_node_id)

    def _next_node_id(self) -> int:
        """Count the ids, and skip those in use: earlier moves from ZooKeeper moved no counter."""
        self._journal.refresh()
        try:
            slots = _slots(self._journal.get(_MAP, ""))
        except (ValueError, KeyError, TypeError) as error:
            raise MembersError(f"the map cannot be read: {error!r}") from error
        used = [*map(int, self._journal.all(_MEMBER)), *slots.owners, *slots.members]
        return self._put_counted(_NODES, lambda _: [], max(used, default=0) + 1)

    @override
    def join(self, member: Member) -> None:
        with self._lock:
            self._try(lambda: self._write_self(member))
            self._self = member

    @override
    def leave(self) -> None:
        with self._lock:
            member, self._self = self._self, None
            if member is not None:
                self._try(lambda: self._remove(member))

    def _remove(self, member: Member) -> None:
        own = Row(_MEMBER, str(member.node_id), self._row_of(member))
        if self._is_mine(own.fields):
            self._journal.put([own._replace(fields=None)], [own])

    def _write_self(self, member: Member) -> int:
        """Put this server's row; it keeps its place in the order while its session lasts."""
        before = self._row_of(member)
        if before is not None and self._is_mine(before):
            joined = int(before["joined"])
            self._journal.put(
                [self._own(member, joined)], [Row(_MEMBER, str(member.node_id), before)]
            )
            return joined
        # Else there is none; or, at the join, that of an earlier process of this data directory.
        # The counter of joins shows whether another process joins meanwhile.
        self._check_row()
        return self._put_counted(_JOINS, lambda joined: [self._own(member, joined)])

    def _check_row(self) -> None:
        """Check that no other process has put itself into this member's row.

        A process has one session, so it is not one that this process had before.

        Raises:
            MembershipLostError: one has.
        """
        row = None if self._self is None else self._row_of(self._self)
        if row is not None and not self._is_mine(row):
            raise replaced_by(_member(row))

    def _own(self, member: Member, joined: int) -> Row:
        fields = member_fields(member) | {"joined": joined, SESSION: self._journal.session}
        return Row(_MEMBER, str(member.node_id), fields)

    def _is_mine(self, fields: Fields | None) -> bool:
        return fields is not None and fields[SESSION] == self._journal.session

    def _row_of(self, member: Member) -> Fields | None:
        return self._journal.get(_MEMBER, str(member.node_id))

    # ------------------------------------------------------------------ all servers

    @override
    def read(self) -> SharedView:
        with self._lock:
            self._try(self._journal.refresh)
            own = self._self
            if own is not None and not self._is_mine(self._row_of(own)):
                self._try(lambda: self._write_self(own))  # the session had ended
                self._try(self._journal.refresh)
            try:
                members = [_member(row) for row in self._journal.all(_MEMBER).values()]
                slots = _slots(self._journal.get(_MAP, ""))
            except (ValueError, KeyError, TypeError) as error:
                raise MembersError(f"a row of the members cannot be read: {error!r}") from error
            registrar = (self._journal.get(OWNER, "") or {}).get("url", "")
            return SharedView(
                {each.node_id: each for each in members}, slots, self._stranger(), registrar
            )

    @override
    def slots(self) -> SlotMap:
        self._try(self._journal.refresh)
        self._check_row()
        try:
            return _slots(self._journal.get(_MAP, ""))
        except (ValueError, KeyError, TypeError) as error:
            raise MembersError(f"the map cannot be read: {error!r}") from error

    @override
    def write(self, slots: SlotMap) -> SlotMap:
        before = self._journal.get(_MAP, "")
        if (-1 if before is None else before["change"]) != slots.version:
            raise MapConflictError("the map has changed meanwhile")
        written = slots._replace(version=slots.version + 1)
        fields = map_fields(slots) | {"change": written.version}
        try:
            self._journal.put([Row(_MAP, "", fields)], [Row(_MAP, "", before)])
        except JournalConflictError as error:
            raise MapConflictError("the map has changed meanwhile") from error
        except JournalError as error:
            raise MembersError(f"the map: {error}") from error
        return written

    @override
    def watch(self, changed: Callable[[], None]) -> None:
        for kind in (_MEMBER, _MAP):
            self._journal.watch(kind, changed)

    # ------------------------------------------------------------------ rows

    def _put_counted(
        self, counter: str, rows: Callable[[int], list[Row]], at_least: int = 1
    ) -> int:
        """Put rows with the next number of a counter, in one put with the counter; return it."""
        before = self._journal.get(_COUNT, counter)
        number = max(at_least, 1 if before is None else int(before["next"]))
        row = Row(_COUNT, counter, {"next": number + 1})
        self._journal.put([row, *rows(number)], [row._replace(fields=before)])
        return number

    def _try(self, call: Callable[[], Result]) -> Result:
        """Do something until no other server is faster.

        Raises:
            MembershipLostError: the journal cannot be read any more.
            MembersError: it may have been done, or not.
        """
        try:
            for _ in range(_ATTEMPTS_MAX):
                try:
                    return call()
                except JournalConflictError:
                    self._journal.refresh()
        except JournalError as error:
            if self._journal.ended:
                raise MembershipLostError(self._journal.ended) from error
            raise MembersError(f"members: {error}") from error
        raise MembersError("members: other servers were always faster")


def node_ids_row(next_id: int) -> Row:
    """Return the row of the counter of node ids."""
    return Row(_COUNT, _NODES, {"next": next_id})


def _member(fields: Fields) -> Member:
    return member_of(fields, int(fields["joined"]))


def _slots(fields: Fields | None) -> SlotMap:
    """Decode the map.

    Raises:
        ValueError, KeyError, TypeError: it is of a newer format, or no map.
    """
    return EMPTY_MAP if fields is None else map_of(fields, int(fields["change"]))
