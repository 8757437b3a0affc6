"""Followers of producers' states: which server follows what, and what it makes of the answers."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import combinations
from typing import Any

import pytest

from pidlease.coordination.members import Member
from pidlease.core.packed import Packed, fold_packed
from pidlease.core.pid import Policy, make_pid
from pidlease.core.rules import rules_of
from pidlease.core.slots import EMPTY_MAP, SLOTS, reassigned, slot_of, slot_weights
from pidlease.core.state import Batch
from pidlease.core.topic_partition import TopicPartition
from pidlease.engine import state_follower
from pidlease.engine.shared_cluster import SharedCluster
from pidlease.engine.state_follower import (
    FeedGoneError,
    FollowedServer,
    FollowError,
    StateFollower,
    StateRequests,
    followed_partitions,
)
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.storage.snapshot_rows import PartitionRows
from pidlease.storage.state_updates import FeedRequest, StateUpdate, StateUpdates
from tests.sim.files import SimFiles
from tests.unit.engine.test_partition_moves import ME, OTHER, SharedServer, never, until

PLACE = TopicPartition("t", 0)
TOPIC_ID = "1" * 32
THIRD = 3
PID, NEXT = make_pid(Policy.KAFKA, 1), make_pid(Policy.KAFKA, 2)


@pytest.fixture(autouse=True)
def _moves_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedCluster, "_run", never)
    monkeypatch.setattr(DataDirectory, "made_by_others", True)


def packed(pid: int, offset: int) -> Packed:
    rules = rules_of(pid)
    assert rules is not None
    return fold_packed(rules, None, Batch(0, offset, offset, 1, 7), offset, 1234)


def update(
    offset: int,
    *producers: tuple[int, int],
    begins: bool,
    ends: bool = True,
    owned: bool = False,
) -> StateUpdate:
    """Of PIDs, each with the offset of its last batch."""
    states = {pid: packed(pid, at) for pid, at in producers}
    return StateUpdate(PartitionRows(PLACE, TOPIC_ID, offset, -1, states), begins, ends, owned)


Answer = StateUpdates | Exception


class Scripted(StateRequests):
    """Answers as a test says."""

    def __init__(self) -> None:
        self.pulls: list[tuple[int, FeedRequest]] = []
        self.ended: list[int] = []
        #: What happens before an answer comes.
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        self.answers: dict[int, list[Answer]] = {}
        self.known: dict[int, dict[TopicPartition, int] | Exception | None] = {}
        self.asked: list[int] = []

    async def pull(self, member: Member, request: FeedRequest) -> StateUpdates:
        if request.ends:
            self.ended.append(member.node_id)
            return StateUpdates([], more=False)
        self.pulls.append((member.node_id, request))
        if self.meanwhile is not None:
            await self.meanwhile()
        answers = self.answers.get(member.node_id, [])
        found = answers.pop(0) if answers else StateUpdates([], more=False)
        if isinstance(found, Exception):
            raise found
        return found

    async def offsets(self, member: Member, names: Sequence[TopicPartition]) -> list[int]:
        self.asked.append(member.node_id)
        known = self.known.get(member.node_id, {})
        if known is None:
            await asyncio.Event().wait()
        if isinstance(known, Exception):
            raise known
        return [(known or {}).get(each, -1) for each in names]

    def answer(self, *updates: StateUpdate, more: bool = False, node: int = OTHER) -> None:
        self.answers.setdefault(node, []).append(StateUpdates(updates, more))


class Bench:
    """A server whose partition another one owns, and its follower."""

    def __init__(self, server: SharedServer) -> None:
        self.server = server
        self.requests = Scripted()
        self.follower = StateFollower(
            server.cluster, server.engine._table, server.engine.pool, self.requests
        )
        held = state_follower._Held(server.engine._table)
        member = server.shared.members[OTHER]
        self.following = state_follower._OwnerFeed(self.requests, member, held)
        self.following.wanted = [PLACE]

    def sent(self) -> list[tuple[int, int, list[TopicPartition], list[TopicPartition]]]:
        """Return the requests: number, noted answer, partitions to add and to drop."""
        return [(each.number, each.noted, list(each.add), list(each.drop))
                for _, each in self.requests.pulls]  # fmt: skip

    def known(self) -> tuple[int, dict[int, Packed]] | None:
        found = self.server.engine._table.held.unloaded(PLACE)
        return None if found is None else (found.snapshotted.next_offset, dict(found.producers))


async def bench() -> Bench:
    server = await SharedServer(SimFiles(1)).start()
    await server.assign(OTHER)
    await server.engine._table.held.forget(PLACE)
    return Bench(server)


# ---------------------------------------------------------------------- who follows what


@pytest.mark.parametrize("count", [2, 3, 5, 12])
def test_each_partition_is_followed_by_the_server_that_would_get_it(count: int) -> None:
    topics = {f"topic-{number}": 1 + number % 30 for number in range(40)}
    weights, nodes = slot_weights(topics), list(range(1, count + 1))
    slots = reassigned(EMPTY_MAP, nodes, weights)
    followed = {node: followed_partitions(slots, nodes, nodes, node, topics) for node in nodes}
    everything = {TopicPartition(topic, n) for topic, many in topics.items() for n in range(many)}
    for owner in nodes:
        rest = [node for node in nodes if node != owner]
        after = reassigned(slots, rest, weights)
        owned = {each for each in everything if slots.owner(each) == owner}
        got = [set(followed[node].get(owner, [])) for node in rest]
        assert set().union(*got) == owned
        assert all(not one & other for one, other in combinations(got, 2))
        for node, names in zip(rest, got, strict=True):
            assert all(after.owner(each) == node for each in names)


def test_a_draining_server_follows_nothing_and_nothing_of_a_slot_without_owner() -> None:
    topics = {"t": SLOTS}
    slots = reassigned(EMPTY_MAP, [1, 2], slot_weights(topics))
    assert followed_partitions(slots, [1, 2], [2], 1, topics) == {}
    assert followed_partitions(EMPTY_MAP, [1, 2], [1, 2], 1, topics) == {}
    # One that is draining owns its slots for a while; one that has left has lost them.
    assert followed_partitions(slots, [1, 2], [1], 1, topics).keys() == {2}
    assert followed_partitions(slots, [1, 3], [1, 3], 3, topics).keys() <= {1}


# ---------------------------------------------------------------------- what comes


async def test_states_are_merged_and_the_offset_comes_last() -> None:
    it = await bench()
    it.requests.answer(update(10, (PID, 9), begins=True, ends=False), more=True)
    it.requests.answer(update(12, (NEXT, 11), begins=False))
    await it.following.pull()
    assert it.known() == (12, {PID: packed(PID, 9), NEXT: packed(NEXT, 11)})
    assert it.sent() == [(0, -1, [PLACE], []), (1, 0, [], [])]
    it.requests.answer(update(14, (PID, 13), begins=False))
    await it.following.pull()
    assert it.known() == (14, {PID: packed(PID, 13), NEXT: packed(NEXT, 11)})
    assert it.following.has(PLACE)
    # The leases of the producers are kept here, too.
    assert {PID, NEXT} <= {pid for pid in (PID, NEXT) if pid in it.server.engine.leases}


async def test_a_part_that_is_not_complete_changes_nothing() -> None:
    it = await bench()
    it.requests.answer(update(10, (PID, 9), begins=True, ends=False))
    await it.following.pull()
    assert it.known() is None
    assert not it.following.has(PLACE)


async def test_an_older_state_does_not_replace_a_newer_one() -> None:
    it = await bench()
    held = it.server.engine._table.held
    states = {PID: packed(PID, 20), NEXT: packed(NEXT, 3)}
    rows = PartitionRows(PLACE, TOPIC_ID, 21, -1, states)
    assert await held.merge(rows, None) is not None
    it.requests.answer(update(10, (PID, 9), (NEXT, 8), begins=True))
    await it.following.pull()
    assert it.known() == (21, {PID: packed(PID, 20), NEXT: packed(NEXT, 8)})


@pytest.mark.parametrize("grown", [False, True])
async def test_what_the_owner_knows_replaces_states_of_batches_that_kafka_lost(
    grown: bool,
) -> None:
    """Its log was cut at 900, and read again. Once a follower kept the states of the lost batches:
    after a takeover, the producer's next ones would have counted as duplicates.
    """
    it = await bench()
    engine = it.server.engine
    lost = make_pid(Policy.KAFKA, 3)
    it.requests.answer(update(1000, (PID, 950), (lost, 960), begins=True, owned=True))
    await it.following.pull()
    # The first pull may come when the log has grown past the former end already.
    end = 1100 if grown else 910
    again = [(PID, 905), (NEXT, 30)]
    it.requests.answer(update(end, again[0], begins=True, ends=False, owned=True), more=True)
    it.requests.answer(update(end, again[1], begins=False, owned=True))
    await it.following.pull()
    states = {pid: packed(pid, at) for pid, at in again}
    assert it.known() == (end, states)
    it.requests.answer(update(1200, (NEXT, 1190), begins=False, owned=True))
    await it.following.pull()
    assert it.known() == (1200, states | {NEXT: packed(NEXT, 1190)})
    # The leases are those of the producers that are left, each of them once.
    held = engine._table.held.unloaded(PLACE)
    assert engine.leases.partitions_of(PID) == engine.leases.partitions_of(NEXT) == (held,)
    assert engine.leases.partitions_of(lost) == ()


async def test_an_owner_that_begins_anew_says_nothing_about_lost_batches() -> None:
    it = await bench()
    for end in (1000, 1001):
        it.requests.answer(update(end, (PID, 950), begins=True, owned=True))
        it.following._again.add(PLACE)
        await it.following.pull()
        assert it.known() == (end, {PID: packed(PID, 950)})


async def test_what_another_follower_knows_replaces_no_newer_states() -> None:
    """Nor those of a server of an earlier version, which does not say that it is the owner."""
    it = await bench()
    it.requests.answer(update(1000, (PID, 950), begins=True, owned=True))
    it.requests.answer(update(910, (PID, 905), begins=True))
    await it.following.pull()
    it.following._again.add(PLACE)
    await it.following.pull()
    assert it.known() == (1000, {PID: packed(PID, 950)})


@pytest.mark.parametrize("later", [False, True])
async def test_states_of_before_and_after_a_cut_are_not_mixed(*, later: bool) -> None:
    """Another server has not noticed yet that Kafka has cut the log; or this one has not."""
    it = await bench()
    held = it.server.engine._table.held
    before = PartitionRows(PLACE, TOPIC_ID, 1000, -1, {PID: packed(PID, 990)}, 4, 1000)
    after = PartitionRows(PLACE, TOPIC_ID, 900, -1, {NEXT: packed(NEXT, 880)}, 6, 900)
    for rows in (before, after) if later else (after, before):
        assert await held.merge(rows, None) is not None
    assert it.known() == (900, {NEXT: packed(NEXT, 880)})


async def test_a_replacement_that_is_overtaken_leaves_nothing() -> None:
    """This server takes the partition over meanwhile; or the follower is stopped."""
    it = await bench()
    engine = it.server.engine
    held = engine._table.held
    await held.merge(PartitionRows(PLACE, TOPIC_ID, 10, -1, {PID: packed(PID, 9)}), None)
    rows = PartitionRows(PLACE, TOPIC_ID, 12, -1, {PID: packed(PID, 11), NEXT: packed(NEXT, 5)})
    for ended in ("taken over", "stopped"):
        replacing = asyncio.create_task(held.replace(rows))
        await asyncio.sleep(0)
        if ended == "stopped":
            replacing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await replacing
            assert it.known() == (10, {PID: packed(PID, 9)})
            assert engine.leases.partitions_of(PID) == (held.unloaded(PLACE),)
        else:
            await held.forget(PLACE)
            assert await replacing is None
            assert it.known() is None
            assert engine.leases.partitions_of(PID) == ()
            await held.merge(rows._replace(next_offset=10, producers={PID: packed(PID, 9)}), None)
        assert engine.leases.partitions_of(NEXT) == ()


async def test_what_changes_is_only_added_to_what_it_follows() -> None:
    """Otherwise the offset would be after states that are missing."""
    it = await bench()
    it.requests.answer(update(10, (PID, 9), begins=True))
    await it.following.pull()

    async def serve() -> None:
        """This server serves it meanwhile, and has another snapshot of it then."""
        held = it.server.engine._table.held
        await held.forget(PLACE)
        other = PartitionRows(PLACE, TOPIC_ID, 5, -1, {PID: packed(PID, 4)})
        assert await held.merge(other, None) is not None
        it.requests.meanwhile = None

    it.requests.meanwhile = serve
    it.requests.answer(update(30, (NEXT, 29), begins=False))
    await it.following.pull()
    assert it.known() == (5, {PID: packed(PID, 4)})
    it.requests.answer(update(30, (PID, 28), (NEXT, 29), begins=True))
    await it.following.pull()
    assert it.sent()[-1][2:] == ([PLACE], [PLACE])
    assert it.known() == (30, {PID: packed(PID, 28), NEXT: packed(NEXT, 29)})


async def test_a_change_without_a_beginning_is_not_taken() -> None:
    it = await bench()
    it.requests.answer(update(30, (NEXT, 29), begins=False))
    await it.following.pull()
    assert it.known() is None
    await it.following.pull()
    assert it.sent()[-1][2:] == ([PLACE], [PLACE])


async def test_a_lost_answer_is_asked_for_again() -> None:
    it = await bench()
    it.requests.answers[OTHER] = [FollowError("no answer")]
    with pytest.raises(FollowError):
        await it.following.pull()
    it.requests.answer(update(10, (PID, 9), begins=True))
    await it.following.pull()
    assert it.sent() == [(0, -1, [PLACE], []), (1, -1, [PLACE], [])]
    await it.following.pull()
    assert it.sent()[-1] == (2, 1, [], [])
    assert it.known() == (10, {PID: packed(PID, 9)})


@pytest.mark.parametrize("error", [FeedGoneError("gone"), None])
async def test_a_new_feed_begins_if_one_is_gone_or_an_answer_is_not_noted(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = await bench()
    await it.following.pull()
    if error is not None:
        it.requests.answers[OTHER] = [error]
        with pytest.raises(FeedGoneError):
            await it.following.pull()
    else:

        async def fail(rows: PartitionRows, onto: object, *, owned: bool) -> object:
            raise RuntimeError("a bug")

        it.requests.answer(update(10, (PID, 9), begins=True))
        with monkeypatch.context() as patched:
            patched.setattr(it.following._sink, "merge", fail)
            with pytest.raises(RuntimeError):
                await it.following.pull()
    await it.following.pull()
    assert it.sent()[-1] == (0, -1, [PLACE], [])
    assert len({request.feed for _, request in it.requests.pulls}) == 2


async def test_states_of_another_topic_or_of_an_own_partition_are_not_taken() -> None:
    it = await bench()
    found = update(10, (PID, 9), begins=True)
    it.requests.answer(found._replace(rows=found.rows._replace(topic_id="2" * 32)))
    await it.following.pull()
    assert it.known() is None
    await it.server.owns()
    it.requests.answer(update(10, (PID, 9), begins=True))
    await it.following.pull()
    assert it.known() is None


async def test_a_dropped_stand_in_is_not_taken_for_another_producer() -> None:
    """Its name was dropped while the states were on their way."""
    it = await bench()
    names = it.server.engine.names
    pid = names.take("producer")
    names.drop(pid)
    it.requests.answer(update(10, (pid, 9), begins=True))
    await it.following.pull()
    assert it.known() == (-1, {})
    assert not it.following.has(PLACE)
    held = it.server.engine._table.held
    assert held.rows_of(PLACE) is None  # no snapshot has it
    # Nor do the owner's own rows replace any: they begin anew.
    it.requests.answer(update(10, (pid, 9), begins=True, owned=True))
    await it.following.pull()
    assert it.known() == (-1, {})
    assert not it.following.has(PLACE)


async def test_an_older_beginning_does_not_hide_that_history_is_missing() -> None:
    it = await bench()
    held = it.server.engine._table.held
    rows = PartitionRows(PLACE, TOPIC_ID, 1000, 777, {PID: packed(PID, 999)})
    known = await held.merge(rows, None)
    assert known is not None
    assert await held.merge(rows._replace(next_offset=500, hole_ms=-1), None) is known
    assert (known.snapshotted.next_offset, known.snapshotted.hole_ms) == (1000, 777)
    assert await held.merge(rows._replace(next_offset=1500, hole_ms=-1), None) is known
    assert (known.snapshotted.next_offset, known.snapshotted.hole_ms) == (1500, -1)


async def test_a_hand_over_keeps_what_is_known_better() -> None:
    """This server may follow the new owner before its own last snapshot is loaded."""
    it = await bench()
    it.requests.answer(update(1000, (PID, 999), begins=True))
    await it.following.pull()
    held = it.server.engine._table.held
    await held.put(PartitionRows(PLACE, TOPIC_ID, 500, -1, {PID: packed(PID, 499)}))
    assert it.known() == (1000, {PID: packed(PID, 999)})
    assert it.following.has(PLACE)
    await held.put(PartitionRows(PLACE, "2" * 32, 5, -1, {}))
    assert it.known() == (5, {})
    assert not it.following.has(PLACE)


async def test_a_snapshot_has_all_producers_of_a_partition_or_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A partition that is replaced while a snapshot is taken has lost its producers."""
    it = await bench()
    held = it.server.engine._table.held
    places = [TopicPartition("t", 0), TopicPartition("t", 1)]
    for place in places:
        await held.forget(place)
        await held.merge(PartitionRows(place, TOPIC_ID, 10, -1, {PID: packed(PID, 9)}), None)
    taking = asyncio.create_task(it.server.engine.maintenance.snapshot())
    await asyncio.sleep(0)
    await held.forget(places[1])
    vector = (await taking).offset_vector
    assert vector.keys() == {places[0]}
    # What is handed over meanwhile is in it.
    taking = asyncio.create_task(it.server.engine.maintenance.snapshot())
    await asyncio.sleep(0)
    await held.merge(PartitionRows(places[1], TOPIC_ID, 12, -1, {PID: packed(PID, 11)}), None)
    assert (await taking).offset_vector[places[1]].next_offset == 12
    # And what the owner has sent since the partitions were listed.
    maintenance, listed = it.server.engine.maintenance, held.without(())
    monkeypatch.setattr(maintenance, "_unloaded", lambda: listed)
    await held.replace(PartitionRows(places[0], TOPIC_ID, 13, -1, {PID: packed(PID, 12)}))
    assert (await maintenance.snapshot()).offset_vector[places[0]].next_offset == 13


