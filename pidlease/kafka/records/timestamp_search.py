"""Looking into the records of a batch, where there is no way around it. Never on the hot path."""

from aiokafka.record.default_records import DefaultRecordBatch

from pidlease.core.timed_offset import TimedOffset
from pidlease.kafka.records.record_batch import BatchHeader


def first_at_or_after(
    data: bytes, header: BatchHeader, timestamp: int, start_offset: int = 0
) -> TimedOffset:
    """The first record of a batch with a timestamp (ms), or a later one.

    Parameters:
        data: the batch, which has such a record by its header.
        header: its header.
        timestamp: what to look for.
        start_offset: records before it are deleted.

    Returns:
        The record. For a compressed batch its first one, which may be a little early: what a
        small batch unpacks to is bounded by nothing. The same where the records are not what the
        header says; they are the producer's own affair, stored as sent and never decoded.
    """
    if not header.is_compressed:
        try:
            for record in DefaultRecordBatch(data):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return TimedOffset(record.offset, record.timestamp)
        except Exception:  # noqa: BLE001, S110 - anything may stand there
            pass
    return TimedOffset(max(header.base_offset, start_offset), header.max_timestamp)
