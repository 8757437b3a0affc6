"""`df.writeStream.format("pidlease")`, which prepares its run itself."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock
from urllib.request import urlopen

import pytest

pytest.importorskip("pyspark")

from pidlease.spark.errors import SinkError, SinkFencedError, text_of
from pidlease.spark.sink.start_note import StartNote, StartNotes
from tests.copier.sides import check_same
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S, until
from tests.spark.sink.queries import Copying, Transform, failing, fill, more

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

COUNT = 8_000


def run(copying: Copying, transform: Transform | None = None) -> None:
    """Copy all there is, by a query as every user of Spark writes one."""
    read = {**copying.reading, "includeHeaders": "true"}
    frame = copying.spark.readStream.format(copying.source_format).options(**read).load()
    frame = frame if transform is None else transform(frame)
    writer = frame.writeStream.format("pidlease").options(**copying.destination)
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def generations(copying: Copying) -> list[int]:
    """The generations of the newest run, by source partition."""
    return [source.generation for _, source in sorted(copying.state().sources.items())]


def test_each_start_is_a_run(
    spark: "SparkSession", kafka_source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    """Several micro-batches are one run; tasks fail, the query fails, and is started again."""
    server.start()
    fill(kafka_source, "plain", COUNT)
    copying = Copying(
        spark, kafka_source, server, "plain", tmp_path / "checkpoint",
        source_options={"maxOffsetsPerTrigger": "6000"},
    )  # fmt: skip
    with pytest.raises(Exception, match="a fault of the test"):
        run(copying, failing(tmp_path / "all", COUNT // 8, attempts=2, server=server))
    assert list((tmp_path / "all").iterdir())
    assert server.metric("pidlease_appended_records_total") > 0
    assert copying.state().batch == -1
    run(copying)
    assert copying.state().batch >= 1
    before = generations(copying)
    more(kafka_source, "plain", COUNT, 500)
    run(copying)
    assert generations(copying) == [each + 1 for each in before]
    assert len(list((copying.checkpoint / "pidlease").iterdir())) == 3
    more(kafka_source, "plain", COUNT + 500, 100)
    copying.run()  # the same checkpoint, prepared in the application
    assert check_same(kafka_source, "plain", server, "plain.copy") == COUNT + 600
    sources = copying.state().sources.values()
    assert sum(each.sent for each in sources) == COUNT + 600
    assert sum(each.duplicates for each in sources) > 0


def test_the_console_shows_it(
    spark: "SparkSession", kafka_source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    """Progress, lag, and how each run ended."""
    server.start()
    fill(kafka_source, "shown", COUNT)
    copying = Copying(
        spark, kafka_source, server, "shown", tmp_path / "checkpoint",
        source_options={"maxOffsetsPerTrigger": "3000"},
    )  # fmt: skip
    with pytest.raises(Exception, match="a fault of the test"):
        run(copying, failing(tmp_path / "all", 500, attempts=2, server=server))
    until(lambda: [each["state"] for each in jobs(server)] == ["failed"], "the failure")
    (failed,) = jobs(server)
    assert "a fault of the test" in failed["processes"][0]["reason"]
    run(copying)
    until(lambda: jobs(server)[0]["state"] == "ended", "the end")
    (job,) = jobs(server)
    assert (job["kind"], job["lag"], len(job["processes"])) == ("spark", 0, 2)
    last, first = job["processes"]
    assert first["records"] + last["records"] == COUNT
    assert last["partitions"] == 4
    assert "shown" in last["source"]
    assert last["step_seconds"] > 0


def jobs(server: PidleaseServer) -> list[dict[str, Any]]:
    """What the server's console shows."""
    with urlopen(f"http://{server.http_address}/v1/jobs", timeout=WAIT_S) as answer:
        return json.load(answer)["jobs"]  # type: ignore[no-any-return]


REFUSED: "dict[str, tuple[Callable[[DataFrame], DataFrame], str]]" = {
    "a shuffle": (lambda frame: frame.repartition(4), "Repartition stands between"),
    "no coordinates": (lambda frame: frame.select("value"), "no topic, partition, offset"),
}


