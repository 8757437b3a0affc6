"""The members that share a Kafka cluster, their map, and the fence log, in a real ZooKeeper."""

import threading
import time
from collections.abc import Sequence
from functools import partial

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoNodeError

from pidlease.coordination.fence_log import FENCES_PER_NODE, Fence, FencePosition
from pidlease.coordination.members import MapConflictError, Member, MembershipLostError
from pidlease.coordination.name_bindings import (
    Binding,
    BindingChange,
    BindingConflictError,
    StoredBinding,
)
from pidlease.coordination.zookeeper.zookeeper_connection import ZooKeeper
from pidlease.coordination.zookeeper.zookeeper_fences import ZooKeeperFences
from pidlease.coordination.zookeeper.zookeeper_members import ZooKeeperMembers
from pidlease.coordination.zookeeper.zookeeper_names import ZooKeeperNames
from pidlease.coordination.zookeeper.zookeeper_ownership import ZooKeeperOwnership
from pidlease.core.slots import EMPTY_MAP, SLOTS, reassigned
from tests.servers.waiting import until
from tests.servers.zookeeper import ZooKeeperServer
from tests.servers.zookeeper.marks import needs_zookeeper
from tests.zookeeper.conftest import Connect

pytestmark = needs_zookeeper

CLUSTER = "cluster"
NOW_MS = 1_700_000_000_000
KEEP_MS = 1000


def member(node_id: int, *, draining: bool = False) -> Member:
    return Member(node_id, f"host:{node_id}", "127.0.0.1", 9000 + node_id,
                  f"http://127.0.0.1:{8000 + node_id}")._replace(draining=draining)  # fmt: skip


def test_members_come_and_go(connect: Connect) -> None:
    one, two = (ZooKeeperMembers(connect(), CLUSTER) for _ in range(2))
    noticed = threading.Event()
    one.watch(noticed.set)
    ids = one.node_id(), two.node_id()
    assert ids == (1, 2)
    one.join(member(1))
    assert list(one.read().members) == [1]
    noticed.clear()
    two.join(member(2))
    assert noticed.wait(20), "the watch"
    found = one.read()
    assert [each._replace(joined=0) for each in found.members.values()] == [member(1), member(2)]
    assert found.members[1].joined < found.members[2].joined
    assert (found.slots, found.stranger) == (EMPTY_MAP, "")
    two.join(member(2, draining=True))
    assert one.read().members[2].draining
    two.leave()
    assert list(one.read().members) == [1]


def test_a_member_whose_session_has_ended_joins_again(connect: Connect) -> None:
    zookeeper, other = connect(), ZooKeeperMembers(connect(), CLUSTER)
    own = ZooKeeperMembers(zookeeper, CLUSTER)
    own.join(member(1))
    path = zookeeper.path(f"shared/{CLUSTER}/members/1")
    zookeeper.call(lambda client: client.delete_async(path))
    assert not other.read().members
    assert list(own.read().members) == [1]
    assert list(other.read().members) == [1]


