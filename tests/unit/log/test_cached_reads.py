"""Readers that continue get what is in the page cache on the event loop, and nothing else."""

import asyncio
import errno
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from pidlease.core.log_config import LogConfig
from pidlease.log.ports import LogPart
from pidlease.log.segments import log_view as log_view_module
from pidlease.log.segments import open_segments as open_segments_module
from pidlease.log.segments.embedded_log import EmbeddedPartitionLog
from pidlease.log.segments.log_view import ReadPositions
from pidlease.log.segments.open_segments import OpenSegments
from pidlease.storage.errors import DamagedLogError, OffsetRangeError
from pidlease.storage.files import Files, RealFiles
from pidlease.storage.io_pool import IoPool
from tests.servers.waiting import WAIT_S
from tests.sim.batches import TIME_MS
from tests.sim.files import SimFile, SimFiles
from tests.unit.log.logs import FOLDER, config, fill, segments


class Bench:
    """A log whose segments stay open for readers, and what was done with its files."""

    def __init__(self, files: Files, folder: Path = FOLDER, segment_bytes: int = 3000) -> None:
        self.pool = IoPool(asyncio.get_running_loop(), threads=2)
        self.opened = OpenSegments(self.pool, limit=4)
        self.log = EmbeddedPartitionLog(
            files, folder, config(segment_bytes), self.pool, open_segments=self.opened
        )
        self.log.open(0, clean=False)

    async def read_on(self, offset: int, max_bytes: int = 300) -> int:
        """Read from an offset to the end; how many reads that took."""
        reads = 0
        while offset < self.log.end_offset:
            offset = (await self.read(offset, max_bytes)).whole.end_offset
            reads += 1
        return reads

    async def read(self, offset: int, max_bytes: int = 300) -> LogPart:
        """Read, and compare with a reader that has just come."""
        part = await self.log.read(offset, max_bytes)
        assert part == self.log.view.read(offset, max_bytes, ReadPositions())
        return part


class Counted:
    """Counts the operations on .log files."""

    def __init__(self, files: SimFiles) -> None:
        self.counts: Counter[str] = Counter()
        files.on_operation = self._count

    def _count(self, operation: str, path: Path) -> None:
        if path.suffix == ".log":
            self.counts[operation] += 1


@pytest.fixture
def files() -> SimFiles:
    return SimFiles()


@pytest.fixture
async def bench(files: SimFiles) -> AsyncIterator[Bench]:
    bench = Bench(files)
    yield bench
    bench.pool.close()
    bench.opened.close()


async def _until_closed(opened: OpenSegments) -> None:
    async with asyncio.timeout(WAIT_S):
        while len(opened):  # noqa: ASYNC110 - no event is set
            await asyncio.sleep(0.01)


