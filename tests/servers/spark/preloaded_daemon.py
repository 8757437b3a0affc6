"""Spark's daemon of Python workers, which has imported before it forks what most workers import.

A worker imports for half a second of a core or more, and each task that fails ends its worker: the
session of the tests has some eighty. Spark's own daemon imports after the fork, as libraries may
start threads. Here there is one, of jemalloc in pyarrow, which is ready for forks.
"""

import os

# NumPy would start threads, which are not in a fork.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import pandas  # type: ignore[import-untyped]  # noqa: F401
import pyspark.daemon
import pyspark.worker

import pidlease.spark.sink.sink_writer
import pidlease.spark.source.batch_reader
import pidlease.spark.source.stream_reader  # noqa: F401

if __name__ == "__main__":
    pyspark.daemon.manager()
