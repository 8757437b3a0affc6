"""Bindings of names in a real ZooKeeper."""

import threading
from functools import partial

import pytest
from kazoo.client import KazooClient

from pidlease.coordination.name_bindings import Binding, BindingConflictError, NamesError
from pidlease.coordination.zookeeper.zookeeper_names import ZooKeeperNames
from tests.servers.waiting import WAIT_S
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
