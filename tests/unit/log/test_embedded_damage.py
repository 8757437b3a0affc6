"""A torn tail is cut, damage is not; and no damaged index ever leads to a wrong answer."""

import struct
from pathlib import Path

import pytest

from pidlease.kafka.records.record_batch import HEADER_BYTES, WholeBatches, read_header
from pidlease.log.segments.embedded_log import EmbeddedPartitionLog
from pidlease.log.segments.log_view import ReadPositions
from pidlease.storage.errors import DamagedLogError, LogError, LogStoppedError
from pidlease.storage.files import read_file
from tests.sim.batches import TIME_MS, StoredRecord, simple
from tests.sim.files import SimFiles
from tests.unit.log.logs import (
    FOLDER,
    bad_sector,
    config,
    fill,
    offsets,
    open_log,
    read_all,
    segments,
)

ROOMY = config()
LOG = FOLDER / f"{0:020d}.log"

#: Bytes of a batch header that the CRC does not cover and that nothing depends on.
LEADER_EPOCH = range(12, 16)


def three_batches() -> tuple[SimFiles, list[int]]:
    """A small segment, and where its batches end."""
    files = SimFiles()
    log = open_log(files, ROOMY)
    ends = [0]
    for batch in fill(log, 3):
        ends.append(ends[-1] + batch.header.size)
    return files, ends


def raw_log(content: bytes) -> SimFiles:
    """A partition that has one segment with this content."""
    files = SimFiles()
    files.make_folder(FOLDER)
    files.open(LOG, create=True).write_at([content], 0)
    return files.process_death()


# ---------------------------------------------------------------------- torn tails


def test_a_segment_cut_at_every_byte_keeps_all_whole_batches() -> None:
    files, ends = three_batches()
    content = read_file(files, LOG)
    for size in range(len(content) + 1):
        log = open_log(raw_log(content[:size]), ROOMY)
        whole = sum(end <= size for end in ends[1:])
        assert not log.stopped, size
        assert log.cut_bytes == size - ends[whole], size
        assert offsets(log) == list(range(whole)), size
        assert log.append_blocking([simple(whole)]) == [whole], size


def test_a_segment_that_should_be_whole_and_is_not_is_damaged() -> None:
    files, ends = three_batches()
    content = read_file(files, LOG)
    for size in range(ends[1], len(content)):
        if size in ends:
            continue
        assert open_log(raw_log(content[:size]), ROOMY, clean=True).stopped, size
        assert open_log(raw_log(content[:size]), ROOMY, recovery_offset=3).stopped, size


@pytest.mark.parametrize("damage", [bytes(512), b"\xff\xff\xff\xff"], ids=["zeros", "length"])
@pytest.mark.parametrize("clean", [False, True])
def test_damage_between_the_last_entries_of_both_indexes(clean: bool, damage: bytes) -> None:
    """With equal timestamps, .timeindex ends early. Once the whole server did not start."""
    files = SimFiles()
    log = open_log(files, ROOMY)
    ends = [0]
    for number in range(400):
        batch = simple(number, size=100, timestamp=TIME_MS)
        log.append_blocking([batch])
        ends.append(ends[-1] + batch.header.size)
    files = files.process_death()
    file = files.open(LOG)
    file.write_at([damage], ends[200] + 8)
    file.close()
    again = open_log(files, ROOMY, clean=clean, recovery_offset=400)
    assert again.stopped
    assert again.end_offset == 200
    assert offsets(again) == list(range(200))


