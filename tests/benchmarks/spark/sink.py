"""Copies by Spark: our sink, Spark's own through the same proxy, and Spark's own straight to Kafka.

They take turns; each copies the whole topic in micro-batches. The first micro-batch of a turn does
not count: it starts workers and connections.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from tests.benchmarks.scale.figure import Figure
from tests.copier.sides import make_topic
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.spark import session_for_tests

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_PARTITIONS = 4
_BATCHES = 4
_ROUNDS = 3
_POOL = 1024
_THROUGH_MIN, _STRAIGHT_MIN = 0.8, 0.5


@dataclass(frozen=True)
class _Load:
    name: str
    records: int
    record_bytes: int


_LOADS = (_Load("100 B", 800_000, 100), _Load("1 KB", 160_000, 1_000))


class _Turns:
    """Copies of one topic, each to a new one."""

    def __init__(
        self, spark: SparkSession, kafka: KafkaServer, server: PidleaseServer, folder: Path
    ) -> None:
        self._spark = spark
        self._kafka = kafka
        self._server = server
        self._folder = folder
        self._turns = 0

    def ours(self, topic: str, records: int) -> float:
        """Return the records per second of our sink."""
        from pidlease.spark import exactly_once

        to, checkpoint = self._next(self._server.bootstrap)
        options = {
            "kafka.bootstrap.servers": self._server.bootstrap, "leases": self._server.http_url,
            "topic": to, "checkpointLocation": checkpoint,
        }  # fmt: skip
        query = exactly_once(self._frame(topic, records), options).trigger(availableNow=True)
        return _rate(query.start())

    def spark(self, topic: str, records: int, bootstrap: str) -> float:
        """Return the records per second of Spark's sink."""
        to, checkpoint = self._next(bootstrap)
        frame = self._frame(topic, records).select("key", "value", "partition")
        options = {"kafka.bootstrap.servers": bootstrap, "topic": to,
                   "checkpointLocation": checkpoint}  # fmt: skip
        writer = frame.writeStream.format("kafka").options(**options)
        return _rate(writer.trigger(availableNow=True).start())

    def _next(self, bootstrap: str) -> tuple[str, str]:
        self._turns += 1
        to = f"to-{self._turns}"
        make_topic(bootstrap, to, _PARTITIONS)
        return to, str(self._folder / to)

    def _frame(self, topic: str, records: int) -> DataFrame:
        options = {
            "kafka.bootstrap.servers": self._kafka.bootstrap, "subscribe": topic,
            "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(records // _BATCHES),
        }  # fmt: skip
        return self._spark.readStream.format("kafka").options(**options).load()


def _rate(query: StreamingQuery) -> float:
    query.awaitTermination()
    done = [each for each in query.recentProgress if each["numInputRows"]][1:]
    rows = sum(each["numInputRows"] for each in done)
    return float(rows / sum(each["durationMs"]["triggerExecution"] / 1000 for each in done))


def _fill(bootstrap: str, topic: str, load: _Load) -> None:
    make_topic(bootstrap, topic, _PARTITIONS)
    pool = [os.urandom(load.record_bytes) for _ in range(_POOL)]
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for number in range(load.records):
        while True:
            try:
                producer.produce(topic, pool[number % _POOL], b"%d" % number, number % _PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert not producer.flush(60)


def measure(folder: Path) -> list[Figure]:
    """Return ratios of the medians, our own rate, and its growth with the data.

    Parameters:
        folder: for data and checkpoints.
    """
    work = folder / "spark-copy"
    shutil.rmtree(work, ignore_errors=True)
    figures: list[Figure] = []
    with KafkaServer(work / "kafka") as kafka, PidleaseServer(work / "server") as server:
        config = {"spark.sql.execution.arrow.maxRecordsPerBatch": "10000"}
        spark = session_for_tests(work / "spark", config=config)
        try:
            turns = _Turns(spark, kafka, server, work)
            for load in _LOADS:
                _fill(kafka.bootstrap, load.name.replace(" ", "-"), load)
                figures += _compared(turns, load, kafka.bootstrap, server.bootstrap)
            figures += _growth(turns, kafka.bootstrap)
        finally:
            spark.stop()
    return figures


def _compared(turns: _Turns, load: _Load, straight: str, through: str) -> list[Figure]:
    topic, count = load.name.replace(" ", "-"), load.records
    ways: dict[str, Callable[[], float]] = {
        "ours": lambda: turns.ours(topic, count),
        "through": lambda: turns.spark(topic, count, through),
        "straight": lambda: turns.spark(topic, count, straight),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_ROUNDS):
        for name, way in ways.items():
            rates[name].append(way())
    middle = {name: statistics.median(each) for name, each in rates.items()}
    what = f"Spark copy, {load.name}"
    return [
        Figure(f"{what}", middle["ours"], "records/s"),
        Figure(f"{what}, against Spark's sink through the same proxy",
               middle["ours"] / middle["through"], "times", _THROUGH_MIN, "at least"),
        Figure(f"{what}, against Spark's sink straight to Kafka",
               middle["ours"] / middle["straight"], "times", _STRAIGHT_MIN, "at least"),
    ]  # fmt: skip


def _growth(turns: _Turns, bootstrap: str) -> list[Figure]:
    """Return the rates at 1, 2 and 4 times the data."""
    figures = []
    for times in (1, 2, 4):
        topic = f"grows-{times}"
        load = _Load(topic, 200_000 * times, 100)
        _fill(bootstrap, topic, load)
        rate = turns.ours(topic, load.records)
        figures.append(Figure(f"Spark copy, {load.records:,} records of 100 B", rate, "records/s"))
    return figures
