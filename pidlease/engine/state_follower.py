"""Follows the producers' states of other servers' partitions, so that a takeover reads little.

Each partition is followed by the server that would get it if its owner ended, and its states are
pulled every second. A server that takes over a partition which it does not follow asks the others
what they know of it, and gets that first. The log stays the truth: without these states a takeover
reads it from where this server knows the producers.
"""

import asyncio
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

import structlog

from pidlease.coordination.members import Member, MembersError
from pidlease.core.packed import Packed
from pidlease.core.slots import SLOTS, SlotMap, reassigned, slot_of, slot_weights
from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.shared_cluster import SharedCluster
from pidlease.engine.topics.topic_table import TopicTable
from pidlease.engine.unloaded_partitions import UnloadedPartition
from pidlease.observability.repeated_lines import LINES, kind_of
from pidlease.storage.io_pool import IoPool
from pidlease.storage.snapshot_rows import PartitionRows
from pidlease.storage.state_updates import NAMES_MAX, FeedRequest, StateUpdate, StateUpdates

#: Between two pulls.
_PULL_SECONDS: Final = 1.0
#: How long the other servers may take to say what they know of partitions to take over.
_ASK_SECONDS: Final = 1.0
#: How long all of this may take before takeovers: then the log is read instead.
_FETCH_SECONDS: Final = 10.0
#: A server that did not answer in time is not asked for so long.
_LEFT_OUT_SECONDS: Final = 30.0
#: States are fetched before a takeover if the log up to them is longer than this.
_WORTH_OFFSETS: Final = 10_000
#: States pulled so recently are not asked for again.
_FRESH_SECONDS: Final = 3.0

_log = structlog.get_logger(__name__)


class FollowError(Exception):
    """A server does not send its states now; ask again."""


class FeedGoneError(FollowError):
    """A server does not have the feed any more; begin a new one."""


class StateRequests(Protocol):
    """Asks other servers for the states of their producers."""

    async def pull(self, member: Member, request: FeedRequest) -> StateUpdates:
        """Return what has changed since the last request of a feed (`StateFeeds.pull`).

        Raises:
            FeedGoneError: the server does not have the feed.
            FollowError: it does not answer.
        """

    async def offsets(self, member: Member, names: Sequence[TopicPartition]) -> list[int]:
        """Return up to which offset a server knows the producers of partitions; -1: it does not.

        Raises:
            FollowError: it does not answer.
        """


class StateSink(Protocol):
    """Gets the states of partitions."""

    def has(self, name: TopicPartition, built: object) -> bool:
        """Return whether a partition still has the states that `merge` has returned."""

    async def merge(self, rows: PartitionRows, onto: object, *, owned: bool) -> object:
        """Add states, and return what the next call goes on from; None: they do not fit.

        Parameters:
            owned: whether the partition's owner sends them: then all of them replace others.
        """


class _Held:
    """The partitions of other servers."""

    def __init__(self, table: TopicTable) -> None:
        self._table: Final = table

    def has(self, name: TopicPartition, built: object) -> bool:
        return built is not None and self._table.held.unloaded(name) is built

    async def merge(self, rows: PartitionRows, onto: object, *, owned: bool) -> object:
        name = rows.partition
        found = self._table.partitions.get(name.topic, [])
        partition = found[name.partition] if name.partition < len(found) else None
        if partition is None or not partition.elsewhere or partition.topic_id != rows.topic_id:
            return None  # this server serves it, or does not know it
        if onto is not None and not isinstance(onto, UnloadedPartition):
            raise TypeError(f"{onto!r} is no unloaded partition")
        if owned and onto is None:
            return await self._table.held.replace(rows)
        return await self._table.held.merge(rows, onto)


class _Collected:
    """The states that a start begins with: complete ones only."""

    def __init__(self) -> None:
        self.rows: Final[dict[TopicPartition, PartitionRows]] = {}

    def has(self, name: TopicPartition, built: object) -> bool:
        return self.rows.get(name) is built

    async def merge(self, rows: PartitionRows, onto: object, *, owned: bool) -> object:  # noqa: ARG002
        if onto is None:
            self.rows[rows.partition] = rows
            return rows
        return onto  # what has changed since is read from the log


class _Part:
    """The states of a partition that have come so far."""

    def __init__(self, *, is_all: bool) -> None:
        self.is_all: Final = is_all
        self.states: Final[dict[int, Packed]] = {}


