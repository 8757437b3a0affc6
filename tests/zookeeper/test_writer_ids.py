"""The ids of writers in a real ZooKeeper: many in a node, and read by servers of before."""

import json
import threading

import pytest
from kazoo.client import KazooClient

from pidlease.coordination.writer_ids import WriterIdsError, WriterOf
from pidlease.coordination.zookeeper.zookeeper_connection import ZooKeeper
from pidlease.coordination.zookeeper.zookeeper_writer_ids import ZooKeeperWriterIds
from tests.servers.waiting import WAIT_S
from tests.servers.zookeeper.marks import needs_zookeeper
from tests.zookeeper.conftest import Connect

pytestmark = [needs_zookeeper, pytest.mark.timeout(900)]


def of(pid: int) -> WriterOf:
    return WriterOf(f"topic-{pid % 7}", pid % 50, 1_700_000_000_000 + pid)


def single(zookeeper: ZooKeeper, pid: int) -> None:
    """As a server of before records it."""
    path = f"{zookeeper.path('writers')}/{pid}"
    zookeeper.ensure(path, json.dumps(of(pid)._asdict()).encode())


def read_as_before(zookeeper: ZooKeeper) -> dict[int, WriterOf]:
    root = zookeeper.path("writers")
    found = {}
    for name in zookeeper.children(root):
        fields = json.loads(zookeeper.data(f"{root}/{name}"))
        found[int(name)] = WriterOf(*(fields[each] for each in WriterOf._fields))
    return found


def packed(zookeeper: ZooKeeper) -> list[list[int]]:
    """The ids in each node of many."""
    root = zookeeper.path("writer-ids")
    nodes = zookeeper.nodes([f"{root}/{name}" for name in sorted(zookeeper.children(root))])
    return [[row[0] for row in json.loads(node[0])["ids"]] for node in nodes if node]


def test_ids_of_several_servers_stand_in_a_few_nodes(connect: Connect) -> None:
    def add(number: int) -> None:
        ids = ZooKeeperWriterIds(connect())
        for pid in range(number, 250, 2):
            ids.add(pid, of(pid))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(WAIT_S)
    zookeeper = connect()
    due = {pid: of(pid) for pid in range(250)}
    assert ZooKeeperWriterIds(zookeeper).all() == due
    assert [len(each) for each in packed(zookeeper)] == [100, 100, 50]
    assert read_as_before(zookeeper) == due, "a server of before would not know them"


def test_ids_of_a_server_of_before_are_packed_by_the_next_start(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    zookeeper = connect()
    ids = ZooKeeperWriterIds(zookeeper)
    assert ids.all() == {}
    for pid in range(130):
        single(zookeeper, pid)
    ids.add(1000, of(1000))
    due = {pid: of(pid) for pid in (*range(130), 1000)}
    assert ZooKeeperWriterIds(zookeeper).all() == due
    assert [len(each) for each in packed(zookeeper)] == [100, 31]
    singles: list[str] = []
    nodes = zookeeper.nodes

    def noted(paths: list[str]) -> object:
        singles.extend(path for path in paths if "/writers/" in path)
        return nodes(paths)

    monkeypatch.setattr(zookeeper, "nodes", noted)
    assert ZooKeeperWriterIds(zookeeper).all() == due
    assert not singles, "none of them is read one by one any more"


def test_an_id_that_came_through_without_an_answer_is_there_once(connect: Connect) -> None:
    zookeeper = connect()
    one, other = ZooKeeperWriterIds(zookeeper), ZooKeeperWriterIds(connect())
    for pid in range(3):
        one.add(pid, of(pid))
    other.add(1, of(1))
    other.add(7, of(7))
    one.add(8, of(8))
    assert packed(zookeeper) == [[0, 1, 2, 7, 8]]


def test_a_node_that_is_none_is_told(connect: Connect) -> None:
    zookeeper = connect()
    ids = ZooKeeperWriterIds(zookeeper)
    ids.add(1, of(1))

    def overwrite(client: KazooClient) -> object:
        return client.set_async(zookeeper.path("writer-ids/0000000001"), b'{"ids": [[1]]}')

    zookeeper.call(overwrite)
    with pytest.raises(WriterIdsError, match="writers"):
        ZooKeeperWriterIds(zookeeper).all()
