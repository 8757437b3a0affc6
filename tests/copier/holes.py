"""A topic with what compaction and transactions leave: offsets without records, and markers."""

import time
from random import Random

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.copier.sides import PARTITIONS, make_topic
from tests.servers.kafka import KafkaServer
from tests.servers.waiting import WAIT_S, until


def topic_with_gaps(source: KafkaServer, topic: str, random: Random) -> None:
    """Make it, and wait until something is compacted; that goes on."""
    make_topic(
        source.bootstrap, topic, cleanup_policy="compact", segment_ms="300",
        min_cleanable_dirty_ratio="0.01", delete_retention_ms="100", max_compaction_lag_ms="300",
    )  # fmt: skip
    _transactions(source, topic, random)
    until(lambda: _has_gaps(source, topic), "compaction")


def _transactions(source: KafkaServer, topic: str, random: Random) -> None:
    """Transactions, of which a third is aborted, on few keys, so that most can be compacted."""
    producer = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(30)
    for turn in range(60):
        producer.begin_transaction()
        for number in range(random.choice((1, 30, 200))):
            producer.produce(
                topic, b"%d %d " % (turn, number) + b"x" * random.randrange(200),
                b"%d" % random.randrange(40), number % PARTITIONS,
            )  # fmt: skip
        producer.flush()
        if turn % 3 == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
        time.sleep(0.02)  # a segment is rolled by the time


def _has_gaps(source: KafkaServer, topic: str) -> bool:
    """Whether compaction has removed something, which is beyond what markers take."""
    rolled = Producer({"bootstrap.servers": source.bootstrap})
    for number in range(PARTITIONS):
        # The segment that is written to is not compacted; it is closed when a record comes late.
        rolled.produce(topic, b"rolls", b"0", number)
    assert not rolled.flush(WAIT_S)
    consumer = Consumer({
        "bootstrap.servers": source.bootstrap, "group.id": "holes", "enable.auto.commit": False,
        "isolation.level": "read_uncommitted", "enable.partition.eof": True,
    })  # fmt: skip
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        offsets = []
        while (message := consumer.poll(5)) is not None and message.error() is None:
            offsets.append(message.offset() or 0)
        return bool(offsets) and len(offsets) < max(offsets) // 2
    finally:
        consumer.close()