class _OwnerFeed:
    """The feed of one server."""

    def __init__(
        self,
        requests: StateRequests,
        member: Member,
        sink: StateSink,
        wanted: Collection[TopicPartition] = (),
    ) -> None:
        self.member: Final = member
        self.began_at: Final = time.monotonic()
        self.wanted = wanted
        #: When all that the server had was here, by the monotonic clock; 0: never yet.
        self.fresh_at = 0.0
        self._requests: Final = requests
        self._sink: Final = sink
        self._begin()

    def _begin(self) -> None:
        self._feed = secrets.token_hex(16)
        self._number = self._noted = -1
        #: The partitions to add and to drop that the last request named, until an answer is noted.
        self._asked: tuple[list[TopicPartition], list[TopicPartition]] | None = None
        self._added: set[TopicPartition] = set()
        #: Partitions to begin again, because their states here do not come from this feed.
        self._again: set[TopicPartition] = set()
        #: The parts of states that are not complete yet.
        self._parts: dict[TopicPartition, _Part] = {}
        #: What the last update of a partition has led to.
        self._built: dict[TopicPartition, object] = {}

    def has(self, name: TopicPartition) -> bool:
        """Return whether the states of a partition here come from this feed."""
        return name in self._built and self._sink.has(name, self._built[name])

    @property
    def followed(self) -> int:
        """How many partitions are followed."""
        return len(self._built)

    async def pull(self) -> None:
        """Get all that has changed.

        Raises:
            FollowError: the server does not answer; call this again.
        """
        while await self._pull_some():
            pass
        self.fresh_at = time.monotonic()

    async def _pull_some(self) -> bool:
        """Send a request; return whether there is more to get."""
        if self._asked is None:
            self._asked = self._changes()
        add, drop = self._asked  # the same if an answer was lost: it may have counted
        self._number += 1
        request = FeedRequest(self._feed, self._number, self._noted, add, drop)
        try:
            found = await self._requests.pull(self.member, request)
        except FeedGoneError:
            self._begin()
            raise
        self._noted, self._asked = self._number, None
        try:
            self._added = (self._added - set(drop)).union(add)
            for name in drop:
                self._again.discard(name)
                self._forget(name)
            for update in found.updates:
                await self._note(update)
        except Exception:
            # The server will not send it again, and what changes from now on is not enough.
            self._begin()
            raise
        return found.more or self._added != set(self.wanted)

    def _changes(self) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Return the partitions to add, and those to drop first."""
        wanted = set(self.wanted)
        self._again |= {name for name in self._built if not self.has(name)}
        drop = [*(self._added - wanted), *(self._again & self._added & wanted)][:NAMES_MAX]
        kept = self._added - set(drop)
        return list(wanted - kept)[:NAMES_MAX], drop

    async def end(self) -> None:
        """Let the server forget the feed.

        Raises:
            FollowError: it does not answer; it forgets the feed after a while.
        """
        request = FeedRequest(self._feed, self._number + 1, self._noted, ends=True)
        await self._requests.pull(self.member, request)

    def _forget(self, name: TopicPartition) -> None:
        self._parts.pop(name, None)
        self._built.pop(name, None)

    async def _note(self, update: StateUpdate) -> None:
        rows = update.rows
        name = rows.partition
        if update.begins:
            self._forget(name)
            self._parts[name] = _Part(is_all=True)
        elif name not in self._parts:
            if name not in self._built:
                self._again.add(name)
                return
            self._parts[name] = _Part(is_all=False)
        part = self._parts[name]
        part.states.update(rows.producers)
        if not update.ends:
            return
        del self._parts[name]
        onto = None if part.is_all else self._built[name]
        rows = rows._replace(producers=part.states)
        built = await self._sink.merge(rows, onto, owned=update.owned)
        if built is None:
            self._forget(name)
            self._again.add(name)
        else:
            self._built[name] = built


class FollowedServer(NamedTuple):
    """A server that this one follows, for reports.

    Attributes:
        partitions: how many of its partitions this server follows.
        lag_seconds: how old this server's states of them may be.
    """

    partitions: int
    lag_seconds: float


class StateFollower:
    """Follows the partitions that this server would get, and fetches states before takeovers.

    Parameters:
        cluster: the servers, and which of them owns what.
        table: the partitions; those of other servers are kept as unloaded.
        pool: threads for the division of slots.
        requests: asks other servers.
    """

    def __init__(
        self, cluster: SharedCluster, table: TopicTable, pool: IoPool, requests: StateRequests
    ) -> None:
        self._cluster: Final = cluster
        self._table: Final = table
        self._pool: Final = pool
        self._requests: Final = requests
        self._by_owner: Final[dict[int, _OwnerFeed]] = {}
        self._tasks: Final[dict[int, asyncio.Task[None]]] = {}
        #: Until when servers that did not answer are not asked, by node id.
        self._left_out: Final[dict[int, float]] = {}
        self._planned: object = None
        self._planning: asyncio.Task[None] | None = None
        #: Partitions with states that were fetched, before a takeover or at the start.
        self.fetched = 0

    # ------------------------------------------------------------------ life cycle

    def start(self) -> None:
        """Follow from now on."""
        self._planning = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Follow nothing more."""
        tasks = [*self._tasks.values(), *([self._planning] if self._planning else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    async def _run(self) -> None:
        while True:
            try:
                await self._plan()
            except Exception as error:  # noqa: BLE001 - a bug must not end the feed
                LINES.write(_log, "error", "the servers to follow are not known", kind_of(error),
                            error, error=repr(error))  # fmt: skip
            await asyncio.sleep(_PULL_SECONDS)

    async def _plan(self) -> None:
        """Follow the partitions that this server would get if their owners ended."""
        view, topics = self._cluster.view, dict(self._cluster.topics())
        planned = view, topics
        if planned == self._planned:
            return
        eligible = [node for node, each in view.members.items() if not each.draining]
        own = self._cluster.node_id
        work = partial(followed_partitions, view.slots, view.members, eligible, own, topics)
        wanted = await self._pool.run(work)
        self._planned = planned
        for node in self._tasks.keys() - wanted.keys():
            self._tasks.pop(node).cancel()
        for node in self._by_owner.keys() - self._tasks.keys():
            if not self._is_recent(self._by_owner[node]):
                del self._by_owner[node]
        for node, names in wanted.items():
            feed = self._by_owner.get(node)
            member = view.members[node]
            if node not in self._tasks or feed is None or feed.member.http_url != member.http_url:
                if node in self._tasks:
                    self._tasks.pop(node).cancel()
                feed = _OwnerFeed(self._requests, member, _Held(self._table))
                self._by_owner[node] = feed
                self._tasks[node] = asyncio.create_task(self._follow(feed))
            feed.wanted = names

    async def _follow(self, feed: _OwnerFeed) -> None:
        server = feed.member.server
        while True:
            began = time.monotonic()
            try:
                await feed.pull()
            except FollowError as error:
                LINES.write(_log, "info", "the states of another server's producers do not come",
                            (server, kind_of(error)), server=server, error=str(error))  # fmt: skip
            except Exception as error:  # noqa: BLE001 - a bug must not end the feed
                LINES.write(_log, "error", "the states of another server cannot be followed",
                            (server, kind_of(error)), error, server=server,
                            error=repr(error))  # fmt: skip
            await asyncio.sleep(max(_PULL_SECONDS - (time.monotonic() - began), 0))

    # ------------------------------------------------------------------ takeovers

    async def fetch(self, names: Sequence[TopicPartition]) -> None:
        """Before takeovers, get what other servers know of partitions, if it is much more.

        Errors are logged: the log has everything.
        """
        known = {name: self._known(name) for name in names if not self._is_fresh(name)}
        if known:
            self.fetched += await self._fetch(self._others(), known, _Held(self._table))

    async def fetch_at_start(
        self, known: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, PartitionRows]:
        """Before the replay of a start, get what other servers know, if it is much more.

        Errors are logged: the log has everything.

        Parameters:
            known: up to which offset this server knows the producers of each partition; -1: not.
        """
        collected = _Collected()
        try:
            others = await self._cluster.other_members()
        except MembersError as error:
            _log.warning("the other servers are not known; reading the log instead",
                         error=str(error))  # fmt: skip
            return {}
        self.fetched += await self._fetch(others, known, collected)
        if collected.rows:
            _log.info("states of other servers fetched", partitions=len(collected.rows))
        return collected.rows

    def _others(self) -> list[Member]:
        cluster = self._cluster
        silent = cluster.pings.silent
        members = cluster.view.members.items()
        return [each for node, each in members if node != cluster.node_id and node not in silent]

    def _known(self, name: TopicPartition) -> int:
        """Return up to which offset a partition's producers are known; -1: not, or with a gap."""
        unloaded = self._table.held.unloaded(name)
        found = self._table.partitions.get(name.topic, [])
        start = found[name.partition].log.kept_offset if name.partition < len(found) else 0
        offset = -1 if unloaded is None else unloaded.snapshotted.next_offset
        return offset if offset >= start else -1

    def _is_fresh(self, name: TopicPartition) -> bool:
        return any(self._is_recent(each) and each.has(name) for each in self._by_owner.values())

    @staticmethod
    def _is_recent(feed: _OwnerFeed) -> bool:
        return feed.fresh_at > time.monotonic() - _FRESH_SECONDS

    async def _fetch(
        self, others: Sequence[Member], known: Mapping[TopicPartition, int], sink: StateSink
    ) -> int:
        """Get the states of partitions from the servers that know most of each, within a time.

        Returns:
            Of how many partitions they have come.
        """
        now = time.monotonic()
        asked = [each for each in others if self._left_out.get(each.node_id, 0) <= now]
        names = list(known)
        wanted: dict[Member, list[TopicPartition]] = {}
        feeds: list[_OwnerFeed] = []
        try:
            async with asyncio.timeout(_FETCH_SECONDS):
                for start in range(0, len(names), NAMES_MAX):
                    some = names[start : start + NAMES_MAX]
                    for member, found in (await self._most(asked, some, known)).items():
                        wanted.setdefault(member, []).extend(found)
                feeds += [
                    _OwnerFeed(self._requests, member, sink, found)
                    for member, found in wanted.items()
                ]
                await asyncio.gather(*map(self._fetch_from, feeds))
        except TimeoutError:
            for feed in feeds:
                if not feed.fresh_at:
                    self._note_failure(feed.member, TimeoutError("it takes too long"))
        return sum(each.followed for each in feeds)

    async def _most(
        self,
        others: Sequence[Member],
        names: Sequence[TopicPartition],
        known: Mapping[TopicPartition, int],
    ) -> dict[Member, list[TopicPartition]]:
        """Return which servers know most of partitions, and much more than this one."""
        best: dict[TopicPartition, tuple[int, Member]] = {}
        for member, offsets in await self._ask(others, names):
            for name, offset in zip(names, offsets, strict=True):
                least = known[name] + _WORTH_OFFSETS if known[name] >= 0 else 0
                if offset >= least and (name not in best or offset > best[name][0]):
                    best[name] = offset, member
        found: dict[Member, list[TopicPartition]] = {}
        for name, (_, member) in best.items():
            found.setdefault(member, []).append(name)
        return found

    async def _ask(
        self, others: Sequence[Member], names: Sequence[TopicPartition]
    ) -> list[tuple[Member, list[int]]]:
        """Ask servers what they know. Those that do not answer soon are left out."""
        if not others:
            return []
        asked = {
            asyncio.create_task(self._requests.offsets(member, names)): member for member in others
        }
        try:
            await asyncio.wait(asked, timeout=_ASK_SECONDS)
        finally:
            late = [each for each in asked if not each.done()]
            for task in late:
                task.cancel()
        found = []
        for task, member in asked.items():
            error = TimeoutError("no answer") if task in late else task.exception()
            if error is None:
                found.append((member, task.result()))
            else:
                self._note_failure(member, error)
        return found

    async def _fetch_from(self, feed: _OwnerFeed) -> None:
        try:
            await feed.pull()
            await feed.end()
        except FollowError as error:
            self._note_failure(feed.member, error)
        except Exception as error:  # noqa: BLE001 - a bug must not keep a partition without owner
            LINES.write(_log, "error", "states could not be fetched; reading the log instead",
                        (feed.member.server, kind_of(error)), error, server=feed.member.server,
                        error=repr(error))  # fmt: skip

    def _note_failure(self, member: Member, error: BaseException) -> None:
        """Log why states do not come. Do not ask a slow server for a while.

        Takeovers would wait for it again and again. One that refuses at once may start just now.
        """
        if isinstance(error, TimeoutError):
            self._left_out[member.node_id] = time.monotonic() + _LEFT_OUT_SECONDS
        LINES.write(_log, "warning", "another server sends no states; reading the log instead",
                    (member.server, type(error)), server=member.server,
                    error=str(error) or repr(error))  # fmt: skip

    # ------------------------------------------------------------------ reports

    def report(self) -> dict[int, FollowedServer]:
        """Return what this server follows, by the node ids of the owners."""
        now = time.monotonic()
        return {
            node: FollowedServer(each.followed, now - (each.fresh_at or each.began_at))
            for node, each in self._by_owner.items()
            if node in self._tasks
        }


def followed_partitions(
    slots: SlotMap,
    members: Collection[int],
    eligible: Sequence[int],
    own: int,
    topics: Mapping[str, int],
) -> dict[int, list[TopicPartition]]:
    """Return the partitions that a server would get if their owner ended, by owner.

    The slots of an owner that ends are divided by `reassigned`, by each server in the same way.

    Parameters:
        members: the servers.
        eligible: those that may own slots.
        own: this server.
        topics: the number of partitions, by topic.
    """
    if own not in eligible:
        return {}
    weights = slot_weights(topics)
    owners: dict[int, int] = {}
    for owner in set(slots.owners) & set(members) - {own}:
        after = reassigned(slots, [each for each in eligible if each != owner], weights).owners
        owners |= {slot: owner for slot, now in enumerate(slots.owners)
                   if now == owner and after[slot] == own}  # fmt: skip
    found: dict[int, list[TopicPartition]] = {}
    for topic, count in topics.items():
        first = slot_of(topic, 0)
        for number in range(count):
            slot = (first + number) % SLOTS
            if slot in owners:
                found.setdefault(owners[slot], []).append(TopicPartition(topic, number))
    return found
