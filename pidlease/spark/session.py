"""The Spark session that our commands make; in a notebook there is one already."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from pidlease.spark.data_source import PidleaseDataSource

#: What our data source wants of a session; each may be set otherwise.
_WANTED: Final = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
#: Without a cluster nobody else is to reach it.
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
    """A session in which `format("pidlease")` is known.

    Parameters:
        name: of the application.
        master: where it runs; None: as spark-submit says, or else on this machine.
        jars: to load.
        config: Spark's own settings, which win.
    """
    # Otherwise workers are another python3, without what this one has installed.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = master or os.environ.get("MASTER") or None
    builder = SparkSession.builder.appName(name)
    settings = dict(_WANTED)
    if master is None and "SPARK_ENV_LOADED" not in os.environ:
        master = "local[*]"
    if master is not None:
        builder = builder.master(master)
        if master.startswith("local"):
            settings |= _LOCAL
            # Or Spark looks its own host's name up, which has no address on many a machine, and
            # listens to others.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if jars:
        settings["spark.jars"] = ",".join(map(str, jars))
    for key, value in {**settings, **(config or {})}.items():
        builder = builder.config(key, value)
    found = builder.getOrCreate()
    register(found)
    return found


def register(spark: SparkSession) -> None:
    """Make `format("pidlease")` known to a session."""
    spark.dataSource.register(PidleaseDataSource)
