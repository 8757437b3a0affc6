"""What the tests of committed offsets do with a journal over its lives."""

from collections.abc import Iterable
from pathlib import Path

from pidlease.storage.files import Files
from pidlease.storage.offsets.journal_records import Commit, CommittedOffset, Record, TopicOffsets
from pidlease.storage.offsets.offset_journal import OffsetJournal
from pidlease.storage.offsets.offset_table import OffsetTable

PATH = Path("/data/groups/offsets")


def commit(group: str, offset: int, *, partition: int = 0, metadata: str = "") -> Commit:
    """A commit of one partition."""
    committed = CommittedOffset(offset, -1, metadata, 1000 + offset)
    return Commit(group, (TopicOffsets("t", "id-of-t", {partition: committed}),))


def wide(group: str, offset: int, partitions: int) -> Commit:
    """A commit of many partitions: a line of several sectors."""
    rows = {number: CommittedOffset(offset, -1, "", 1000) for number in range(partitions)}
    return Commit(group, (TopicOffsets("t", "id-of-t", rows),))


def open_journal(files: Files, *, durable: bool = True) -> tuple[OffsetJournal, list[Record]]:
    """A journal, and what stood in it."""
    journal = OffsetJournal(files, PATH, durable=durable)
    return journal, list(journal.open())


def records_in(files: Files) -> list[Record]:
    """What a start finds."""
    return open_journal(files)[1]


def table_of(records: Iterable[Record]) -> OffsetTable:
    """The table that records make."""
    table = OffsetTable()
    for record in records:
        table.apply(record)
    return table


def offsets_in(table: OffsetTable) -> dict[tuple[str, str, int], int]:
    """(group, topic, partition) -> offset."""
    return {
        (group, topic, partition): committed.offset
        for group, stored in table.groups.items()
        for topic, part in stored.topics.items()
        for partition, committed in part.offsets.items()
    }
