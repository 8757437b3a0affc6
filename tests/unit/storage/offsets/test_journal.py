"""The journal of committed offsets: what is acknowledged is read again, and damage is told."""

import errno
from pathlib import Path

import pytest
from crc32c import crc32c

from pidlease.storage.checked_lines import header_of
from pidlease.storage.errors import DataFolderError
from pidlease.storage.files import read_file
from pidlease.storage.offsets.journal_records import (
    Commit,
    CommittedOffset,
    Forget,
    GroupNote,
    Mark,
    Record,
    RemoveGroup,
    TopicOffsets,
    encode_line,
    parse_line,
)
from tests.sim.files import SimFiles
from tests.unit.storage.offsets.lives import PATH, commit, open_journal, records_in, wide

RECORDS: list[Record] = [
    commit("g", 5),
    commit("group with ü, \n and \x00", 2**63 - 1, metadata='"meta\\\n\u2028😀'),
    Commit(
        "",
        (
            TopicOffsets("a", "1", {0: CommittedOffset(1, 2, "m", 3, 4), 9: CommittedOffset(0)}),
            TopicOffsets("b", "2", {}),
        ),
    ),
    Forget("g", (("t", (0, 1)), ("u", ()))),
    GroupNote("g", "consumer", 7, -1),
    GroupNote("h", None, 0, 1_700_000_000_000),
    RemoveGroup("g"),
    Mark(),
]


def with_content(content: bytes) -> SimFiles:
    files = SimFiles()
    open_journal(files)
    files.cut(PATH, 0)
    files.open(PATH).write_at([content], 0)
    return files.process_death()


def content_of(*writes: list[Record], closed: bool = False) -> tuple[bytes, list[int]]:
    """A journal after these writes, and where each of them begins."""
    files = SimFiles()
    journal, _ = open_journal(files)
    starts = []
    for records in writes:
        starts.append(journal.length)
        journal.append(records)
    if closed:
        starts.append(journal.length)
        journal.close()
    return read_file(files, PATH), starts


# ---------------------------------------------------------------------- lines


@pytest.mark.parametrize("record", RECORDS, ids=lambda each: type(each).__name__)
def test_a_line_says_what_the_record_said(record: Record) -> None:
    line = encode_line(record, 77)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    found = parse_line(line[:-1])
    assert found is not None
    assert (found.record, found.synced) == (record, 77)


def test_any_flipped_bit_of_a_line_is_noticed() -> None:
    line = encode_line(RECORDS[1])[:-1]
    for position in range(len(line)):
        for bit in range(8):
            flipped = bytearray(line)
            flipped[position] ^= 1 << bit
            assert parse_line(bytes(flipped)) is None, (position, bit)


def test_a_line_of_another_form_is_told() -> None:
    for text in (b'{"kind":"something"}', b'{"kind":"commit"}', b'{"group":"g"}'):
        content = header_of(PATH) + b"%s %08x\n" % (text, crc32c(text))
        files = with_content(content)
        with pytest.raises(DataFolderError, match="newer version"):
            records_in(files)
        assert read_file(files, PATH) == content


# ---------------------------------------------------------------------- a good life


def test_what_was_added_is_read_again_in_order() -> None:
    files = SimFiles()
    journal, found = open_journal(files)
    assert found == []
    journal.append(RECORDS[:3])
    journal.append(RECORDS[3:])
    for seed in range(20):
        assert records_in(files.power_loss(seed)) == RECORDS


def test_a_line_is_longer_than_what_is_read_at_once() -> None:
    files = SimFiles()
    journal, _ = open_journal(files)
    large = wide("g", 5, 60_000)
    journal.append([commit("a", 1), large, commit("b", 2)])
    assert records_in(files.process_death()) == [commit("a", 1), large, commit("b", 2)]


@pytest.mark.parametrize("operation", ["open", "read", "list", "fsync", "fsync_folder"])
def test_a_journal_that_cannot_be_read_is_told(operation: str) -> None:
    files = SimFiles()
    open_journal(files)
    files = files.process_death()
    failure = files.fail_next(operation)
    with pytest.raises(DataFolderError, match="offsets"):
        open_journal(files)
    assert failure.fired == 1


# ---------------------------------------------------------------------- torn and damaged


