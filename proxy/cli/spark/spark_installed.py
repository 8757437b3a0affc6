"""Whether PySpark, an extra, is installed."""

from importlib.util import find_spec

from proxy.cli.console import cannot_run


def needs_spark() -> None:
    """End the command if PySpark is not installed; the help of a command needs none."""
    if find_spec("pyspark") is None:
        raise cannot_run("PySpark is not installed: pip install 'pidlease[spark]'")
