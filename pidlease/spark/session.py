"""The Spark session of the commands; a notebook has its own."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from pidlease.spark.data_source import PidleaseDataSource

#: Defaults that suit the data source; `config` may override each.
_DEFAULTS: Final = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
#: Without a cluster the driver is reached from this machine only.
_LOCAL: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
}


def session(
    name: str,
    *,
    master: str | None = None,
    jars: Sequence[Path] = (),
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session in which `format("pidlease")` is registered.

    ```python
    from pidlease.spark import session

    spark = session("orders")
    orders = spark.read.format("pidlease").load(
        subscribe="orders", **{"kafka.bootstrap.servers": "kafka1:9092"}
    )
    orders.printSchema()
    ```

    Parameters:
        name: of the application.
        master: None: that of spark-submit, or this machine.
        jars: to load.
        config: Spark's own settings, which override the defaults.
    """
    # Otherwise workers run another python3, without the packages of this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = master or os.environ.get("MASTER") or None
    builder = SparkSession.builder.appName(name)
    settings = dict(_DEFAULTS)
    if master is None and "SPARK_ENV_LOADED" not in os.environ:
        master = "local[*]"
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            settings |= _LOCAL
            # Otherwise Spark looks up the host's name, which may have no address, and accepts
            # connections of other machines.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if jars:
        settings["spark.jars"] = ",".join(map(str, jars))
    for key, value in {**settings, **(config or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Register `format("pidlease")` in a session.

    ```python
    from pyspark.sql import SparkSession

    from pidlease.spark import register

    spark = SparkSession.builder.getOrCreate()
    register(spark)
    ```
    """
    spark.dataSource.register(PidleaseDataSource)
