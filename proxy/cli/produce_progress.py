"""Shows how much of the input has been produced: a bar on a terminal, otherwise lines."""

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from proxy.cli.console import stderr

#: Shorter inputs show nothing.
_SILENT_SECONDS: Final = 2.0
_SCREEN_SECONDS: Final = 0.2
_LINE_SECONDS: Final = 5.0

#: Reports the bytes read and the records acknowledged so far.
Report = Callable[[int, int], None]


def input_bytes(file: BinaryIO) -> int | None:
    """Return the size of a file that is read as input; None: it is a pipe or a terminal."""
    try:
        found = os.fstat(file.fileno())
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


@contextmanager
def show_produced(total_bytes: int | None) -> Iterator[Report]:
    """Show progress until the end of the block."""
    console = stderr()
    if console.is_terminal:
        columns = (TextColumn("{task.fields[records]:,} records"), BarColumn(),
                   TaskProgressColumn(), TimeRemainingColumn())  # fmt: skip
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("", total=total_bytes, records=0, visible=False)
            yield _every(
                _SCREEN_SECONDS,
                lambda size, records: bar.update(
                    task, completed=size, records=records, visible=True
                ),
            )
        return

    def line(size: int, records: int) -> None:
        part = f"; {100 * size / total_bytes:.0f} % of the input is read" if total_bytes else ""
        console.print(f"{records:,} records are in the log{part}", markup=False)

    yield _every(_LINE_SECONDS, line)


def _every(seconds: float, show: Report) -> Report:
    """Pass on one report in so many seconds."""
    due = time.monotonic() + max(seconds, _SILENT_SECONDS)

    def report(size: int, records: int) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            due = now + seconds
            show(size, records)

    return report
