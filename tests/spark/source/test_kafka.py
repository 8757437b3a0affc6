"""A real Kafka: transactions, markers, compaction; and a server in front of it."""

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from pidlease.client.blocking_producer import BlockingProducer
from pidlease.core.topic_partition import TopicPartition
from pidlease.spark.errors import ReadError
from pidlease.spark.reader.kafka_batches import ClusterLog, kafka_batches
from pidlease.spark.reader.log_parts import KafkaPart
from pidlease.spark.reader.send_rows import sends
from tests.copier.sides import make_topic
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = [
    "topic", "partition", "offset", "key", "value", "timestamp", "timestampType", "headers",
]  # fmt: skip

pytestmark = pytest.mark.kafka


def rows(spark: "SparkSession", kind: str, server: KafkaServer, **options: str) -> Any:
    """The topics of a source, without the identity of records."""
    given = {"kafka.bootstrap.servers": server.bootstrap, "includeHeaders": "true", **options}
    found = spark.read.format(kind).options(**given).load().select(*COLUMNS).collect()
    return sorted((tuple(row) for row in found), key=lambda row: row[:3])


def part_of(server: KafkaServer, topic: str) -> KafkaPart:
    """Return the whole of partition 0."""
    log = ClusterLog(server.bootstrap, (), 30)
    try:
        ((start, end),) = log.ranges([TopicPartition(topic, 0)]).values()
    finally:
        log.close()
    return KafkaPart(server.bootstrap, topic, 0, start, end)


def sends_of_part(part: KafkaPart) -> list[dict[str, Any]]:
    """The sends of a part."""
    return [row for each in sends(part, kafka_batches(part)) for row in each.to_pylist()]


def transactions(server: KafkaServer, topic: str) -> None:
    """Send committed and aborted transactions, and records without one between them."""
    plain = Producer({"bootstrap.servers": server.bootstrap})
    producers = []
    for name in ("a", "b"):
        producer = Producer({"bootstrap.servers": server.bootstrap,
                             "transactional.id": f"{topic}-{name}"})  # fmt: skip
        producer.init_transactions(30)
        producers.append(producer)
    for turn in range(6):
        for place, producer in enumerate(producers):
            producer.begin_transaction()
            for number in range(10):
                producer.produce(topic, b"%d/%d/%d" % (place, turn, number), partition=0)
            producer.flush()
        plain.produce(topic, b"plain %d" % turn, b"key", partition=0, headers=[("n", b"1")])
        plain.flush()
        for place, producer in enumerate(producers):
            if (turn + place) % 3:
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)


def test_transactions_are_read_as_sparks_own_connector_reads_them(
    spark: "SparkSession", kafka_source: KafkaServer
) -> None:
    topic = "transactions"
    make_topic(kafka_source.bootstrap, topic, 1)
    transactions(kafka_source, topic)
    options = {"subscribe": topic}
    own = rows(spark, "kafka", kafka_source, **options,
               **{"kafka.isolation.level": "read_committed"})  # fmt: skip
    found = rows(spark, "pidlease", kafka_source, **options)
    assert found == own
    assert len(found) == 2 * 4 * 10 + 6
    sent = sends_of_part(part_of(kafka_source, topic))
    assert sum(row["records"] for row in sent) == len(found)
    assert {row["pid"] for row in sent} == {-1}
    assert not any(row["begins"] or row["damage"] for row in sent)


def test_a_part_beyond_the_end_is_an_error_in_time(kafka_source: KafkaServer) -> None:
    topic = "short"
    make_topic(kafka_source.bootstrap, topic, 1)
    producer = Producer({"bootstrap.servers": kafka_source.bootstrap})
    producer.produce(topic, b"1", partition=0)
    producer.flush()
    part = replace(part_of(kafka_source, topic), end=10, seconds=1.0)
    with pytest.raises(ReadError, match="ends at 1, and should go up to 10"):
        list(kafka_batches(part))
    reading = kafka_batches(replace(part, seconds=60.0))
    assert next(reading).header.records == 1
    reading.close()  # type: ignore[attr-defined] # ends its thread, which waits for more
    assert not [each for each in threading.enumerate() if each.name.startswith("read ")]


def test_a_compacted_topic_lacks_offsets(spark: "SparkSession", kafka_source: KafkaServer) -> None:
    topic = "compacted"
    make_topic(kafka_source.bootstrap, topic, 1, cleanup_policy="compact", segment_ms="200",
               min_cleanable_dirty_ratio="0.01", max_compaction_lag_ms="300")  # fmt: skip
    producer = Producer({"bootstrap.servers": kafka_source.bootstrap, "linger.ms": 0,
                         "enable.idempotence": True})  # fmt: skip
    options = {"subscribe": topic}
    for number in range(300):
        producer.produce(topic, b"v" * 50, b"key %d" % (number % 40), partition=0)
    producer.flush()

    def is_compacted() -> bool:
        # A segment is only rolled by the next record.
        producer.produce(topic, b"", b"again", partition=0)
        producer.flush()
        sent = sends_of_part(part_of(kafka_source, topic))
        span = sent[-1]["last_offset"] + 1 - sent[0]["offset"]
        return bool(sum(row["records"] for row in sent) < span)

    until(is_compacted, "compaction", poll_s=0.3)
    # It may go on between the two.
    until(
        lambda: (
            rows(spark, "pidlease", kafka_source, **options)
            == rows(spark, "kafka", kafka_source, **options)
        ),
        "both to read the same",
    )
    found = rows(spark, "pidlease", kafka_source, **options)
    offsets = [row[2] for row in found]
    assert len(offsets) < offsets[-1] + 1
    assert {row[3] for row in found} == {b"again", *(b"key %d" % n for n in range(40))}


def test_sends_in_front_of_kafka_are_found_on_both_ports(
    spark: "SparkSession", kafka_source: KafkaServer, in_front: PidleaseServer
) -> None:
    in_front.start()
    topic = "leased"
    make_topic(in_front.bootstrap, topic, 1)
    options: Any = {"bootstrap_servers": in_front.bootstrap, "leases": in_front.http_url}
    with BlockingProducer(**options) as one, BlockingProducer(**options) as other:
        for number in range(200):
            one.send(topic, b"%d" % number, partition=0)
            other.send(topic, b"%d" % number, partition=0)
        one.flush()
        other.flush()
    tables = []
    for servers in (kafka_source.bootstrap, in_front.bootstrap):
        given = {"kafka.bootstrap.servers": servers, "subscribe": topic, "rows": "sends"}
        found = spark.read.format("pidlease").options(**given).load().collect()
        tables.append(sorted(tuple(row) for row in found))
        in_order = sorted(found, key=lambda row: row.offset)
        assert in_order[0].offset > 0, "a writer's marker comes first"
        assert [row.read_from for row in in_order] == [0] + [None] * (len(found) - 1)
        by_pid = {pid: [row for row in found if row.pid == pid] for pid in {r.pid for r in found}}
        assert sorted(sum(row.records for row in sent) for sent in by_pid.values()) == [200, 200]
        for sent in by_pid.values():
            sent.sort(key=lambda row: row.offset)
            assert [row.begins for row in sent] == [True] + [False] * (len(sent) - 1)
            assert [row.first for row in sent[1:]] == [row.previous_last + 1 for row in sent[1:]]
    assert tables[0] == tables[1]
