"""Which of a partition's oldest segments may go."""

from collections.abc import Iterator, Sequence

from pidlease.core.log_config import LogConfig
from pidlease.log.segments.segment import ActiveSegment, SegmentFiles


def is_past(config: LogConfig, max_timestamp: int, now_ms: int) -> bool:
    """Whether records up to a timestamp (ms) are older than a topic keeps them.

    Records without a timestamp have no age.
    """
    return 0 <= config.retention_ms < now_ms - max_timestamp and max_timestamp >= 0


def removable(
    sealed: Sequence[SegmentFiles],
    active: ActiveSegment,
    config: LogConfig,
    limits: tuple[int, int],
    now_ms: int,
) -> Iterator[SegmentFiles]:
    """The segments that may go, oldest first; each is taken for gone when the next is asked for.

    Parameters:
        sealed: all but the last, oldest first.
        active: the last.
        config: the topic's settings.
        limits: nothing at or beyond the first offset may go, a snapshot may need it; what lies
            before the second was deleted by order.
        now_ms: the time, in ms since 1970.

    Raises:
        OSError: a segment cannot be looked at.
        DamagedLogError: the same.
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
