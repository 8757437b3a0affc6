"""Looking into the records of a batch, where there is no way around it. Never on the hot path."""

from aiokafka.errors import KafkaError
from aiokafka.record.default_records import DefaultRecordBatch

from pidlease.storage.ports import TimedOffset
from pidlease.storage.record_batch import BatchHeader


def first_at_or_after(data: bytes, header: BatchHeader, timestamp: int) -> TimedOffset:
    """The first record of a batch with a timestamp (ms), or a later one.

    Parameters:
        data: the batch, which has such a record by its header.
        header: its header.
        timestamp: what to look for.

    Returns:
        The record; the batch's first one where the records are not what the header says. They
        are the producer's own affair: they were stored as sent, and never decoded.
    """
    try:
        for record in DefaultRecordBatch(data):
            if record.timestamp >= timestamp:
                return TimedOffset(record.offset, record.timestamp)
    except KafkaError:
        pass
    return TimedOffset(header.base_offset, header.max_timestamp)
