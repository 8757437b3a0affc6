"""Cuts a partition's log where its damage begins, after a copy of the rest was stored.

After a crash between any two of these steps, the partition is either still stopped by the next
start, or cut:

    1. copy the rest and a report to a folder, durably
    2. replace the snapshots that are beyond the cut by one with the state at the cut
    3. lower the log's start offset, if it is beyond the cut
    4. remove later segments, the newest first; truncate the damaged one
    5. lower the durable mark to the cut
    6. write which topic the log is of, if that is lost
"""

import json
from pathlib import Path
from typing import Final

from pidlease.log.segments.durable_mark import MARK_NAME, DurableMark
from pidlease.log.segments.log_start import read_log_start, write_log_start
from pidlease.log.segments.log_topics import read_copy, write_copy
from pidlease.log.segments.log_view import LogView
from pidlease.log.segments.offset_file import encode_offset
from pidlease.log.segments.segment import LOG_SUFFIX, ActiveSegment, SegmentFiles
from pidlease.repair.damage import segments_of
from pidlease.repair.losses import Losses, parts_of
from pidlease.repair.repair_report import describe_partition
from pidlease.repair.survey import DamagedPartition, Survey
from pidlease.storage.errors import DamagedLogError
from pidlease.storage.files import (
    Files,
    aside_path,
    make_durable_folder,
    sweep_asides,
    write_aside,
)
from pidlease.storage.snapshots import (
    SnapshotError,
    SnapshotStore,
    TopicPartition,
)
from pidlease.verify.verify_report import UnusableDirectoryError

#: The folder in a data directory for the bytes cut off.
REPAIR_NAME: Final = "repair"
REPORT_NAME: Final = "report.json"
_CHUNK_BYTES: Final = 1 << 20


def cut(files: Files, found: Survey, damaged: DamagedPartition, now_ms: int) -> Path:
    """Cut a partition, and return the folder with the bytes cut off. Hold the directory's lock.

    Parameters:
        found: a survey made after the lock was taken.
        damaged: one of its partitions.
        now_ms: the time, in ms since 1970.

    Raises:
        UnusableDirectoryError: the partition cannot be cut.
        OSError: the cut is incomplete; repeating it is safe.
    """
    losses, view = damaged.losses, damaged.damage.view
    if losses is None or view is None:
        raise UnusableDirectoryError(f"{damaged.name} cannot be cut: {damaged.reason}")
    store = SnapshotStore(files, found.root / "snapshots", names=found.names)
    kept = _keep(files, found, damaged, view)
    _replace_snapshots(store, losses, now_ms)
    files.fsync_folder(found.root / "snapshots")  # removed snapshots must not come back
    _lower_start(files, damaged.folder, view.end_offset)
    _cut_segments(files, damaged.folder, view)
    if DurableMark(files, damaged.folder).read() > view.end_offset:
        write_aside(files, damaged.folder / MARK_NAME, [encode_offset(view.end_offset)])
    if read_copy(files, damaged.folder) is None:  # the folder may have been lost as a whole
        write_copy(files, damaged.folder, damaged.topic)
    return kept


# ---------------------------------------------------------------------- the copy


def _keep(files: Files, found: Survey, damaged: DamagedPartition, view: LogView) -> Path:
    """Copy all that is cut, with a report, into a folder of its own."""
    repair = found.root / REPAIR_NAME
    make_durable_folder(files, repair)
    sweep_asides(files, repair)
    aside = aside_path(repair)
    files.make_folder(aside)
    for path in parts_of(damaged.folder, view):
        _copy(files, path, aside / path.name)
    for folder, path in _snapshot_files(files, found, damaged):
        _copy(files, path, aside / f"{folder}.{path.name}")
    report = json.dumps(describe_partition(found, damaged), indent=2).encode()
    write_aside(files, aside / REPORT_NAME, [report])
    files.fsync_folder(aside)
    taken = set(files.list(repair))
    number = next(n for n in range(1, len(taken) + 2) if _folder_name(n) not in taken)
    kept = repair / _folder_name(number)
    files.rename(aside, kept)
    files.fsync_folder(repair)
    return kept


def _folder_name(number: int) -> str:
    return f"cut-{number:06d}"


def _snapshot_files(
    files: Files, found: Survey, damaged: DamagedPartition
) -> list[tuple[str, Path]]:
    """Return the files of the snapshots beyond the cut."""
    numbers = damaged.losses.snapshots if damaged.losses is not None else []
    folders = (found.root / "snapshots" / f"snapshot-{number:012d}" for number in numbers)
    return [(folder.name, folder / name) for folder in folders for name in files.list(folder)]


def _copy(files: Files, source: Path, target: Path) -> None:
    """Copy a file; its content is durable, its name is not yet."""
    read = files.open_readonly(source)
    try:
        written = files.open(target, create=True)
        try:
            written.truncate(0)
            position = 0
            while chunk := read.read_at(_CHUNK_BYTES, position):
                written.write_at([chunk], position)
                position += len(chunk)
            written.fsync()
        finally:
            written.close()
    finally:
        read.close()


# ---------------------------------------------------------------------- the cut


def _replace_snapshots(store: SnapshotStore, losses: Losses, now_ms: int) -> None:
    """Write a snapshot with the state at the cut, and remove those beyond the cut.

    Without the new one, the next start could use none of them, and the states of the other
    partitions would be lost.
    """
    name, cut = losses.rows.partition, losses.rows.next_offset
    numbers = store.numbers()
    beyond = [number for number in numbers if _is_beyond(store, number, name, cut)]
    if not beyond:
        return
    for number in numbers:
        try:
            newest = store.load(number)
        except SnapshotError:
            continue
        rows = [
            losses.rows if each == name else entry.rows(each, newest.producers[each])
            for each, entry in newest.manifest.offset_vector.items()
        ]
        store.write(now_ms, rows, newest.leases)
        break
    for number in store.numbers():
        if number in beyond:
            store.remove(number)


def _is_beyond(store: SnapshotStore, number: int, name: TopicPartition, cut: int) -> bool:
    try:
        entry = store.manifest(number).offset_vector.get(name)
    except SnapshotError:
        return False  # the next start skips it
    return entry is not None and entry.next_offset > cut


def _lower_start(files: Files, folder: Path, cut: int) -> None:
    try:
        start = read_log_start(files, folder)
    except DamagedLogError:
        return  # impossible: such a partition has no offset to cut at
    if start > cut:
        write_log_start(files, folder, cut)


def _cut_segments(files: Files, folder: Path, view: LogView) -> None:
    """Remove everything after the end of a view, and rebuild the last indexes."""
    make_durable_folder(files, folder)  # it may be lost as a whole
    last = SegmentFiles(files, folder, view.segments[-1].base_offset)
    for segment in reversed(segments_of(files, folder)):
        if segment.base_offset > last.base_offset:
            segment.remove()
            segment.remove_indexes()
    files.fsync_folder(folder)
    last.remove_indexes()
    active = ActiveSegment(last)
    try:
        if files.exists(last.path(LOG_SUFFIX)):
            active.log.truncate(view.last_size)
            active.log.fsync()
        else:  # all segments are lost
            active.create()
        active.recover(0, clean=True)
        active.seal()
    finally:
        active.close()
    files.fsync_folder(folder)
