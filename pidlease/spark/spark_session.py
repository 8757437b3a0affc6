"""The Spark session of the commands; a notebook has its own."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from pidlease.spark.data_source import PidleaseDataSource
from pidlease.spark.errors import SparkPieceError
from pidlease.spark.query_starts import watch_starts

#: Defaults that suit the data source; `config` may override each.
_DEFAULTS: Final = {
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
#: Spark Connect's own classes of sessions and queries are in this package.
_CONNECT: Final = "pyspark.sql.connect."
_NO_CONNECT: Final = (
    "Spark Connect is not supported: the plan of a query and the checkpoint are looked at on the"
    " driver, which a Connect client cannot reach. Use a classic session: a master instead of"
    " SPARK_REMOTE or sc://, or run the application by spark-submit"
)


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

    Raises:
        SparkPieceError: a session of Spark Connect is asked for.
    """
    _check_not_connect(master or os.environ.get("MASTER"), config or {})
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

    It also adds a listener, which checks each streaming query into the sink when the query starts.

    ```python
    from pyspark.sql import SparkSession

    from pidlease.spark import register

    spark = SparkSession.builder.getOrCreate()
    register(spark)
    ```

    Raises:
        SparkPieceError: the session is one of Spark Connect.
    """
    check_classic(spark)
    spark.dataSource.register(PidleaseDataSource)
    watch_starts(spark)


def check_classic(spark: SparkSession | DataFrame) -> None:
    """Check that a session, or a query, is not one of Spark Connect.

    Raises:
        SparkPieceError: it is.
    """
    if any(each.__module__.startswith(_CONNECT) for each in type(spark).__mro__):
        raise SparkPieceError(_NO_CONNECT)


def _check_not_connect(master: str | None, config: Mapping[str, str]) -> None:
    """Check that no session of Spark Connect is asked for.

    Raises:
        SparkPieceError: one is.
    """
    remote = config.get("spark.remote") or os.environ.get("SPARK_REMOTE")
    mode = config.get("spark.api.mode", "") or os.environ.get("SPARK_API_MODE", "")
    url = (master or "").startswith("sc://")
    if remote or url or mode.lower() == "connect" or "SPARK_CONNECT_MODE_ENABLED" in os.environ:
        raise SparkPieceError(_NO_CONNECT)