# ---------------------------------------------------------------------- before a takeover


async def members(it: Bench, *nodes: int) -> None:
    for node in nodes:
        member = it.server.shared.members[OTHER]
        it.server.shared.members[node] = member._replace(node_id=node, server=f"host:{node}")
    await it.server.cluster.refresh()


async def test_before_a_takeover_the_server_that_knows_most_is_asked() -> None:
    it = await bench()
    await members(it, THIRD)
    it.requests.known = {OTHER: {PLACE: 50_000}, THIRD: {PLACE: 70_000}}
    it.requests.answer(update(70_000, (PID, 69_999), begins=True), node=THIRD)
    await it.follower.fetch([PLACE])
    assert it.known() == (70_000, {PID: packed(PID, 69_999)})
    assert [node for node, *_ in it.requests.pulls] == [THIRD]
    assert it.follower.fetched == 1
    assert it.requests.ended == [THIRD]
    # Now no other server knows much more.
    it.requests.known = {OTHER: {PLACE: 79_999}}
    await it.follower.fetch([PLACE])
    assert len(it.requests.pulls) == 1


@pytest.mark.parametrize("known", [FollowError("away"), None], ids=["refuses", "hangs"])
async def test_a_server_that_does_not_answer_is_left_out(
    known: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_follower, "_ASK_SECONDS", 0.05)
    it = await bench()
    await members(it, THIRD)
    it.requests.known = {OTHER: known, THIRD: {PLACE: 70_000}}
    it.requests.answer(update(70_000, (PID, 69_999), begins=True), node=THIRD)
    await it.follower.fetch([PLACE])
    assert set(it.requests.asked) == {OTHER, THIRD}
    assert it.known() == (70_000, {PID: packed(PID, 69_999)})


