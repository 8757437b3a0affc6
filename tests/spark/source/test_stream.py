"""`spark.readStream`: micro-batches, their limits, restarts, and lost records."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from pidlease.core.pid import Policy, make_pid
from pidlease.log.segments.durable_mark import DurableMark
from pidlease.log.segments.log_start import write_log_start
from pidlease.spark.errors import ReadError
from pidlease.spark.source.settings import schema_of
from pidlease.spark.source.stream_reader import LogStreamReader
from pidlease.storage.files import RealFiles
from tests.copier.sides import make_topic
from tests.servers.pidlease import PidleaseServer
from tests.spark.audit.logs import Logs, Origin, encoded
from tests.spark.soak import in_the_soak

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PID = make_pid(Policy.KAFKA, 3)
#: A micro-batch: its rows, each with the task that read it, in the order of that task.
Batches = list[list[tuple[int, str, int, int]]]


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    """A data directory with segments of a few KiB."""
    found = Logs(tmp_path / "data", segment_bytes=3000)
    found.topic("t", 2)
    return found


def fill(logs: Logs, topic: str, partition: int, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        logs.append(topic, partition, [encoded(Origin(PID), 0, number, 1)])
    logs.flush(topic, partition)  # a stream reads what is durable


def stream(
    spark: "SparkSession", checkpoint: Path, options: dict[str, str], end_at: int = 1000
) -> Batches:
    """Read all records after the checkpoint."""
    found: Batches = []

    def take(batch: "DataFrame", _: int) -> None:
        found.append(batch.rdd.mapPartitions(_rows_of_task).collect())

    source = spark.readStream.format("pidlease").options(startingOffsets="earliest", **options)
    query = (
        source.load().writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    )  # fmt: skip
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    return found


def _rows_of_task(rows: Any) -> Any:
    context = TaskContext.get()
    assert context is not None
    for row in rows:
        yield context.partitionId(), row.topic, row.partition, row.offset


def check_batch(batch: list[tuple[int, str, int, int]]) -> None:
    """Check that each partition is one task, with its offsets in order."""
    tasks: dict[tuple[str, int], set[int]] = {}
    last: dict[tuple[str, int], int] = {}
    for task, topic, partition, offset in batch:
        tasks.setdefault((topic, partition), set()).add(task)
        assert offset == last.get((topic, partition), offset - 1) + 1
        last[topic, partition] = offset
    assert all(len(each) == 1 for each in tasks.values())
    assert len(set.union(set(), *tasks.values())) == len(tasks)


def offsets(batches: Batches, topic: str, partition: int) -> list[int]:
    return [row[3] for batch in batches for row in batch if row[1:3] == (topic, partition)]


def test_a_query_reads_in_bounded_steps_and_resumes_after_its_checkpoint(
    spark: "SparkSession", logs: Logs, tmp_path: Path
) -> None:
    fill(logs, "t", 0, 200)
    fill(logs, "t", 1, 100)
    options = {"path": str(logs.path), "subscribePattern": "t|late", "maxOffsetsPerTrigger": "120"}
    found = stream(spark, tmp_path / "checkpoint", options)
    assert [len(batch) for batch in found] == [120, 120, 60]
    assert len(logs.segments("t")) > 3  # a task's part goes over several
    # New records, a partition's first records, and a topic that was not there before.
    fill(logs, "t", 1, 50, first=100)
    logs.topic("late")
    fill(logs, "late", 0, 30)
    found += stream(spark, tmp_path / "checkpoint", options)
    for batch in found:
        check_batch(batch)
    assert offsets(found, "t", 0) == list(range(200))
    assert offsets(found, "t", 1) == list(range(150))
    assert offsets(found, "late", 0) == list(range(30))
    assert stream(spark, tmp_path / "checkpoint", options) == []


@pytest.mark.parametrize("way", ["files", "port"])
@in_the_soak
def test_a_server_at_work_is_read_through_its_crash(
    spark: "SparkSession", tmp_path: Path, way: str
) -> None:
    with PidleaseServer(tmp_path / "server") as server:
        make_topic(server.bootstrap, "t", 2)
        options = {"subscribe": "t", "maxOffsetsPerTrigger": "300"}
        if way == "files":
            options["path"] = str(server.data_dir)
        else:
            options["kafka.bootstrap.servers"] = server.bootstrap
        found: Batches = []
        for turn in range(2):
            producer = Producer({"bootstrap.servers": server.bootstrap})
            for number in range(400):
                producer.produce("t", b"%d" % number, partition=number % 2)
            producer.flush()
            found += stream(spark, tmp_path / "checkpoint", options)
            if not turn:
                server.kill9()
                server.restart()
        for batch in found:
            check_batch(batch)
        assert all(len(batch) <= 300 for batch in found)
        assert [offsets(found, "t", n) for n in range(2)] == [list(range(400))] * 2


@in_the_soak
def test_what_was_deleted_before_it_was_read_ends_the_query(
    spark: "SparkSession", logs: Logs, tmp_path: Path
) -> None:
    fill(logs, "t", 0, 50)
    options = {"path": str(logs.path), "subscribe": "t"}
    stream(spark, tmp_path / "checkpoint", options)
    fill(logs, "t", 0, 50, first=50)
    write_log_start(RealFiles(), logs.path / "logs" / "t-0", 70)
    with pytest.raises(PySparkException, match=r"t-0 has no offset 50.*deleted.*failOnDataLoss"):
        stream(spark, tmp_path / "checkpoint", options)
    found = stream(spark, tmp_path / "checkpoint", {**options, "failOnDataLoss": "false"})
    assert offsets(found, "t", 0) == list(range(70, 100))


# ---------------------------------------------------------------------- without Spark


def reader_of(logs: Logs, **options: str) -> LogStreamReader:
    given = {"path": str(logs.path), "subscribe": "t", **options}
    return LogStreamReader(given, schema_of(given))


def test_a_stream_begins_with_what_comes_next_by_default(logs: Logs) -> None:
    fill(logs, "t", 0, 5)
    assert reader_of(logs).initialOffset() == {"t": {"0": 5, "1": 0}}
    assert reader_of(logs, startingOffsets="earliest").initialOffset() == {"t": {"0": 0, "1": 0}}
    some = '{"t": {"0": 3, "1": -1}}'
    assert reader_of(logs, startingOffsets=some).initialOffset() == {"t": {"0": 3, "1": 0}}
    for wrong in ('{"t": {"0": 3}}', '{"t": {"0": 3, "1": 0, "2": 0}}', '{"t": {"0": 6, "1": 0}}'):
        with pytest.raises(ReadError, match="startingOffsets"):
            reader_of(logs, startingOffsets=wrong).initialOffset()


def test_a_log_that_was_cut_is_reported(logs: Logs) -> None:
    fill(logs, "t", 0, 5)
    reader = reader_of(logs)
    for ask in (
        lambda: reader.latestOffset({"t": {"0": 9, "1": 0}}, ReadAllAvailable()),
        lambda: reader.partitions({"t": {"0": 2, "1": 0}}, {"t": {"0": 9, "1": 0}}),
    ):
        with pytest.raises(ReadError, match=r"cut or recreated.* new checkpoint") as refused:
            ask()
        assert "failOnDataLoss" not in str(refused.value)  # the sink would refuse what follows
    with pytest.raises(ReadError, match="failOnDataLoss"):
        reader.partitions({"gone": {"0": 2}}, {"gone": {"0": 9}})
    losing = reader_of(logs, failOnDataLoss="false")
    start = {"t": {"0": 9, "1": 0}}
    assert losing.latestOffset(start, ReadAllAvailable()) == {"t": {"0": 5, "1": 0}}


@pytest.mark.parametrize("available_now", [False, True])
def test_a_deleted_topic_of_a_pattern_is_a_loss(
    logs: Logs, available_now: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def asked(**options: str) -> Any:
        given = {"path": str(logs.path), "subscribePattern": "t|gone", **options}
        reader = LogStreamReader(given, schema_of(given))
        if available_now:
            reader.prepareForTriggerAvailableNow()
        for _ in range(3):
            found = reader.latestOffset(start, ReadAllAvailable())
        return found

    fill(logs, "t", 0, 5)
    start = {"t": {"0": 2, "1": 0}, "gone": {"0": 2}}
    with pytest.raises(ReadError, match=r"gone-0 is gone.*unread records.*failOnDataLoss"):
        asked()
    # A new topic of the name must not begin where the old one ended, so its offset is kept.
    assert asked(failOnDataLoss="false") == {"t": {"0": 5, "1": 0}, "gone": {"0": 2}}
    assert caplog.text.count("gone-0 is gone") == 1


def test_a_topic_that_is_deleted_during_a_query_of_what_is_there_is_a_loss(logs: Logs) -> None:
    new = logs.topic("new")
    fill(logs, "new", 0, 3)
    given = {"path": str(logs.path), "subscribePattern": "t|new"}
    reader = LogStreamReader(given, schema_of(given))
    reader.prepareForTriggerAvailableNow()
    logs.folder.delete_topic(new)
    with pytest.raises(ReadError, match="new-0 is gone"):
        reader.latestOffset({"t": {"0": 0, "1": 0}}, ReadAllAvailable())


def test_a_checkpoint_contains_durable_offsets_only(logs: Logs) -> None:
    fill(logs, "t", 0, 5)
    DurableMark(RealFiles(), logs.path / "logs" / "t-0").write(3)
    start = {"t": {"0": 0, "1": 0}}
    assert reader_of(logs).latestOffset(start, ReadAllAvailable()) == {"t": {"0": 3, "1": 0}}


def test_limits_are_what_spark_asks_for(logs: Logs) -> None:
    fill(logs, "t", 0, 30)
    fill(logs, "t", 1, 10)
    assert reader_of(logs).getDefaultReadLimit() == ReadAllAvailable()
    reader = reader_of(logs, maxOffsetsPerTrigger="8")
    assert reader.getDefaultReadLimit() == ReadMaxRows(8)
    start = {"t": {"0": 0, "1": 0}}
    assert reader.latestOffset(start, ReadMaxRows(8)) == {"t": {"0": 6, "1": 2}}
    assert reader.reportLatestOffset() == {"t": {"0": 30, "1": 10}}
    reader.prepareForTriggerAvailableNow()
    fill(logs, "t", 0, 5, first=30)
    assert reader.latestOffset(start, ReadAllAvailable()) == {"t": {"0": 30, "1": 10}}
    end = {"t": {"0": 30, "1": 10}}
    assert reader.latestOffset(end, ReadMaxRows(8)) == end
    (part,) = [task.value for task in reader.partitions({"t": {"0": 3, "1": 10}}, end)]
    assert (part.partition, part.start, part.end) == (0, 3, 30)
    assert reader.partitions(end, end) == []
    reader.stop()
