"""Readers that continue where they were: no search, and the same bytes."""

import random

import pytest

from pidlease.core.log_config import LogConfig
from pidlease.log.segments.log_view import ReadPositions
from pidlease.log.segments.segment import SegmentFiles
from tests.sim.files import SimFiles
from tests.unit.log.logs import fill, open_log


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets that were searched in a segment."""
    found: list[int] = []
    search = SegmentFiles.position_of

    def noted(self: SegmentFiles, offset: int, *rest: object) -> int:
        found.append(offset)
        return search(self, offset, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(SegmentFiles, "position_of", noted)
    return found


def test_a_reader_that_continues_is_not_searched_for(searches: list[int]) -> None:
    log = open_log(SimFiles(), LogConfig(segment_bytes=2000))
    fill(log, 200)
    assert len(log.view.segments) > 3
    positions, offset = ReadPositions(), 7
    while offset < log.end_offset:
        part = log.view.read(offset, 300, positions)
        assert part == log.view.read(offset, 300, ReadPositions())
        offset = part.whole.end_offset
    searched = set(searches)
    searches.clear()
    positions, offset = ReadPositions(), 7
    while offset < log.end_offset:
        offset = log.view.read(offset, 300, positions).whole.end_offset
    assert searches == [7], "only the first one; every segment begins at 0"
    assert len(searched) > 20, "readers without their position are"


def test_any_reads_return_the_same_with_positions() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choice = random.Random(seed)
    log = open_log(SimFiles(), LogConfig(segment_bytes=3000))
    positions = ReadPositions(limit=4)
    readers = [0] * 6
    for _ in range(500):
        if choice.random() < 0.2:
            fill(log, choice.randrange(1, 5))
        at = choice.randrange(len(readers))
        if choice.random() < 0.1:
            readers[at] = choice.randrange(log.end_offset + 1)
        size = choice.choice((1, 60, 61, 200, 1000, 10_000))
        part = log.view.read(readers[at], size, positions)
        assert part == log.view.read(readers[at], size, ReadPositions())
        readers[at] = max(part.whole.end_offset, readers[at])
        assert len(positions._positions) <= 4