def _removed_and_open(path: Path) -> int:
    """How many removed files below a path this process has open."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            link = os.readlink(f"/proc/self/fd/{name}")
            found += link.startswith(str(path)) and link.endswith(" (deleted)")
    return found


async def test_a_reader_opens_each_segment_once_and_reads_on_the_loop(
    bench: Bench, files: SimFiles
) -> None:
    fill(bench.log, 100)
    assert len(bench.log.view.segments) == 4
    counted = Counted(files)
    offset = reads = 0
    while offset < bench.log.end_offset:
        offset = (await bench.log.read(offset, 300)).whole.end_offset
        reads += 1
    assert reads > 20
    assert counted.counts["open_readonly"] == 4
    assert counted.counts["read_cached"] == reads - 4
    assert counted.counts["read"] == 4, "the first read of each segment, by a thread"


async def test_readers_at_one_offset_are_all_known(bench: Bench, files: SimFiles) -> None:
    fill(bench.log, 20)
    for _ in range(3):
        await bench.read(0, 10_000)
    counted = Counted(files)
    for end in (20, 21, 22):
        fill(bench.log, 1, first=end)
        for _ in range(3):
            part = await bench.log.read(end, 10_000)
            assert part.whole.end_offset == end + 1
    assert counted.counts["read_cached"] == 9
    assert not counted.counts["read"]
    assert not counted.counts["open_readonly"]


async def test_what_is_not_in_the_page_cache_is_read_by_a_thread(
    bench: Bench, files: SimFiles
) -> None:
    fill(bench.log, 20)
    offset = (await bench.read(0)).whole.end_offset
    files.cached = False
    counted = Counted(files)
    part = await bench.log.read(offset, 300)
    assert part.whole.batches > 1
    assert counted.counts["read_cached"] == 1
    assert counted.counts["open_readonly"] == 1
    fault = files.fail_next("read", "*.log", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        await bench.log.read(part.whole.end_offset, 300)
    assert fault.fired


@pytest.mark.parametrize(("most", "first_size"), [("BYTES", 20), ("BATCHES", 20), ("BATCHES", 600)])
async def test_a_large_read_is_done_by_a_thread(
    bench: Bench, files: SimFiles, monkeypatch: pytest.MonkeyPatch, most: str, first_size: int
) -> None:
    fill(bench.log, 1)
    fill(bench.log, 1, first=1, size=first_size)
    fill(bench.log, 18, first=2)
    await bench.read(0, 100)
    counted = Counted(files)
    monkeypatch.setattr(log_view_module, f"_CACHED_{most}_MAX", 3)
    part = await bench.log.read(1, 1000)
    assert part.whole.batches > 3
    assert counted.counts["open_readonly"] == 1


async def test_a_batch_larger_than_the_limit_is_read_whole(bench: Bench, files: SimFiles) -> None:
    fill(bench.log, 3, size=500)
    await bench.read(0, 1)
    counted = Counted(files)
    for offset in (1, 2):
        part = await bench.log.read(offset, 1)
        assert (part.whole.batches, part.whole.end_offset) == (1, offset + 1)
        assert len(part.data) == part.whole.size
    assert counted.counts["read_cached"] == 4
    assert not counted.counts["read"]


async def test_a_reader_at_the_end_gets_no_byte_of_an_append_that_is_not_acknowledged(
    bench: Bench, files: SimFiles
) -> None:
    fill(bench.log, 5)
    await bench.read_on(0)
    fault = files.fail_next("fsync", "*.log")
    cut = files.fail_next("truncate", "*.log")
    with suppress(Exception):
        fill(bench.log, 1, first=5)
    assert fault.fired
    assert cut.fired
    path = segments(files)[-1]
    assert files.open_readonly(path).size() > bench.log.view.last_size, "its bytes are there"
    assert bench.log.end_offset == 5
    assert await bench.log.read(5, 300) == (b"", (0, 0, 0, -1))
    with pytest.raises(OffsetRangeError):
        await bench.log.read(6, 300)
    size = bench.log.view.last_size // 5
    await bench.read(2, size)
    counted = Counted(files)
    part = await bench.log.read(3, 3 * size)
    assert (part.whole.end_offset, len(part.data)) == (5, 2 * size)
    assert counted.counts["read_cached"] == 1
    assert not counted.counts["read"], "on the event loop"


async def test_a_batch_that_is_longer_than_the_log_is_damage(bench: Bench, files: SimFiles) -> None:
    """Once a bug: it was given with what a failed append had left after the log's end."""
    fill(bench.log, 8)
    await bench.read(0, 100)
    await bench.read(1, 100)
    size = bench.log.view.last_size // 8
    path = segments(files)[-1]
    end = bench.log.view.last_size
    left = files.open(path)  # what a failed append has left: the file is long enough
    left.write_at([bytes(1 << 14)], end)
    left.close()
    files.flip(path, 2 * size + 10, 5)
    with pytest.raises(DamagedLogError):
        await bench.log.read(2, 100)
    with pytest.raises(DamagedLogError):
        bench.log.view.read(2, 100, ReadPositions())
    files.flip(path, 2 * size + 10, 5)
    assert (await bench.read(2, 100)).whole.end_offset == 3


