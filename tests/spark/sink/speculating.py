"""An application with executors that speculate; on `local` masters Spark does not.

One attempt of each task waits at the end of its rows, so that Spark begins another.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from pidlease.spark.topic_copy import copy
from tests.servers.spark import session_for_tests

#: So long it waits for the other one at most.
_SLOW_S = 120


def main(folder: Path, master: str, source: str, destination: str, leases: str, topic: str) -> None:
    """Copy a topic."""
    spark = session_for_tests(
        folder,
        master,
        {
            "spark.speculation": "true",
            "spark.speculation.interval": "200ms",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.minTaskRuntime": "1s",
            "spark.executor.memory": "512m",
            # In small pieces, so that the sink has most rows before an attempt waits at their end.
            "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
        },
    )
    marks = folder / "marks"
    marks.mkdir()

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        (marks / f"{partition}.{attempt}").touch()
        yield from batches
        end = time.monotonic() + _SLOW_S
        second = marks / f"{partition}.1"
        while partition == 0 and not second.exists() and time.monotonic() < end:
            time.sleep(0.1)

    query = copy(
        spark,
        {"kafka.bootstrap.servers": source, "subscribe": topic, "startingOffsets": "earliest"},
        {
            "kafka.bootstrap.servers": destination, "leases": leases, "topic": "{topic}.copy",
            "checkpointLocation": str(folder / "checkpoint"),
        },
        transform=lambda frame: frame.mapInArrow(slow, frame.schema),
        trigger={"availableNow": True},
    )  # fmt: skip
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
