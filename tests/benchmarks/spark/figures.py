"""The audit's and the rebuild's figures, each in its own session."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.scale.figure import Figure
from tests.benchmarks.spark import audit, rebuild
from tests.servers.spark import session_for_tests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AUDITED_MIN = 2_000_000
_RECORDS = 10_000_000
_GROWTH = (1, 2, 4)


@contextmanager
def _session(folder: Path) -> Iterator[tuple[SparkSession, Path]]:
    shutil.rmtree(folder, ignore_errors=True)
    config = {"spark.sql.execution.arrow.maxRecordsPerBatch": "10000"}
    spark = session_for_tests(folder / "spark", config=config)
    try:
        yield spark, folder
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def measure_audit(build: Path) -> list[Figure]:
    """Ten million records in batches of 500, small batches, and how the time grows.

    Parameters:
        build: a folder for logs and what Spark writes.
    """
    with _session(build / "spark-audit") as (spark, folder):
        whole = audit.measure(spark, folder / "500", _RECORDS, 500)
        figures = [
            Figure("audit, batches of 500", whole.records_per_second, "records/s", _AUDITED_MIN,
                   "at least"),
        ]  # fmt: skip
        for times in _GROWTH:
            found = audit.measure(spark, folder / f"1-{times}", 100_000 * times, 1, 100)
            name = f"audit, {found.records:,} batches of one record, 100 violations"
            figures.append(Figure(name, found.seconds, "s"))
    return figures


def measure_rebuild(build: Path) -> list[Figure]:
    """A snapshot of a million producers, and how the time grows.

    Parameters:
        build: a folder for logs and what Spark writes.
    """
    with _session(build / "spark-rebuild") as (spark, folder):
        figures = []
        for times in _GROWTH:
            found = rebuild.measure(spark, folder / str(times), 250_000 * times)
            name = f"rebuild of {found.producers:,} producers from {found.sends:,} sends"
            figures.append(Figure(name, found.seconds, "s"))
    return figures
