"""pidlease on Apache Spark: an exactly-once sink, a copier, a source, an audit, and a rebuild."""

from pidlease.spark.errors import SinkError, SinkFencedError, SparkPieceError
from pidlease.spark.exactly_once import exactly_once, exactly_once_table
from pidlease.spark.session import register, session
from pidlease.spark.topic_copy import copy

__all__ = [
    "SinkError",
    "SinkFencedError",
    "SparkPieceError",
    "copy",
    "exactly_once",
    "exactly_once_table",
    "register",
    "session",
]
