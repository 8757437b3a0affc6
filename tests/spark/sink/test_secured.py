"""The sink writes into a server that wants TLS and a login."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

pytest.importorskip("pyspark")

from tests.crash.seeds import SOAK
from tests.secure.secured_process import HANG_S, SECRETS, Running
from tests.servers.authority import needs_openssl
from tests.servers.kafka import KafkaServer
from tests.spark.sink.queries import Copying, fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not SOAK, reason="in the soak: make soak"),
    needs_openssl,
]

COUNT = 4_000
_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required"


def test_rows_arrive_once(spark: "SparkSession", kafka_source: KafkaServer, tmp_path: Path) -> None:
    running = Running(tmp_path / "secured")
    running.server.start()
    try:
        fill(kafka_source, "secured", COUNT)
        options = {
            "kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": f'{_LOGIN} username="root" password="{SECRETS["root"]}";',
            "kafka.ssl.truststore.location": str(running.authority.root.certificate),
            "leases": f"https://{running.server.http_address}",
        }  # fmt: skip
        copying = Copying(
            spark, kafka_source, running.server, "secured", tmp_path / "checkpoint", options
        )
        copying.run()
        copying.run()  # it has nothing to do
        assert _count(running, "secured.copy") == COUNT
        running.server.kill9()
        assert SECRETS["root"] not in running.server.log_text()
    finally:
        running.server.kill9()


def _count(running: Running, topic: str) -> int:
    """Return how many records a topic has."""
    config = running.librdkafka("root", "SCRAM-SHA-256", **{"group.id": "counts"})
    consumer = Consumer(config)
    try:
        partitions = consumer.list_topics(topic, timeout=HANG_S).topics[topic].partitions
        ends = (
            consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=HANG_S)
            for each in partitions
        )
        return sum(end for _, end in ends)
    finally:
        consumer.close()
