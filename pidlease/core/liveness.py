"""Which of several active servers answer pings, and which of them divides the slots.

Time is counted in ticks of this server's own event loop. So a server that was suspended itself
finds the others silent only after it has pinged them again.

The oldest members that answer ping all others; every other member pings these few. So a hundred
members send two thousand pings a second together, and the next one to divide the slots knows all
members.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

TICK_SECONDS: Final = 0.3
#: A member that has not answered for so many ticks is silent: 1.5 s.
SILENT_TICKS: Final = 5
#: A member that was silent gets slots again after so many ticks of answers: 30 s.
RETURN_TICKS: Final = 100
#: So many of the oldest members that answer ping all others.
_PINGING: Final = 3
#: From this number of members on, one that reaches fewer than half of them moves nothing.
_QUORUM_FROM: Final = 3


class PeerReport(NamedTuple):
    """What a member answers to a ping.

    Attributes:
        version: of its map.
        silent: the members that do not answer it.
        returning: the members that were silent, and answer again.
        abstains: whether it reaches fewer than half of the members.
        topics: of the last change of topics by any member, as it knows.
    """

    version: int
    silent: Collection[int] = ()
    returning: Collection[int] = ()
    abstains: bool = False
    topics: int = 0


@dataclass(slots=True)
class _Peer:
    """Another member.

    Attributes:
        joined: when it became a member. A process that was started again is another member.
        unanswered: ticks since its last answer.
        suspected: it was silent, and has not answered for long enough since.
        answered: ticks since it answers again.
        report: its last answer; None: there is none, or it is of a version without pings.
    """

    joined: int
    unanswered: int = 0
    suspected: bool = False
    answered: int = 0
    report: PeerReport | None = None

    @property
    def silent(self) -> bool:
        return self.unanswered >= SILENT_TICKS


class Deciders(NamedTuple):
    """Which members divide the slots, as one member has it.

    Attributes:
        order: each steps in if those before it do nothing.
        away: members that the first one gives no slots, while others could own them.
        silent: those of them that do not answer.
    """

    order: list[int]
    away: frozenset[int] = frozenset()
    silent: frozenset[int] = frozenset()


class Liveness:
    """The members, by their answers to this one.

    Parameters:
        own: this server's node id.
    """

    def __init__(self, own: int) -> None:
        self._own: Final = own
        #: The node ids of all members, the oldest first.
        self._by_age: list[int] = []
        self._joined: frozenset[int] = frozenset()
        self._peers: dict[int, _Peer] = {}
        self._pinged: set[int] = set()
        #: Members that something is known of: they were pinged, or have answered.
        self._known: set[int] = set()
        #: What `report` says besides the version; None: something has changed since.
        self._findings: PeerReport | None = None

    def set_members(self, joined: Mapping[int, int]) -> None:
        """Note the members, and when each has joined. A new one counts as answering at first."""
        self._findings = None
        before = self._peers
        self._by_age = sorted(joined, key=lambda node: joined[node])
        self._joined = frozenset(joined)
        self._peers = {}
        for node in self._by_age:
            known = before.get(node)
            if node != self._own:
                same = known is not None and known.joined == joined[node]
                self._peers[node] = known if known and same else _Peer(joined[node])
        self._known = (self._known | self._pinged) & self._peers.keys()

    # ------------------------------------------------------------------ evidence

    def tick(self) -> list[int]:
        """Count one tick; return the members to ping now."""
        self._findings = None
        for node in self._pinged & self._known:
            peer = self._peers[node]
            peer.unanswered += 1
            if peer.silent:
                peer.suspected, peer.answered = True, 0
            elif peer.suspected:
                peer.answered += 1
                peer.suspected = peer.answered < RETURN_TICKS
        targets = self._targets()
        self._pinged = set(targets)
        for node in self._known - self._pinged:
            # Older members know about it.
            self._peers[node] = _Peer(self._peers[node].joined)
        self._known = self._pinged.copy()
        return targets

    def _targets(self) -> list[int]:
        found, answering = [], 0
        for node in self._by_age:
            if node == self._own:
                return list(self._peers)
            found.append(node)
            answering += not self._peers[node].silent
            if answering == _PINGING:
                break
        return found

    def answered(self, node: int, report: PeerReport | None) -> bool:
        """Note an answer of a member; return whether it says anything new about the members."""
        peer = self._peers.get(node)
        if peer is None:
            return False
        self._known.add(node)
        news = peer.silent or _findings(report) != _findings(peer.report)
        if peer.silent:
            self._findings = None
        peer.unanswered, peer.report = 0, report
        return news

    def refused(self, node: int) -> None:
        """Note that nothing serves at a member's address: it is silent at once."""
        self._findings = None
        peer = self._peers.get(node)
        if peer is not None:
            self._known.add(node)
            peer.unanswered = max(peer.unanswered, SILENT_TICKS)
            peer.suspected, peer.answered = True, 0

    # ------------------------------------------------------------------ conclusions

    @property
    def abstains(self) -> bool:
        """Whether this server reaches fewer than half of the members, so that it may be cut off."""
        members = len(self._by_age)
        reached = members - len(self._silent())
        return members >= _QUORUM_FROM and 2 * reached < members

    def report(self, version: int) -> PeerReport:
        """Return the answer to a ping.

        Parameters:
            version: of the map.
        """
        if self._findings is None:
            silent, peers = self._silent(), self._peers
            suspected = [each for each in self._known if peers[each].suspected]
            self._findings = PeerReport(
                0, tuple(sorted(silent)), tuple(sorted({*suspected} - silent)), self.abstains
            )
        return self._findings._replace(version=version)

    def _silent(self) -> set[int]:
        return {node for node in self._known if self._peers[node].silent}

    def _first_report(self, first: int | None) -> PeerReport | None:
        """Return what the member that divides the slots knows about the others."""
        if first is None or first == self._own:
            return self.report(0)
        return self._peers[first].report

    def _order(self, in_map: Collection[int]) -> Iterator[int]:
        """Return the members that may divide the slots, the first one first."""
        # A member that the map has no slots for may be one that another member does not reach: if
        # both divided the slots, they would move them back and forth.
        in_map = in_map if any(node in self._joined for node in in_map) else self._joined
        found = (node for node in self._by_age if node in in_map)
        if self.abstains:
            return found
        return (node for node in found if node == self._own or self._may_decide(node))

    def _may_decide(self, node: int) -> bool:
        peer = self._peers[node]
        return not peer.silent and (peer.report is None or not peer.report.abstains)

    def deciders(self, in_map: Collection[int]) -> Deciders:
        """Return which members divide the slots, and which members get none.

        A member that is not the first one goes by what the first one reports: if it went by its own
        pings, both would write the map in turn. One that abstains removes members without a session
        from the map, and adds none: another one may have removed them by its pings.

        Parameters:
            in_map: the members that the slots were divided among last.
        """
        order = list(self._order(in_map))
        if self.abstains:
            return Deciders(order, frozenset(self._by_age).difference(order))
        report = self._first_report(order[0] if order else None)
        if report is None:
            return Deciders(order)
        # Slots that a returning member still has stay there.
        returning = (node for node in report.returning if node not in in_map)
        silent = frozenset(report.silent)
        return Deciders(order, silent.union(returning), silent)

    def silent(self, in_map: Collection[int]) -> frozenset[int]:
        """Return the members that do not answer this server, or the first one if it pings them."""
        own = self._silent()
        report = self._first_report(next(self._order(in_map), None))
        heard = () if report is None else (each for each in report.silent if each in self._peers)
        return frozenset((*own, *(each for each in heard if each not in self._pinged)))

    def returning(self, in_map: Collection[int]) -> frozenset[int]:
        """Return the members that answer again, and will get slots after a while."""
        report = self._first_report(next(self._order(in_map), None))
        return frozenset() if report is None else frozenset(report.returning) - {self._own}


def _findings(report: PeerReport | None) -> PeerReport | None:
    """Return what a report says about other members."""
    return None if report is None else report._replace(version=0)