async def test_deleted_and_retained_records_are_gone_for_a_reader_in_them(bench: Bench) -> None:
    fill(bench.log, 100)
    await bench.read(0)
    await bench.log.delete_records(60)
    with pytest.raises(OffsetRangeError):
        await bench.log.read(2, 300)
    bench.log.config = config(3000, retention_bytes=3000)
    assert await bench.log.retain(100, TIME_MS) >= 2
    with pytest.raises(OffsetRangeError):
        await bench.log.read(2, 300)
    assert await bench.read_on(bench.log.start_offset)


async def test_a_log_that_stops_short_hides_the_rest_from_readers(bench: Bench) -> None:
    fill(bench.log, 20)
    await bench.read(0)
    bench.log.stop_short("damaged", 4)
    assert (await bench.read(2, 10_000)).whole.end_offset == 4
    with pytest.raises(OffsetRangeError):
        await bench.log.read(5, 300)


async def test_a_removed_segment_is_closed_though_its_reader_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open file would keep the disk space."""
    monkeypatch.setattr(open_segments_module, "IDLE_SECONDS", 0.05)
    bench = Bench(RealFiles(), tmp_path / "t-0")
    try:
        fill(bench.log, 100)
        await bench.read_on(0)
        assert len(bench.opened) == 4
        await bench.log.delete_records(80)
        assert await bench.log.retain(100, TIME_MS) == 2
        assert _removed_and_open(tmp_path) == 2
        await _until_closed(bench.opened)
        async with asyncio.timeout(WAIT_S):
            while _removed_and_open(tmp_path):  # noqa: ASYNC110 - a thread closes them
                await asyncio.sleep(0.01)
    finally:
        bench.pool.close()


async def test_only_so_many_segments_stay_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(RealFiles(), tmp_path / "t-0", segment_bytes=1000)
    try:
        fill(bench.log, 100)
        assert len(bench.log.view.segments) > 8
        await bench.read_on(0)
        assert len(bench.opened) == 4
        await bench.read_on(0)
        assert len(bench.opened) == 4
        bench.opened.close()
        assert not len(bench.opened)
    finally:
        bench.pool.close()


async def test_after_the_close_each_read_opens_its_segment(bench: Bench, files: SimFiles) -> None:
    """Requests may still run while a server closes its files."""
    fill(bench.log, 100)
    await bench.read(0)
    assert len(bench.opened) == 1
    bench.opened.close()
    counted = Counted(files)
    assert await bench.read_on(0) > 20
    assert counted.counts["read_cached"] == 0
    assert len(bench.opened) == 0, "nothing would close it"


async def test_a_file_that_cannot_be_closed_keeps_no_other_open(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bench.log, 100)
    await bench.read_on(0)
    opened = len(bench.opened)
    closed = 0

    def close(_: object) -> None:
        nonlocal closed
        closed += 1
        raise OSError(errno.EIO, "as a disk of a network does")

    monkeypatch.setattr(SimFile, "close", close)
    bench.opened.close()
    assert closed == opened > 1


async def test_any_reads_are_as_those_of_new_readers(files: SimFiles) -> None:
    """While batches are appended, segments are removed, and pages leave the cache."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choice = random.Random(seed)
    bench = Bench(files, segment_bytes=1500)
    bench.log.config = LogConfig(1500, retention_ms=-1, retention_bytes=4000)
    counted = Counted(files)
    readers = [0] * 6
    try:
        for _ in range(1500):
            step = choice.random()
            if step < 0.2:
                fill(bench.log, choice.randrange(1, 5), size=choice.randrange(80))
            elif step < 0.205:
                await bench.log.retain(bench.log.end_offset, TIME_MS)
            elif step < 0.21:
                start, end = bench.log.start_offset, bench.log.end_offset
                await bench.log.delete_records(choice.randint(start, end))
            files.cached = choice.random() < 0.9
            at = choice.randrange(len(readers))
            size = choice.choice((1, 60, 61, 200, 1000, 10_000))
            try:
                part = await bench.read(readers[at], size)
            except OffsetRangeError:
                assert readers[at] < bench.log.start_offset
                readers[at] = bench.log.start_offset
            else:
                readers[at] = max(part.whole.end_offset, readers[at])
        assert counted.counts["read_cached"] > 20
    finally:
        bench.pool.close()
        bench.opened.close()