def test_a_member_joins_again_in_the_place_of_its_own_earlier_session(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that ZooKeeper made late, under a session that has ended since."""
    zookeeper, other = connect(), connect()
    own = ZooKeeperMembers(zookeeper, CLUSTER)
    own.join(member(1))
    path = zookeeper.path(f"shared/{CLUSTER}/members/1")
    data, _ = zookeeper.node(path) or (b"", None)
    zookeeper.call(lambda client: client.delete_async(path))
    other.call(lambda client: client.create_async(path, data, ephemeral=True))
    monkeypatch.setattr(zookeeper, "_sessions", {zookeeper.session(), other.session()})
    assert list(own.read().members) == [1]
    found = zookeeper.node(path)
    assert found is not None
    assert found[1].ephemeralOwner == zookeeper.session()


def test_a_member_whose_session_expired_joins_again(
    server: ZooKeeperServer, connect: Connect
) -> None:
    zookeeper = connect()
    own = ZooKeeperMembers(zookeeper, CLUSTER)
    own.join(member(1))
    former = zookeeper.session()
    thief = KazooClient(server.hosts, client_id=zookeeper._client.client_id)
    thief.start()
    thief.stop()  # ends the session
    thief.close()
    until(lambda: zookeeper.sessions_lost > 0 and zookeeper.state == "connected", "a new session")
    assert list(own.read().members) == [1]
    assert zookeeper.had_session(former)
    assert zookeeper.had_session(zookeeper.session())
    assert zookeeper.session() != former


def test_a_restarted_process_joins_at_once(connect: Connect) -> None:
    killed, again = (ZooKeeperMembers(connect(), CLUSTER) for _ in range(2))
    killed.join(member(1))
    again.join(member(1)._replace(server="again:1"))
    assert again.read().members[1].server == "again:1"


def test_a_copy_of_a_directory_replaces_the_first_server_for_good(connect: Connect) -> None:
    """Once a bug: both wrote the node in turn, and owned the same slots at the same epoch."""
    one, two, copy = (ZooKeeperMembers(connect(), CLUSTER) for _ in range(3))
    noticed = threading.Event()
    one.watch(noticed.set)
    one.join(member(1))
    one.read()
    two.join(member(2))
    copy.join(member(1)._replace(server="copy:1"))
    assert noticed.wait(20), "the watch"
    for _ in range(2):
        for each in (one.read, one.slots, partial(one.join, member(1, draining=True))):
            with pytest.raises(MembershipLostError, match=r"copy:1.*copy of it.* node 1"):
                each()
        assert copy.read().members[1].server == "copy:1"
        copy.slots()
    one.leave()
    assert two.read().members[1].server == "copy:1"


def test_the_map_is_written_at_the_version_it_was_read_at(connect: Connect) -> None:
    one, two = (ZooKeeperMembers(connect(), CLUSTER) for _ in range(2))
    first = one.write(reassigned(one.slots(), [1], [0] * SLOTS))
    assert two.slots() == first
    with pytest.raises(MapConflictError):
        two.write(reassigned(EMPTY_MAP, [2], [0] * SLOTS))
    second = two.write(reassigned(first, [1, 2], [0] * SLOTS))
    assert second.version == first.version + 1
    with pytest.raises(MapConflictError):
        one.write(reassigned(first, [1, 3], [0] * SLOTS))
    assert one.slots() == second


def test_servers_that_share_and_one_that_does_not_keep_each_other_out(connect: Connect) -> None:
    zookeeper = connect()
    members, alone = ZooKeeperMembers(zookeeper, CLUSTER), connect()
    members.join(member(1))
    assert members.read().stranger == ""
    claim = ZooKeeperOwnership(alone, CLUSTER, "alone:1", "folder")
    assert claim.claim() == "several"
    # For a moment after one of them has left, none of the others has made the claim again.
    owner = zookeeper.path(f"owners/{CLUSTER}/owner")
    zookeeper.call(lambda client: client.delete_async(owner))
    assert claim.claim() == "several"
    assert members.read().stranger == ""
    members.leave()
    assert claim.claim() == ""
    assert claim.still()
    assert ZooKeeperMembers(zookeeper, CLUSTER).read().stranger == "alone:1"
    assert claim.still()


# ---------------------------------------------------------------------- fences


def names_of(zookeeper: ZooKeeper, later_ms: int = 0) -> tuple[ZooKeeperNames, ZooKeeperFences]:
    """The names and their fences, by a clock that is ahead."""
    fences = ZooKeeperFences(zookeeper, lambda: time.time_ns() // 10**6 + later_ms, KEEP_MS)
    return ZooKeeperNames(zookeeper, fences), fences


def grant(names: ZooKeeperNames, labels: Sequence[str], pid: int, granted_ms: int = NOW_MS) -> None:
    changes = [BindingChange(label, StoredBinding(None), Binding(pid + at, 5, -1, granted_ms))
               for at, label in enumerate(labels)]  # fmt: skip
    assert names.change_many(changes) == [None] * len(labels)


def test_a_grant_is_in_the_log_as_soon_as_it_is_bound(connect: Connect) -> None:
    names, _ = names_of(connect())
    _, fences = names_of(connect())
    start = fences.end()
    assert start == FencePosition(0, 0)
    grant(names, ["a"], 1)
    found, position = fences.read(start)
    assert found == [Fence("a", Binding(1, 5, -1, NOW_MS))]
    assert position == FencePosition(1, 1)
    assert fences.read(position) == ([], position)
    assert fences.end() == position


def test_a_grant_that_is_not_made_is_not_in_the_log(connect: Connect) -> None:
    names, fences = names_of(connect())
    grant(names, ["a", "b"], 1)
    position = fences.end()
    free, new = StoredBinding(None), Binding(9, 1, -1, NOW_MS)
    outcomes = names.change_many([BindingChange(label, free, new) for label in ("a", "c", "b")])
    assert [type(each) for each in outcomes] == [
        BindingConflictError, type(None), BindingConflictError,
    ]  # fmt: skip
    assert fences.read(position)[0] == [Fence("c", new)]


def test_servers_append_at_once(connect: Connect) -> None:
    several = [names_of(connect()) for _ in range(3)]
    per_server = FENCES_PER_NODE

    def grant_some(names: ZooKeeperNames, server: int) -> None:
        for at in range(0, per_server, 10):
            labels = [f"{server}/{at + number}" for number in range(10)]
            grant(names, labels, 1000 * server + at)

    threads = [
        threading.Thread(target=grant_some, args=(names, server))
        for server, (names, _) in enumerate(several)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    found, position = several[0][1].read(FencePosition(0, 0))
    assert sorted(each.name for each in found) == sorted(
        f"{server}/{number}" for server in range(3) for number in range(per_server)
    )
    assert position == FencePosition(3, FENCES_PER_NODE)
    for server in range(3):
        own = [each.binding.pid for each in found if each.name.startswith(f"{server}/")]
        assert own == sorted(own)


def test_old_entries_are_removed_and_a_late_reader_is_told(connect: Connect) -> None:
    names, fences = names_of(connect())
    # Old grants, as releases have them: their entries are new, and stay.
    for node in range(3):
        labels = [f"{node}/{number}" for number in range(FENCES_PER_NODE)]
        grant(names, labels, 100 * node, NOW_MS - KEEP_MS - 1)
    assert len(fences.read(FencePosition(0, 0))[0]) == 3 * FENCES_PER_NODE
    names, fences = names_of(connect(), 3_600_000 + KEEP_MS)
    grant(names, ["new"], 1000)
    until(lambda: fences.read(FencePosition(1, 3))[1] is None, "the first node is removed")
    assert fences.read(FencePosition(0, 0))[1] is None
    end = fences.end()
    assert fences.read(end) == ([], end)


@pytest.mark.parametrize("error", [NoNodeError, ConnectionLoss])
def test_a_grant_stands_although_old_entries_stay(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """Another server removes the same node just then, or ZooKeeper goes away after the grant."""
    names, fences = names_of(connect())

    def fail(self: ZooKeeperFences) -> None:
        failed.append(self)
        raise error

    failed: list[ZooKeeperFences] = []
    monkeypatch.setattr(ZooKeeperFences, "_remove_old", fail)
    for node in range(2):
        grant(names, [f"{node}/{number}" for number in range(FENCES_PER_NODE)], 100 * node)
    assert failed
    assert len(fences.read(FencePosition(0, 0))[0]) == 2 * FENCES_PER_NODE
