"""The metrics of a query."""

import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pidlease.testing.loopback_ports import free_ports
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S, until
from tests.spark.sink.queries import Copying, failing, fill, more
from tests.spark.soak import in_the_soak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

COUNT = 4_000


def scraped(port: int) -> dict[str, float]:
    """Return the sums of all samples by name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_S) as response:
        text = response.read().decode()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums


@in_the_soak
def test_what_a_query_has_done(
    spark: "SparkSession", kafka_source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    """Rows, duplicates, H, micro-batches, lag; an end by an error, and one by another run."""
    from pidlease.spark.listener import summary, watch

    server.start()
    fill(kafka_source, "watched", COUNT)
    copying = Copying(
        spark, kafka_source, server, "watched", tmp_path / "checkpoint",
        source_options={"maxOffsetsPerTrigger": "3200"},
    )  # fmt: skip
    (port,) = free_ports(1)
    listener = watch(spark, copying.destination, port)
    try:
        assert scraped(port)["pidlease_spark_micro_batches_total"] == 0
        with pytest.raises(Exception, match="a fault of the test"):
            copying.run(failing(tmp_path / "marks", 700, attempts=2, server=server))
        until(lambda: scraped(port)["pidlease_spark_failures_total"] == 1, "the failure")
        copying.run()
        until(lambda: scraped(port)["pidlease_spark_micro_batches_total"] >= 2, "micro-batches")
        found = scraped(port)
        assert found["pidlease_spark_sent_total"] == COUNT
        assert found["pidlease_spark_duplicates_total"] > 0
        assert found["pidlease_spark_high"] == COUNT - 4
        assert found["pidlease_spark_lag"] == 0
        assert found["pidlease_spark_micro_batch_seconds"] > 0
        assert found["pidlease_spark_fenced_total"] == 0
        assert summary(listener).startswith(f"{COUNT:,} rows since the checkpoint was begun, of 4")
    finally:
        spark.streams.removeListener(listener)


@in_the_soak
def test_a_run_that_was_replaced(
    spark: "SparkSession", kafka_source: KafkaServer, server: PidleaseServer, tmp_path: Path
) -> None:
    """A run that was prepared again elsewhere before it began writes nothing."""
    from pidlease.spark import exactly_once
    from pidlease.spark.errors import is_fenced, text_of

    server.start()
    fill(kafka_source, "replaced", 40)
    copying = Copying(spark, kafka_source, server, "replaced", tmp_path / "checkpoint")
    copying.run()
    frame = spark.readStream.format("kafka").options(**copying.reading).load()
    first = exactly_once(frame, copying.destination)
    exactly_once(frame, copying.destination)
    more(kafka_source, "replaced", 40, 40)
    with pytest.raises(Exception, match="another run of this query has taken over") as caught:
        first.trigger(availableNow=True).start().awaitTermination()
    assert is_fenced(caught.value)
    assert "another run of this query has taken over" in text_of(caught.value)
    assert server.metric("pidlease_appended_records_total") == 40
