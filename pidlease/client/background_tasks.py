"""Background tasks that report their errors."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

Result = TypeVar("Result")


class BackgroundTasks:
    """A set of tasks.

    Parameters:
        broken: called with the error that ended one of them.
    """

    __slots__ = ("_broken", "_tasks")

    def __init__(self, broken: Callable[[BaseException], None]) -> None:
        self._broken: Final = broken
        # asyncio keeps no strong reference to a task.
        self._tasks: Final[set[asyncio.Task[Any]]] = set()

    def spawn(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def cancel(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken(error)
