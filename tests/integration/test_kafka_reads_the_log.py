"""Kafka's own tool reads the segments that the embedded log has written."""

import os
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.servers.kafka import dump_log_segments
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka

RECORDS = 1500
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@needs_kafka
@pytest.mark.kafka
def test_dump_log_segments_finds_nothing_wrong(tmp_path: Path) -> None:
    """Several segments with their indexes, batches of every codec; --deep-iteration."""
    with PidleaseServer(tmp_path, settings={"segment_bytes": "200000"}) as server:
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
            assert producer.flush(30) == 0
        server.stop()
    files = sorted((server.data_dir / "logs" / "t-0").iterdir())
    dump = dump_log_segments([file for file in files if file.suffix != ""])
    assert len([file for file in files if file.suffix == ".log"]) > 2
    assert dump.problems == []
    assert len(dump.records) == RECORDS * len(CODECS)
