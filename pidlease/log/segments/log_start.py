"""The start offset that DeleteRecords gave a partition's log; its segments may begin earlier.

It is in one small file, replaced atomically and durable before DeleteRecords is acknowledged. So
deleted records do not come back.
"""

from pathlib import Path
from typing import Final

from pidlease.log.segments.offset_file import decode_offset, encode_offset
from pidlease.storage.errors import DamagedLogError
from pidlease.storage.files import Files, read_file, write_aside

LOG_START_NAME: Final = "log-start"


def read_log_start(files: Files, folder: Path) -> int:
    """Read the first offset that was not deleted; 0: none was deleted.

    Raises:
        DamagedLogError: the file is damaged, so the offset is unknown.
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
    """Store durably that all records before an offset are deleted.

    Raises:
        OSError: it is not stored.
    """
    write_aside(files, folder / LOG_START_NAME, [encode_offset(offset)])
