"""`pidlease spark rebuild`: write a snapshot from a log."""

import time
from pathlib import Path
from typing import Annotated

import typer

from proxy.cli.console import cannot_run, pairs_table, stdout
from proxy.cli.spark.job_progress import progress
from proxy.cli.spark.spark_copy_command import is_spark
from proxy.cli.spark.spark_installed import needs_spark


def rebuild(
    log: Annotated[Path, typer.Option(help="The data directory.")],
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the snapshot; default: into the directory, which no server may use."
        ),
    ] = None,
    master: Annotated[str, typer.Option(help="Spark's master; default: this machine.")] = "",
) -> None:
    """Write a snapshot of the producers' state, from the log alone, for a server to load.

    Exit codes:
    0: done
    2: it could not be done
    """
    needs_spark()
    from pidlease.spark.errors import SparkPieceError, text_of  # noqa: PLC0415 - an extra
    from pidlease.spark.rebuild.snapshot_rebuild import rebuild_directory  # noqa: PLC0415
    from pidlease.spark.spark_session import session  # noqa: PLC0415

    path = log.absolute()
    folder = None if output is None else output.absolute()
    spark = session(f"pidlease rebuild of {path}", master=master or None)
    spark.sparkContext.setLogLevel("OFF")
    try:
        with progress(spark.sparkContext) as report:
            now_ms = int(time.time() * 1000)
            rebuilt = rebuild_directory(spark, path, folder, now_ms, report)
    except OSError as error:
        raise cannot_run(f"the snapshot cannot be written: {error}") from None
    except Exception as error:
        if not isinstance(error, SparkPieceError) and not is_spark(error):
            raise
        raise cannot_run(text_of(error)) from None
    finally:
        spark.stop()
    manifest = rebuilt.manifest
    table = pairs_table(f"snapshot {manifest.number} of {path}")
    table.add_row("written to", str(folder or path / "snapshots"))
    table.add_row("partitions", f"{len(manifest.offset_vector):,}")
    table.add_row("producers", f"{manifest.rows['producers.parquet']:,}")
    table.add_row("leases", f"{rebuilt.leases:,}")
    stdout().print(table)
