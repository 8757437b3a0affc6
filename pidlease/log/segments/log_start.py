"""Where a partition's log starts by order (DeleteRecords), before its segments do.

One small file, replaced as a whole and durable before the order counts as done: what was deleted
does not come back.
"""

from pathlib import Path
from typing import Final

from pidlease.log.segments.offset_file import decode_offset, encode_offset
from pidlease.storage.errors import DamagedLogError
from pidlease.storage.files import Files, read_file, write_aside

LOG_START_NAME: Final = "log-start"


def read_log_start(files: Files, folder: Path) -> int:
    """The first offset that was not deleted; 0 where nothing was.

    Parameters:
        files: the file system.
        folder: the partition's folder.

    Raises:
        DamagedLogError: it is unknown, because the file is damaged.
    """
    path = folder / LOG_START_NAME
    if not files.exists(path):
        return 0
    offset = decode_offset(read_file(files, path))
    if offset is None or offset < 0:
        reason = "where the log starts is unknown; take the file from a backup, or remove it"
        raise DamagedLogError(path, 0, f"{reason} to have deleted records back")
    return offset


def write_log_start(files: Files, folder: Path, offset: int) -> None:
    """Make it durable that what lies before an offset is deleted.

    Raises:
        OSError: it is not.
    """
    write_aside(files, folder / LOG_START_NAME, [encode_offset(offset)])
