"""Bindings of names in a real ZooKeeper."""

import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial

import pytest
from kazoo.client import KazooClient

from pidlease.coordination.name_bindings import (
    NAMES_AT_ONCE_MAX,
    Binding,
    BindingChange,
    BindingConflictError,
    NameBindings,
    NamesError,
    StoredBinding,
)
from pidlease.coordination.zookeeper.zookeeper_connection import ZooKeeper
from pidlease.coordination.zookeeper.zookeeper_names import ZooKeeperNames
from tests.servers.waiting import WAIT_S, until
from tests.servers.zookeeper import ZooKeeperServer
from tests.servers.zookeeper.marks import needs_zookeeper
from tests.zookeeper.conftest import Connect

pytestmark = [needs_zookeeper, pytest.mark.timeout(900)]

FIRST, SECOND = Binding(7, 0), Binding(7, 1)


def _overwrite(client: KazooClient, path: str, data: bytes) -> object:
    return client.set_async(path, data)


def test_a_name_is_bound_raised_and_let_go(connect: Connect) -> None:
    names, other = ZooKeeperNames(connect()), ZooKeeperNames(connect())
    assert names.get("a") is None
    names.change("a", None, FIRST)
    assert other.get("a") == FIRST
    other.change("a", FIRST, SECOND)
    for expected, new in ((None, FIRST), (FIRST, None), (FIRST, SECOND)):
        with pytest.raises(BindingConflictError):
            names.change("a", expected, new)
    names.change("a", SECOND, None)
    assert other.get("a") is None
    names.change("a", None, None)
    other.change("a", None, Binding(9, 3))
    assert names.get("a") == Binding(9, 3)


@pytest.mark.parametrize("name", ["\u20ac" * 85, " a\n\0\"b' ", "a/b", "..", "x" * 256])
def test_any_text_is_a_name(connect: Connect, name: str) -> None:
    names = ZooKeeperNames(connect())
    names.change(name, None, FIRST)
    assert names.get(name) == FIRST


def test_many_raise_one_name_at_once(connect: Connect) -> None:
    """Each generation is granted once."""
    ZooKeeperNames(connect()).change("a", None, FIRST)
    granted: list[int] = []
    conflicts: list[int] = []

    def work(names: ZooKeeperNames) -> None:
        for _ in range(30):
            while True:
                now = names.get("a")
                assert now is not None
                new = now._replace(generation=now.generation + 1)
                try:
                    names.change("a", now, new)
                except BindingConflictError:
                    conflicts.append(1)
                    continue
                granted.append(new.generation)
                break

    threads = [threading.Thread(target=work, args=(ZooKeeperNames(connect()),)) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT_S)
    assert sorted(granted) == list(range(1, 121))
    assert conflicts


#: The longest names; as JSON, each character takes six bytes.
LONG_NAMES = [f"{number:04}" + "\1" * 252 for number in range(NAMES_AT_ONCE_MAX)]


def raised(stored: StoredBinding | NamesError, pid: int = 7) -> Binding:
    """The binding that the next grant stores."""
    assert isinstance(stored, StoredBinding)
    generation = -1 if stored.binding is None else stored.binding.generation
    return Binding(pid, generation + 1)


def raising(bindings: NameBindings, names: Sequence[str]) -> list[BindingChange]:
    """Read names, and return the changes that raise their generations."""
    found = zip(names, bindings.get_many(names), strict=True)
    return [
        BindingChange(name, stored, raised(stored))
        for name, stored in found
        if isinstance(stored, StoredBinding)
    ]


def transactions(zookeeper: ZooKeeper, bindings: ZooKeeperNames, names: Sequence[str]) -> int:
    """In how many transactions the nodes of names were last written."""
    nodes = zookeeper.nodes([bindings._path(name) for name in names])
    return len({node[1].mzxid for node in nodes if node is not None})


def test_many_names_are_changed_in_one_transaction(connect: Connect) -> None:
    zookeeper = connect()
    names = ZooKeeperNames(zookeeper)
    for _ in range(2):
        changes = raising(names, LONG_NAMES)
        assert names.change_many(changes) == [None] * len(LONG_NAMES)
        assert transactions(zookeeper, names, LONG_NAMES) == 1
    unbound, free, *others = raising(names, [LONG_NAMES[0], "never bound", *LONG_NAMES[1:]])
    unbinding = [unbound._replace(new=None), free._replace(new=None)]
    assert names.change_many([*unbinding, *others]) == [None] * (len(LONG_NAMES) + 1)
    assert transactions(zookeeper, names, LONG_NAMES) == 1
    assert names.all() == dict.fromkeys(LONG_NAMES[1:], Binding(7, 2))


