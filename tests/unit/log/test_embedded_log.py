"""The embedded log while all goes well: appending, reading, rolling, keeping, finding by time."""

import asyncio
from itertools import pairwise
from random import Random

import pytest

from pidlease.core.log_config import FsyncPolicy
from pidlease.core.timed_offset import TimedOffset
from pidlease.kafka.records.record_batch import read_header
from pidlease.log.segments.embedded_log import EmbeddedPartitionLog
from pidlease.log.segments.log_view import ReadPositions
from pidlease.storage.errors import LogStoppedError, OffsetRangeError
from pidlease.storage.files import read_file
from pidlease.storage.io_pool import IoPool
from tests.sim.batches import TIME_MS, make_batch, new_batch, read_records, simple
from tests.sim.files import SimFiles
from tests.unit.log.logs import (
    FOLDER,
    SMALL,
    config,
    fill,
    offsets,
    open_log,
    read_all,
    segments,
)


def test_offsets_are_dense_over_batches_and_groups() -> None:
    log = open_log(SimFiles())
    assert (log.start_offset, log.end_offset) == (0, 0)
    assert log.append_blocking([simple(0, records=3)]) == [0]
    assert log.append_blocking([simple(1), simple(2, records=2)]) == [3, 4]
    assert log.end_offset == 6
    assert offsets(log) == list(range(6))


def test_records_come_back_as_sent_but_for_offset_and_leader_epoch() -> None:
    log = open_log(SimFiles())
    log.append_blocking([simple(9)])
    sent = make_batch([b"a", b"b"], pid=7, epoch=2, first=40)
    log.append_blocking([new_batch(bytearray(sent))])
    stored = log.view.read(1, 1 << 20, ReadPositions()).data
    assert stored[16:] == sent[16:]
    assert read_header(stored)._replace(base_offset=0, leader_epoch=0) == read_header(
        sent
    )._replace(base_offset=0, leader_epoch=0)
    assert [(each.offset, each.value) for each in read_records(stored)] == [(1, b"a"), (2, b"b")]


def test_reading_outside_of_the_log() -> None:
    log = open_log(SimFiles())
    fill(log, 3)
    assert log.view.read(3, 100, ReadPositions()).data == b""
    for offset in (-1, 4):
        with pytest.raises(OffsetRangeError) as caught:
            log.view.read(offset, 100, ReadPositions())
        assert (caught.value.start, caught.value.end) == (0, 3)


@pytest.mark.parametrize("max_bytes", [0, 1, 60, 61, 100, 250, 10_000])
def test_a_read_gives_at_least_one_whole_batch_and_else_keeps_the_limit(max_bytes: int) -> None:
    log = open_log(SimFiles())
    fill(log, 8)
    for offset in range(8):
        data = log.view.read(offset, max_bytes, ReadPositions()).data
        header = read_header(data)
        assert header.base_offset == offset
        assert len(data) <= max(max_bytes, header.size)
        assert len(data) >= header.size


def test_a_read_in_the_middle_of_a_batch_gives_the_batch() -> None:
    log = open_log(SimFiles())
    log.append_blocking([simple(0, records=5)])
    log.append_blocking([simple(1, records=5)])
    for offset in range(10):
        data = log.view.read(offset, 1, ReadPositions()).data
        assert read_header(data).base_offset == offset // 5 * 5


def test_rolls_by_size_and_names_segments_by_their_base_offset() -> None:
    files = SimFiles()
    log = open_log(files)
    fill(log, 60)
    paths = segments(files)
    assert len(paths) > 3
    for path in paths:
        content = read_file(files, path)
        assert len(content) <= SMALL.segment_bytes
        assert read_header(content).base_offset == int(path.stem)
    assert offsets(log) == list(range(60))


def test_a_group_larger_than_a_segment_gets_one_of_its_own() -> None:
    files = SimFiles()
    log = open_log(files)
    fill(log, 1)
    log.append_blocking([simple(index, size=300) for index in range(5)])
    fill(log, 1)
    assert [int(path.stem) for path in segments(files)] == [0, 1, 6]
    assert offsets(log) == list(range(7))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("recovery_offset", [0, 7, 31, 59, 60])
def test_reopening_finds_everything_again(clean: bool, recovery_offset: int) -> None:
    files = SimFiles()
    log = open_log(files)
    fill(log, 60)
    before = read_all(log)
    if clean:
        log.close()
    again = open_log(files.process_death(), recovery_offset=recovery_offset, clean=clean)
    assert (again.stopped, again.cut_bytes) == ("", 0)
    assert read_all(again) == before
    assert again.append_blocking([simple(60)]) == [60]
    assert offsets(again) == list(range(61))


def test_headers_from_any_offset_on() -> None:
    log = open_log(SimFiles())
    for index in range(20):
        log.append_blocking([simple(index, records=1 + index % 3)])
    everything = [logged.header for logged in log.read_batches(0)]
    assert all(one.last_offset + 1 == other.base_offset for one, other in pairwise(everything))
    for offset in range(log.end_offset):
        expected = [header for header in everything if header.last_offset >= offset]
        assert [logged.header for logged in log.read_batches(offset)] == expected
    assert list(log.read_batches(log.end_offset)) == []


def test_a_stopped_log_takes_no_appends_and_still_reads() -> None:
    log = open_log(SimFiles())
    fill(log, 2)
    log.stop("somebody said so")
    with pytest.raises(LogStoppedError, match="somebody said so"):
        log.append_blocking([simple(2)])
    assert offsets(log) == [0, 1]


# ---------------------------------------------------------------------- retention


