"""`pidlease skip-pids`: after restoring a backup, skip the PIDs that were leased since then."""

import time
from pathlib import Path
from typing import Annotated, Final

import typer

from pidlease.coordination.file.file_sequence import FileSequence
from pidlease.coordination.pid_sequence import KAFKA_MARK, ZOOKEEPER_MARK, SequenceError
from pidlease.log.segments.data_directory import lock_folder, sequence_file
from pidlease.storage.errors import DataFolderError
from pidlease.storage.files import RealFiles
from proxy.cli.console import cannot_run

#: Generous, since there are 2^48 PIDs of each policy.
_COUNT: Final = 1_000_000
_COUNT_MAX: Final = 1 << 40
#: Longer than any block has been recorded, so that no blocks are merged here.
_KEEP_MS: Final = 1 << 53


def skip_pids(
    data_dir: Annotated[
        Path, typer.Option(envvar="PIDLEASE_DATA_DIR", help="The directory; no server may use it.")
    ],
    *,
    count: Annotated[
        int,
        typer.Option(
            min=1, max=_COUNT_MAX,
            help="More than were leased between the backup and the restore.",
        ),
    ] = _COUNT,
) -> None:  # fmt: skip
    """After a restore: skip PIDs that may have been leased since the backup.

    Run it before the server starts. If PIDs come from ZooKeeper or Kafka, none need to be skipped.

    Exit codes:
    0: done
    2: it could not be done
    """
    files, path = RealFiles(), data_dir.absolute()
    if not files.exists(path / "meta.json"):
        raise cannot_run(f"{path} is no data directory of pidlease")
    sequence = sequence_file(path)
    for mark, coordinator in ((ZOOKEEPER_MARK, "ZooKeeper"), (KAFKA_MARK, "Kafka")):
        if files.exists(sequence.with_name(mark)):
            raise cannot_run(
                f"the PIDs of {path} come from {coordinator}, which was not restored: no PIDs need"
                " be skipped"
            )
    try:
        lock = lock_folder(files, path)
        try:
            blocks = FileSequence(
                files, sequence, "skip-pids", lambda: time.time_ns() // 1_000_000, _KEEP_MS
            )
            before = blocks.end
            after = blocks.take(before + count)
        finally:
            lock.release()
    except (DataFolderError, SequenceError) as error:
        raise cannot_run(str(error)) from None
    typer.echo(f"PIDs {before} to {after.end - 1} will not be leased")
