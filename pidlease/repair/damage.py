"""Finds the first damage of a partition's log, by the rules of a start."""

from pathlib import Path
from typing import NamedTuple

from pidlease.log.segments.durable_mark import DurableMark
from pidlease.log.segments.log_start import LOG_START_NAME, read_log_start
from pidlease.log.segments.log_view import LogView
from pidlease.log.segments.scan import BrokenBatchError, is_torn, scan
from pidlease.log.segments.segment import LOG_SUFFIX, SegmentFiles, base_offset_of
from pidlease.storage.errors import DamagedLogError
from pidlease.storage.files import Files, OpenFile


class Damage(NamedTuple):
    """The first position where a log is not what was acknowledged.

    Attributes:
        position: where the damage begins, in bytes.
        offset: everything before it is intact; after a cut it is the log's end.
        reason: the damage in words.
        view: the intact part; None: the log cannot be cut.
        promised_end: the log was acknowledged at least up to here, by the mark, the newest snapshot
            and the log start.
    """

    path: Path
    position: int
    offset: int
    reason: str
    view: LogView | None
    promised_end: int


def segments_of(files: Files, folder: Path) -> list[SegmentFiles]:
    """Return the segments of a partition, oldest first."""
    bases = (base_offset_of(name) for name in files.list(folder))
    return [SegmentFiles(files, folder, base) for base in sorted(b for b in bases if b is not None)]


def find_damage(files: Files, folder: Path, recovery_offset: int, *, clean: bool) -> Damage | None:
    """Find the first damage; None: there is none.

    A torn tail is no damage: it was never acknowledged.

    Parameters:
        recovery_offset: from the newest snapshot; the log before it is durable, so neither torn
            nor missing.
        clean: whether the last process stopped cleanly.

    Raises:
        OSError: the log cannot be read.
    """
    segments = segments_of(files, folder)
    durable = max(DurableMark(files, folder).read(), recovery_offset)
    first = segments[0] if segments else SegmentFiles(files, folder, 0)
    try:
        start = read_log_start(files, folder)
    except DamagedLogError as error:
        return Damage(error.path, 0, first.base_offset, str(error), None, durable)
    nothing = LogView((first,), first.base_offset, 0)
    found = _first_broken(segments, durable, clean=clean) if segments else nothing
    if isinstance(found, Damage):
        return found._replace(promised_end=max(durable, start, found.offset + 1))
    promised, text = max((durable, "was durable up to"), (start, "was deleted up to"))
    if not segments and not promised:
        path = first.path(LOG_SUFFIX)
        return Damage(path, 0, 0, "the log is gone, with all its segments", nothing, 1)
    if found.end_offset < promised:
        path, end = found.segments[-1].path(LOG_SUFFIX), found.end_offset
        reason = f"it ends at offset {end}, and {text} {promised}"
        at = folder / LOG_START_NAME if promised > durable else path
        return Damage(at, found.last_size, end, reason, found, promised)
    return None


def _first_broken(
    segments: list[SegmentFiles], recovery_offset: int, *, clean: bool
) -> Damage | LogView:
    """Find a batch that is broken or does not follow the previous one; else the whole log."""
    view = LogView((segments[0],), segments[0].base_offset, 0)
    for number, segment in enumerate(segments):
        path, expected = segment.path(LOG_SUFFIX), view.end_offset
        if segment.base_offset != expected:
            reason = f"the segment {path.name} begins where offset {expected} should follow"
            before = view.segments[-1].path(LOG_SUFFIX)
            return Damage(before, view.last_size, expected, reason, view, 0)
        is_last = segment is segments[-1]
        with segment.reading(LOG_SUFFIX) as log:
            view, error = _intact_part(log, tuple(segments[: number + 1]))
            if error is None:
                continue
            durable = clean or not is_last or view.end_offset < recovery_offset
            if durable or not is_torn(log, error.position, log.size(), view.end_offset):
                return Damage(path, error.position, view.end_offset, str(error), view, 0)
    return view


def _intact_part(
    log: OpenFile, segments: tuple[SegmentFiles, ...]
) -> tuple[LogView, BrokenBatchError | None]:
    """Return the log up to a broken batch in the last segment, and the error."""
    end, size = segments[-1].base_offset, 0
    try:
        for batch in scan(log, 0, log.size(), end):
            end, size = batch.header.last_offset + 1, batch.position + batch.header.size
    except BrokenBatchError as error:
        return LogView(segments, end, size), error
    return LogView(segments, end, size), None