async def test_a_takeover_goes_on_if_the_states_do_not_come() -> None:
    it = await bench()
    for error in (RuntimeError("a bug"), FollowError("away")):
        it.requests.known = {OTHER: {PLACE: 70_000}}
        it.requests.answers[OTHER] = [error]
        await it.follower.fetch([PLACE])
    assert it.known() is None
    assert it.follower.fetched == 0
    assert it.requests.asked == [OTHER, OTHER]
    # It may have started just then.
    await it.follower.fetch([PLACE])
    assert it.requests.asked == [OTHER, OTHER, OTHER]


async def test_a_transfer_that_hangs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_follower, "_FETCH_SECONDS", 0.05)
    it = await bench()

    async def hang(member: Member, request: FeedRequest) -> StateUpdates:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(it.requests, "pull", hang)
    it.requests.known = {OTHER: {PLACE: 70_000}}
    for _ in range(2):  # the next takeovers do not ask it for a while
        await it.follower.fetch([PLACE])
        assert it.requests.asked == [OTHER]


async def test_a_base_that_the_log_does_not_reach_any_more_is_replaced() -> None:
    """Retention has removed records in between: without the states, producers would be refused."""
    it = await bench()
    held = it.server.engine._table.held
    await held.merge(PartitionRows(PLACE, TOPIC_ID, 10, -1, {}), None)
    it.requests.known = {OTHER: {PLACE: 20}}
    await it.follower.fetch([PLACE])
    assert it.requests.pulls == []
    log: Any = it.server.partition().log
    it.server.partition().log = _StartsAt(log, 15)
    it.requests.answer(update(20, (PID, 19), begins=True))
    await it.follower.fetch([PLACE])
    assert it.known() == (20, {PID: packed(PID, 19)})


