"""Reads everything back: as a plain consumer would, and from the segments themselves."""

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from crc32c import crc32c

from pidlease.storage.files import RealFiles
from pidlease.verify.verification import verify

_DEADLINE_S = 300.0
#: Answers around an election; the leader that was just elected does not know its end (KIP-207).
_ELECTION = (
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
)
_HEADER = struct.Struct(">qiibIhiqqqhii")


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as a consumer got it."""

    topic: str
    partition: int
    offset: int
    value: bytes
    key: bytes = b""


class StoredBatch(NamedTuple):
    """The header of a batch, as it stands in a segment."""

    partition: str
    base_offset: int
    pid: int
    epoch: int
    first: int
    records: int


def _watermarks(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    """First offset and end; asks again while a leader is elected or does not know its end."""
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        try:
            low, high = consumer.get_watermark_offsets(place, timeout=_DEADLINE_S)
        except KafkaException as error:
            if error.args[0].code() not in _ELECTION or time.monotonic() > deadline:
                raise
        else:
            # A negative offset is librdkafka's for one that it could not learn in time.
            if min(low, high) >= 0 or time.monotonic() > deadline:
                return low, high
        time.sleep(0.1)


def consume(
    bootstrap: str, topic: str, partitions: int, *, markers: bool = False, aborted: bool = False
) -> list[Stored]:
    """All records of a topic, each partition's in its order.

    Parameters:
        bootstrap: where it is read.
        topic: the topic,
        partitions: and how many it has.
        markers: whether there may be markers between records, which consumers do not see.
        aborted: whether records of aborted transactions are wanted, too.
    """
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "crash", "enable.auto.commit": False,
         "enable.partition.eof": True,
         "isolation.level": "read_uncommitted" if aborted else "read_committed"}
    )  # fmt: skip
    ends: dict[int, int] = {}
    try:
        places = [TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(partitions)]
        for place in places:
            low, high = _watermarks(consumer, place)
            assert low == 0, f"{place} begins at {low}"
            ends[place.partition] = high
        consumer.assign(places)
        found: list[Stored] = []
        deadline = time.monotonic() + _DEADLINE_S
        left = dict(ends)
        while left:
            assert time.monotonic() < deadline, f"read back only {len(found)}; not up to {left}"
            for message in consumer.consume(5000, 0.2):
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None
                assert offset is not None
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    if offset >= ends[partition]:
                        left.pop(partition, None)
                    continue
                assert error is None, error
                assert value is not None
                found.append(Stored(topic, partition, offset, value, message.key() or b""))
    finally:
        consumer.close()
    offsets_of: dict[int, list[int]] = {number: [] for number in range(partitions)}
    for each in found:
        offsets_of[each.partition].append(each.offset)
    for number, offsets in offsets_of.items():
        if markers:
            assert offsets == sorted(set(offsets))
            continue
        assert len(offsets) >= ends[number], f"{topic}-{number}: only {len(offsets)} records"
        assert offsets == list(range(len(offsets))), f"{topic}-{number}: offsets are not dense"
    return found


def batches_on_disk(data_dir: Path) -> Iterator[StoredBatch]:
    """Every batch of every segment, read by nothing of this project's code."""
    for log in sorted((data_dir / "logs").glob("*/*.log")):
        content = log.read_bytes()
        at = 0
        while at < len(content):
            (offset, length, _, magic, crc, _, last, _, _, pid, epoch, first, records) = (
                _HEADER.unpack_from(content, at)
            )
            assert magic == 2, f"{log} at {at}"
            assert crc32c(content[at + 21 : at + 12 + length]) == crc, f"{log} at {at}"
            assert records == last + 1
            yield StoredBatch(log.parent.name, offset, pid, epoch, first, records)
            at += 12 + length


def check_pids(data_dir: Path) -> dict[int, set[str]]:
    """Under each PID numbers run on from 0 on each partition; the PIDs, with their places."""
    due: dict[tuple[int, str], int] = {}
    places: dict[int, set[str]] = {}
    for batch in batches_on_disk(data_dir):
        key = batch.pid, batch.partition
        assert batch.epoch == 0, f"{batch}: a needless gap made its client begin again"
        assert batch.first == due.get(key, 0), f"{batch} where {due.get(key, 0)} should follow"
        due[key] = batch.first + batch.records
        places.setdefault(batch.pid, set()).add(batch.partition)
    return places


def check_directory(data_dir: Path) -> None:
    """What `pidlease verify` says, without the half second that a process takes to start."""
    report = verify(RealFiles(), data_dir, lambda _: None, lambda _: None)
    assert not report.findings, [str(finding) for finding in report.findings[:10]]
