"""Work that goes on beside, and does not end unseen."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final


class BackgroundTasks:
    """Several tasks.

    Parameters:
        broken: told what one of them ended with, if that is an error.
    """

    __slots__ = ("_broken", "_tasks")

    def __init__(self, broken: Callable[[BaseException], None]) -> None:
        self._broken: Final = broken
        # asyncio itself holds on to none of them.
        self._tasks: Final[set[asyncio.Task[None]]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin one more."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def cancel(self) -> None:
        """End all of them, and wait for that."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken(error)
