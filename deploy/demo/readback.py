"""Reads everything back, as any consumer would."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from deploy.demo.proxy_process import DemoError
from deploy.demo.rows import PARTITIONS, TOPICS

_AT_ONCE: Final = 1000
_WAIT_S: Final = 0.5
_DEADLINE_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as it stands in the log."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes


def read_back(bootstrap: str) -> list[Stored]:
    """All records of the first part; see `read_topics`."""
    return read_topics(bootstrap, dict.fromkeys(TOPICS, PARTITIONS))


def read_topics(bootstrap: str, topics: Mapping[str, int]) -> list[Stored]:
    """All records of all partitions, each partition's in its order. Blocks.

    Parameters:
        bootstrap: HOST:PORT of the server.
        topics: with how many partitions each has.

    Raises:
        DemoError: the end was not reached in time.
    """
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "demo", "enable.auto.commit": False,
         "enable.partition.eof": True}
    )  # fmt: skip
    try:
        return _read(consumer, topics)
    finally:
        consumer.close()


def _read(consumer: Consumer, topics: Mapping[str, int]) -> list[Stored]:
    places = [
        TopicPartition(topic, number, OFFSET_BEGINNING)
        for topic, partitions in topics.items()
        for number in range(partitions)
    ]
    ends = {
        (place.topic, place.partition): consumer.get_watermark_offsets(place, timeout=_DEADLINE_S)
        for place in places
    }
    consumer.assign(places)
    found: list[Stored] = []
    deadline = time.monotonic() + _DEADLINE_S
    while ends:
        if time.monotonic() > deadline:
            raise DemoError(f"read back only {len(found)} records; missing the ends of {ends}")
        for each in consumer.consume(_AT_ONCE, _WAIT_S):
            error = each.error()
            if error is None or error.code() != KafkaError._PARTITION_EOF:
                found.append(_stored(each))
            elif (each.offset() or 0) >= ends.get(_place(each), (0, 0))[1]:
                ends.pop(_place(each), None)
    return found


def _place(message: Message) -> tuple[str, int]:
    topic, partition = message.topic(), message.partition()
    if topic is None or partition is None:
        raise DemoError("reading back: an end without a place")
    return topic, partition


def _stored(message: Message) -> Stored:
    error = message.error()
    if error is not None:
        raise DemoError(f"reading back: {error}")
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    if topic is None or partition is None or offset is None:
        raise DemoError("reading back: a record without a place")
    return Stored(topic, partition, offset, message.key() or b"", message.value() or b"")
