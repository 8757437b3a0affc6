"""Pings the other active servers, so that one that was killed or hangs is missed at once.

The rules are in `pidlease/core/liveness.py`. A ping that is not answered is not repeated: the next
one is sent when its time is over.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Final, Protocol

import structlog

from pidlease.coordination.members import Member
from pidlease.core.liveness import TICK_SECONDS, Deciders, Liveness, PeerReport
from pidlease.observability.repeated_lines import LINES, kind_of

_log = structlog.get_logger(__name__)


class SilentError(Exception):
    """A member does not answer pings."""


class PingOutcome(Protocol):
    """Gets what became of pings."""

    def answered(self, report: PeerReport | None) -> None:
        """Note an answer.

        Parameters:
            report: its content; None: the member has a version without pings.
        """

    def refused(self) -> None:
        """Note that nothing serves at the member's address, by two attempts."""


class PingConnection(Protocol):
    """A connection to one member, which is kept open."""

    def ping(self, version: int, topics: int) -> None:
        """Ping the member, unless an earlier ping is in flight.

        Parameters:
            version: of this server's map.
            topics: of the last change of topics that this server knows.
        """

    def close(self) -> None:
        """Close the connection; there are no outcomes after this."""


#: Prepares a connection to a member.
Connect = Callable[[Member, PingOutcome], PingConnection]


class _Outcome:
    """Notes the answers of one member."""

    def __init__(self, pings: "MemberPings", node_id: int) -> None:
        self._pings: Final = pings
        self._node_id: Final = node_id

    def answered(self, report: PeerReport | None) -> None:
        self._pings.note_answer(self._node_id, report)

    def refused(self) -> None:
        self._pings.note_refusal(self._node_id)


class MemberPings:
    """Pings other members, and reports which of them answer.

    Parameters:
        own: this server's node id.
        connect: prepares a connection to a member; None: there are no pings, and sessions alone
            count.
        changed: called when a member has become silent, or another one has a newer map.
    """

    def __init__(self, own: int, connect: Connect | None, changed: Callable[[], None]) -> None:
        self._own: Final = own
        self._connect: Final = connect
        self._changed: Final = changed
        self._liveness: Final = Liveness(own)
        self._members: Mapping[int, Member] = {}
        self._in_map: frozenset[int] = frozenset()
        self._version = -1
        #: The last change of topics, by any member, that this server knows.
        self._topics = 0
        #: Called when another member has changed topics.
        self.on_topics: Callable[[], None] = lambda: None
        #: The newest version of the map that another member has named since the last tick.
        self._heard_version = -1
        self._connections: Final[dict[int, tuple[Member, PingConnection]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._silent: frozenset[int] = frozenset()
        #: The requests in flight, by member.
        self._waiting: Final[dict[int, set[asyncio.Timeout]]] = {}

    # ------------------------------------------------------------------ life cycle

    def start(self) -> None:
        """Ping members from now on."""
        if self._connect is not None:
            self._repeat()

    def stop(self) -> None:
        """Ping no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._keep_connections(())

    def follow(self, members: Mapping[int, Member], in_map: tuple[int, ...], version: int) -> None:
        """Note members and map.

        Parameters:
            in_map: the members that the slots were divided among last.
            version: of the map.
        """
        self._members, self._in_map, self._version = members, frozenset(in_map), version
        self._liveness.set_members({node: each.joined for node, each in members.items()})
        self._keep_connections(members)
        self._compare()

    def _repeat(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._repeat)
        try:
            self.tick()
        except Exception as error:  # noqa: BLE001 - a bug must not end the pings
            LINES.write(_log, "error", "members could not be pinged", kind_of(error), error,
                        error=repr(error))  # fmt: skip

    def tick(self) -> None:
        """Ping members, and note which of them have not answered for too long."""
        targets = self._liveness.tick()
        self._keep_connections(targets)
        for node in targets:
            self._connection(node).ping(self._version, self._topics)
        self._compare()
        if self._heard_version > self._version:
            # Once a tick: a ping may name a version that does not exist.
            self._changed()
        self._heard_version = -1

    def _connection(self, node: int) -> PingConnection:
        member = self._members[node]
        known = self._connections.get(node)
        if known is not None:
            if known[0].http_url == member.http_url:
                return known[1]
            known[1].close()
        if self._connect is None:
            raise AssertionError("there are no pings")
        made = self._connect(member, _Outcome(self, node))
        self._connections[node] = member, made
        return made

    def _keep_connections(self, wanted: Collection[int]) -> None:
        for node in self._connections.keys() - set(wanted):
            self._connections.pop(node)[1].close()

    # ------------------------------------------------------------------ answers

    def note_answer(self, node: int, report: PeerReport | None) -> None:
        """Note an answer of a member."""
        news = self._liveness.answered(node, report)
        if report is not None:
            self._heard_version = max(self._heard_version, report.version)
            self._hear_topics(report.topics)
        if news:  # else a look at all members for each answer of each
            self._compare()

    def note_refusal(self, node: int) -> None:
        """Note that nothing serves at a member's address."""
        self._liveness.refused(node)
        self._compare()

    def answer(self, version: int, topics: int) -> PeerReport:
        """Return the answer to a ping of another member.

        Parameters:
            version: of the other member's map.
            topics: of the last change of topics that it knows.
        """
        self._heard_version = max(self._heard_version, version)
        self._hear_topics(topics)
        return self._liveness.report(self._version)._replace(topics=self._topics)

    def topics_changed(self, now_ms: int) -> None:
        """Note that this server has changed topics, for the other members.

        Parameters:
            now_ms: the time, in ms since 1970: a process that was started again counts on.
        """
        self._topics = max(self._topics + 1, now_ms)

    def _hear_topics(self, topics: int) -> None:
        if topics > self._topics:
            self._topics = topics
            self.on_topics()

    def _compare(self) -> None:
        """Act on members that have become silent, or answer again."""
        before, self._silent = self._silent, self._liveness.silent(self._in_map)
        for node in self._silent - before:
            member = self._members[node]
            _log.warning("a server does not answer pings", server=member.server,
                         http=member.http_url)  # fmt: skip
            for each in self._waiting.pop(node, ()):
                each.reschedule(asyncio.get_running_loop().time())
        for node in before - self._silent:
            if node in self._members:
                _log.info("a server answers pings again", server=self._members[node].server)
        if self._silent != before:
            self._changed()

    # ------------------------------------------------------------------ conclusions

    @property
    def abstains(self) -> bool:
        """Whether this server reaches so few members that it divides no slots."""
        return self._liveness.abstains

    def deciders(self) -> Deciders:
        """Return which members divide the slots, and which members get none."""
        return self._liveness.deciders(self._in_map)

    @property
    def silent(self) -> frozenset[int]:
        """The members that do not answer."""
        return self._silent

    @property
    def returning(self) -> frozenset[int]:
        """The members that answer again, and will get slots after a while."""
        return self._liveness.returning(self._in_map)

    @asynccontextmanager
    async def while_answering(self, node: int) -> AsyncIterator[None]:
        """Do something with a member; end it when the member becomes silent.

        Raises:
            SilentError: the member does not answer pings.
        """
        if node in self._silent:
            raise SilentError("it does not answer pings")
        waiting = self._waiting.setdefault(node, set())
        try:
            async with asyncio.timeout(None) as scope:
                waiting.add(scope)
                try:
                    yield
                finally:
                    waiting.discard(scope)
                    if not waiting and self._waiting.get(node) is waiting:
                        del self._waiting[node]
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise SilentError("it does not answer pings any more") from error
