"""Shows a progress bar of Spark's jobs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from proxy.cli.console import stderr

if TYPE_CHECKING:
    from pyspark import SparkContext

_POLL_SECONDS: Final = 0.3


@contextmanager
def progress(context: "SparkContext") -> Iterator[Callable[[str], None]]:
    """Show a progress bar during the block, on a terminal only.

    Yields:
        A function to call with the current step.
    """
    console = stderr()
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    done = threading.Event()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def poll() -> None:
            while not done.wait(_POLL_SECONDS):
                total, completed = _tasks(context)
                if total:
                    bar.update(task, total=total, completed=completed)

        def report(text: str) -> None:
            bar.update(task, description=text, total=None, completed=0)

        thread = threading.Thread(target=poll, name="progress", daemon=True)
        thread.start()
        try:
            yield report
        finally:
            done.set()
            thread.join()


def _tasks(context: "SparkContext") -> tuple[int, int]:
    """Count the tasks of the running stages, and those that are done."""
    tracker = context.statusTracker()
    total = completed = 0
    for number in tracker.getActiveStageIds():
        stage = tracker.getStageInfo(number)
        if stage is not None:
            total += stage.numTasks
            completed += stage.numCompletedTasks
    return total, completed