class _StartsAt:
    """A log whose first records are gone."""

    def __init__(self, log: Any, start: int) -> None:
        self._log, self.kept_offset = log, start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


async def test_what_was_pulled_just_now_is_not_asked_for() -> None:
    it = await bench()
    it.requests.answer(update(10, (PID, 9), begins=True))
    await it.following.pull()
    it.follower._by_owner[OTHER] = it.following
    await it.follower.fetch([PLACE])
    assert it.requests.asked == []
    it.following.fresh_at -= 10
    await it.follower.fetch([PLACE])
    assert it.requests.asked == [OTHER]


async def test_a_takeover_begins_with_what_was_fetched() -> None:
    it = await bench()
    moves = it.server.engine.moves
    assert moves is not None
    asked: list[list[TopicPartition]] = []

    async def fetch(names: Sequence[TopicPartition]) -> None:
        asked.append(list(names))

    moves.fetch = fetch
    both = [PLACE, TopicPartition("t", 1)]
    slots = it.server.shared.slots
    owners = list(slots.owners)
    for place in both:
        owners[slot_of(*place)] = ME
    it.server.shared.slots = slots._replace(owners=tuple(owners), version=slots.version + 1)
    await it.server.cluster.refresh()
    await until(lambda: not any(it.server.partition(each.partition).elsewhere for each in both))
    assert asked == [both]


