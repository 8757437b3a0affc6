"""A data directory read by files: sends, damage, torn tails, deleted segments; without Spark."""

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pidlease.core.pid import Policy, make_pid
from pidlease.core.producer_names import ProducerNames
from pidlease.core.state import UNKNOWN_CRC
from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.batch_identity import identity_of
from pidlease.kafka.records.joined_batch import join
from pidlease.kafka.records.record_batch import read_header
from pidlease.kafka.records.writer_batch import Writer, logged, stamp
from pidlease.log.ports import NewBatch
from pidlease.log.segments.durable_mark import DurableMark
from pidlease.log.segments.log_start import write_log_start
from pidlease.log.segments.scan import scan
from pidlease.spark.errors import ReadError
from pidlease.spark.partition_offsets import OffsetRange
from pidlease.spark.reader.log_directory import LogDirectory, segment_batches
from pidlease.spark.reader.log_parts import KafkaPart, LogDamage, SegmentPart, StoredBatch
from pidlease.spark.reader.record_rows import records
from pidlease.spark.reader.send_rows import sends
from pidlease.storage.files import RealFiles
from tests.spark.audit.logs import Logs, Origin, encoded

STRICT, KAFKA = make_pid(Policy.STRICT, 7), make_pid(Policy.KAFKA, 8)
MONOTONIC = make_pid(Policy.MONOTONIC, 9)
EVERYBODY = (
    Origin(STRICT),
    Origin(KAFKA),
    Origin(MONOTONIC),
    Origin(producer_id="a"),
    Origin(),
)
SEED = int(os.environ.get("TESTS_SEED", Random().randrange(2**32)))


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    """A data directory with segments of a few KiB."""
    with Logs(tmp_path / "data", segment_bytes=4000) as found:
        found.topic("t", 2)
        yield found


def history(random: Random, count: int) -> list[NewBatch]:
    """Sends of all kinds of producers."""
    high: dict[Origin, int] = {}
    found = []
    for _ in range(count):
        producer = random.choice(EVERYBODY)
        first = high.get(producer, -1) + 1
        number = random.randint(1, 5)
        last = first + number - 1
        if producer.pid in (STRICT, MONOTONIC):
            last += random.randint(0, 3)
        if producer.producer_id:
            last = first
        codec = random.choice((None, "gzip", "lz4")) if not producer.producer_id else None
        found.append(
            encoded(producer, 2, first if producer.pid >= 0 or producer.producer_id else -1, number,
                    last=last, codec=codec)
        )  # fmt: skip
        high[producer] = last
    return found


def fill(logs: Logs, made: list[NewBatch]) -> None:
    """Append one by one, so that segments roll at their size."""
    for each in made:
        logs.append("t", 0, [each])


def part_of(logs: Logs, partition: int = 0) -> SegmentPart:
    directory = LogDirectory(str(logs.path))
    return directory.part(TopicPartition("t", partition), *directory.offset_range("t", partition))


def rows_of(part: SegmentPart) -> list[dict[str, Any]]:
    return [row for each in sends(part, segment_batches(part)) for row in each.to_pylist()]


def values_of(part: SegmentPart, *, fail: bool = True) -> list[int]:
    """The offsets of the records."""
    found = records(part, segment_batches(part), headers=True, fail_on_data_loss=fail)
    return [offset for each in found for offset in each["offset"].to_pylist()]


