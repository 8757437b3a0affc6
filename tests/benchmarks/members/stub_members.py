"""Members of a cluster that own slots, and do nothing with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from typing_extensions import override

from pidlease.coordination.members import Member
from pidlease.core.liveness import PeerReport
from pidlease.engine.member_pings import Connect, PingConnection, PingOutcome
from pidlease.engine.shared_cluster import SharedCluster

#: Some topics, so that slots have weights.
TOPICS: Mapping[str, int] = {f"topic-{number}": 100 for number in range(100)}


class Network:
    """Carries pings between members of one process.

    Parameters:
        delay_s: returns how long a ping or its answer takes.
    """

    def __init__(self, delay_s: Callable[[], float]) -> None:
        self.delay_s = delay_s
        self.members: dict[str, SharedCluster] = {}
        #: The addresses at which nothing listens any more.
        self.gone: set[str] = set()
        #: The addresses that do not answer.
        self.silent: set[str] = set()
        self.pings = 0

    def connector(self, source: str) -> Connect:
        """Connections of the member at an address."""

        def connect(member: Member, outcome: PingOutcome) -> PingConnection:
            return _Connection(self, source, member.http_url, outcome)

        return connect


class _Connection(PingConnection):
    """From one member to another."""

    def __init__(self, network: Network, source: str, target: str, outcome: PingOutcome) -> None:
        self._network = network
        self._ends = {source, target}
        self._target = target
        self._outcome = outcome
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @override
    def ping(self, version: int, topics: int) -> None:
        network = self._network
        if self._timer is not None or self._ends & network.silent or self._closed:
            return
        network.pings += 1
        self._timer = asyncio.get_running_loop().call_later(
            network.delay_s(), self._arrive, version, topics
        )

    def _arrive(self, version: int, topics: int) -> None:
        self._timer = None
        if self._closed or self._ends & self._network.silent:
            return
        if self._ends & self._network.gone:
            self._outcome.refused()
            return
        report = self._network.members[self._target].pings.answer(version, topics)
        self._timer = asyncio.get_running_loop().call_later(
            self._network.delay_s(), self._answered, report
        )

    def _answered(self, report: PeerReport) -> None:
        self._timer = None
        if not self._closed:
            self._outcome.answered(report)

    @override
    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()


def own_entry(number: int) -> Member:
    """The entry of the member with a number."""
    host = f"10.{number >> 16}.{(number >> 8) & 255}.{number & 255}"
    return Member(number, f"{host}:1", host, 9092, f"http://{host}:8080")


def agree(members: Sequence[SharedCluster]) -> bool:
    """Whether all of these have the same map, whose slots were divided among just them.

    Some may own none: the fewest slots move.
    """
    maps = {each.view.slots.version: each.view.slots for each in members}
    if len(maps) != 1 or any(each.adrift for each in members):
        return False
    (slots,) = maps.values()
    node_ids = sorted(each.node_id for each in members)
    return list(slots.members) == node_ids and set(slots.owners).issubset(node_ids)