def test_a_write_torn_at_every_byte_leaves_what_was_acknowledged() -> None:
    last: list[Record] = [commit("b", 2), commit("c", 3)]
    content, (_, start) = content_of([commit("a", 1)], last)
    seen = set()
    for size in range(start, len(content) + 1):
        for zeros in (0, len(content) - size):
            found = records_in(with_content(content[:size] + bytes(zeros)))
            assert found == [commit("a", 1), *last][: len(found)]
            assert found
            seen.add(len(found))
    assert seen == {1, 2, 3}


def test_more_can_be_added_behind_a_torn_write() -> None:
    content, (_, start) = content_of([commit("a", 1)], [commit("b", 2)])
    files = with_content(content[: start + 10] + bytes(2000))
    journal, _ = open_journal(files)
    journal.append([commit("c", 3)])
    for seed in range(20):
        assert records_in(files.power_loss(seed)) == [commit("a", 1), commit("c", 3)]


def test_what_was_cut_does_not_come_back_behind_a_shorter_write() -> None:
    content, (_, start) = content_of([commit("a", 1)], [commit("b", 2), commit("c", 3)])
    torn = bytearray(content)
    torn[start + 5] ^= 1  # the second line of the write is whole, and nobody was told of it
    files = with_content(bytes(torn))
    journal, found = open_journal(files)
    assert found == [commit("a", 1)]
    journal.append([commit("d", 4)])  # as long as the damaged line
    for seed in range(20):
        assert records_in(files.power_loss(seed)) == [commit("a", 1), commit("d", 4)]


def test_any_lost_sector_of_the_last_write_is_no_damage() -> None:
    last: list[Record] = [wide(f"g{number}", 1, 30) for number in range(6)]
    content, (_, start) = content_of([commit("a", 1)], last)
    sectors = range(start - start % 512, len(content), 512)
    assert len(sectors) > 6
    for at in sectors:
        lost = content[max(at, start) : at + 512]
        torn = content.replace(lost, bytes(len(lost)))
        found = records_in(with_content(torn))
        assert found == [commit("a", 1), *last][: len(found)]
        assert 0 < len(found) <= len(last)


def test_damage_before_the_last_write_is_refused_and_the_file_is_left_alone() -> None:
    content, (_, start, _) = content_of([commit("a", 1)], [commit("b", 2)], [commit("c", 3)])
    for position in range(content.index(b"\n", start) + 1):
        damaged = bytearray(content)
        damaged[position] ^= 4
        files = with_content(bytes(damaged))
        with pytest.raises(DataFolderError, match=r"line [123] is damaged.*take the file from a"):
            records_in(files)
        assert read_file(files, PATH) == damaged


def test_a_journal_that_was_emptied_is_refused() -> None:
    for content in (b"", header_of(PATH)[:-1]):
        with pytest.raises(DataFolderError, match=r"(is empty|line 1 is damaged).* from a backup"):
            records_in(with_content(content))
    assert records_in(with_content(header_of(PATH))) == []


def test_after_a_proper_stop_damage_is_refused_wherever_it_is() -> None:
    content, starts = content_of([commit("a", 1), commit("b", 2)], closed=True)
    for position in range(starts[-1]):
        damaged = bytearray(content)
        damaged[position] ^= 1
        with pytest.raises(DataFolderError, match="is damaged"):
            records_in(with_content(bytes(damaged)))


