"""Kafka's own tool reads the segments that the embedded log has written."""

import os
import shutil
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.servers.kafka import dump_log_segments
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S

pytestmark = [needs_kafka, pytest.mark.kafka]

RECORDS = 1500
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def partition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition's folder: several segments with their indexes, batches of every codec."""
    folder = tmp_path_factory.mktemp("log")
    with PidleaseServer(folder, settings={"segment_bytes": "200000"}) as server:
        for codec in CODECS:
            producer = Producer(
                {
                    "bootstrap.servers": server.bootstrap,
                    "enable.idempotence": True,
                    "compression.type": codec,
                    "batch.num.messages": 20,
                }
            )
            for n in range(RECORDS):
                producer.produce("t", os.urandom(100), partition=0)
                if n % 50 == 0:
                    producer.poll(0)
            assert producer.flush(WAIT_S) == 0
        server.stop()
    return server.data_dir / "logs" / "t-0"


def test_dump_log_segments_finds_nothing_wrong(partition: Path) -> None:
    """Down to the single records: --deep-iteration."""
    files = sorted(partition.iterdir())
    dump = dump_log_segments([file for file in files if file.suffix != ""])
    assert len([file for file in files if file.suffix == ".log"]) > 2
    assert dump.problems == []
    assert len(dump.records) == RECORDS * len(CODECS)


def test_one_flipped_bit_is_found(partition: Path, tmp_path: Path) -> None:
    """In a record, in an entry of the offset index, in one of the time index."""
    segment = sorted(partition.glob("*.log"))[0]
    damaged = []
    # The last byte of an entry's offset; of its timestamp; some byte of a record's content.
    for suffix, place in ((".index", 3), (".timeindex", 7), (".log", 1000)):
        folder = tmp_path / suffix
        folder.mkdir()
        for each in (".log", ".index", ".timeindex"):
            shutil.copy(segment.with_suffix(each), folder)
        path = folder / segment.with_suffix(suffix).name
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)
        damaged.append(path)
    problems = dump_log_segments(damaged).problems
    for path in damaged:
        assert any(str(path) in problem for problem in problems), (path, problems)
