"""`pidlease spark`: the commands that need Apache Spark.

Only these commands import PySpark, when they run: other commands work without it.
"""

import typer

from proxy.cli.spark.spark_audit_command import audit
from proxy.cli.spark.spark_copy_command import copy
from proxy.cli.spark.spark_rebuild_command import rebuild

spark_cli = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Copy topics, audit a log, or rebuild its state, with Apache Spark.",
)
spark_cli.command()(audit)
spark_cli.command()(copy)
spark_cli.command()(rebuild)
