"""The coordinator's parts over a journal: what they put, and what they make of its errors."""

from collections.abc import Iterable
from itertools import pairwise

import pytest

from pidlease.coordination.journal import journal_sequence
from pidlease.coordination.journal.journal import Row, portions
from pidlease.coordination.journal.journal_names import JournalNames
from pidlease.coordination.journal.journal_sequence import JournalSequence
from pidlease.coordination.journal.journal_topic_book import JournalTopicBook
from pidlease.coordination.journal.journal_writer_ids import JournalWriterIds
from pidlease.coordination.name_bindings import (
    Binding,
    BindingChange,
    BindingConflictError,
    NamesError,
    StoredBinding,
)
from pidlease.coordination.pid_sequence import SequenceError
from pidlease.coordination.topic_book import ALL_TOPICS, TopicBookError, TopicSettings
from pidlease.coordination.writer_ids import WriterIdsError, WriterOf
from pidlease.core.blocks import PidBlock
from pidlease.log.kafka.kafka_journal import _batch
from tests.unit.coordination.memory_journal import MemoryJournal


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


KEEP_MS = 1_000


def sequence(rows: MemoryJournal, clock: Clock) -> JournalSequence:
    return JournalSequence(rows, "me", clock, KEEP_MS)


def test_blocks_follow_each_other_over_restarts() -> None:
    rows, clock = MemoryJournal(), Clock()
    first = sequence(rows, clock)
    assert first.take(at_least=150) == PidBlock(201, 100, clock.now_ms, "me")
    assert first.take(at_least=450).first == 501
    second = sequence(rows, clock)
    assert second.take().first == 601
    assert [block.first for block in second.blocks()] == [201, 501, 601]
    assert [block.first for block in second.blocks(beyond=301)] == [501, 601]


def test_a_sequence_goes_on_where_another_one_ended() -> None:
    rows, clock = MemoryJournal(), Clock()
    former = [PidBlock(1, 300, 500, "file"), PidBlock(401, 100, 900, "file")]
    blocks = sequence(rows, clock)
    blocks.adopt(former, former[-1].end)
    blocks.adopt(former, former[-1].end)  # after a crash in the middle of the move
    assert blocks.take().first == 501
    assert sequence(rows, clock).blocks()[:2] == former


def test_blocks_that_another_one_may_have_lost_are_skipped() -> None:
    """The end of its file was damaged."""
    rows, clock = MemoryJournal(), Clock()
    blocks = sequence(rows, clock)
    blocks.adopt([PidBlock(1, 100, 500, "file")], 401)
    blocks.adopt([PidBlock(1, 100, 500, "file")], 401)
    assert [block.first for block in blocks.blocks()] == [1, 401]
    assert blocks.take().first == 501


def test_a_move_that_comes_late_replaces_nothing() -> None:
    """Another server has gone on, after the first attempt."""
    rows, clock = MemoryJournal(), Clock()
    former = [PidBlock(1, 100, 500, "file"), PidBlock(101, 100, 900, "file")]
    sequence(rows, clock).adopt(former, 201)
    later = JournalSequence(rows, "other", clock, KEEP_MS).take()
    rows.rows["block", "1"]["owner"] = "newer"
    sequence(rows, clock).adopt(former, 201)
    assert [block.owner for block in sequence(rows, clock).blocks()] == ["newer", "file", "other"]
    assert later.first == 201


def test_two_sequences_that_leased_the_same_pids_are_not_joined() -> None:
    rows, clock = MemoryJournal(), Clock()
    assert JournalSequence(rows, "other", clock, KEEP_MS).take(150).first == 201
    blocks = sequence(rows, clock)
    puts = rows.puts
    with pytest.raises(SequenceError, match="from 201 on were leased by other meanwhile"):
        blocks.adopt([PidBlock(1, 100, 500, "file")], 301)
    assert rows.puts == puts


def test_the_last_blocks_of_a_sequence_are_put_first() -> None:
    rows, clock = MemoryJournal(), Clock()
    former = [PidBlock(first, 100, 500, "file") for first in range(1, 120_001, 100)]
    rows.fails = "after"
    with pytest.raises(SequenceError):
        sequence(rows, clock).adopt(former, 120_001)
    rows.fails = ""
    assert JournalSequence(rows, "other", clock, KEEP_MS).take().first == 120_001
    sequence(rows, clock).adopt(former, 120_001)
    assert sequence(rows, clock).blocks()[:-1] == former


@pytest.mark.parametrize("fails", ["before", "after"])
def test_a_block_with_an_unknown_outcome_is_not_used_if_it_is_there(fails: str) -> None:
    rows, clock = MemoryJournal(), Clock()
    blocks = sequence(rows, clock)
    assert blocks.take().first == 1
    rows.fails = fails
    with pytest.raises(SequenceError, match="no response"):
        blocks.take()
    assert blocks.take().first == (101 if fails == "before" else 201)


