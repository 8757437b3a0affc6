"""The files that all servers have in common, in a real ZooKeeper."""

from functools import partial
from typing import Any

import pytest
from kazoo.client import KazooClient

from pidlease.coordination.common_files import CommonFileConflictError, CommonFilesError
from pidlease.coordination.zookeeper.zookeeper_files import ZooKeeperFiles
from tests.servers.zookeeper.marks import needs_zookeeper
from tests.zookeeper.conftest import Connect

pytestmark = [needs_zookeeper, pytest.mark.timeout(900)]


def test_what_one_replaces_another_finds(connect: Connect) -> None:
    one, two = (ZooKeeperFiles(connect(), "one") for _ in range(2))
    assert one.read("users") is one.version("users") is None
    assert one.all() == {}
    one.replace("users", b"a\n", None)
    assert two.read("users") == b"a\n"
    version = one.version("users")
    assert version == two.version("users") is not None
    with pytest.raises(CommonFileConflictError):
        two.replace("users", b"b\n", None)
    with pytest.raises(CommonFileConflictError):
        two.replace("users", b"b\n", b"c\n")
    two.replace("users", b"b\n", b"a\n")
    assert one.version("users") == two.version("users") != version
    two.replace("acls", bytes(100_000), None)
    assert one.all() == {"users": b"b\n", "acls": bytes(100_000)}
    assert ZooKeeperFiles(connect(), "two").all() == {}


def test_of_two_that_replace_it_at_once_one_does(connect: Connect) -> None:
    one, two = (ZooKeeperFiles(connect(), "one") for _ in range(2))
    for before in (None, b"a"):
        found = two._read("users")
        one.replace("users", b"a" if before is None else b"b", before)
        two._read = lambda _, found=found: found  # type: ignore[method-assign, misc]
        with pytest.raises(CommonFileConflictError):
            two.replace("users", b"c", before)
        del two._read
    assert two.read("users") == b"b"


def _set(path: str, content: bytes, client: KazooClient) -> Any:
    return client.set_async(path, content)


def test_what_cannot_be_read_is_named(connect: Connect) -> None:
    zookeeper = connect()
    files = ZooKeeperFiles(zookeeper, "one")
    files.replace("acls", b"a", None)
    path = zookeeper.path("files/one/acls")
    for content in (b"{}", b"nonsense", b'{"content": "eJwD"}'):
        zookeeper.call(partial(_set, path, content))
        with pytest.raises(CommonFilesError, match=r"files/one|has as acls"):
            files.read("acls")
    zookeeper.close()
    with pytest.raises(CommonFilesError, match="the connection is closed"):
        files.replace("users", b"a", None)
