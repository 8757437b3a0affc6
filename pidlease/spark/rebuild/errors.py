"""Why nothing is rebuilt. Each text says what to do."""

from pidlease.spark.errors import SparkPieceError


class RebuildError(SparkPieceError):
    """It cannot be rebuilt: the log is damaged, in use, or not there."""