@pytest.mark.parametrize("pad", range(0, 512, 7))
def test_a_tail_with_any_one_sector_lost_is_cut(pad: int) -> None:
    """The disk wrote the append's sectors in any order, and the power went in between."""
    files = SimFiles()
    log = open_log(files, ROOMY)
    log.append_blocking([simple(0, size=pad)])
    start = len(read_file(files, LOG))
    log.append_blocking([simple(1, size=1200), simple(2, size=90)])
    content = read_file(files, LOG)
    for sector in range(start // 512, len(content) // 512 + 1):
        low, high = max(start, sector * 512), min(len(content), sector * 512 + 512)
        torn = content[:low] + bytes(high - low) + content[high:]
        after = open_log(raw_log(torn), ROOMY)
        found = read_all(after)
        assert not after.stopped, (pad, sector, after.stopped)
        assert [record.offset for record in found] == list(range(len(found)))
        assert len(found) == 3 if torn == content else len(found) in (1, 2), (pad, sector)


def test_zeros_behind_the_log_are_cut() -> None:
    files, _ = three_batches()
    content = read_file(files, LOG)
    for zeros in (1, 60, 61, 512, 5000):
        log = open_log(raw_log(content + bytes(zeros)), ROOMY)
        assert (log.stopped, log.cut_bytes) == ("", zeros)
        assert offsets(log) == [0, 1, 2]


# ---------------------------------------------------------------------- damage


def test_no_flipped_bit_cuts_acknowledged_records() -> None:
    """Every bit of a segment: it is stopped at the damage, or the bit meant nothing."""
    files, ends = three_batches()
    content = read_file(files, LOG)
    cut = []
    for position in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            log = open_log(raw_log(bytes(flipped)), ROOMY)
            at = sum(end <= position for end in ends[1:])
            if position - ends[at] in LEADER_EPOCH:
                assert offsets(log) == [0, 1, 2]
            elif not log.stopped:
                cut.append((position - ends[at], bit, f"batch {at} of 3"))
            else:
                assert offsets(log) == list(range(at)), (position, bit)
    # Once a bug: the length of the last batch (bytes 8 to 11) is not covered by its CRC.
    assert cut == []


@pytest.mark.parametrize("distance", [1, 2, 4, 7, 8, 12])
def test_damage_in_a_batch_that_begins_just_before_a_sectors_end(distance: int) -> None:
    # Once a bug: the high bytes of an offset are zero in any batch; they are no lost sector.
    check_that_damage_stops(begin_at=512 - distance)


@pytest.mark.parametrize("distance", [1, 2, 3])
def test_damage_in_a_batch_that_ends_just_behind_a_sectors_end(distance: int) -> None:
    # Once a bug: so is the last byte of any record without headers.
    size = simple(1).header.size
    check_that_damage_stops(begin_at=512 + distance - size)


def check_that_damage_stops(begin_at: int) -> None:
    """Batch 1 of 4 begins there, and one bit of its value flips."""
    log = open_log(files := SimFiles(), ROOMY)
    smallest = simple(0, size=0).header.size
    log.append_blocking([simple(0, size=begin_at - smallest)])
    grown = len(read_file(files, LOG)) - begin_at  # the length of lengths
    log = open_log(files := SimFiles(), ROOMY)
    log.append_blocking([simple(0, size=begin_at - smallest - grown)])
    assert len(read_file(files, LOG)) == begin_at
    fill(log, 3, first=1)
    files.flip(LOG, begin_at + HEADER_BYTES + 12, 3)
    again = open_log(files.process_death(), ROOMY)
    assert again.stopped, f"{again.cut_bytes} acknowledged bytes were cut for one flipped bit"
    assert offsets(again) == [0]


def test_damage_in_a_sealed_segment_is_found_by_whoever_reads_all_of_it() -> None:
    files = SimFiles()
    fill(open_log(files, config(300)), 9)
    path = segments(files)[1]
    content = read_file(files, path)
    missed = []
    for position in range(len(content)):
        for bit in range(8):
            files.flip(path, position, bit)
            log = open_log(files, config(300))
            in_batch = position % read_header(content).size
            if in_batch not in LEADER_EPOCH and not is_found(log):
                missed.append((position, bit))
            files.flip(path, position, bit)
    assert read_file(files, path) == content
    assert missed == []


@pytest.mark.parametrize("recovery_offset", [0, 70])
@pytest.mark.parametrize("clean", [False, True])
def test_a_bad_sector_ends_the_log_there(
    monkeypatch: pytest.MonkeyPatch, clean: bool, recovery_offset: int
) -> None:
    """Once the whole server did not start."""
    files = SimFiles()
    batch = fill(open_log(files, ROOMY), 100, size=100)[50]
    files.remove(FOLDER / "durable")
    files = files.process_death()
    failed = bad_sector(monkeypatch, LOG, 50 * batch.header.size + 70)
    log = open_log(files, ROOMY, clean=clean, recovery_offset=recovery_offset)
    assert "cannot be read" in log.stopped
    assert (log.end_offset, log.cut_bytes) == (50, 0)
    assert log.promised_end >= 51
    assert len(failed) < 10, "each may take the disk seconds"
    monkeypatch.undo()
    again = open_log(files.process_death(), ROOMY, clean=clean, recovery_offset=recovery_offset)
    assert (again.stopped, again.end_offset) == ("", 100), "it was not the disk"


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_bad_sector_of_an_index_costs_speed_only(
    monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    files = SimFiles()
    fill(open_log(files, ROOMY), 100, size=200)
    files = files.process_death()
    bad_sector(monkeypatch, LOG.with_suffix(suffix), 3)
    assert offsets(open_log(files, ROOMY, recovery_offset=90)) == list(range(100))


@pytest.mark.parametrize("which", [0, -1])
def test_a_read_of_a_segment_that_was_cut_at_any_byte_meets_damage(which: int) -> None:
    """Once a consumer's connection ended, and with it the reads of all its partitions."""
    files = SimFiles()
    log = open_log(files, config(300))
    fill(log, 9)
    path = segments(files)[which]
    content, base = read_file(files, path), int(path.stem)
    batch = read_header(content).size
    last = base + len(content) // batch
    for size in range(len(content)):
        files.cut(path, size)
        for offset in range(log.end_offset):
            for position in (ReadPositions(), known_positions(base, offset, batch)):
                if base + size // batch <= offset < last:
                    with pytest.raises(DamagedLogError):
                        log.view.read(offset, 1, position)
                else:
                    read = log.view.read(offset, 1, position)
                    assert read_header(read.data).base_offset == offset
        files.open(path).write_at([content], 0)


def known_positions(base: int, offset: int, batch: int) -> ReadPositions:
    """Of a reader that continues at an offset of a segment with batches of one record."""
    positions = ReadPositions()
    if offset > base:
        before = (offset - base - 1) * batch
        positions.move(base, offset - 1, before, WholeBatches(batch, 1, 1, offset))
    return positions


def is_found(log: EmbeddedPartitionLog) -> bool:
    try:
        list(log.read_batches(0))
    except DamagedLogError:
        return True
    return False


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_segment_is_noticed(missing: int) -> None:
    files = SimFiles()
    fill(open_log(files, config(300)), 12)
    files.remove(segments(files)[missing])
    log = open_log(files.process_death(), config(300))
    if missing == 0:
        assert offsets(log) == list(range(log.start_offset, 12))
        return
    with pytest.raises(LogError):
        list(log.read_batches(0))


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("known_by", ["durable", "log-start", "a snapshot"])
def test_a_log_without_segments_does_not_begin_anew(known_by: str, clean: bool) -> None:
    """Once it did, at offset 0: a tool for old log files had removed them."""
    files = SimFiles()
    log = open_log(files, config(300))
    fill(log, 12)
    log.delete_records_blocking(5)
    for name in files.list(FOLDER):
        if name != known_by:
            files.remove(FOLDER / name)
    files = files.process_death()
    snapshot = 12 if known_by == "a snapshot" else 0
    log = open_log(files, config(300), recovery_offset=snapshot, clean=clean)
    assert log.stopped
    assert (log.start_offset, log.end_offset) == (0, 0)
    assert log.promised_end >= (5 if known_by == "log-start" else 12)
    assert log.view.find_time(0) is None
    with pytest.raises(LogStoppedError):
        log.append_blocking([simple(0)])
    assert not segments(files), "the next start must know it, too"
    log.delete()
    assert not files.exists(FOLDER), "the topic can be deleted"


@pytest.mark.parametrize("clean", [False, True])
def test_a_log_without_segments_that_was_never_written_begins(clean: bool) -> None:
    files = SimFiles()
    files.make_folder(FOLDER)
    log = open_log(files, clean=clean)
    assert not log.stopped
    assert log.append_blocking([simple(0)]) == [0]


@pytest.mark.parametrize("clean", [False, True])
def test_a_log_that_ends_before_a_snapshot_is_damaged(clean: bool) -> None:
    files, ends = three_batches()
    files.remove(FOLDER / "durable")
    files.cut(LOG, ends[2])
    log = open_log(files.process_death(), ROOMY, recovery_offset=3, clean=clean)
    assert "ends at offset 2" in log.stopped
    assert (log.end_offset, log.promised_end) == (2, 3)


# ---------------------------------------------------------------------- indexes


def odd_times() -> SimFiles:
    """Two segments with timestamps that go up, and sometimes back, and often repeat."""
    files = SimFiles()
    log = open_log(files, config(40_000))
    steps = [0, 0, 3, -2, 0, 5, -5, 0, 0, 1, 9, -9]
    time_ms = TIME_MS
    for index in range(90):
        time_ms += steps[index % len(steps)]
        log.append_blocking([simple(index, size=700, timestamp=time_ms)])
    assert len(segments(files)) == 2
    return files


def answers(log: EmbeddedPartitionLog, records: list[StoredRecord]) -> None:
    """Everything that an index is used for, held against the records."""
    for record in records[::5]:
        header = read_header(log.view.read(record.offset, 1, ReadPositions()).data)
        assert header.base_offset == record.offset
    low, high = records[0].timestamp, max(record.timestamp for record in records)
    for timestamp in range(low - 1, high + 2, 3):
        expected = next((r.offset for r in records if r.timestamp >= timestamp), None)
        found = log.view.find_time(timestamp)
        assert (found.offset if found else None) == expected, timestamp


def index_files(files: SimFiles, suffix: str) -> list[Path]:
    return [FOLDER / name for name in files.list(FOLDER) if name.endswith(suffix)]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_flipped_byte_in_an_index_changes_no_answer(suffix: str, which: int) -> None:
    files = odd_times()
    records = read_all(open_log(files, config(40_000)))
    path = index_files(files, suffix)[which]
    content = read_file(files, path)
    assert len(content) > 24
    for position in range(len(content)):
        files.flip(path, position, position % 8)
        log = open_log(files, config(40_000), recovery_offset=80)
        answers(log, records)
        files.open(path).truncate(0)
        files.open(path).write_at([content], 0)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("which", [0, 1])
def test_an_index_cut_at_every_byte_changes_no_answer(suffix: str, which: int) -> None:
    # Once a bug: a .timeindex without its last entries is believed.
    files = odd_times()
    records = read_all(open_log(files, config(40_000)))
    path = index_files(files, suffix)[which]
    content = read_file(files, path)
    for size in range(len(content)):
        files.cut(path, size)
        log = open_log(files, config(40_000), recovery_offset=80)
        answers(log, records)
        files.open(path).write_at([content], 0)


def test_an_index_full_of_nonsense_changes_no_answer() -> None:
    files = odd_times()
    records = read_all(open_log(files, config(40_000)))
    for suffix, entry in ((".index", ">ii"), (".timeindex", ">qi")):
        for path in index_files(files, suffix):
            nonsense = [(TIME_MS, 5), (3, 5000), (-9, -9), (2**31 - 1, 2**31 - 1), (0, 0)]
            packed = b"".join(
                struct.pack(entry, *(each if suffix == ".timeindex" else (each[1], each[1])))
                for each in nonsense
            )
            files.open(path).truncate(0)
            files.open(path).write_at([packed * 3], 0)
    answers(open_log(files, config(40_000), recovery_offset=80), records)
