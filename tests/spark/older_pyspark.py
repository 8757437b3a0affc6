"""A program for the oldest PySpark: the sink, both ways, the source, and the audit.

Spark's Kafka connector comes by its coordinates, as docs/spark.md says.
"""

import sys
from pathlib import Path

import pyspark
import pytest

from pidlease.spark import exactly_once_table, session
from pidlease.spark.audit import audit

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"


def main(folder: Path, bootstrap: str, leases: str, count: int) -> None:
    """Copy the topic `old` twice, and check the copies."""
    config = {
        "spark.jars.packages": f"{CONNECTOR}:{pyspark.__version__}",
        "spark.local.dir": str(folder / "local"),
    }
    spark = session("older", master="local[2]", config=config)
    spark.sparkContext.setLogLevel("ERROR")
    servers = {"kafka.bootstrap.servers": bootstrap}
    read = {**servers, "subscribe": "old", "startingOffsets": "earliest"}
    limited = {**read, "includeHeaders": "true", "maxOffsetsPerTrigger": str(count // 2)}
    written = {
        **servers, "leases": leases, "topic": "{topic}.stream",
        "checkpointLocation": str(folder / "stream"),
    }  # fmt: skip
    for _ in range(2):  # the second start has nothing to add
        frame = spark.readStream.format("kafka").options(**limited).load()
        writer = frame.writeStream.format("pidlease").options(**written)
        writer.trigger(availableNow=True).start().awaitTermination()
    table = spark.read.format("kafka").options(**read).load()
    for _ in range(2):
        given = {**written, "topic": "{topic}.table", "checkpointLocation": str(folder / "table")}
        exactly_once_table(table, given).save()
    expected = sorted(bytes(row.value) for row in table.collect())
    for topic in ("old.stream", "old.table"):
        copied = spark.read.format("pidlease").options(**{**read, "subscribe": topic}).load()
        found = sorted(bytes(row.value) for row in copied.where("offset >= 0").collect())
        assert found == expected, (topic, len(found), len(expected))
    sends = spark.read.format("pidlease").options(
        **{**servers, "rows": "sends", "subscribePattern": r"old\..*"}
    )
    totals = audit(sends.load()).totals
    assert totals.sound
    assert totals.records == 2 * count
    if pyspark.__version__ < "4.2":
        stream = spark.readStream.format("pidlease").options(**read)
        with pytest.raises(Exception, match=r"needs PySpark 4\.2"):
            stream.load().writeStream.format("noop").start().awaitTermination()
    spark.stop()
    print(f"PySpark {pyspark.__version__}: {count} rows, twice")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
