"""Decides which of a partition's oldest segments to remove."""

from collections.abc import Iterator, Sequence

from pidlease.core.log_config import LogConfig
from pidlease.log.segments.segment import ActiveSegment, SegmentFiles


def is_past(config: LogConfig, max_timestamp: int, now_ms: int) -> bool:
    """Return whether records up to a timestamp (ms since 1970) are past the topic's retention.

    Records without a timestamp never are.
    """
    return 0 <= config.retention_ms < now_ms - max_timestamp and max_timestamp >= 0


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
        if not (deleted or too_large or is_past(config, segment.max_timestamp(), now_ms)):
            return
        yield segment
        total -= size