async def test_at_a_start_it_gets_what_the_others_know() -> None:
    it = await bench()
    both = [PLACE, TopicPartition("t", 1)]
    it.requests.known = {OTHER: {PLACE: 70_000, both[1]: 5}}
    it.requests.answer(update(70_000, (PID, 69_999), begins=True))
    found = await it.follower.fetch_at_start({PLACE: 0, both[1]: 3})
    assert found == {PLACE: update(70_000, (PID, 69_999), begins=True).rows}
    assert it.known() is None
    it.server.link.away = True
    assert await it.follower.fetch_at_start({PLACE: 0}) == {}


# ---------------------------------------------------------------------- the servers to follow


async def test_it_follows_as_the_map_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_follower, "_PULL_SECONDS", 0)
    it = await bench()
    requests = it.requests
    slots = reassigned(EMPTY_MAP, [ME, OTHER], slot_weights({"t": 2}))
    owned = [number for number in range(2) if slots.owners[slot_of("t", number)] == OTHER]
    it.server.shared.slots = slots._replace(version=7)
    await it.server.cluster.refresh()

    def pulled(text: Callable[[list[TopicPartition]], bool]) -> Callable[[], bool]:
        return lambda: any(text(list(each.add)) for _, each in requests.pulls)

    it.follower.start()
    await until(pulled(lambda add: add == [TopicPartition("t", each) for each in owned]))
    report = it.follower.report()
    assert report.keys() == {OTHER}
    assert isinstance(report[OTHER], FollowedServer)
    # It leaves: nothing is pulled any more.
    del it.server.shared.members[OTHER]
    await it.server.cluster.refresh()
    await until(lambda: not it.follower.report())
    await it.follower.stop()
