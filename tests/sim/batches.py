"""Record batches for tests, built and read by aiokafka: this project's code is not asked."""

from collections.abc import Sequence
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from pidlease.core.buffer import Buffer
from pidlease.kafka.records.record_batch import read_header
from pidlease.log.ports import NewBatch

TIME_MS = 1_700_000_000_000


class StoredRecord(NamedTuple):
    """A record as a consumer sees it, with the identity of its batch."""

    offset: int
    value: bytes
    timestamp: int
    pid: int
    epoch: int
    sequence: int


def make_batch(
    values: Sequence[bytes] = (b"value",),
    *,
    pid: int = -1,
    epoch: int = -1,
    first: int = -1,
    timestamps: Sequence[int] | int = TIME_MS,
    compression: int = 0,
    in_transaction: bool = False,
) -> bytearray:
    """A batch as a client sends it."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=compression,
        is_transactional=in_transaction,
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=first,
        batch_size=1 << 30,
    )
    for index, value in enumerate(values):
        time_ms = timestamps if isinstance(timestamps, int) else timestamps[index]
        builder.append(index, time_ms, None, value, [])
    return bytearray(builder.build())


def new_batch(data: bytearray) -> NewBatch:
    """A batch with its header, as a door hands it on."""
    return NewBatch(data, read_header(data))


def simple(index: int, *, records: int = 1, size: int = 20, timestamp: int = TIME_MS) -> NewBatch:
    """A batch without a PID whose records tell which one they are."""
    values = [b"%d/%d " % (index, each) + b"x" * size for each in range(records)]
    return new_batch(make_batch(values, timestamps=timestamp))


def read_records(data: Buffer) -> list[StoredRecord]:
    """All records of all whole batches; raises where a batch's CRC does not fit."""
    found: list[StoredRecord] = []
    batches = MemoryRecords(bytes(data))
    while batches.has_next():
        batch = batches.next_batch()
        assert isinstance(batch, DefaultRecordBatch)
        assert batch.validate_crc(), f"CRC of the batch at offset {batch.base_offset}"
        identity = batch.producer_id, batch.producer_epoch
        found.extend(
            StoredRecord(record.offset, record.value, record.timestamp, *identity,
                         batch.base_sequence + record.offset - batch.base_offset)
            for record in batch
        )  # fmt: skip
    return found
