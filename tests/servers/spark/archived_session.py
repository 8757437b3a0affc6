"""A session that uses what most tests of Spark use; its JVM archives the classes at its end."""

import sys
from pathlib import Path

from pyspark.sql.functions import udf

from tests.servers.spark import session_for_tests


def main(folder: Path, jvm_options: str) -> None:
    """Run some queries, and wait for the end of the JVM."""
    spark = session_for_tests(folder, config={"spark.driver.extraJavaOptions": jvm_options})
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    jvm = gateway.proc
    table, copied = str(folder / "table"), str(folder / "copied")
    rows = spark.createDataFrame([(each % 7, str(each)) for each in range(100)], "a int, b string")
    rows.repartition(2, "a").write.parquet(table)
    read = spark.read.parquet(table)
    read.groupBy("a").agg({"b": "max"}).join(read, "a").orderBy("a", "b").collect()
    read.mapInArrow(lambda batches: batches, read.schema).select(udf(str.upper)("b")).collect()
    stream = spark.readStream.schema(read.schema).parquet(table)
    query = stream.writeStream.option("checkpointLocation", f"{copied}-checkpoint")
    query.trigger(availableNow=True).format("parquet").start(copied).awaitTermination()
    spark.stop()
    jvm.stdin.close()
    jvm.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
