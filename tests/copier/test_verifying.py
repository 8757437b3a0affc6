"""What a comparison finds, where PIDs change and the source begins late."""

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from pidlease.copier.cluster_reader import ClusterReader, FetchedChunk
from pidlease.copier.comparison import Comparison, compare, compare_all
from pidlease.copier.errors import CopyError
from pidlease.copier.settings import CopySettings
from pidlease.core.pid import Policy, make_pid
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.offset_requests import EARLIEST, LATEST
from pidlease.kafka.records.identity_header import Identity, encode_identity
from pidlease.kafka.records.record_batch import ATTRIBUTES_AT
from tests.copier.logs import Record, batch_of, with_crc

PLACE, THERE = TopicPartition("t", 0), TopicPartition("t.copy", 0)


class Log:
    """A side, to be asked."""

    def __init__(self, start: int, end: int, data: bytes) -> None:
        self.name = "a side"
        self._start, self._end, self._data = start, end, data

    async def offset(self, _place: object, timestamp: int, _isolation: int = 0) -> int:
        return self._start if timestamp == EARLIEST else self._end

    async def chunks(self, *_: Any) -> AsyncIterator[FetchedChunk]:
        yield FetchedChunk(self._data, [], self._end)


def source(first: int, end: int) -> Log:
    records = [Record(n, n, None, b"%d" % n, []) for n in range(first, end)]
    return Log(first, end, batch_of(first, end - 1, records))


def copy(*sends: tuple[int, int, list[int]]) -> Log:
    """Sends: of a PID's number, from where its range begins, with records."""
    data, at = b"", 0
    for pid, first, numbers in sends:
        identity = Identity(make_pid(Policy.STRICT, pid), "", 3, first, numbers[-1])
        records = [
            Record(at + place, n, None, b"%d" % n,
                   [("pidlease", encode_identity(identity))] if not place else [])
            for place, n in enumerate(numbers)
        ]  # fmt: skip
        data += batch_of(at, at + len(numbers) - 1, records)
        at += len(numbers)
    return Log(0, at, data)


async def compared(one: Log, other: Log) -> Comparison:
    return await compare(
        cast(ClusterReader, one), PLACE, cast(ClusterReader, other), THERE, EARLIEST
    )


async def test_a_source_that_begins_late() -> None:
    """Its first records have been deleted since they were copied."""
    found = await compared(
        source(100, 200), copy((7, 0, [*range(60, 130)]), (7, 130, [*range(130, 200)]))
    )
    assert (found.equal, found.deleted, found.same) == (100, 40, True), found


async def test_records_before_a_send_are_counted_and_not_kept() -> None:
    """The destination's retention was faster, or the copy is far behind."""
    found = await compared(
        source(0, 300), copy((7, 100, [*range(100, 150)]), (7, 160, [*range(160, 200)]))
    )
    counts = (found.equal, found.lost, found.behind, found.different, found.doubled)
    assert counts == (90, 110, 100, 0, 0), found


async def test_doubles_where_a_pid_changes() -> None:
    """The first range of each PID begins at 0, whatever the source begins with."""
    found = await compared(
        source(100, 200), copy((7, 0, [*range(100, 150)]), (8, 0, [*range(140, 200)]))
    )
    assert (found.doubled, found.same) == (10, False), found
    assert (found.deleted, found.lost) == (0, 0)


async def test_a_whole_send_again() -> None:
    found = await compared(
        source(100, 200), copy((7, 0, [*range(100, 200)]), (8, 0, [*range(150, 200)]))
    )
    assert (found.equal, found.doubled, found.same) == (100, 50, False), found


def compacted(end: int, *left: int) -> Log:
    return Log(0, end, batch_of(0, end - 1, [Record(n, n, None, b"%d" % n, []) for n in left]))


async def test_records_that_the_source_has_compacted_since_are_deleted() -> None:
    """They count as different, once, and all that follow them in their send."""
    sends = (7, 0, [*range(10)]), (7, 10, [*range(10, 20)]), (7, 20, [*range(20, 30)])
    found = await compared(compacted(30, 1, 4, 8, 27, 29), copy(*sends))
    assert (found.equal, found.deleted, found.same) == (5, 25, True), found


async def test_a_double_in_a_send_is_none_that_was_compacted() -> None:
    found = await compared(compacted(10, 1, 4, 8, 9), copy((7, 0, [1, 2, 4, 4, 8, 9])))
    assert (found.deleted, found.doubled, found.same) == (1, 1, False), found


async def test_a_record_that_the_source_never_had_is_no_compacted_one() -> None:
    found = await compared(source(0, 3), copy((7, 0, [0, 1, 1, 2])))
    assert (found.deleted, found.doubled, found.same) == (0, 1, False), found


async def test_the_end_is_no_beginning() -> None:
    """Once everything counted as deleted, and the exit code was 0."""
    settings = CopySettings(
        source="127.0.0.1:1", destination="127.0.0.1:1", leases="http://127.0.0.1:1", group="g",
        topics=["t"], start=LATEST, give_up_ms=1,
    )  # fmt: skip
    with pytest.raises(CopyError, match="it is unknown where a copy with --start latest began"):
        await compare_all(settings)


@pytest.mark.parametrize("codec", range(1, 5))
async def test_records_that_no_codec_reads_end_the_comparison(codec: int) -> None:
    data = bytearray(batch_of(0, 0, [Record(0, 0, None, b"v", [])]))
    data[ATTRIBUTES_AT + 1] |= codec
    with pytest.raises(CopyError, match=r"t-0 of a side: offset 0: .*there are no 1 records"):
        await compared(Log(0, 1, with_crc(data)), copy())
