"""Where logs begin, noted for many topics."""

from pidlease.coordination.journal import journal_beginnings
from pidlease.coordination.journal.journal_beginnings import Beginning, JournalBeginnings
from tests.unit.coordination.memory_journal import MemoryJournal


def test_many_topics_with_few_partitions_are_put_in_several_batches() -> None:
    """One batch of 7,000 topics was too long, so nothing was noted."""
    rows = MemoryJournal()
    beginnings = JournalBeginnings(rows)
    many = {f"{number:032x}": Beginning("t" * 249, [0], [3], 1) for number in range(5_001)}
    beginnings.put(many)
    assert rows.puts == -(-len(many) // journal_beginnings._TOPICS_AT_ONCE)
    assert beginnings.load() == many
