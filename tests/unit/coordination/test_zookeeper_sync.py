"""Servers of ZooKeeper that lag behind: what is read for a decision is as new as the question.

A scripted client stands for kazoo's: it reads from a copy that is brought up to date by a sync, or
by a change of its own, as one server of an ensemble does.
"""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)

import pidlease.coordination.zookeeper as package
from pidlease.coordination.name_bindings import (
    Binding,
    BindingChange,
    BindingConflictError,
    StoredBinding,
)
from pidlease.coordination.topic_book import ALL_TOPICS
from pidlease.coordination.writer_ids import WriterOf
from pidlease.coordination.zookeeper.zookeeper_connection import (
    ZooKeeper,
    ZooKeeperConfig,
    ZooKeeperError,
)
from pidlease.coordination.zookeeper.zookeeper_names import ZooKeeperNames
from pidlease.coordination.zookeeper.zookeeper_ownership import ZooKeeperOwnership
from pidlease.coordination.zookeeper.zookeeper_sequence import ZooKeeperSequence
from pidlease.coordination.zookeeper.zookeeper_topic_book import ZooKeeperTopicBook
from pidlease.coordination.zookeeper.zookeeper_writer_ids import ZooKeeperWriterIds

ROOT = "/p"


@dataclass
class Node:
    data: bytes = b""
    version: int = 0
    ephemeralOwner: int = 0  # noqa: N815 - kazoo's name
    cversion: int = 0


Tree = dict[str, Node]


@dataclass
class Answer:
    """See kazoo's `IAsyncResult`."""

    result: Any = None
    error: Exception | None = None

    def get(self, timeout: float) -> Any:
        assert timeout >= 0
        if self.error is not None:
            raise self.error
        return self.result


