"""Queries with the sink, in the tests' own session."""

import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from tests.copier.sides import make_topic
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pidlease.spark.topic_copy import SourceName

#: Between Spark's processes there are buffers of 64 KiB.
_PADDING = b"x" * 400
_APPENDED = "pidlease_appended_records_total"

Transform = Callable[["DataFrame"], "DataFrame"]


def fill(source: KafkaServer, topic: str, count: int, partitions: int = 4) -> None:
    """Create a topic with so many records."""
    make_topic(source.bootstrap, topic, partitions)
    more(source, topic, 0, count, partitions)


def more(source: KafkaServer, topic: str, first: int, count: int, partitions: int = 4) -> None:
    """Add so many records."""
    producer = Producer({"bootstrap.servers": source.bootstrap, "linger.ms": 20})
    for number in range(first, first + count):
        producer.produce(
            topic, b"value-%d-" % number + _PADDING, b"key-%d" % (number % 97), number % partitions,
            headers=[("n", b"%d" % number)] * (number % 2),
        )  # fmt: skip
        producer.poll(0)
    producer.flush()


@dataclass
class Copying:
    """A copy of a topic, which may be started repeatedly."""

    spark: "SparkSession"
    source: KafkaServer
    server: PidleaseServer
    topic: str
    checkpoint: Path
    options: dict[str, str] = field(default_factory=dict)
    source_options: dict[str, str] = field(default_factory=dict)
    source_format: "SourceName" = "kafka"

    @property
    def destination(self) -> dict[str, str]:
        """The sink's options."""
        return {
            "kafka.bootstrap.servers": self.server.bootstrap,
            "leases": self.server.http_url,
            "topic": "{topic}.copy",
            "checkpointLocation": str(self.checkpoint),
            **self.options,
        }

    @property
    def reading(self) -> dict[str, str]:
        """The source's options."""
        return {
            "kafka.bootstrap.servers": self.source.bootstrap,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            **self.source_options,
        }

    def start(self, transform: Transform | None = None) -> "StreamingQuery":
        """Start the query; it ends when all is copied."""
        from pidlease.spark.topic_copy import copy

        trigger: Mapping[str, Any] = {"availableNow": True}
        return copy(
            self.spark, self.reading, self.destination, source_format=self.source_format,
            transform=transform, trigger=trigger,
        )  # fmt: skip

    def run(self, transform: Transform | None = None) -> None:
        """Copy all there is."""
        query = self.start(transform)
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def state(self) -> Any:
        """Return the sink's newest state."""
        from pidlease.spark.sink.run_state import RunStore

        return RunStore(self.checkpoint / "pidlease").before()[0]


def failing(
    marks: Path, offset: int, attempts: int, server: PidleaseServer, *, looked_at: bool = False
) -> Transform:
    """Fail the first attempts of tasks when they pass an offset, and leave a mark for each.

    A task fails only after the destination has stored some of its rows.

    Parameters:
        marks: the folder of the marks.
        attempts: how many fail.
        server: the destination.
        looked_at: whether the query is run once before it is written, as tables are.
    """
    looks = marks.with_name(f"{marks.name}-looks")
    url, before = f"{server.http_url}/metrics", server.metric(_APPENDED)

    def arrived() -> bool:
        with urllib.request.urlopen(url, timeout=WAIT_S) as response:
            lines = response.read().decode().splitlines()
        return any(float(each.split()[1]) > before for each in lines if each.startswith(_APPENDED))

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        look = looks / str(context.partitionId())
        armed = look.exists() or not looked_at
        for batch in batches:
            passed = batch.num_rows and pc.max(batch.column("offset")).as_py() >= offset
            if armed and passed and context.attemptNumber() < attempts:
                mark = marks / f"{context.taskAttemptId()}"
                mark.parent.mkdir(parents=True, exist_ok=True)
                mark.touch()
                until(arrived, "what came before to arrive", within_s=60)
                raise RuntimeError("a fault of the test's")
            yield batch
        looks.mkdir(parents=True, exist_ok=True)
        look.touch()

    return lambda frame: frame.mapInArrow(each, frame.schema)