@pytest.mark.parametrize("beaten", [{3}, {0, 4, 9}, set(range(10))])
def test_a_conflict_fails_no_other_change(connect: Connect, beaten: set[int]) -> None:
    """Another server created, raised or unbound the name after it was read."""
    names, other = ZooKeeperNames(connect()), ZooKeeperNames(connect())
    all_names = [f"name {number}" for number in range(10)]
    assert other.change_many(raising(other, all_names[::2])) == [None] * 5
    changes = raising(names, all_names)
    for number, change in enumerate(changes):
        if number in beaten:
            new = None if number == 4 else raised(change.expected, pid=8)
            other.change(change.name, change.expected.binding, new)
    outcomes = names.change_many(changes)
    for number, (change, outcome) in enumerate(zip(changes, outcomes, strict=True)):
        now = names.get(change.name)
        if number in beaten:
            assert isinstance(outcome, BindingConflictError)
            assert now == (None if number == 4 else raised(change.expected, pid=8))
        else:
            assert outcome is None
            assert now == change.new
    again = raising(names, all_names)
    assert names.change_many(again) == [None] * 10


def test_a_name_twice_in_a_group_is_changed_once(connect: Connect) -> None:
    names = ZooKeeperNames(connect())
    first, second, third = (StoredBinding(None),) * 3
    made, conflict, other = names.change_many([
        BindingChange("a", first, FIRST),
        BindingChange("a", second, SECOND),
        BindingChange("b", third, FIRST),
    ])  # fmt: skip
    assert (made, other) == (None, None)
    assert isinstance(conflict, BindingConflictError)
    assert names.all() == {"a": FIRST, "b": FIRST}


def test_two_servers_raise_many_names_at_once(connect: Connect) -> None:
    """Each generation of each name is granted once, whichever server grants it."""
    every = [f"name {number}" for number in range(40)]
    granted: list[tuple[str, int]] = []
    conflicts: list[str] = []
    at_once = threading.Barrier(2)

    def work(names: ZooKeeperNames) -> None:
        for _ in range(10):
            missing = every
            while missing:
                changes = raising(names, missing)
                if missing is every:
                    at_once.wait(WAIT_S)  # both have read before either writes
                outcomes = dict(zip(missing, names.change_many(changes), strict=True))
                granted.extend(
                    (each.name, each.new.generation)
                    for each in changes
                    if each.new is not None and outcomes[each.name] is None
                )
                missing = [name for name in missing if outcomes[name] is not None]
                conflicts.extend(missing)

    threads = [threading.Thread(target=work, args=(ZooKeeperNames(connect()),)) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT_S)
    assert Counter(granted) == Counter((name, n) for name in every for n in range(20))
    assert conflicts


def test_a_transaction_with_an_unknown_outcome_was_made_as_a_whole_or_not(
    server: ZooKeeperServer, connect: Connect
) -> None:
    zookeeper = connect(timeout_seconds=0.3)
    names = ZooKeeperNames(zookeeper)
    every = [f"name {number}" for number in range(20)]
    assert names.change_many(raising(names, every)) == [None] * 20
    changes = raising(names, every)
    server.pause()
    try:
        with pytest.raises(NamesError):
            names.get_many(every)
        with pytest.raises(NamesError):
            names.change_many(changes)
    finally:
        server.resume()
    after = ZooKeeperNames(connect())
    # It may be made now, between two reads.
    until(lambda: len({after.get(name) for name in every}) == 1, "all or none to be changed")


def test_nodes_of_a_transaction_belong_to_the_user_that_made_them(connect: Connect) -> None:
    zookeeper = connect(digest="me:secret")
    names = ZooKeeperNames(zookeeper)
    assert names.change_many(raising(names, ["a", "b"])) == [None, None]
    for digest in ("", "me:guess"):
        other = connect(hosts=zookeeper._config.hosts, digest=digest)
        with pytest.raises(NamesError, match="NoAuth"):
            ZooKeeperNames(other).get("a")
        stored = StoredBinding(Binding(7, 0), 0)
        outcomes = ZooKeeperNames(other).change_many(
            [BindingChange(each, stored, SECOND) for each in ("a", "b")]
        )
        assert [type(each) for each in outcomes] == [NamesError, NamesError]
    assert names.all() == {"a": Binding(7, 0), "b": Binding(7, 0)}


def test_zookeeper_away_is_told(server: ZooKeeperServer, connect: Connect) -> None:
    names = ZooKeeperNames(connect(timeout_seconds=0.3))
    names.change("a", None, FIRST)
    server.pause()
    try:
        with pytest.raises(NamesError):
            names.get("a")
        with pytest.raises(NamesError):
            names.change("a", FIRST, SECOND)
    finally:
        server.resume()


def test_a_node_that_something_else_has_written_is_told(connect: Connect) -> None:
    zookeeper = connect()
    names = ZooKeeperNames(zookeeper)
    names.change("a", None, FIRST)
    other = b'{"name": "b", "pid": 1, "generation": 1}'
    for content in (b"", b"{}", b"[]", other):
        zookeeper.call(partial(_overwrite, path=names._path("a"), data=content))
        with pytest.raises(NamesError, match="no binding"):
            names.get("a")
        with pytest.raises(NamesError, match="no binding"):
            names.change("a", FIRST, SECOND)
        damaged, free = names.get_many(["a", "c"])
        assert isinstance(damaged, NamesError)
        assert free == StoredBinding(None)
