"""Fetches files into build/ on first use, in one process at a time."""

import fcntl
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def fetch_once(folder: Path, there: Callable[[], bool], fill: Callable[[Path], Path]) -> None:
    """Fill a folder unless `there` returns True; safe to call from several processes.

    Parameters:
        fill: fetches into an empty folder; returns the folder to rename to `folder`.
    """
    if there():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not there():
            # Fetch aside, then rename: an incomplete download must not look complete.
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as aside:
                found = fill(Path(aside))
                shutil.rmtree(folder, ignore_errors=True)
                found.rename(folder)