def test_where_it_cannot_be_exact(
    spark: "SparkSession", kafka_source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    """The first micro-batch fails, and the error names the cause; nothing is written."""
    server.start()
    fill(kafka_source, "inexact", 40)
    for name, (transform, text) in REFUSED.items():
        copying = Copying(spark, kafka_source, server, "inexact", tmp_path / name)
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the text is looked at
            run(copying, transform)
        assert text in text_of(caught.value), name
    options = {"minPartitions": "10"}
    copying = Copying(spark, kafka_source, server, "inexact", tmp_path / "split", {}, options)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the text is looked at
        run(copying)
    assert "option minPartitions: several tasks" in text_of(caught.value)
    frame = spark.read.format("kafka").options(**copying.reading).load()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the text is looked at
        frame.write.format("pidlease").mode("append").options(**copying.destination).save()
    assert "exactly_once_table(df, options).save()" in text_of(caught.value)
    assert server.metric("pidlease_appended_records_total") == 0


def test_other_sinks_are_left_alone(spark: "SparkSession") -> None:
    """A function and files have no name that Spark can tell; the listener says nothing about it."""
    from pidlease.spark.query_starts import _sink_name

    query = (
        spark.readStream.format("rate").load()
        .writeStream.foreachBatch(lambda *_: None).trigger(processingTime="1 hour").start()
    )  # fmt: skip
    try:
        execution = spark.streams._jsqm.get(query.id).streamingQuery()
        assert _sink_name(execution) == ""
    finally:
        query.stop()


def test_a_start_that_no_listener_saw(
    spark: "SparkSession", kafka_source: KafkaServer, server: PidleaseServer, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The query is refused: nobody has looked at its plan."""
    from pidlease.spark import query_starts

    looked: list[object] = []

    def fail(*what: object) -> None:
        looked.append(what)
        raise RuntimeError("a fault of the test's")

    server.start()
    fill(kafka_source, "unseen", 40)
    monkeypatch.setattr(query_starts, "_execution", fail)
    copying = Copying(spark, kafka_source, server, "unseen", tmp_path / "checkpoint")
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the text is looked at
        run(copying)
    assert looked
    assert "Call pidlease.spark.register(spark) once" in text_of(caught.value)
    # As if a listener had seen an earlier start of this query only.
    folders = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get()  # type: ignore[union-attr]
    folder = Path(folders.blockManager().diskBlockManager().localDirsString()[0])
    query = json.loads((copying.checkpoint / "metadata").read_text())["id"]
    StartNotes(folder).write(query, StartNote("an-earlier-start"))
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the text is looked at
        run(copying)
    assert "the application saw the start an-earlier-start" in text_of(caught.value)
    assert server.metric("pidlease_appended_records_total") == 0


@pytest.mark.parametrize(
    ("execution", "trigger"),
    [
        ("ContinuousExecution", "ContinuousTrigger"),
        ("AsyncProgressTrackingMicroBatchExecution", "ProcessingTimeTrigger"),
        ("MicroBatchExecution", "RealTimeTrigger"),
    ],
)
def test_offsets_that_are_not_saved_first(execution: str, trigger: str) -> None:
    """Such a query cannot be repeated from its checkpoint."""
    from pidlease.spark.query_starts import problem_of

    java = Mock()
    java.getClass.return_value.getSimpleName.return_value = execution
    java.trigger.return_value.getClass.return_value.getSimpleName.return_value = trigger
    assert f"the query runs as {execution} with {trigger}" in problem_of(java)


def test_notes(tmp_path: Path) -> None:
    """Replaced as a whole; missing and damaged ones are refused."""
    notes = StartNotes.of_worker({"SPARK_LOCAL_DIRS": f"{tmp_path},{tmp_path}/other"})
    note = StartNote("spark-run", "a problem", fenced=True, run="run-000001")
    with pytest.raises(SinkError, match=r"Call pidlease\.spark\.register"):
        notes.read("query")
    notes.write("query", StartNote("before"))
    notes.write("query", note)
    assert StartNotes(tmp_path).read("query") == note
    (path,) = (tmp_path / "pidlease-starts").iterdir()
    path.write_text("{")
    with pytest.raises(SinkError, match="cannot be read"):
        notes.read("query")
    with pytest.raises(SinkError, match="SPARK_LOCAL_DIRS"):
        StartNotes.of_worker({})


def test_a_run_begins_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark makes the sink twice for each micro-batch, and once more to abort it."""
    from pyspark.sql.types import StructType

    from pidlease.spark.sink import sink_writer

    begun: list[str] = []

    def begin(*_: object) -> str:
        begun.append(f"run-{len(begun)}")
        raise SinkFencedError("somebody else begins")

    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "metadata").write_text('{"id": "query"}')
    schema = StructType().add("topic", "string").add("partition", "integer")
    schema = schema.add("offset", "long").add("value", "binary")
    monkeypatch.setitem(os.environ, "SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(sink_writer, "begin_stream_run", begin)
    StartNotes(tmp_path).write("query", StartNote("spark-run"))
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "leases": "http://127.0.0.1:1",
               "checkpointLocation": str(checkpoint)}  # fmt: skip
    for _ in range(3):
        with pytest.raises(SinkFencedError, match="somebody else begins"):
            sink_writer.StreamSink(options, schema).commit([], 0)
    assert len(begun) == 1
