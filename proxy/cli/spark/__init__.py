"""`pidlease spark`: the commands that need Apache Spark.

Only these commands import PySpark, when they run: other commands work without it.
"""

from importlib.util import find_spec

import typer

from proxy.cli.console import cannot_run
from proxy.cli.spark.spark_audit_command import audit
from proxy.cli.spark.spark_copy_command import copy
from proxy.cli.spark.spark_rebuild_command import rebuild

spark_cli = typer.Typer(no_args_is_help=True, help="Commands that need Apache Spark.")
spark_cli.command()(audit)
spark_cli.command()(copy)
spark_cli.command()(rebuild)


@spark_cli.callback()
def needs_spark() -> None:
    """Copy topics, audit a log, or rebuild its state, with Apache Spark."""
    if find_spec("pyspark") is None:
        raise cannot_run("PySpark is not installed: pip install 'pidlease[spark]'")
