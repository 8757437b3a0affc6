"""Decides which of a partition's oldest segments to remove."""

from collections.abc import Iterator, Sequence

from pidlease.core.log_config import LogConfig
from pidlease.log.segments.segment import ActiveSegment, SegmentFiles


def is_past(config: LogConfig, segment: SegmentFiles, max_timestamp: int, now_ms: int) -> bool:
    """Return whether a segment is past the topic's retention by age.

    Its largest timestamp counts. If its records have none, the time of the file does, as in Kafka
    (LogSegment.largestTimestamp); also if the timestamp is still to come, of a clock that is wrong
    or does not count ms. Otherwise such a segment, and all after it, would stay for good.

    Parameters:
        max_timestamp: the largest timestamp in the segment, in ms since 1970; -1: there is none.
        now_ms: the time, in ms since 1970.

    Raises:
        OSError: the segment cannot be read.
    """
    if config.retention_ms < 0:
        return False
    newest = max_timestamp if 0 <= max_timestamp <= now_ms else segment.modified_ms()
    return config.retention_ms < now_ms - newest


def removable(
    sealed: Sequence[SegmentFiles],
    active: ActiveSegment,
    config: LogConfig,
    limits: tuple[int, int],
    now_ms: int,
) -> Iterator[SegmentFiles]:
    """Yield the segments to remove, oldest first; each counts as removed when the next is taken.

    Parameters:
        sealed: all segments but the last, oldest first.
        active: the last segment.
        limits: two offsets. Nothing at or after the first is removed: a snapshot may need it.
            Everything before the second was deleted by DeleteRecords.
        now_ms: the time, in ms since 1970.

    Raises:
        OSError: a segment cannot be read.
        DamagedLogError: a segment's timestamp index is damaged.
    """
    limit_offset, deleted_to = limits
    sizes = [segment.log_size() for segment in sealed]
    total = sum(sizes) + active.size
    ends = [*(segment.base_offset for segment in sealed[1:]), active.names.base_offset]
    for segment, size, end in zip(sealed, sizes, ends, strict=False):
        if end > limit_offset:
            return
        too_large = 0 <= config.retention_bytes < total
        deleted = end <= deleted_to
        if not (deleted or too_large) and (
            config.retention_ms < 0 or not is_past(config, segment, segment.max_timestamp(), now_ms)
        ):
            return
        yield segment
        total -= size