def test_retention_by_size_takes_the_oldest_segments() -> None:
    files = SimFiles()
    log = open_log(files, config(1000, retention_bytes=2500))
    fill(log, 60)
    removed = log.retain_blocking(60, TIME_MS)
    assert removed > 0
    assert log.size_bytes() <= 2500
    assert log.start_offset == int(segments(files)[0].stem) > 0
    assert offsets(log) == list(range(log.start_offset, 60))
    with pytest.raises(OffsetRangeError):
        log.view.read(log.start_offset - 1, 100, ReadPositions())
    assert log.retain_blocking(60, TIME_MS) == 0


@pytest.mark.parametrize("limit", range(0, 61, 5))
def test_retention_never_passes_the_limit(limit: int) -> None:
    log = open_log(SimFiles(), config(1000, retention_bytes=0))
    fill(log, 60)
    log.retain_blocking(limit, TIME_MS)
    assert log.start_offset <= limit
    assert offsets(log) == list(range(log.start_offset, 60))


def test_retention_by_age_goes_by_the_largest_timestamp_of_a_segment() -> None:
    files = SimFiles()
    log = open_log(files, config(1000, retention_ms=100))
    for index in range(40):
        # One young record in the first segment keeps all of it.
        young = 200 if index == 2 else 0
        log.append_blocking([simple(index, timestamp=TIME_MS + index + young)])
    assert log.retain_blocking(40, TIME_MS + 140) == 0
    assert log.retain_blocking(40, TIME_MS + 303) > 0
    assert offsets(log) == list(range(log.start_offset, 40))


def test_retention_by_age_rolls_the_last_segment_when_all_of_it_is_old() -> None:
    files = SimFiles()
    log = open_log(files, config(retention_ms=100))
    fill(log, 5)
    assert log.retain_blocking(5, TIME_MS + 101) == 1
    assert (log.start_offset, log.end_offset) == (5, 5)
    assert log.append_blocking([simple(5)]) == [5]
    again = open_log(files.process_death(), config(retention_ms=100))
    assert offsets(again) == [5]


@pytest.mark.parametrize(
    "timestamp", [-1, TIME_MS * 1000, TIME_MS * 1_000_000, TIME_MS + 8 * 3_600_000, 2**62]
)
def test_records_without_a_time_or_with_one_to_come_age_with_their_file(timestamp: int) -> None:
    """Once a bug: they were never removed, nor any segment after them."""
    files = SimFiles()
    log = open_log(files, config(500, retention_ms=1000))
    for _ in range(20):
        log.append_blocking([new_batch(make_batch([b"x" * 50], timestamps=timestamp))])
    fill(log, 20)
    files.modified_ms = TIME_MS + 500
    assert log.retain_blocking(40, TIME_MS + 1500) == 0
    assert log.retain_blocking(40, TIME_MS + 1501) > 5
    assert log.start_offset == 40


def test_what_was_retained_is_gone_after_a_power_cut_or_all_there_and_never_a_hole() -> None:
    files = SimFiles()
    log = open_log(files, config(1000, retention_bytes=1500))
    fill(log, 60)
    assert log.retain_blocking(60, TIME_MS) > 2
    for seed in range(40):
        after = open_log(files.power_loss(seed))
        assert offsets(after) == list(range(after.start_offset, 60)), f"seed {seed}"


# ---------------------------------------------------------------------- time


def naive_find(records: list[tuple[int, int]], timestamp: int) -> TimedOffset | None:
    return next((TimedOffset(*each) for each in records if each[1] >= timestamp), None)


def check_find_time(log: EmbeddedPartitionLog) -> None:
    records = [
        (record.offset, record.timestamp)
        for record in read_all(log)
        if record.offset >= log.start_offset
    ]
    for timestamp in range(TIME_MS - 60, records[-1][1] + 60, 7):
        assert log.view.find_time(timestamp) == naive_find(records, timestamp), timestamp


@pytest.mark.parametrize("seed", range(6))
def test_find_time_agrees_with_a_scan(seed: int) -> None:
    print(f"seed {seed}")
    random = Random(seed)
    files = SimFiles()
    log = open_log(files, config(random.choice([3_000, 20_000, 1 << 20])))
    now = TIME_MS
    for index in range(300):
        now += random.choice([0, 0, 1, 5])
        spread = random.choice([0, 0, 50])
        times = [now + random.randint(-spread, spread) for _ in range(random.randint(1, 3))]
        values = [b"%d" % index + b"y" * random.randint(0, 300)] * len(times)
        log.append_blocking([new_batch(make_batch(values, timestamps=times))])
    check_find_time(log)
    again = open_log(files.process_death(), config(), recovery_offset=200)
    check_find_time(again)
    for _ in range(5):  # often within a batch
        again.delete_records_blocking(random.randint(again.start_offset, again.start_offset + 40))
        check_find_time(again)


def test_find_time_in_an_empty_log() -> None:
    assert open_log(SimFiles()).view.find_time(0) is None


# ---------------------------------------------------------------------- the asynchronous half


async def test_append_read_flush_and_find_through_the_pool() -> None:
    pool = IoPool(asyncio.get_running_loop(), 2)
    log = EmbeddedPartitionLog(SimFiles(), FOLDER, config(fsync=FsyncPolicy.INTERVAL), pool)
    await pool.run(lambda: log.open(0, clean=False))
    answers: asyncio.Queue[list[int] | Exception] = asyncio.Queue()
    log.append([simple(0), simple(1)], answers.put_nowait)
    assert await answers.get() == [0, 1]
    await log.flush()
    assert len(read_records((await log.read(0, 1000)).data)) == 2
    assert await log.find_time(TIME_MS) == TimedOffset(0, TIME_MS)
    assert await log.retain(2, TIME_MS) == 0
    log.stop("enough")
    log.append([simple(2)], answers.put_nowait)
    assert isinstance(await answers.get(), LogStoppedError)
    pool.close()
