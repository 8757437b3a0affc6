"""A worker that writes loads the sink, and no reader, source, audit or rebuild."""

import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

_LOADED = """
import sys
from pidlease.spark.data_source import PidleaseDataSource
from pidlease.spark.sink.sink_writer import StreamSink
print(*{name.split(".")[2] for name in sys.modules if name.startswith("pidlease.spark.")})
"""


def test_a_writer_loads_no_reader() -> None:
    done = subprocess.run([sys.executable, "-c", _LOADED], check=True, capture_output=True)
    loaded = set(done.stdout.decode().split())
    assert "sink" in loaded
    assert loaded.isdisjoint({"reader", "source", "audit", "rebuild"})
