"""What the sink refuses, and its errors."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from tests.copier.sides import check_same, read_all
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S, until
from tests.spark.sink.queries import Copying, fill
from tests.spark.soak import in_the_soak

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

COUNT = 400
TOPIC = "refusals"


@pytest.fixture(scope="module")
def filled(kafka_source: KafkaServer) -> str:
    """A topic of the source."""
    fill(kafka_source, TOPIC, COUNT)
    return TOPIC


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PidleaseServer]:
    """A server for all."""
    with PidleaseServer(tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest.fixture
def copying(
    spark: "SparkSession",
    kafka_source: KafkaServer,
    shared: PidleaseServer,
    filled: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Copying:
    """A copy to its own topic, not started yet."""
    options = {"topic": f"copy-{abs(hash(request.node.name))}"}
    return Copying(spark, kafka_source, shared, filled, tmp_path / "checkpoint", options)


def refused(action: Callable[[], object]) -> str:
    """Return the error of a query, in the driver or in a task."""
    from pidlease.spark.errors import text_of

    with pytest.raises(Exception) as caught:  # noqa: PT011 - the text is looked at
        action()
    return text_of(caught.value)


TRANSFORMS: "dict[str, tuple[Callable[[DataFrame], DataFrame], str]]" = {
    "repartition": (lambda frame: frame.repartition(4), "Repartition stands between"),
    "coalesce": (lambda frame: frame.coalesce(1), "Repartition stands between"),
    "by key": (lambda frame: frame.repartition("key"), "RepartitionByExpression stands between"),
    "distinct": (lambda frame: frame.dropDuplicates(["key"]), "Deduplicate stands between"),
    "union": (lambda frame: frame.union(frame), "Union stands between"),
    "grouped": (
        lambda f: f.groupBy("topic", "partition", "offset").agg({"value": "max"}),
        "Aggregate stands between",
    ),
    "a random part": (lambda frame: frame.where("rand() < 0.5"), "is not deterministic"),
    "another query": (
        lambda frame: frame.where("offset in (select id from range(9))"),
        "has a subquery",
    ),
    "a topic beside": (
        lambda frame: frame.selectExpr(
            "topic as source_topic",
            "partition as source_partition",
            "offset as source_offset",
            "value",
            "topic",
        ),
        "column topic is not used",
    ),
    "other headers": (
        lambda frame: frame.drop("headers").selectExpr("*", "array('a') as headers"),
        "it must be array<struct<key:string,value:binary>>",
    ),
    "no coordinates": (lambda frame: frame.select("key", "value"), "no topic, partition, offset"),
    "half of them": (
        lambda frame: frame.selectExpr("value", "topic as source_topic"),
        "no column source_partition, source_offset",
    ),
    "no value": (lambda frame: frame.drop("value"), "no column value"),
    "wrong type": (
        lambda f: f.selectExpr("*", "1 as x").withColumn("value", f["offset"]),
        "value is",
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_where_identity_cannot_be_kept(copying: Copying, name: str) -> None:
    """The error names the cause."""
    transform, text = TRANSFORMS[name]
    found = refused(lambda: copying.start(transform))
    if name == "grouped":
        assert "no column value" in found or text in found
    else:
        assert text in found
    assert not copying.checkpoint.exists()  # nothing was begun


@pytest.mark.parametrize("option", ["minPartitions", "maxRecordsPerPartition"])
def test_partitions_that_tasks_share(copying: Copying, option: str) -> None:
    """The error names the source's option."""
    copying.source_options = {option: "10"}
    assert f"option {option}: several tasks" in refused(copying.start)


def test_kafka_is_no_destination(copying: Copying) -> None:
    """Its records would be stored again by the next attempt of a task."""
    copying.options["kafka.bootstrap.servers"] = copying.source.bootstrap
    assert f"Kafka at {copying.source.bootstrap} is not pidlease" in refused(copying.start)


def test_a_table_with_partitions_that_tasks_share(copying: Copying) -> None:
    """A batch query is counted."""
    from pidlease.spark import exactly_once_table

    read = {**copying.reading, "minPartitions": "10"}
    frame = copying.spark.read.format("kafka").options(**read).load()
    text = refused(lambda: exactly_once_table(frame, copying.destination))
    assert "is read by" in text
    assert "minPartitions" in text


def test_tables_that_would_hide_rows(
    spark: "SparkSession", kafka_source: KafkaServer, server: PidleaseServer, tmp_path: Path,
    filled: str,
) -> None:  # fmt: skip
    """Rows before those that were written, which were no part of them; and another query."""
    from pidlease.spark import exactly_once, exactly_once_table

    server.start()
    copying = Copying(spark, kafka_source, server, filled, tmp_path / "checkpoint")
    read = {**copying.reading, "includeHeaders": "true"}
    frame = spark.read.format("kafka").options(**read).load()
    exactly_once_table(frame.where("offset >= 50"), copying.destination).save()
    assert "50 rows of" in refused(
        lambda: exactly_once_table(frame.where("offset < 60"), copying.destination)
    )
    exactly_once_table(frame.where("offset >= 50"), copying.destination).save()
    assert server.metric("pidlease_appended_records_total") == COUNT // 2
    stream = spark.readStream.format("kafka").options(**read).load()
    assert "another query's (kind: 'table', now 'stream'" in refused(
        lambda: exactly_once(stream, copying.destination)
    )


def test_a_copy_to_itself(copying: Copying) -> None:
    """It would never end."""
    copying.options = {"kafka.bootstrap.servers": copying.source.bootstrap, "topic": "{topic}"}
    assert "are the same cluster" in refused(copying.start)