class LaggingClient:
    """One session with a server whose copy of the leader's tree is old."""

    class handler:  # noqa: N801 - kazoo's name
        timeout_exception = TimeoutError

    def __init__(self, leader: Tree, session: int) -> None:
        self.client_id = (session, b"")
        self.syncs = 0
        self.sync_error: Exception | None = None
        self._leader = leader
        self._copy = deepcopy(leader)

    def is_stale(self) -> bool:
        return self._copy != self._leader

    def _changed(self, change: Callable[[], Any]) -> Answer:
        try:
            return Answer(change())
        except (BadVersionError, NodeExistsError, NoNodeError) as error:
            return Answer(error=error)
        finally:
            self._copy = deepcopy(self._leader)

    def sync_async(self, path: str) -> Answer:
        assert path == ROOT
        self.syncs += 1
        if self.sync_error is not None:
            return Answer(error=self.sync_error)
        self._copy = deepcopy(self._leader)
        return Answer(path)

    def get_async(self, path: str) -> Answer:
        if path not in self._copy:
            return Answer(error=NoNodeError(path))
        return Answer((self._copy[path].data, self._copy[path]))

    def get_children_async(self, path: str, *, include_data: bool = False) -> Answer:
        if path not in self._copy:
            return Answer(error=NoNodeError(path))
        names = [each.rpartition("/")[2] for each in self._copy
                 if each.rpartition("/")[0] == path]  # fmt: skip
        return Answer((names, self._copy[path]) if include_data else names)

    def create_async(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> Answer:
        def change() -> None:
            if path in self._leader:
                raise NodeExistsError(path)
            above = path.rpartition("/")[0]
            if above:
                self._leader[above].cversion += 1
            self._leader[path] = Node(data, ephemeralOwner=self.client_id[0] * ephemeral)

        return self._changed(change)

    def set_async(self, path: str, data: bytes, version: int = -1) -> Answer:
        def change() -> Node:
            self._check(path, version)
            node = self._leader[path]
            node.data, node.version = data, node.version + 1
            return deepcopy(node)

        return self._changed(change)

    def delete_async(self, path: str, version: int = -1) -> Answer:
        def change() -> None:
            self._check(path, version)
            del self._leader[path]
            self._leader[path.rpartition("/")[0]].cversion += 1

        return self._changed(change)

    def transaction(self) -> "LaggingTransaction":
        return LaggingTransaction(self)

    def _check(self, path: str, version: int) -> None:
        if path not in self._leader:
            raise NoNodeError(path)
        if version not in (-1, self._leader[path].version):
            raise BadVersionError(path)


class LaggingTransaction:
    """Writes that are all done, or none: the first one that fails rolls them back."""

    def __init__(self, client: LaggingClient) -> None:
        self._client = client
        self._writes: list[Callable[[], Answer]] = []

    def create(self, path: str, data: bytes) -> None:
        self._writes.append(lambda: self._client.create_async(path, data))

    def set_data(self, path: str, data: bytes, version: int) -> None:
        self._writes.append(lambda: self._client.set_async(path, data, version))

    def delete(self, path: str, version: int) -> None:
        self._writes.append(lambda: self._client.delete_async(path, version))

    def commit_async(self) -> Answer:
        leader = self._client._leader
        before = deepcopy(leader)
        answers: list[Answer] = []
        for write in self._writes:
            answers.append(write())
            if answers[-1].error is not None:
                leader.clear()
                leader |= before
                rest = len(self._writes) - len(answers)
                return Answer([
                    *(RolledBackError() for _ in answers[:-1]), answers[-1].error,
                    *(RuntimeInconsistency() for _ in range(rest)),
                ])  # fmt: skip
        return Answer([each.result or "created" for each in answers])


class Ensemble:
    """Two servers of ours, at two servers of ZooKeeper."""

    def __init__(self) -> None:
        self._leader: Tree = {}
        self.clients: list[LaggingClient] = []
        self.one, self.other = self.connect(), self.connect()

    def connect(self) -> ZooKeeper:
        zookeeper = ZooKeeper(ZooKeeperConfig(f"127.0.0.1:1{ROOT}"))
        self.clients.append(LaggingClient(self._leader, len(self.clients) + 1))
        zookeeper._client = self.clients[-1]
        zookeeper.state = "connected"
        return zookeeper

    def check_stale(self) -> None:
        """What is read next at the other one would be old."""
        assert self.clients[1].is_stale()


@pytest.fixture
def ensemble() -> Ensemble:
    return Ensemble()


def sequence(zookeeper: ZooKeeper) -> ZooKeeperSequence:
    return ZooKeeperSequence(zookeeper, "me", lambda: 0, 1000)


def test_blocks_that_another_server_has_just_taken(ensemble: Ensemble) -> None:
    one, other = sequence(ensemble.one), sequence(ensemble.other)
    assert other.blocks() == []
    taken = [one.take() for _ in range(120)]
    ensemble.check_stale()
    assert other.blocks() == taken
    taken.append(one.take())
    ensemble.check_stale()
    beyond = other.blocks(beyond=12_001)
    assert beyond[-1] == taken[-1]
    assert len(beyond) < len(taken), "the nodes before are not read again"
    taken.append(one.take())
    ensemble.check_stale()
    assert other.take().first == taken[-1].end


def test_a_binding_that_another_server_has_just_changed(ensemble: Ensemble) -> None:
    one, other = ZooKeeperNames(ensemble.one), ZooKeeperNames(ensemble.other)
    first, second = Binding(1, 1), Binding(1, 2)
    one.change("a", None, first)
    ensemble.check_stale()
    assert other.get("a") == first
    one.change("a", first, second)
    ensemble.check_stale()
    other.change("a", second, first)
    one.change("b", None, second)
    ensemble.check_stale()
    assert other.all() == {"a": first, "b": second}


def test_bindings_of_which_another_server_has_just_changed_one(ensemble: Ensemble) -> None:
    one, other = ZooKeeperNames(ensemble.one), ZooKeeperNames(ensemble.other)
    names = ["a", "b", "c"]
    created = [BindingChange(each, StoredBinding(None), Binding(1, 1)) for each in names]
    assert one.change_many(created) == [None] * 3
    ensemble.check_stale()
    found = other.get_many(names)
    assert found == [StoredBinding(Binding(1, 1), 0)] * 3
    one.change("b", Binding(1, 1), Binding(1, 2))
    ensemble.check_stale()
    raised = [
        BindingChange(name, stored, Binding(1, 3))
        for name, stored in zip(names, found, strict=True)
        if isinstance(stored, StoredBinding)
    ]
    first, second, third = other.change_many(raised)
    assert (first, third) == (None, None)
    assert isinstance(second, BindingConflictError)
    assert one.all() == {"a": Binding(1, 3), "b": Binding(1, 2), "c": Binding(1, 3)}


def test_what_another_server_has_just_set_for_topics(ensemble: Ensemble) -> None:
    one, other = (ZooKeeperTopicBook(each, "c") for each in (ensemble.one, ensemble.other))
    assert other.version() is None
    one.change("t", "id", {"a": "b"}.__or__)
    ensemble.check_stale()
    assert other.load().own == {"id": {"a": "b"}}
    before = other.version()
    one.change("", ALL_TOPICS, {"c": "d"}.__or__)
    ensemble.check_stale()
    assert other.version() not in {before, None}
    assert other.load().shared == {"c": "d"}
    one.change("", ALL_TOPICS, {"e": "f"}.__or__)
    ensemble.check_stale()
    found = other.change("", ALL_TOPICS, {"g": "h"}.__or__)
    assert found == one.load().shared == {"c": "d", "e": "f", "g": "h"}


def test_a_setting_that_another_server_changes_meanwhile(ensemble: Ensemble) -> None:
    one, other = (ZooKeeperTopicBook(each, "c") for each in (ensemble.one, ensemble.other))
    calls: list[dict[str, str]] = []

    def change(before: dict[str, str]) -> dict[str, str]:
        if len(calls) < 2:  # the node does not exist; then it has changed
            one.change("t", "id", {f"one-{len(calls)}": "x"}.__or__)
        calls.append(before)
        return {**before, "other": "y"}

    found = other.change("t", "id", change)
    assert calls == [{}, {"one-0": "x"}, {"one-0": "x", "one-1": "x"}]
    assert found == one.load().own["id"] == {"one-0": "x", "one-1": "x", "other": "y"}


def test_a_writer_that_another_server_has_just_recorded(ensemble: Ensemble) -> None:
    one, other = ZooKeeperWriterIds(ensemble.one), ZooKeeperWriterIds(ensemble.other)
    of = WriterOf("t", 0, 1)
    one.add(1, of)
    ensemble.check_stale()
    assert other.all() == {1: of}
    one.add(2, of)
    ensemble.check_stale()
    other.add(3, of)
    assert one.all() == dict.fromkeys((1, 2, 3), of)


def test_writers_that_two_servers_record_in_turn(ensemble: Ensemble) -> None:
    """Each knows the node as it wrote it last, and overwrites nothing."""
    one, other = ZooKeeperWriterIds(ensemble.one), ZooKeeperWriterIds(ensemble.other)
    of = WriterOf("t", 0, 1)
    for pid in range(0, 220, 2):
        one.add(pid, of)
        other.add(pid + 1, of)
    folder = f"{ROOT}/writer-ids"
    nodes = ensemble.one.nodes([f"{folder}/{each}" for each in ensemble.one.children(folder)])
    rows = [json.loads(node[0])["ids"] for node in nodes if node is not None]
    assert [len(each) for each in rows] == [100, 100, 20]
    assert [row[0] for each in rows for row in each] == list(range(220))
    singles = ensemble.one.children(f"{ROOT}/writers")
    assert sorted(map(int, singles)) == list(range(220)), "servers of before do not know them"


def test_an_owner_that_was_replaced_does_not_believe_a_server_that_lags(
    ensemble: Ensemble,
) -> None:
    one, other = (
        ZooKeeperOwnership(each, "c", name, name)
        for each, name in ((ensemble.one, "one"), (ensemble.other, "other"))
    )
    assert other.claim() == ""
    assert other.still()
    # The session of the other one has ended, and it has not heard of that.
    ensemble.clients[0].delete_async(f"{ROOT}/owners/c/owner")
    assert one.claim() == ""
    ensemble.check_stale()
    assert not other.still()
    assert json.loads(ensemble.one.data(f"{ROOT}/owners/c/owner"))["server"] == "one"


@pytest.mark.parametrize("is_member_left", [True, False])
def test_a_server_that_was_replaced_leaves_no_claim(
    ensemble: Ensemble, *, is_member_left: bool
) -> None:
    """Active servers have served meanwhile, and end when they see its claim."""
    alone, client = ZooKeeperOwnership(ensemble.one, "c", "one", "one"), ensemble.clients[0]
    claim, folder = f"{ROOT}/owners/c/owner", f"{ROOT}/shared/c/members"
    assert alone.claim() == ""
    client.delete_async(claim)  # its session has ended
    ensemble.other.ensure(folder)
    ensemble.other.ensure(f"{folder}/1")
    ensemble.clients[1].create_async(claim, ephemeral=True)
    ensemble.clients[1].delete_async(claim)  # the member that made the claim has left
    if not is_member_left:
        ensemble.clients[1].delete_async(f"{folder}/1")
    created = client._leader[f"{ROOT}/owners/c"].cversion
    assert not alone.still()
    assert ensemble.one.node(claim) is None
    assert (client._leader[f"{ROOT}/owners/c"].cversion == created) is is_member_left
    assert not alone.still()


def test_a_sync_whose_answer_is_lost_fails_the_read(ensemble: Ensemble) -> None:
    """The read may have gone to another server, behind the loss of the connection."""
    names = ensemble.one
    names.ensure(f"{ROOT}/x", b"old")
    ensemble.clients[0].sync_error = ConnectionLoss()
    with pytest.raises(ZooKeeperError, match="ConnectionLoss"):
        names.data(f"{ROOT}/x")


def test_only_the_connection_reads() -> None:
    """Everything else reads by its methods, which go with a sync."""
    reads = re.compile(r"\b(get|get_children|exists|get_acls)_async\b")
    for path in Path(package.__file__).parent.glob("*.py"):
        assert path.name == "zookeeper_connection.py" or not reads.search(path.read_text()), path
