"""`spark.read`: files, our Kafka port and Spark's own connector read the same from a server."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException

from pidlease.core.pid import Policy, make_pid
from pidlease.spark.reader.log_directory import segment_batches
from pidlease.spark.reader.log_parts import StoredBatch
from pidlease.spark.source.batch_reader import LogReader
from pidlease.spark.source.settings import schema_of
from tests.servers.pidlease import PidleaseServer
from tests.spark.audit.logs import Logs, Origin, encoded
from tests.spark.source.conftest import RECORDS, logs_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = [
    "topic", "partition", "offset", "key", "value", "timestamp", "timestampType", "headers",
]  # fmt: skip
NUMBERS = ["pid", "generation", "sequence"]
LEASED = 600
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def read(spark: "SparkSession", server: PidleaseServer, way: str, **options: str) -> "DataFrame":
    """Topic t, by its files or by the port."""
    given = {"subscribe": "t", **options}
    reader = spark.read.format("pidlease").options(**given)
    if way == "files":
        return reader.load(str(server.data_dir))
    return reader.option("kafka.bootstrap.servers", server.bootstrap).load()


def rows(found: "DataFrame", columns: list[str]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in found.select(*columns).collect()), key=lambda row: row[:3])


def test_files_port_and_sparks_own_connector_read_the_same(
    spark: "SparkSession", live: PidleaseServer
) -> None:
    by_files = rows(read(spark, live, "files", includeHeaders="true"), [*COLUMNS, *NUMBERS])
    by_port = rows(read(spark, live, "port", includeHeaders="true"), [*COLUMNS, *NUMBERS])
    own = spark.read.format("kafka").options(
        **{"kafka.bootstrap.servers": live.bootstrap, "subscribe": "t", "includeHeaders": "true"}
    )
    assert len(by_files) == 2 * RECORDS + LEASED
    assert by_files == by_port
    expected = [
        (*row[:-1], [each for each in row[-1] or () if each[0] != "pidlease"] or None)
        for row in rows(own.load(), COLUMNS)
    ]
    assert [row[: len(COLUMNS)] for row in by_files] == expected


def test_sends_are_the_same_by_files_and_by_port(
    spark: "SparkSession", live: PidleaseServer
) -> None:
    columns = [
        name
        for name in schema_of({"rows": "sends"}).names
        if name not in ("position", "segment", "begins", "read_from") and "previous" not in name
    ]
    by_files = read(spark, live, "files", rows="sends")
    assert rows(by_files, columns) == rows(read(spark, live, "port", rows="sends"), columns)
    total = by_files.selectExpr("sum(records)", "count(damage)", "sum(bytes)").collect()[0]
    size = sum(path.stat().st_size for path in logs_of(live, "t"))
    assert tuple(total) == (2 * RECORDS + LEASED, 0, size)


def test_numbers_of_leased_and_kafka_producers_are_dense(
    spark: "SparkSession", live: PidleaseServer
) -> None:
    found = read(spark, live, "files").where("pid is not null").groupBy("pid", "partition")
    dense = found.agg({"sequence": "max", "*": "count"}).collect()
    policies = {row["pid"] >> 48 for row in dense}
    assert policies == {int(Policy.STRICT), int(Policy.KAFKA)}
    assert all(row["max(sequence)"] + 1 == row["count(1)"] for row in dense)


# ---------------------------------------------------------------------- what is not read


def bytes_of(server: PidleaseServer, **options: str) -> int:
    """The bytes of the batches that a table of topic t reads."""
    given = {"path": str(server.data_dir), "subscribe": "t", **options}
    tasks = LogReader(given, schema_of(given)).partitions()
    found = [batch for task in tasks for batch in segment_batches(task.value)]
    return sum(len(batch.data) for batch in found if isinstance(batch, StoredBatch))


def test_segments_without_the_offsets_asked_for_are_not_read(live: PidleaseServer) -> None:
    whole = bytes_of(live)
    one = bytes_of(live, subscribe="", assign='{"t": [1]}')
    assert 0 < one < whole / 2
    some = bytes_of(live, subscribe="", assign='{"t": [1]}', startingOffsets='{"t": {"1": 300}}',
                    endingOffsets='{"t": {"1": 400}}')  # fmt: skip
    assert 0 < some < one / 2


@pytest.mark.parametrize("pushed", ["false", "true"])
@pytest.mark.parametrize("way", ["files", "port"])
def test_the_filter_of_a_query_leaves_nothing_out_of_the_next(
    spark: "SparkSession", live: PidleaseServer, way: str, pushed: str
) -> None:
    spark.conf.set(PUSHDOWN, pushed)
    try:
        for kind in ("records", "sends"):
            table = read(spark, live, way, rows=kind)
            offsets = [(row.partition, row.offset) for row in table.collect()]
            some = table.where("partition = 1 and offset > 100 and offset <= 250")
            expected = [each for each in offsets if each[0] == 1 and 100 < each[1] <= 250]
            assert expected
            assert sorted((row.partition, row.offset) for row in some.collect()) == sorted(expected)
            assert table.count() == len(offsets)
            both = table.where("partition = 0").union(table.where("topic = 't' and partition > 0"))
            assert both.count() == len(offsets)
    finally:
        spark.conf.unset(PUSHDOWN)


def test_a_table_stays_as_it_was_when_it_was_first_read(
    spark: "SparkSession", tmp_path: Path
) -> None:
    pid = make_pid(Policy.KAFKA, 3)
    with Logs(tmp_path / "data") as logs:
        logs.topic("t")
        logs.append("t", 0, [encoded(Origin(pid), 0, 0, 10)])
        source = spark.read.format("pidlease").option("subscribe", "t")
        table = source.load(str(logs.path))
        assert table.count() == 10
        logs.append("t", 0, [encoded(Origin(pid), 0, 10, 10)])
        assert table.count() == 10
        assert source.load(str(logs.path)).count() == 20


@pytest.mark.parametrize("way", ["files", "port"])
def test_offsets_are_chosen_as_in_sparks_kafka_source(
    spark: "SparkSession", live: PidleaseServer, way: str
) -> None:
    found = read(
        spark, live, way, subscribe="", assign='{"t": [0, 2]}',
        startingOffsets='{"t": {"0": 10, "2": -2}}', endingOffsets='{"t": {"0": 20, "2": 5}}',
    )  # fmt: skip
    expected = [("t", 0, n) for n in range(10, 20)] + [("t", 2, n) for n in range(5)]
    assert rows(found, COLUMNS[:3]) == expected
    for pattern, topics in (("th", {"other"}), ("t", {"t", "other"}), ("^t$", {"t"})):
        given = {"subscribePattern": pattern, "kafka.bootstrap.servers": live.bootstrap}
        own = spark.read.format("kafka").options(**given).load()
        found = read(spark, live, way, subscribe="", subscribePattern=pattern)
        for table in (own, found):
            assert {row.topic for row in table.select("topic").distinct().collect()} == topics


# ---------------------------------------------------------------------- what is deleted


def test_deleted_records_are_gone_both_ways(spark: "SparkSession", tmp_path: Path) -> None:
    with PidleaseServer(tmp_path) as server:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": server.bootstrap})
        for number in range(100):
            producer.produce("t", b"%d" % number, partition=0)
        producer.flush()
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        for future in admin.delete_records([TopicPartition("t", 0, 42)]).values():
            future.result()
        for way in ("files", "port"):
            found = read(spark, server, way).where("partition = 0").collect()
            assert sorted(row.offset for row in found) == list(range(42, 100))
            before = {"startingOffsets": '{"t": {"0": 41}}', "assign": '{"t": [0]}',
                      "subscribe": ""}  # fmt: skip
            with pytest.raises(PySparkException, match="t-0 has no offset 41"):
                read(spark, server, way, **before).collect()
            left = read(spark, server, way, **before, failOnDataLoss="false")
            assert left.count() == 58


def test_damage_ends_a_job_unless_it_is_to_be_left_out(
    spark: "SparkSession", tmp_path: Path
) -> None:
    pid = make_pid(Policy.KAFKA, 3)
    with Logs(tmp_path / "data") as logs:
        logs.topic("t")
        logs.append("t", 0, [encoded(Origin(pid), 0, 10 * n, 10) for n in range(5)])
    (path,) = logs.segments("t")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    source = spark.read.format("pidlease").option("subscribe", "t")
    with pytest.raises(PySparkException, match=r"t-0, offset 20, byte \d+ of .*log cannot be read"):
        source.load(str(logs.path)).collect()
    left = source.option("failOnDataLoss", "FALSE").load(str(logs.path))
    assert {row.offset for row in left.collect()} == {*range(20), *range(30, 50)}
    damage = source.option("rows", "sends").load(str(logs.path)).where("damage is not null")
    assert [row.offset for row in damage.collect()] == [20]


def test_clear_words_for_what_is_not_there(spark: "SparkSession", tmp_path: Path) -> None:
    source = spark.read.format("pidlease").option("subscribe", "t")
    with pytest.raises(PySparkException, match="does not exist, or is no directory"):
        source.load(str(tmp_path / "nowhere")).collect()
    away = source.options(**{"kafka.bootstrap.servers": "127.0.0.1:1", "timeoutSeconds": "1"})
    with pytest.raises(PySparkException, match=r"127\.0\.0\.1:1 cannot be reached"):
        away.load().collect()
    wrong = spark.read.format("pidlease").option("row", "sends")
    with pytest.raises(PySparkException, match="no option row; is rows meant"):
        wrong.load(str(tmp_path)).collect()
    source = spark.read.format("pidlease").option("subscribe", "t")
    with Logs(tmp_path / "data") as logs:
        logs.topic("u")
    with pytest.raises(PySparkException, match="there is no topic t"):
        source.load(str(logs.path)).collect()
    with Logs(tmp_path / "empty") as logs:
        logs.topic("t")
    assert source.load(str(logs.path)).collect() == []
