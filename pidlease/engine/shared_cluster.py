"""Several active servers share a Kafka cluster: the members, and which of them owns a partition.

The coordinator says which server should own a partition, and Kafka says which one can: a wrong or
late map costs a move of partitions, never a record. The oldest member that answers pings divides
the slots; another one steps in if it does not. Writes of the map are conditional.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import structlog

from pidlease.coordination.boot_clock import boot_seconds
from pidlease.coordination.members import (
    MapConflictError,
    Member,
    Members,
    MembersError,
    MembershipLostError,
    SharedView,
)
from pidlease.coordination.shared_call import SharedCall
from pidlease.core.liveness import SILENT_TICKS, TICK_SECONDS, Deciders
from pidlease.core.slots import (
    EMPTY_MAP,
    NO_OWNER,
    SlotMap,
    are_divided,
    reassigned,
    slot_of,
    slot_weights,
)
from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.member_pings import Connect, MemberPings
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.errors import LogError
from pidlease.storage.io_pool import IoPool

#: How often members and map are read, if no change is noticed before.
_READ_SECONDS: Final = 1.0
#: A member steps in for the decider after this time, for each older member that answers.
_RANK_SECONDS: Final = 1.0
#: Nothing is sent to Kafka longer after it came: Kafka may have forgotten its producer by then, and
#: would append it again.
SUSPENDED_SECONDS: Final = 30.0
#: The same if there are other members: one of them may own the partitions by then, and may have
#: sent the batches that a client has repeated there.
STALLED_SECONDS: Final = (SILENT_TICKS - 1) * TICK_SECONDS
#: How often it is noted that the process runs.
_ALIVE_SECONDS: Final = TICK_SECONDS
#: How often a drain checks whether the last slot has moved.
_DRAIN_POLL_SECONDS: Final = 0.02
#: How often a rebalance begins again because the map has changed.
_REBALANCES_MAX: Final = 20

_log = structlog.get_logger(__name__)


class LastServerError(Exception):
    """No other server could own the slots of one that is to be drained."""


class ServerInfo(NamedTuple):
    """A member, for reports.

    Attributes:
        member: its addresses and its state.
        slots: how many slots it owns.
        partitions: how many of the known partitions are in these slots.
        own: whether it is the server that reports.
        decides: whether it divides the slots.
        registrar: whether it writes the coordinator's rows.
        silent: whether it does not answer pings.
        returning: whether it was silent, answers again, and will get slots after a while.
    """

    member: Member
    slots: int
    partitions: int
    own: bool
    decides: bool
    registrar: bool
    silent: bool
    returning: bool


class SharedCluster:
    """This server's membership, and its view of the map.

    Parameters:
        members: the coordinator.
        own: this server.
        pool: the threads for the coordinator.
        session_seconds: after this time without the coordinator, another member may own what this
            one owned.
        seconds: a clock that goes on while the process is suspended.
        connect: prepares the connections for pings; None: sessions alone show which members live.
    """

    def __init__(
        self,
        members: Members,
        own: Member,
        pool: IoPool,
        session_seconds: float,
        seconds: Callable[[], float] = boot_seconds,
        connect: Connect | None = None,
    ) -> None:
        self.node_id: Final = own.node_id
        self.pings: Final = MemberPings(own.node_id, connect, self._wake_up)
        #: Whether pings are answered: from the entry's creation until its end.
        self.is_member = False
        #: Members that did not answer, and that this server has moved the slots of.
        self.silent_moved = 0
        self._members: Final = members
        self._own = own
        self._pool: Final = pool
        self._session_seconds: Final = session_seconds
        self._seconds: Final = seconds
        self._view = SharedView({}, EMPTY_MAP)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: Final = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._slots: Final = SharedCall(self._read_slots)
        #: When the last view was read, and when it was last tried to.
        self._read_at = self._refreshed_at = seconds()
        self._unlike_since: float | None = None
        #: Whether another member may own this server's partitions: it does not hear from the
        #: coordinator, or was suspended.
        self.adrift = True
        self._drifts = 0
        #: Set when the process must end, and why: a server without --shared serves the cluster, or
        #: this one can be no member any more.
        self.lost: Final = asyncio.Event()
        self.loss = ""
        self._alive_at = seconds()
        self._alive: asyncio.TimerHandle | None = None
        #: Called when the process was suspended for long, before anything else is done.
        self.on_suspended: Final[list[Callable[[], None]]] = []
        #: Called after each read of members and map, also if nothing has changed.
        self.on_read: Final[list[Callable[[], Awaitable[None]]]] = []
        #: Called when the map or the members have changed, or this server is adrift.
        self.on_change: Final[list[Callable[[], None]]] = []
        #: Returns the number of partitions, by topic.
        self.topics: Callable[[], Mapping[str, int]] = dict

    # ------------------------------------------------------------------ life cycle

    async def join(self) -> None:
        """Become a member, and follow the map from now on.

        Raises:
            MembershipLostError: it never can, or another process has replaced this one at once.
            MembersError: the coordinator cannot be reached now.
        """
        self._loop = asyncio.get_running_loop()
        if self._alive is None:
            # The recovery was no suspension. From now on each one is noticed.
            self._alive_at = self._seconds()
            self.note_alive()
        self._members.watch(self._changed)
        self.is_member = True
        await self._pool.run(partial(self._members.join, self._own))
        await self._read()
        self._refreshed_at = self._seconds()
        self._task = asyncio.create_task(self._run())
        self.pings.start()

    async def other_members(self) -> list[Member]:
        """Return the other members, also before this server joins them.

        Raises:
            MembersError: the coordinator cannot be reached now.
        """
        view = await self._pool.run(self._members.read)
        return [each for node, each in view.members.items() if node != self.node_id]

    def note_alive(self) -> None:
        """Note that the process runs, and again with the next tick."""
        if self.was_suspended():
            self._drift("this server was suspended")
            for each in self.on_suspended:
                each()
            self._wake.set()
        self._alive_at = self._seconds()
        self._alive = asyncio.get_running_loop().call_later(_ALIVE_SECONDS, self.note_alive)

    def was_suspended(self) -> bool:
        """Return whether the process was suspended for long, and that is not noted yet."""
        others = len(self._view.members) > 1
        longest = STALLED_SECONDS if others else SUSPENDED_SECONDS
        return self._seconds() - self._alive_at > longest

    async def leave_slots(self, seconds: float) -> None:
        """Before a stop, let other members take over this one's slots, if there are others."""
        if self._task is None:
            return
        try:
            await self.drain(seconds)
        except LastServerError:
            return
        except MembersError as error:
            _log.warning("this server cannot be drained now", error=str(error))

    async def drain(self, seconds: float) -> None:
        """Let other members take over this one's slots; return when they have, or after a time.

        From now on it gets none, until `undrain` or the end of the process.

        Raises:
            LastServerError: no other member could own them.
            MembersError: the coordinator cannot be reached; nothing has changed, or it is drained.
        """
        if not set(_owners(self._view, self.pings.silent)) - {self.node_id}:
            raise LastServerError(
                "no other server could own the slots of this one; start another one first"
            )
        await self._set_draining(draining=True)
        until = time.monotonic() + seconds
        while (  # noqa: ASYNC110 - a bounded wait
            self._view.slots.count(self.node_id) and time.monotonic() < until
        ):
            await asyncio.sleep(_DRAIN_POLL_SECONDS)
        _log.info("drained", slots_left=self._view.slots.count(self.node_id))

    async def undrain(self) -> None:
        """Own slots again after `drain`.

        Raises:
            MembersError: the coordinator cannot be reached; nothing has changed, or it owns some.
        """
        await self._set_draining(draining=False)
        _log.info("not drained any more")

    async def _set_draining(self, *, draining: bool) -> None:
        own = self._own._replace(draining=draining)
        await self._pool.run(partial(self._members.join, own))
        self._own = own
        self._wake.set()

    async def rebalance(self) -> int:
        """Divide the slots by the number of their partitions now; return how many have moved.

        Any member may do this: the map is written at the version that it was read at.

        Raises:
            MembersError: the coordinator cannot be reached, or the map has changed all the time.
        """
        for _ in range(_REBALANCES_MAX):
            view = await self._pool.run(self._members.read)
            self._follow(view)
            deciders = self.pings.deciders()
            if not deciders.order:
                raise MembersError("no server that owns slots answers this one; try again")
            eligible = _eligible(view, deciders)
            wanted = await self._pool.run(
                partial(_wanted, view.slots, eligible, dict(self.topics()), anew=True)
            )
            if wanted is view.slots:
                return 0
            try:
                slots = await self._pool.run(partial(self._members.write, wanted))
            except MapConflictError:
                continue
            self._wake.set()
            return self._note_divided(slots, view.slots)
        raise MembersError("the map of slots has changed all the time; try again")

    async def leave(self) -> None:
        """Stop being a member; `close` follows when nothing is sent to Kafka any more."""
        task, self._task = self._task, None
        self.pings.stop()
        if task is None:
            return
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        try:
            await self._pool.run(self._members.leave)
        except MembersError as error:
            _log.warning("this server's entry stays until its session ends", error=str(error))
        self.is_member = False

    def close(self) -> None:
        """Notice no suspension any more."""
        if self._alive is not None:
            self._alive.cancel()
            self._alive = None

    def _changed(self) -> None:
        """Read soon; called in a thread of the coordinator's client."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)

    def _wake_up(self) -> None:
        self._wake.set()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_READ_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            if not await self.refresh():
                await asyncio.sleep(_READ_SECONDS)

    async def refresh(self) -> bool:
        """Read members and map, and step down if another member may own partitions.

        Returns:
            Whether they could be read.
        """
        if self.lost.is_set():
            return False
        try:
            if self._seconds() - self._refreshed_at > self._session_seconds + 2 * _READ_SECONDS:
                self._drift("this server was suspended")
            await self._read()
        except MembershipLostError as error:
            self._lose(str(error))
            return False
        except MembersError as error:
            LINES.write(_log, "warning", "members and map cannot be read", kind_of(error),
                        error=str(error))  # fmt: skip
            silent = self._seconds() - self._read_at > self._session_seconds
            if silent and len(self._view.members) > 1:
                # Alone, it goes on: no other server may own its partitions, and if one has come
                # meanwhile, Kafka's fences protect the log.
                self._drift("the coordinator cannot be reached")
            return False
        except Exception as error:  # noqa: BLE001 - a bug must not end the membership
            LINES.write(_log, "error", "members and map could not be followed", kind_of(error),
                        error, error=repr(error))  # fmt: skip
            return False
        finally:
            self._refreshed_at = self._seconds()
        return True

    def _lose(self, reason: str) -> None:
        """Step down permanently, so that the process ends."""
        _log.error("this server can be no member any more", reason=reason)
        self.loss = reason
        self.lost.set()
        self._drift("this server can be no member any more")

    def _drift(self, reason: str) -> None:
        """Step down from all partitions until the map has been read again."""
        self._drifts += 1
        if not self.adrift:
            self.adrift = True
            _log.warning("stepping down from all partitions", reason=reason)
            self._notify()

    async def _read(self) -> None:
        began, drifts = self._seconds(), self._drifts
        view = await self._pool.run(self._members.read)
        if self._seconds() - began > self._session_seconds:
            self._drift("a read took so long that it may be out of date")
        if self._drifts != drifts:
            self._wake.set()  # what was read may be from before a suspension
            return
        if view.stranger:
            self._lose(
                f"{view.stranger} serves this cluster without --shared, so this server has stepped"
                " down; start it again to stand by"
            )
            return
        self._follow(view)
        view = await self._decide(view)
        self._follow(view)
        if self._drifts != drifts:
            self._wake.set()
            return
        changed = self.adrift or view != self._view
        self._read_at, self.adrift, self._view = began, False, view
        if changed:
            self._notify()
        for each in self.on_read:
            try:
                await each()
            except LogError as error:  # the next read tries again
                LINES.write(_log, "warning", "what other servers have changed cannot be read",
                            kind_of(error), error=str(error))  # fmt: skip

    def _notify(self) -> None:
        for each in self.on_change:
            each()

    # ------------------------------------------------------------------ the map

    def _follow(self, view: SharedView) -> None:
        self.pings.follow(view.members, view.slots.members, view.slots.version)

    async def _decide(self, view: SharedView) -> SharedView:
        """Divide the slots anew if the members have changed, unless another member does."""
        deciders = self.pings.deciders()
        eligible = _eligible(view, deciders)
        if are_divided(view.slots, eligible) or self.node_id not in deciders.order:
            self._unlike_since = None
            return view
        now = self._seconds()
        if self._unlike_since is None:
            self._unlike_since = now
        if now - self._unlike_since < deciders.order.index(self.node_id) * _RANK_SECONDS:
            return view
        topics = dict(self.topics())
        wanted = await self._pool.run(partial(_wanted, view.slots, eligible, topics))
        try:
            slots = await self._pool.run(partial(self._members.write, wanted))
        except MapConflictError:
            self._wake.set()
            return view
        self._unlike_since = None
        self._note_divided(slots, view.slots)
        self.silent_moved += sum(view.slots.count(node) > 0 for node in deciders.away)
        return view._replace(slots=slots)

    def _note_divided(self, slots: SlotMap, before: SlotMap) -> int:
        moved = sum(map(int.__ne__, slots.owners, before.owners))
        _log.info("slots divided", members=list(slots.members), moved=moved, version=slots.version)
        return moved

    @property
    def view(self) -> SharedView:
        """The members and the map, as of the last read."""
        return self._view

    def epoch_if_owned(self, partition: TopicPartition) -> int | None:
        """Return the epoch of a partition's slot if this server owns it by the map, or None."""
        slots, slot = self._view.slots, slot_of(*partition)
        if self.adrift or slots.owners[slot] != self.node_id:
            return None
        return slots.epochs[slot]

    @property
    def divides(self) -> bool:
        """Whether this server divides the slots, as far as it knows."""
        pings = self.pings
        return not (self.adrift or pings.abstains) and pings.deciders().order[:1] == [self.node_id]

    def abstains(self) -> bool:
        """Return whether this server reaches so few members that it may be cut off itself."""
        return self.pings.abstains

    def is_silent(self, url: str) -> bool:
        """Return whether the member at an address of HTTP does not answer pings."""
        silent = self.pings.silent
        return any(
            node in silent for node, each in self._view.members.items() if each.http_url == url
        )

    def owner_of(self, partition: TopicPartition) -> Member | None:
        """Return a partition's owner, as of the last read; None: it has none, or that is gone."""
        return self._view.members.get(self._view.slots.owner(partition))

    def owner_text(self, partition: TopicPartition) -> str:
        """Return which server owns a partition, for clients."""
        owner = self.owner_of(partition)
        return f"{owner.server} serves it" if owner is not None else "no server owns it now"

    def leaders(self, topic: str, partitions: int) -> list[int]:
        """Return the node ids of the owners of a topic's partitions; -1: there is none."""
        owners, members, first = self._view.slots.owners, self._view.members, slot_of(topic, 0)
        slots = len(owners)
        found = (owners[(first + number) % slots] for number in range(partitions))
        return [owner if owner != NO_OWNER and owner in members else -1 for owner in found]

    def brokers(self) -> list[Member]:
        """Return the members for clients: not those that leave or are silent; always this one."""
        view, silent = self._view, self.pings.silent
        found = {
            node: each
            for node, each in view.members.items()
            if not each.draining and (node not in silent or node in view.slots.members)
        }
        found.setdefault(self.node_id, self._own)
        return [found[node] for node in sorted(found)]

    async def fresh_slots(self) -> SlotMap:
        """Return the map, by a read that begins after this call.

        Raises:
            LogError: the map cannot be read now.
        """
        try:
            return await self._slots()
        except MembersError as error:
            raise LogError(f"the owners of partitions are not known now: {error}") from error

    def still_owns(self, slots: SlotMap, partition: TopicPartition, epoch: int) -> bool:
        """Return whether this server has owned a partition since an epoch, by a map."""
        slot = slot_of(*partition)
        still = slots.owners[slot] == self.node_id and slots.epochs[slot] == epoch
        if not still:
            self._wake.set()
        return still

    async def _read_slots(self) -> SlotMap:
        return await self._pool.run(self._members.slots)

    def servers(self) -> list[ServerInfo]:
        """Return all members, for reports."""
        view = self._view
        weights = slot_weights(self.topics())
        partitions: dict[int, int] = {}
        for owner, weight in zip(view.slots.owners, weights, strict=True):
            partitions[owner] = partitions.get(owner, 0) + weight
        order, pings = self.pings.deciders().order, self.pings
        return [
            ServerInfo(
                member, view.slots.count(node), partitions.get(node, 0), node == self.node_id,
                node in order[:1], member.http_url == view.registrar != "", node in pings.silent,
                node in pings.returning,
            )
            for node, member in sorted(view.members.items())
        ]  # fmt: skip

    def without_owner(self) -> int:
        """Return how many known partitions have no live owner."""
        view = self._view
        return sum(
            weight
            for owner, weight in zip(view.slots.owners, slot_weights(self.topics()), strict=True)
            if weight and owner not in view.members
        )


def _owners(view: SharedView, away: Collection[int]) -> list[int]:
    """Return the node ids of the members that could own slots."""
    members = view.members.items()
    return [node for node, each in members if not each.draining and node not in away]


def _eligible(view: SharedView, deciders: Deciders) -> list[int]:
    """Return the node ids of the members that should own slots."""
    return _owners(view, deciders.away) or _owners(view, deciders.silent)


def _wanted(
    slots: SlotMap, eligible: list[int], topics: Mapping[str, int], *, anew: bool = False
) -> SlotMap:
    return reassigned(slots, eligible, slot_weights(topics), anew=anew)