def test_damage_in_a_journal_that_was_written_anew_is_refused() -> None:
    files = SimFiles()
    journal, _ = open_journal(files)
    journal.replace([commit(f"g{number}", number) for number in range(50)])
    content = read_file(files, PATH)
    last_line = content.rindex(b"\n", 0, -1) + 1
    for position in range(0, last_line, 7):
        damaged = bytearray(content)
        damaged[position] ^= 16
        with pytest.raises(DataFolderError, match="is damaged"):
            records_in(with_content(bytes(damaged)))


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize("operation", ["open", "write", "fsync"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_write_leaves_nothing_behind(operation: str, error: int) -> None:
    files = SimFiles(6)
    journal, _ = open_journal(files)
    journal.append([commit("a", 1)])
    failure = files.fail_next(operation, str(PATH), error)
    with pytest.raises(OSError, match="offsets"):
        journal.append([commit("failed", 2), wide("failed", 3, 100)])
    assert failure.fired == 1
    for seed in range(20):
        # Not acknowledged: it may be there after a crash, but what was acknowledged is.
        assert records_in(files.power_loss(seed))[0] == commit("a", 1)
    files = SimFiles(6)
    journal, _ = open_journal(files)
    journal.append([commit("a", 1)])
    files.fail_next(operation, str(PATH), error)
    with pytest.raises(OSError, match="offsets"):
        journal.append([commit("failed", 2), wide("failed", 3, 100)])
    journal.append([commit("b", 4)])
    for seed in range(40):
        assert records_in(files.power_loss(seed)) == [commit("a", 1), commit("b", 4)]


def test_a_failed_write_that_cannot_be_cut_fails_the_next_one() -> None:
    files = SimFiles()
    journal, _ = open_journal(files)
    journal.append([commit("a", 1)])
    files.fail_next("fsync", str(PATH))
    files.fail_next("truncate", str(PATH), count=2)
    for number in (2, 3):
        with pytest.raises(OSError, match="offsets"):
            journal.append([commit("failed", number)])
        assert journal.unsettled
    journal.append([commit("b", 4)])
    assert not journal.unsettled
    assert records_in(files.process_death()) == [commit("a", 1), commit("b", 4)]


@pytest.mark.parametrize("operation", ["write", "fsync"])
def test_what_was_refused_does_not_count_after_a_kill(operation: str) -> None:
    """The lines of a write whose fsync failed stand in the file, as good as any."""
    files = SimFiles()
    journal, _ = open_journal(files)
    journal.append([commit("a", 100)])
    files.fail_next(operation, str(PATH))
    with pytest.raises(OSError, match="offsets"):
        journal.append([RemoveGroup("a")])
    assert records_in(files.process_death()) == [commit("a", 100)]


def test_what_was_refused_and_could_not_be_cut_is_cut_by_mending_or_closing() -> None:
    for ending in ("mend", "close"):
        files = SimFiles()
        journal, _ = open_journal(files)
        files.fail_next("fsync", str(PATH))
        files.fail_next("truncate", str(PATH))
        with pytest.raises(OSError, match="offsets"):
            journal.append([commit("a", 1)])
        getattr(journal, ending)()
        assert records_in(files.process_death()) == []


@pytest.mark.parametrize("durable", [True, False])
def test_an_fsync_that_failed_behind_a_cut_is_not_forgotten(*, durable: bool) -> None:
    """What it should have saved may be lost, and what was cut come back: only anew it is sure."""
    for seed in range(12):
        files = SimFiles(seed)
        journal, _ = open_journal(files, durable=durable)
        journal.append([commit("a", 100)])
        files.fail_next("write", str(PATH), errno.ENOSPC)
        failure = files.fail_next("fsync", str(PATH))
        with pytest.raises(OSError, match="offsets"):
            journal.append([commit("b", 1)])
        assert failure.fired
        with pytest.raises(OSError, match="rewritten"):
            journal.flush()
        if durable:
            with pytest.raises(OSError, match="rewritten"):
                journal.append([commit("b", 2)])
        else:
            journal.append([commit("b", 2)])
        journal.replace([commit("a", 100), commit("b", 2)])
        journal.append([commit("c", 3)])
        journal.close()
        found = records_in(files.power_loss(seed))
        assert [each for each in found if not isinstance(each, Mark)] == [
            commit("a", 100), commit("b", 2), commit("c", 3),
        ]  # fmt: skip


def test_a_full_disk_refuses_until_there_is_room() -> None:
    files = SimFiles()
    journal, _ = open_journal(files)
    journal.append([commit("a", 1)])
    files.capacity = files.tree.used_bytes() + 20
    for _ in range(3):
        with pytest.raises(OSError, match="offsets"):
            journal.append([commit("b", 2)])
    files.capacity = None
    journal.append([commit("c", 3)])
    assert records_in(files.process_death()) == [commit("a", 1), commit("c", 3)]


def test_nothing_else_of_the_folder_is_touched() -> None:
    files = SimFiles()
    open_journal(files)
    assert files.list(PATH.parent) == [PATH.name]
    assert files.list(Path("/data")) == ["groups"]
