"""What topics take, in a real ZooKeeper."""

import pytest

from pidlease.coordination.topic_book import ALL_TOPICS, TopicBookError, TopicSettings
from pidlease.coordination.zookeeper.zookeeper_topic_book import ZooKeeperTopicBook
from tests.servers.zookeeper.marks import needs_zookeeper
from tests.zookeeper.conftest import Connect

pytestmark = [needs_zookeeper, pytest.mark.timeout(900)]

A, B = "1" * 32, "2" * 32
OFF, ZERO = {"pidlease.deduplication": "off"}, {"pidlease.initial": "zero"}


def test_what_one_sets_another_finds(connect: Connect) -> None:
    book, other = (ZooKeeperTopicBook(connect(), "one") for _ in range(2))
    assert book.load() == TopicSettings({}, {})
    book.change("a", A, OFF.__or__)
    other.change("", ALL_TOPICS, ZERO.__or__)
    other.change("b", B, OFF.__or__)
    other.change("b", B, lambda _: ZERO)
    assert book.load() == other.load() == TopicSettings(ZERO, {A: OFF, B: ZERO})
    book.change("", ALL_TOPICS, lambda _: {})
    assert other.load().shared == {}
    assert ZooKeeperTopicBook(connect(), "two").load() == TopicSettings({}, {})


def test_what_cannot_be_read_is_told(connect: Connect) -> None:
    zookeeper = connect()
    book = ZooKeeperTopicBook(zookeeper, "one")
    book.change("a", A, OFF.__or__)
    path = zookeeper.path(f"topics/one/{A}")
    zookeeper.call(lambda client: client.set_async(path, b"{}"))
    with pytest.raises(TopicBookError, match="topics/one"):
        book.load()
    zookeeper.close()
    with pytest.raises(TopicBookError, match="the connection is closed"):
        book.change("a", A, OFF.__or__)


def test_changes_of_two_servers_both_stay_and_are_noticed(connect: Connect) -> None:
    book, other = (ZooKeeperTopicBook(connect(), "one") for _ in range(2))
    versions = [other.version()]

    def change(before: dict[str, str]) -> dict[str, str]:
        if len(versions) < 3:  # the node does not exist; then it has changed
            book.change("a", A, {f"set-{len(versions)}": "x"}.__or__)
            versions.append(other.version())
        return {**before, **OFF}

    assert other.change("a", A, change) == {"set-1": "x", "set-2": "x", **OFF}
    assert book.load().own[A] == {"set-1": "x", "set-2": "x", **OFF}
    versions.append(other.version())
    assert len(set(versions)) == 4
    assert other.version() == versions[-1]
