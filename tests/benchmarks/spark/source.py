"""The speed of reading a log: by files, over the Kafka port, and by Spark's own connector."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pidlease.core.pid import Policy, make_pid
from tests.benchmarks.scale.figure import Figure
from tests.servers.pidlease import PidleaseServer
from tests.servers.spark import session_for_tests
from tests.sim.batches import make_batch, new_batch
from tests.spark.audit.logs import Logs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORDS_A_SECOND_MIN = 1_000_000
_TOPIC = "t"
_PARTITIONS = 2
_RECORDS = 2_000_000
_RECORD_BYTES = 100
#: What a producer gathers by default, in batches of 16 KB.
_BATCH = 150
_SENDS = 100_000
_SEGMENT_BYTES = 64 << 20
_ROUNDS = 4


def measure(folder: Path) -> list[Figure]:
    """Return the records per second of two parallel tasks, with the log in the page cache.

    The best of several rounds counts: the first ones start workers and warm up Java.

    Parameters:
        folder: for the data directory, and what Spark writes, while it runs.
    """
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        return _measured(Path(scratch))


def _measured(folder: Path) -> list[Figure]:
    data = folder / "data"
    _fill(data)
    spark = session_for_tests(folder / "spark", master=f"local[{_PARTITIONS}]")
    ours = spark.read.format("pidlease").option("subscribe", _TOPIC)
    try:
        files = _best(ours.load(str(data)), _RECORDS)
        sends = spark.read.format("pidlease").options(subscribe="sends", rows="sends")
        send_rate = _best(sends.load(str(data)), _SENDS)
        with PidleaseServer(folder / "server", data_dir=data) as server:
            address = {"kafka.bootstrap.servers": server.bootstrap}
            port = _best(ours.options(**address).load(), _RECORDS)
            own = spark.read.format("kafka").options(**address, subscribe=_TOPIC)
            connector = _best(own.load(), _RECORDS)
    finally:
        spark.stop()
    return [
        Figure("source, files", files, "records/s", RECORDS_A_SECOND_MIN, "at least"),
        Figure("source, sends by files", send_rate, "sends/s"),
        Figure("source, Kafka port", port, "records/s"),
        Figure("Spark's own connector, the same port", connector, "records/s"),
    ]


def _fill(data: Path) -> None:
    """Fill two topics: one with full batches, one with batches of one record."""
    value = bytes(range(_RECORD_BYTES))
    with Logs(data, segment_bytes=_SEGMENT_BYTES) as logs:
        logs.topic(_TOPIC, _PARTITIONS)
        logs.topic("sends", _PARTITIONS)
        for partition in range(_PARTITIONS):
            pid = make_pid(Policy.KAFKA, partition + 1)
            for topic, records, count in (
                (_TOPIC, _BATCH, _RECORDS // _PARTITIONS), ("sends", 1, _SENDS // _PARTITIONS),
            ):  # fmt: skip
                # The same bytes again and again: what stands in them makes no difference.
                data_of_batch = make_batch([value] * records, pid=pid, epoch=0, first=0)
                left = count
                while left >= records:
                    logs.append(topic, partition, [new_batch(data_of_batch)])
                    left -= records
                if left:
                    rest = make_batch([value] * left, pid=pid, epoch=0, first=0)
                    logs.append(topic, partition, [new_batch(rest)])


def _best(read: DataFrame, rows: int) -> float:
    """Return the rows per second of the best round."""
    if (found := read.count()) != rows:
        raise RuntimeError(f"{found} rows, and not {rows}")
    best = 0.0
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        read.write.format("noop").mode("overwrite").save()
        best = max(best, rows / (time.perf_counter() - began))
    return best
