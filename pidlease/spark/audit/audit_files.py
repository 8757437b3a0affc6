"""An audit as files: two tables for other tools, and the report for people."""

from pathlib import Path

from pyspark.sql import DataFrame

from pidlease.spark.audit.audit_report import report
from pidlease.spark.audit.audit_summary import Summary
from pidlease.spark.audit.log_audit import Audit
from pidlease.storage.files import RealFiles, write_aside


def write_audit(audit: Audit, summary: Summary, folder: Path, made_ms: int) -> None:
    """Write producers.parquet, violations.parquet and report.html.

    What was there under these names is replaced.

    Parameters:
        audit: the outcome.
        summary: what the report shows.
        folder: where; it is made where it is missing, and seen by all of Spark's workers.
        made_ms: when, in ms since 1970.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write(audit.producers, folder / "producers.parquet")
    _write(audit.violations, folder / "violations.parquet")
    content = report(summary, made_ms).encode()
    write_aside(RealFiles(), folder / "report.html", [content])


def _write(table: DataFrame, path: Path) -> None:
    table.write.mode("overwrite").parquet(str(path.absolute()))