def test_a_query_with_a_name(copying: Copying) -> None:
    """Spark gives it to the sink as an option."""
    from pidlease.spark import exactly_once

    frame = copying.spark.readStream.format("kafka").options(**copying.reading).load()
    writer = exactly_once(frame, copying.destination).queryName("named").outputMode("append")
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sum(source.sent for source in copying.state().sources.values()) == COUNT


def test_another_source(copying: Copying) -> None:
    """Only offsets of Kafka are the same when a micro-batch is repeated."""
    from pidlease.spark import exactly_once

    rate = copying.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    frame = rate.selectExpr(
        "'t' as topic", "0 as partition", "value as offset", "cast(value as string) as value"
    )
    text = refused(lambda: exactly_once(frame, copying.destination))
    assert "the source is rate-micro-batch" in text


OPTIONS = {
    "a typo": ({"checkpointLocatoin": "x"}, "is checkpointLocation meant?"),
    "a number": ({"maxRowsPerRecord": "0"}, "maxRowsPerRecord is 1 or more, not 0"),
    "a codec": ({"kafka.compression.type": "rar"}, "'rar' is none of none, gzip"),
    "a flag": ({"append": "yes"}, "append is true or false, not 'yes'"),
    "leases": ({"leases": "localhost:1"}, "leases is the URL of the HTTP port"),
    "elsewhere": ({"checkpointLocation": "s3://bucket/x"}, "give stateLocation"),
    "no Kafka listener": (
        {"kafka.bootstrap.servers": "127.0.0.1:1", "deliveryTimeoutMs": "1500"},
        "the destination cannot be reached",
    ),
    "no HTTP listener": (
        {"leases": "http://127.0.0.1:1", "deliveryTimeoutMs": "1500"},
        "is option leases the URL",
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(copying: Copying, name: str) -> None:
    """The error says what is valid."""
    options, text = OPTIONS[name]
    copying.options |= options

    def run() -> None:
        copying.run()

    assert text in refused(run)


@in_the_soak
def test_rows_that_do_not_fit(copying: Copying) -> None:
    """A task reports its invalid rows, and stores none of them."""
    copying.topic = "one-partition"
    fill(copying.source, copying.topic, 100, partitions=1)
    wrong: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
        "too many": (
            lambda frame: frame.selectExpr("*", "explode(array(1, 2)) as copy_number"),
            "became 2 rows or more; give option maxRowsPerRecord",
        ),
        "backwards": (
            lambda frame: frame.withColumn("offset", 1000 - frame["offset"]),
            "comes after a later one",
        ),
        "elsewhere": (
            lambda frame: frame.withColumn("offset", frame["offset"] + 10**9),
            "are not within the micro-batch",
        ),
        "mixed": (
            lambda frame: frame.withColumn("partition", frame["offset"].cast("int") % 2),
            "a task has rows of",
        ),
        "nowhere": (
            lambda frame: frame.selectExpr(
                "topic as source_topic", "partition as source_partition",
                "offset as source_offset", "7 as partition", "value",
            ),
            "which did not exist when the query was started",
        ),
    }  # fmt: skip
    from pidlease.spark.errors import text_of

    for name, (transform, text) in wrong.items():
        copying.checkpoint = copying.checkpoint.with_name(name)
        copying.options["topic"] = f"wrong-{name.replace(' ', '-')}"
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the text is looked at
            copying.run(transform)
        assert text in text_of(caught.value), name
    assert not any(read_all(copying.server.bootstrap, "wrong-backwards", 1).values())


def test_checkpoints_that_do_not_fit(
    spark: "SparkSession", kafka_source: KafkaServer, server: PidleaseServer, tmp_path: Path,
    filled: str,
) -> None:  # fmt: skip
    """Deleted, of another copy, without the sink's part, damaged, and ahead of the destination."""
    server.start()
    copying = Copying(spark, kafka_source, server, filled, tmp_path / "one")
    copying.run()
    assert check_same(kafka_source, filled, server, f"{filled}.copy") == COUNT

    copying.checkpoint = tmp_path / "deleted"
    with pytest.raises(Exception, match="has records that this checkpoint does not know"):
        copying.run()
    copying.checkpoint = tmp_path / "one"
    copying.options = {"topic": "another"}
    assert "the checkpoint is another query's (topic: '{topic}.copy', now 'another'" in refused(
        copying.start
    )
    copying.options = {}
    shutil.copytree(tmp_path / "one", tmp_path / "bare")
    shutil.rmtree(tmp_path / "bare" / "pidlease")
    copying.checkpoint = tmp_path / "bare"
    assert "is at micro-batch 0, and the sink's state at -1" in refused(copying.start)
    shutil.copytree(tmp_path / "one", tmp_path / "damaged")
    for path in (tmp_path / "damaged" / "pidlease").glob("*/state"):
        path.write_bytes(path.read_bytes().replace(b'"sent":', b'"sant":'))
    copying.checkpoint = tmp_path / "damaged"
    assert "is damaged; take the file from a backup" in refused(copying.start)

    copying.checkpoint = tmp_path / "one"
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    copy = f"{filled}.copy"
    admin.delete_topics([copy])[copy].result(WAIT_S)
    until(lambda: copy not in admin.list_topics(timeout=WAIT_S).topics, "the topic to be gone")
    from confluent_kafka.cimpl import NewTopic

    admin.create_topics([NewTopic(copy, 4, 1)])[copy].result(WAIT_S)
    assert "the checkpoint is ahead of the destination" in refused(copying.start)
