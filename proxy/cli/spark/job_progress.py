"""A bar that tells how far Spark's jobs are."""

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
    """Show a bar until the end of the block, on a terminal only.

    Parameters:
        context: whose jobs.

    Yields:
        What is to be called with what is being done.
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

        def told(text: str) -> None:
            bar.update(task, description=text, total=None, completed=0)

        thread = threading.Thread(target=poll, name="progress", daemon=True)
        thread.start()
        try:
            yield told
        finally:
            done.set()
            thread.join()


def _tasks(context: "SparkContext") -> tuple[int, int]:
    """Of the stages that are under way, how many tasks there are, and how many are done."""
    tracker = context.statusTracker()
    total = completed = 0
    for number in tracker.getActiveStageIds():
        stage = tracker.getStageInfo(number)
        if stage is not None:
            total += stage.numTasks
            completed += stage.numCompletedTasks
    return total, completed
