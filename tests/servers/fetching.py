"""What is fetched into build/ on first use, by one process at a time."""

import fcntl
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def fetch_once(folder: Path, there: Callable[[], bool], fill: Callable[[Path], Path]) -> None:
    """Fill a folder, unless it is; safe to call from several processes.

    Parameters:
        folder: what is to be filled.
        there: whether it is.
        fill: fetches into an empty folder; returns what takes the place of `folder`.
    """
    if there():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not there():
            # Aside, then renamed: a broken download must not look like a whole one.
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as aside:
                found = fill(Path(aside))
                shutil.rmtree(folder, ignore_errors=True)
                found.rename(folder)
