"""What topics take, from a file: what was answered is there after any crash."""

import errno
from pathlib import Path

import pytest

from pidlease.coordination.file.file_topic_book import FileTopicBook
from pidlease.coordination.topic_book import ALL_TOPICS, TopicBookError, TopicSettings
from pidlease.storage.files import read_file, write_aside
from tests.sim.files import SimFiles

PATH = Path("/data/sequence/topics")
A, B = "1" * 32, "2" * 32
OFF, ZERO = {"pidlease.deduplication": "off"}, {"pidlease.initial": "zero"}


def test_what_is_set_stays_and_what_is_unset_goes() -> None:
    files = SimFiles()
    book = FileTopicBook(files, PATH)
    assert book.load() == TopicSettings({}, {})
    book.change("a", A, OFF.__or__)
    book.change("", ALL_TOPICS, ZERO.__or__)
    book.change("b", B, ZERO.__or__)
    book.change("b", B, lambda _: {})
    after = files.power_loss(1)
    assert FileTopicBook(after, PATH).load() == TopicSettings(ZERO, {A: OFF})
    FileTopicBook(after, PATH).change("", ALL_TOPICS, lambda _: {})
    assert FileTopicBook(after.power_loss(2), PATH).load() == TopicSettings({}, {A: OFF})


def test_a_damaged_file_is_told() -> None:
    """What a topic is not to take would be taken."""
    files = SimFiles()
    book = FileTopicBook(files, PATH)
    book.change("a", A, OFF.__or__)
    book.change("b", B, ZERO.__or__)
    content = bytearray(read_file(files, PATH))
    content[-5] ^= 1
    write_aside(files, PATH, [bytes(content)])
    with pytest.raises(TopicBookError, match="line 3 is damaged"):
        book.load()
    with pytest.raises(TopicBookError, match="line 3 is damaged"):
        book.change("b", B, OFF.__or__)


def test_a_disk_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    files = SimFiles()
    book = FileTopicBook(files, PATH)
    book.change("a", A, OFF.__or__)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr("pidlease.storage.checked_lines.write_aside", full)
    with pytest.raises(TopicBookError, match="no space left"):
        book.change("a", A, ZERO.__or__)
    assert book.load().own == {A: OFF}