def test_a_server_that_was_replaced_returns_no_blocks() -> None:
    rows, clock = MemoryJournal(), Clock()
    blocks = sequence(rows, clock)
    blocks.take()
    rows.replaced = True
    with pytest.raises(SequenceError, match="another server"):
        blocks.blocks()


def test_old_blocks_are_merged_and_no_number_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_sequence, "_BLOCKS_MAX", 10)
    monkeypatch.setattr(journal_sequence, "_ROWS_AT_ONCE", 3)
    rows, clock = MemoryJournal(), Clock()
    blocks = sequence(rows, clock)
    firsts = []
    for _ in range(60):
        firsts.append(blocks.take().first)
        clock.now_ms += KEEP_MS // 3
    assert firsts == list(range(1, 6001, 100))
    assert len(rows.rows) <= 20
    found = blocks.blocks()
    assert (found[0].first, found[-1].end) == (1, 6001)
    assert all(one.end == two.first for one, two in pairwise(found))
    # A block's age is that of its youngest part.
    assert found[0].taken_ms < clock.now_ms - KEEP_MS
    assert sequence(rows, clock).take().first == 6001


@pytest.mark.parametrize("at", range(1, 5))
def test_a_merge_that_stops_halfway(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    monkeypatch.setattr(journal_sequence, "_BLOCKS_MAX", 10)
    monkeypatch.setattr(journal_sequence, "_ROWS_AT_ONCE", 3)
    rows, clock = MemoryJournal(), Clock()
    blocks = sequence(rows, clock)
    for _ in range(10):
        blocks.take()
    clock.now_ms += 2 * KEEP_MS
    put, begun = rows.put, rows.puts

    def crash(some: Iterable[Row], expected: Iterable[Row] = ()) -> None:
        if rows.puts == begun + at:
            rows.fails = "before"
        put(some, expected)

    monkeypatch.setattr(rows, "put", crash)
    assert blocks.take().first == 1001  # it is recorded, and old ones are merged some other time
    assert rows.puts == begun + at
    monkeypatch.setattr(rows, "put", put)
    after = sequence(rows, clock)
    taken = after.take()
    assert taken.first == 1101
    found = after.blocks()
    assert found[0].first == 1
    assert found[-1] == taken
    assert all(one.end <= two.first for one, two in pairwise(found))


def test_names_change_only_from_what_was_expected() -> None:
    rows = MemoryJournal()
    names = JournalNames(rows)
    one, two = Binding(7, 1), Binding(7, 2, 5, 99, ((3, 100), (4, 200)))
    names.change("x", None, one)
    outcomes = names.change_many([
        BindingChange("x", StoredBinding(one), two),
        BindingChange("x", StoredBinding(one), None),  # it is two by now
        BindingChange("y", StoredBinding(one), two),
        BindingChange("z", StoredBinding(None), one),
    ])  # fmt: skip
    assert [type(each) for each in outcomes] == [
        type(None), BindingConflictError, BindingConflictError, type(None),
    ]  # fmt: skip
    assert names.all() == {"x": two, "z": one}
    assert [each.binding for each in names.get_many(["z", "y"])] == [one, None]
    names.change("z", one, None)
    assert JournalNames(rows).all() == {"x": two}


def test_a_journal_that_fails_is_an_error_of_each_part() -> None:
    rows = MemoryJournal()
    names, writers, topics = JournalNames(rows), JournalWriterIds(rows), JournalTopicBook(rows)
    rows.fails = "after"
    with pytest.raises(NamesError, match="no response"):
        names.change("x", None, Binding(7, 1))
    rows.fails = "before"
    with pytest.raises(WriterIdsError, match="no response"):
        writers.add(1, WriterOf("t", 0, 5))
    rows.fails = "before"
    with pytest.raises(TopicBookError, match="no response"):
        topics.change("", ALL_TOPICS, {"a": "b"}.__or__)
    rows.replaced = True
    with pytest.raises(NamesError):
        names.all()
    with pytest.raises(NamesError):
        names.get("x")
    with pytest.raises(WriterIdsError):
        writers.all()
    with pytest.raises(TopicBookError):
        topics.load()


def test_writers_ids_stay_as_they_were_recorded() -> None:
    rows = MemoryJournal()
    JournalWriterIds(rows).add(3, WriterOf("t", 0, 5))
    JournalWriterIds(rows).add(3, WriterOf("other", 1, 6))
    JournalWriterIds(rows).add(4, WriterOf("t", 1, 7))
    assert JournalWriterIds(rows).all() == {3: WriterOf("t", 0, 5), 4: WriterOf("t", 1, 7)}


def test_topics_settings() -> None:
    rows = MemoryJournal()
    book = JournalTopicBook(rows)
    assert book.load() == TopicSettings({}, {})
    assert book.change("", ALL_TOPICS, {"a": "1"}.__or__) == {"a": "1"}
    book.change("t", "id", {"b": "2"}.__or__)
    book.change("u", "id2", {"b": "3"}.__or__)
    assert book.change("u", "id2", lambda _: {}) == {}
    assert JournalTopicBook(rows).load() == TopicSettings({"a": "1"}, {"id": {"b": "2"}})


def test_changes_of_two_servers_both_stay() -> None:
    """Each is made in what stands, not in what its server has read at its start."""
    rows = MemoryJournal()
    other_rows = MemoryJournal(rows, "other")
    book, other = JournalTopicBook(rows), JournalTopicBook(other_rows)
    assert book.load() == other.load() == TopicSettings({}, {})
    book.change("", ALL_TOPICS, {"a": "1"}.__or__)
    other_rows.meanwhile = lambda: book.change("", ALL_TOPICS, {"b": "2"}.__or__)
    found = other.change("", ALL_TOPICS, lambda before: {**before, "c": "3"})
    assert found == other.load().shared == {"a": "1", "b": "2", "c": "3"}


def test_a_change_that_is_refused_changes_nothing() -> None:
    rows = MemoryJournal()
    book = JournalTopicBook(rows)

    def refuse(_: dict[str, str]) -> dict[str, str]:
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        book.change("t", "id", refuse)
    assert rows.puts == 0


def test_a_change_of_another_server_changes_the_version_of_the_settings() -> None:
    rows = MemoryJournal()
    other_rows = MemoryJournal(rows, "other")
    book, other = JournalTopicBook(rows), JournalTopicBook(other_rows)
    before = other.version()
    assert other.version() == before
    book.change("t", "id", {"a": "1"}.__or__)
    assert other.version() != before
    other_rows.replaced = True
    with pytest.raises(TopicBookError):
        other.version()


def test_the_settings_of_another_book_are_put_at_once() -> None:
    rows = MemoryJournal()
    settings = TopicSettings({"a": "1"}, {"id": {"b": "2"}, "none": {}})
    JournalTopicBook(rows).adopt(settings)
    assert rows.puts == 1
    assert JournalTopicBook(rows).load() == TopicSettings({"a": "1"}, {"id": {"b": "2"}})
    JournalTopicBook(rows).adopt(TopicSettings({}, {}))
    JournalTopicBook(rows).adopt(TopicSettings({"a": "old"}, {"id": {"b": "old"}}))
    JournalTopicBook(rows).adopt(
        TopicSettings({"a": "old"}, {"id": {"b": "old"}, "other": {"c": "3"}})
    )
    assert JournalTopicBook(rows).load() == TopicSettings({"a": "1"}, {"id": {"b": "2"}})
    assert rows.puts == 1


def test_a_book_with_settings_of_its_own_gets_none_of_another_one() -> None:
    rows = MemoryJournal()
    book = JournalTopicBook(rows)
    book.change("t", "mine", {"a": "1"}.__or__)
    book.adopt(TopicSettings({"a": "old"}, {"id": {"b": "old"}}))
    assert book.load() == TopicSettings({}, {"mine": {"a": "1"}})


@pytest.mark.parametrize("shared", [{"pidlease.fsync": "never"}, {}])
@pytest.mark.parametrize("fails", ["", "before", "after"])
def test_the_settings_of_many_topics_fit_into_batches_of_kafka(
    fails: str, shared: dict[str, str]
) -> None:
    """Once a move from ZooKeeper could not be completed, and no server started any more."""
    stream = {"pidlease.stream.content.type": "application/json",
              "pidlease.stream.ttl.seconds": "86400"}  # fmt: skip
    settings = TopicSettings(shared, {f"{number:022}": stream for number in range(6_000)})
    rows = BatchJournal()
    book = JournalTopicBook(rows)
    if fails:
        # Killed in the middle; what is there by then is in the first batches.
        rows.fails_at, rows.fails_then = 5, fails
        with pytest.raises(TopicBookError):
            book.adopt(settings)
        assert not book.load().shared
        assert 0 < len(book.load().own) < 6_000
    book.adopt(settings)
    assert book.load() == settings
    puts = rows.puts
    book.adopt(settings)
    JournalTopicBook(rows).adopt(TopicSettings({}, {"another": stream}))
    assert (rows.puts, book.load()) == (puts, settings)


class BatchJournal(MemoryJournal):
    """Puts what fits into a batch."""

    fails_at = 0
    fails_then = ""

    def put(self, rows: Iterable[Row], expected: Iterable[Row] = ()) -> None:
        found = list(rows)
        _batch(found, 1_700_000_000_000)
        if self.fails_at and self.puts == self.fails_at:
            self.fails, self.fails_at = self.fails_then, 0
        super().put(found, expected)


def test_rows_are_divided_by_their_size_and_their_number() -> None:
    small = [Row("name", str(number), {}) for number in range(1100)]
    assert [len(some) for some in portions(small)] == [500, 500, 100]
    large = [Row("name", str(number), {"a": "x" * 200_000}) for number in range(5)]
    assert [len(some) for some in portions(large)] == [2, 2, 1]
    huge = [Row("name", str(number), {"a": "x" * 600_000}) for number in range(2)]
    assert [len(some) for some in portions([*huge, small[0]])] == [1, 1, 1]
    assert list(portions([])) == []
    assert [row for some in portions([*large, *small]) for row in some] == [*large, *small]
