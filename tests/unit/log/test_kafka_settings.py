"""Settings of topics in front of Kafka, with two active servers and one coordinator in memory."""

from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pidlease.coordination.journal.journal_topic_book import JournalTopicBook
from pidlease.log.kafka.kafka_log_store import KafkaStore
from pidlease.storage.errors import DataFolderError
from pidlease.storage.topics.topic_settings import SettingError, change_of_own, change_of_shared
from pidlease.storage.topics.topic_store import Topic
from tests.unit.coordination.memory_journal import MemoryJournal

TOPIC = Topic("t", "1" * 32, 1, {})
POLICIES, INITIAL = {"pidlease.policies": "strict"}, {"pidlease.initial": "zero"}


def store_with(rows: MemoryJournal) -> KafkaStore:
    unused = cast("Any", None)
    store = KafkaStore(cast("Any", SimpleNamespace()), unused, JournalTopicBook(rows), unused)
    store.topic_defaults()
    return store


async def test_each_change_is_made_in_what_stands() -> None:
    rows = MemoryJournal()
    one, other = store_with(rows), store_with(MemoryJournal(rows, "other"))
    assert one.change_topic_defaults(change_of_shared(POLICIES)) == POLICIES
    assert other.change_topic_defaults(change_of_shared(INITIAL)) == {**POLICIES, **INITIAL}
    one.change_topic(TOPIC, change_of_own(INITIAL))
    altered = other.change_topic(TOPIC, change_of_own(POLICIES))
    assert altered.overrides == other.own_settings(TOPIC) == {**POLICIES, **INITIAL}


async def test_changes_of_others_are_noticed_and_read() -> None:
    rows = MemoryJournal()
    one, other = store_with(rows), store_with(MemoryJournal(rows, "other"))
    assert not other.settings_changed()
    one.change_topic(TOPIC, change_of_own(POLICIES))
    one.change_topic_defaults(change_of_shared(INITIAL))
    assert other.settings_changed()
    assert other.own_settings(TOPIC) == {}
    assert other.read_settings() == INITIAL
    assert not other.settings_changed()
    assert other.own_settings(TOPIC) == POLICIES


async def test_a_change_that_comes_while_settings_are_read_is_noticed_later() -> None:
    rows = MemoryJournal()
    seen = MemoryJournal(rows, "other")
    one, other = store_with(rows), store_with(seen)
    refresh, refreshes = seen.refresh, count(1)

    def refresh_then_change() -> None:
        refresh()
        if next(refreshes) == 2:  # the first one is for the version, the second one for the rows
            one.change_topic(TOPIC, change_of_own(POLICIES))

    seen.refresh = refresh_then_change  # type: ignore[method-assign]
    other.read_settings()
    assert other.own_settings(TOPIC) == {}
    assert other.settings_changed()


async def test_what_is_kafka_s_own_is_not_stored() -> None:
    rows = MemoryJournal()
    store = store_with(rows)
    with pytest.raises(SettingError, match=r"retention\.ms is a setting of Kafka's"):
        store.change_topic(TOPIC, change_of_own({"retention.ms": "5"}))
    with pytest.raises(OSError, match="change t in Kafka"):
        store.save_topic(TOPIC)
    assert rows.puts == 0


async def test_a_start_with_settings_that_are_invalid_here_is_refused() -> None:
    rows = MemoryJournal()
    JournalTopicBook(rows).change("", "", {"pidlease.initial": "newer"}.__or__)
    with pytest.raises(DataFolderError, match=r"cannot be used: .* is policy or zero"):
        store_with(rows)
