"""Searches the records of a batch by timestamp: the only search that decodes records."""

from aiokafka.record.default_records import DefaultRecordBatch

from pidlease.core.timed_offset import TimedOffset
from pidlease.kafka.records.record_batch import BatchHeader


def first_at_or_after(
    data: bytes, header: BatchHeader, timestamp: int, start_offset: int = 0
) -> TimedOffset | None:
    """Return the first record of a batch with a timestamp (ms since 1970), or a later one.

    Parameters:
        data: the batch, which contains such a record by its header.
        start_offset: records before it are deleted.

    Returns:
        The record; None: it is deleted. For a compressed batch its first record, which may be a
        little early: a small batch may decompress to any size. The same if the records contradict
        the header: they are stored as the producer sent them, and were never decoded.
    """
    if not header.is_compressed:
        try:
            for record in DefaultRecordBatch(data):
                if record.timestamp >= timestamp and record.offset >= start_offset:
                    return TimedOffset(record.offset, record.timestamp)
            if start_offset > header.base_offset:
                return None
        except Exception:  # noqa: BLE001, S110 - the records may be any bytes
            pass
    return TimedOffset(max(header.base_offset, start_offset), header.max_timestamp)
