"""What topics take, in a real ZooKeeper."""

import pytest

from pidlease.coordination.topic_book import TopicBookError, TopicSettings
from pidlease.coordination.zookeeper.zookeeper_topic_book import ZooKeeperTopicBook
from tests.servers.zookeeper.marks import needs_zookeeper
from tests.zookeeper.conftest import Connect

pytestmark = [needs_zookeeper, pytest.mark.timeout(900)]

A, B = "1" * 32, "2" * 32
OFF, ZERO = {"pidlease.deduplication": "off"}, {"pidlease.initial": "zero"}


def test_what_one_sets_another_finds(connect: Connect) -> None:
    book, other = (ZooKeeperTopicBook(connect(), "one") for _ in range(2))
    assert book.load() == TopicSettings({}, {})
    book.save_own("a", A, OFF)
    other.save_shared(ZERO)
    other.save_own("b", B, OFF)
    other.save_own("b", B, ZERO)
    assert book.load() == other.load() == TopicSettings(ZERO, {A: OFF, B: ZERO})
    book.save_shared({})
    assert other.load().shared == {}
    assert ZooKeeperTopicBook(connect(), "two").load() == TopicSettings({}, {})


def test_what_cannot_be_read_is_told(connect: Connect) -> None:
    zookeeper = connect()
    book = ZooKeeperTopicBook(zookeeper, "one")
    book.save_own("a", A, OFF)
    path = zookeeper.path(f"topics/one/{A}")
    zookeeper.call(lambda client: client.set_async(path, b"{}"))
    with pytest.raises(TopicBookError, match="topics/one"):
        book.load()
    zookeeper.close()
    with pytest.raises(TopicBookError, match="the connection is closed"):
        book.save_own("a", A, OFF)
