"""Copies by Spark over failed tasks, restarts, missing offsets, ended leases; each is read back."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined] # its stubs export too little
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.copier.holes import topic_with_gaps
from tests.copier.sides import check_same, make_topic, read_all
from tests.crash.seeds import SOAK, new_random
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S, until
from tests.spark.sink.queries import Copying, failing, fill, more
from tests.spark.soak import in_the_soak

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

COUNT = 8_000
_ARROW_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
#: Some micro-batches; nothing that is sensible.
LEASE_S = 12
RESTARTS = 8


@pytest.mark.parametrize("where", ["server", "in_front"] if SOAK else ["in_front"])
def test_tasks_that_fail_are_tried_again(
    where: str,
    request: pytest.FixtureRequest,
    spark: "SparkSession",
    kafka_source: KafkaServer,
    tmp_path: Path,
) -> None:
    """Rows of a failed attempt are stored once; so are those of a query that is restarted."""
    server: PidleaseServer = request.getfixturevalue(where)
    server.start()
    topic = f"attempts-{where}"
    fill(kafka_source, topic, COUNT)
    copying = Copying(spark, kafka_source, server, topic, tmp_path / "checkpoint")
    with pytest.raises(Exception, match="a fault of the test"):
        copying.run(failing(tmp_path / "all", COUNT // 8, attempts=2, server=server))
    assert server.metric("pidlease_appended_records_total") > 0
    assert copying.state().batch == -1
    copying.run(failing(tmp_path / "first", COUNT // 5, attempts=1, server=server))
    assert len(list((tmp_path / "first").iterdir())) >= 1
    assert check_same(kafka_source, topic, server, f"{topic}.copy") == COUNT
    sources = copying.state().sources.values()
    assert sum(each.sent for each in sources) == COUNT
    assert sum(each.duplicates for each in sources) > 0


def test_what_compaction_and_transactions_leave(
    spark: "SparkSession", kafka_source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    """Missing offsets, in several micro-batches."""
    topic = "spark-holes"
    topic_with_gaps(kafka_source, topic, new_random("holes"))
    compact_no_more(kafka_source, topic)
    server.start()
    limit = {"maxOffsetsPerTrigger": "700"}
    copying = Copying(
        spark, kafka_source, server, topic, tmp_path / "checkpoint", source_options=limit
    )
    copying.run()
    assert copying.state().batch >= 1
    assert check_same(kafka_source, topic, server, f"{topic}.copy") > 0


def compact_no_more(source: KafkaServer, topic: str) -> None:
    """Stop compaction: both sides are read at different times."""
    settings = {"cleanup.policy": "delete", "retention.ms": "-1"}
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": source.bootstrap})
    admin.incremental_alter_configs([wanted])[wanted].result(WAIT_S)
    before = read_all(source.bootstrap, topic)

    def rests() -> bool:
        nonlocal before
        time.sleep(1)  # a cleaner that is at work now ends within it
        last, before = before, read_all(source.bootstrap, topic)
        return last == before

    until(rests, "the end of compaction")


def test_rows_are_dropped_and_multiplied(
    spark: "SparkSession", kafka_source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    """Rows name their partition; the query fails, and is restarted."""
    server.start()
    fill(kafka_source, "rows", COUNT)
    make_topic(server.bootstrap, "rows.copy", 3)
    copying = Copying(
        spark, kafka_source, server, "rows", tmp_path / "checkpoint",
        options={"maxRowsPerRecord": "3"}, source_options={"maxOffsetsPerTrigger": "3000"},
    )  # fmt: skip

    def changed(frame: "DataFrame") -> "DataFrame":
        return frame.where("cast(key as string) not in ('key-1', 'key-50')").selectExpr(
            "topic as source_topic", "partition as source_partition", "offset as source_offset",
            "timestamp", "key", "explode(array(0, 1, 2)) as copy_number",
            "concat(value, cast(concat('/', copy_number) as binary)) as value",
            "pmod(hash(key, copy_number), 3) as partition",
        )  # fmt: skip

    def broken(frame: "DataFrame") -> "DataFrame":
        return changed(failing(tmp_path / "marks", COUNT // 7, attempts=2, server=server)(frame))

    with pytest.raises(Exception, match="a fault of the test"):
        copying.run(broken)
    assert list((tmp_path / "marks").iterdir())
    copying.run(changed)
    expected = sorted(
        b"%s/%d" % (row.value or b"", number)
        for rows in read_all(kafka_source.bootstrap, "rows").values()
        for row in rows
        for number in range(3)
        if row.key not in (b"key-1", b"key-50")
    )
    found = read_all(server.bootstrap, "rows.copy", 3)
    assert sorted(row.value or b"" for rows in found.values() for row in rows) == expected
    assert all(found.values())


@in_the_soak
def test_a_lease_ends_while_nothing_runs(
    spark: "SparkSession", kafka_source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    """In the middle of a micro-batch: what the log has of the old PIDs is not written again."""
    from pidlease.spark.errors import text_of

    server.settings["lease_seconds"] = str(LEASE_S)
    server.start()
    fill(kafka_source, "leases", COUNT)
    copying = Copying(
        spark, kafka_source, server, "leases", tmp_path / "checkpoint",
        source_options={"maxOffsetsPerTrigger": "4000"},
    )  # fmt: skip
    with pytest.raises(Exception, match=r"a fault of the test|lease"):
        copying.run(failing(tmp_path / "marks", COUNT // 6, attempts=2, server=server))
    assert 0 < server.metric("pidlease_appended_records_total") < COUNT
    before = {source.pid for source in copying.state().sources.values()}
    until(lambda: server.metric("pidlease_lease_ring_used") == 0, "the leases to end")
    for _ in range(RESTARTS):
        try:
            copying.run()
        except Exception as error:
            # On a slow machine a micro-batch takes longer than such a lease.
            if "lease has ended" not in text_of(error):
                raise
        else:
            break
    assert not before & {source.pid for source in copying.state().sources.values()}
    assert check_same(kafka_source, "leases", server, "leases.copy") == COUNT


def test_a_lease_is_about_to_end(
    spark: "SparkSession", kafka_source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    """The next micro-batch goes on under the names' next PIDs; so does a later run."""
    from pidlease.spark import exactly_once
    from pidlease.spark.sink.run_state import RunStore

    server.start()
    fill(kafka_source, "renewed", COUNT)
    copying = Copying(spark, kafka_source, server, "renewed", tmp_path / "checkpoint")
    copying.run()
    more(kafka_source, "renewed", COUNT, 500)
    read = {**copying.reading, "includeHeaders": "true"}
    frame = spark.readStream.format("kafka").options(**read).load()
    writer = exactly_once(frame, copying.destination).trigger(availableNow=True)
    store, state = RunStore(copying.checkpoint / "pidlease"), copying.state()
    now_ms = int(time.time() * 1000)
    late = {
        place: replace(source, granted_ms=now_ms - 10**6, expire_ms=now_ms + 10**4)
        for place, source in state.sources.items()
    }
    (name,) = sorted(each.name for each in (copying.checkpoint / "pidlease").iterdir())[-1:]
    store.write(name, replace(state, sources=late))
    writer.start().awaitTermination()
    renewed = {source.pid for source in copying.state().sources.values()}
    assert not renewed & {source.pid for source in state.sources.values()}
    more(kafka_source, "renewed", COUNT + 500, 500)
    copying.run()
    assert renewed == {source.pid for source in copying.state().sources.values()}
    assert check_same(kafka_source, "renewed", server, "renewed.copy") == COUNT + 1000