def flip(path: Path, position: int) -> None:
    """Change a bit."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def test_producers_of_sends_are_those_of_the_replay(logs: Logs) -> None:
    print(f"TESTS_SEED={SEED}")
    fill(logs, history(Random(SEED), 200))
    names = ProducerNames()
    expected = []
    for path in logs.segments("t"):
        file = RealFiles().open_readonly(path)
        for position, header, data in scan(file, 0, file.size()):
            stands = logged(header, data)
            found = identity_of(stands, names)
            producer, crc = (-1, "", -1, -1, -1), stands.header.crc
            if found is not None:
                batch, crc = found.batch, found.batch.crc
                name = names.name(found.pid)
                numbers = batch.generation, batch.first, batch.last
                producer = (-1 if name else found.pid, name or "", *numbers)
            expected.append((
                path.name, position, header.base_offset, header.last_offset, header.records,
                crc, *producer,
            ))  # fmt: skip
        file.close()
    names_of_columns = (
        "segment", "position", "offset", "last_offset", "records", "crc", "pid", "producer_id",
        "generation", "first", "last",
    )  # fmt: skip
    rows = rows_of(part_of(logs))
    assert [tuple(row[name] for name in names_of_columns) for row in rows] == expected
    assert not [row for row in rows if row["damage"] is not None]
    assert len(logs.segments("t")) > 3


def test_each_send_knows_the_one_before_of_its_producer_in_its_part(logs: Logs) -> None:
    print(f"TESTS_SEED={SEED}")
    fill(logs, history(Random(SEED), 100))
    whole = part_of(logs)
    for part in (whole, *LogDirectory(str(logs.path)).split(whole)):
        last: dict[tuple[int, str], tuple[int, int, int]] = {}
        for row in rows_of(part):  # type: ignore[arg-type]
            producer = row["pid"], row["producer_id"]
            previous = tuple(row[f"previous_{name}"] for name in ("generation", "first", "last"))
            expected = last.get(producer) if producer != (-1, "") else None
            assert previous == (expected or (None, None, None))
            assert row["begins"] == (expected is None and producer != (-1, ""))
            last[producer] = row["generation"], row["first"], row["last"]


def test_a_segment_is_a_task_and_together_they_are_all(logs: Logs) -> None:
    fill(logs, [encoded(Origin(), 0, -1, 3) for _ in range(200)])
    log = LogDirectory(str(logs.path))
    whole = log.part(TopicPartition("t", 0), 100, 500)
    parts = log.split(whole)
    assert len(parts) > 2
    assert all(len(each.segments) == 1 for each in parts)  # type: ignore[union-attr]
    offsets = [offset for each in parts for offset in values_of(each)]  # type: ignore[arg-type]
    assert offsets == values_of(whole) == list(range(100, 500))


def test_a_joined_batch_has_a_row_for_each_send() -> None:
    made = [encoded(Origin(STRICT), 0, 10 * n, n + 1) for n in range(4)]
    data = join([each.data for each in made])
    assert data is not None
    header = stamp(read_header(data), data, Writer(4000, 3), 77)
    part = KafkaPart("unused", "t", 0, 0, 100)
    stored = StoredBatch("", -1, header, memoryview(data))
    (rows,) = sends(part, [stored])
    found = [tuple(row[name] for name in ("offset", "records", "pid", "first", "last"))
             for row in rows.to_pylist()]  # fmt: skip
    assert found == [(0, 1, STRICT, 0, 0), (1, 2, STRICT, 10, 11), (3, 3, STRICT, 20, 22),
                     (6, 4, STRICT, 30, 33)]  # fmt: skip
    assert set(rows["crc"].to_pylist()) == {UNKNOWN_CRC}
    assert sum(rows["bytes"].to_pylist()) == len(data)
    (some,) = records(part, [stored], headers=True, fail_on_data_loss=True)
    assert some["sequence"].to_pylist() == [0, 10, 11, 20, 21, 22, 30, 31, 32, 33]
    assert some["headers"].null_count == some.num_rows


def test_numbers_of_records_are_known_where_they_are_dense_and_wrap(logs: Logs) -> None:
    fill(logs, [
        encoded(Origin(KAFKA), 1, 2**31 - 2, 4), encoded(Origin(STRICT), 0, 5, 2),
        encoded(Origin(STRICT), 1, 7, 2, last=9), encoded(Origin(), 0, -1, 1),
        encoded(Origin(producer_id="a"), 0, 0, 2, last=0),
    ])  # fmt: skip
    (found,) = records(
        part := part_of(logs), segment_batches(part), headers=False, fail_on_data_loss=True
    )
    assert found["sequence"].to_pylist() == [
        2**31 - 2, 2**31 - 1, 0, 1, 5, 6, None, None, None, None, None,
    ]  # fmt: skip
    assert found["pid"].to_pylist() == [KAFKA] * 4 + [STRICT] * 4 + [None] * 3
    assert found["generation"].to_pylist() == [1] * 4 + [0, 0, 1, 1] + [None] * 3


# ---------------------------------------------------------------------- damage


def test_damage_is_a_row_and_the_rest_is_read(logs: Logs) -> None:
    fill(logs, history(Random(SEED), 150))
    whole = rows_of(part_of(logs))
    random = Random(SEED)
    print(f"TESTS_SEED={SEED}")
    for _ in range(20):
        hit = random.choice(whole)
        path = logs.path / "logs" / "t-0" / hit["segment"]
        before = path.read_bytes()
        # Neither the base offset nor the leader epoch is under a batch's CRC.
        places = [*range(8, 12), *range(16, hit["bytes"])]
        flip(path, hit["position"] + random.choice(places))
        rows = rows_of(part_of(logs))
        (damage,) = [row for row in rows if row["damage"] is not None]
        assert (damage["offset"], damage["position"]) == (hit["offset"], hit["position"])
        left = [row["offset"] for row in rows if row["damage"] is None]
        assert left == [row["offset"] for row in whole if row["offset"] != hit["offset"]]
        with pytest.raises(ReadError, match=f"offset {hit['offset']}, byte {hit['position']}"):
            values_of(part_of(logs))
        kept = values_of(part_of(logs), fail=False)
        lost = range(hit["offset"], hit["last_offset"] + 1)
        assert kept == [n for n in range(whole[-1]["last_offset"] + 1) if n not in lost]
        path.write_bytes(before)


def test_damage_is_reported_where_reading_begins_after_its_beginning(logs: Logs) -> None:
    fill(logs, [encoded(Origin(KAFKA), 0, 10 * n, 10) for n in range(6)])
    rows = rows_of(part_of(logs))
    path = logs.path / "logs" / "t-0" / rows[2]["segment"]
    flip(path, rows[2]["position"] + 40)
    found = list(segment_batches(part_of(logs).within(25, 60)))
    assert isinstance(found[0], LogDamage)
    assert [each.header.base_offset for each in found[1:] if isinstance(each, StoredBatch)] == [
        30, 40, 50,
    ]  # fmt: skip
    found = list(segment_batches(part_of(logs).within(30, 60)))
    assert all(isinstance(each, StoredBatch) for each in found)


def test_a_segment_that_is_missing_is_damage(logs: Logs) -> None:
    fill(logs, [encoded(Origin(KAFKA), 0, n, 1) for n in range(200)])
    missing, following = logs.segments("t")[1:3]
    missing.unlink()
    rows = rows_of(part_of(logs))
    (damage,) = [row for row in rows if row["damage"] is not None]
    assert damage["offset"] == int(missing.stem)
    offsets = [row["offset"] for row in rows if row["damage"] is None]
    assert offsets == [*range(int(missing.stem)), *range(int(following.stem), 200)]


def test_a_log_without_segments_is_damage_if_it_had_any(logs: Logs) -> None:
    """Once the audit of a partition without them found nothing wrong."""
    fill(logs, [encoded(Origin(KAFKA), 0, n, 1) for n in range(200)])
    for path in logs.segments("t"):
        path.unlink()
    part = part_of(logs)
    assert part.start == 0 < part.end
    (found,) = segment_batches(part)
    assert isinstance(found, LogDamage)
    (logs.path / "logs" / "t-0" / "durable").unlink()
    assert part_of(logs).end == 0


def test_a_segment_deleted_between_plan_and_task_is_reported(logs: Logs) -> None:
    fill(logs, [encoded(Origin(KAFKA), 0, n, 1) for n in range(200)])
    part = part_of(logs)
    first = logs.segments("t")[0]
    first.unlink()
    with pytest.raises(ReadError, match="retention"):
        values_of(part)
    later = LogDirectory(str(logs.path)).part(TopicPartition("t", 0), 0, 200)
    with pytest.raises(ReadError, match="retention"):
        values_of(later)


def test_a_batch_without_an_identity_is_damage(logs: Logs) -> None:
    made = encoded(Origin(KAFKA), 0, 0, 1)
    header = stamp(made.header, made.data, Writer(STRICT, 0), 0)
    fill(logs, [NewBatch(made.data, header), encoded(Origin(KAFKA), 0, 0, 1)])
    first, second = rows_of(part_of(logs))
    assert f"PID {STRICT}" in first["damage"]
    assert (first["offset"], second["offset"], second["damage"]) == (0, 1, None)
    with pytest.raises(ReadError, match=f"PID {STRICT}"):
        values_of(part_of(logs))


# ---------------------------------------------------------------------- where a log ends


@pytest.mark.parametrize("kept", [1, 30, 62, -1])
def test_a_torn_tail_is_no_damage(logs: Logs, kept: int) -> None:
    fill(logs, [encoded(Origin(KAFKA), 0, n, 1) for n in range(5)])
    (path,) = logs.segments("t")
    last = rows_of(part_of(logs))[-1]
    size = last["position"] + kept if kept > 0 else path.stat().st_size - 1
    os.truncate(path, size)
    assert LogDirectory(str(logs.path)).offset_range("t", 0) == OffsetRange(0, 4)
    assert [row["damage"] for row in rows_of(part_of(logs))] == [None] * 4


def test_a_tail_that_was_durable_and_is_not_whole_is_damage(logs: Logs) -> None:
    fill(logs, [encoded(Origin(KAFKA), 0, n, 1) for n in range(5)])
    DurableMark(RealFiles(), logs.path / "logs" / "t-0").write(5)
    (path,) = logs.segments("t")
    os.truncate(path, path.stat().st_size - 1)
    rows = rows_of(part_of(logs))
    assert [row["damage"] is None for row in rows] == [True] * 4 + [False]
    assert rows[-1]["offset"] == 4


def test_the_last_batch_changed_is_damage_and_no_torn_tail(logs: Logs) -> None:
    fill(logs, [encoded(Origin(KAFKA), 0, n, 1) for n in range(5)])
    (path,) = logs.segments("t")
    flip(path, path.stat().st_size - 3)
    rows = rows_of(part_of(logs))
    assert [row["damage"] is None for row in rows] == [True] * 4 + [False]


def test_durable_reads_leave_out_the_rest(logs: Logs) -> None:
    fill(logs, [encoded(Origin(KAFKA), 0, n, 1) for n in range(5)])
    DurableMark(RealFiles(), logs.path / "logs" / "t-0").write(3)
    assert LogDirectory(str(logs.path)).offset_range("t", 0) == OffsetRange(0, 5)
    assert LogDirectory(str(logs.path), durable=True).offset_range("t", 0) == OffsetRange(0, 3)
    logs.close()
    assert LogDirectory(str(logs.path), durable=True).offset_range("t", 0) == OffsetRange(0, 5)


def test_the_end_is_found_without_indexes_and_with_wrong_ones(logs: Logs) -> None:
    fill(logs, [encoded(Origin(KAFKA), 0, n, 1) for n in range(300)])
    for suffix, content in (("*.index", b"\0" * 16), ("*.index", None)):
        for index in (logs.path / "logs" / "t-0").glob(suffix):
            index.unlink() if content is None else index.write_bytes(content)
        assert LogDirectory(str(logs.path)).offset_range("t", 0) == OffsetRange(0, 300)
        assert values_of(part_of(logs).within(123, 277)) == list(range(123, 277))


def test_what_was_deleted_by_order_is_not_read(logs: Logs) -> None:
    fill(logs, [encoded(Origin(KAFKA), 0, 10 * n, 10) for n in range(10)])
    write_log_start(RealFiles(), logs.path / "logs" / "t-0", 35)
    assert LogDirectory(str(logs.path)).offset_range("t", 0) == OffsetRange(35, 100)
    assert values_of(part_of(logs)) == list(range(35, 100))
    # A send of which a part is left is read.
    assert [row["offset"] for row in rows_of(part_of(logs))] == [30, 40, 50, 60, 70, 80, 90]


def test_nothing_is_there_where_nothing_was_written(logs: Logs) -> None:
    assert LogDirectory(str(logs.path)).offset_range("t", 1) == OffsetRange(0, 0)
    assert rows_of(part_of(logs, 1)) == []


def test_reading_changes_nothing(logs: Logs) -> None:
    fill(logs, history(Random(SEED), 50))
    files = sorted(path for path in logs.path.rglob("*") if path.is_file())
    before = [(path, path.read_bytes(), path.stat().st_mtime_ns) for path in files]
    LogDirectory(str(logs.path)).topics()
    rows_of(part_of(logs))
    assert sorted(path for path in logs.path.rglob("*") if path.is_file()) == files
    assert before == [(path, path.read_bytes(), path.stat().st_mtime_ns) for path in files]


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda path: (path / "meta.json").unlink(), "no meta.json"),
        (lambda path: (path / "meta.json").write_text("{"), "damaged"),
        (lambda path: (path / "meta.json").write_text('{"format": 99}'), "newer version"),
        (lambda path: path.rename(path.with_name("away")), "does not exist"),
    ],
)
def test_what_is_no_data_directory_is_refused(logs: Logs, spoil: Any, text: str) -> None:
    spoil(logs.path)
    with pytest.raises(ReadError, match=text):
        LogDirectory(str(logs.path))
    away = logs.path.with_name("away")
    if away.exists():
        away.rename(logs.path)