@in_the_soak
def test_a_table_is_written_once(
    spark: "SparkSession", kafka_source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    """`df.write`, again after a failure, and again as a whole."""
    from pidlease.spark import exactly_once_table

    server.start()
    count = 5 * COUNT  # between the workers there is room for some 100 KB
    fill(kafka_source, "table", count)
    copying = Copying(spark, kafka_source, server, "table", tmp_path / "checkpoint")
    read = {**copying.reading, "includeHeaders": "true"}
    frame = spark.read.format("kafka").options(**read).load()
    fails = failing(tmp_path / "marks", count // 5, 2, server, looked_at=True)
    # A partition in one Arrow batch would fail as a whole, with nothing before it.
    spark.conf.set(_ARROW_RECORDS, count // 80)
    try:
        with pytest.raises(Exception, match="a fault of the test"):
            exactly_once_table(fails(frame), copying.destination).save()
    finally:
        spark.conf.unset(_ARROW_RECORDS)
    assert list((tmp_path / "marks").iterdir())
    for _ in range(2):
        exactly_once_table(frame, copying.destination).save()
    assert check_same(kafka_source, "table", server, "table.copy") == count


@in_the_soak
def test_our_own_source(
    spark: "SparkSession", kafka_source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    """It needs no connector; the query fails, and is restarted with more records."""
    server.start()
    fill(kafka_source, "own", COUNT)
    copying = Copying(
        spark, kafka_source, server, "own", tmp_path / "checkpoint", source_format="pidlease",
        source_options={"maxOffsetsPerTrigger": "5000"},
    )  # fmt: skip
    with pytest.raises(Exception, match="a fault of the test"):
        copying.run(failing(tmp_path / "marks", COUNT // 6, attempts=2, server=server))
    more(kafka_source, "own", COUNT, 500)
    copying.run()
    assert copying.state().batch >= 1
    assert check_same(kafka_source, "own", server, "own.copy") == COUNT + 500
