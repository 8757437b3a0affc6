"""Changes that run to their end, even if the client is gone."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Final, TypeVar

import structlog

#: How long a request may take that does not say, and at most, in seconds.
_SECONDS_DEFAULT: Final = 30.0
_SECONDS_MAX: Final = 300.0

_Result = TypeVar("_Result")
_log = structlog.get_logger(__name__)


def deadline_of(timeout: timedelta | None = None) -> float:
    """When a request is to be answered, by the loop's clock.

    Parameters:
        timeout: what the request says; 0 and less count as if it said nothing.
    """
    seconds = timeout.total_seconds() if timeout is not None else 0.0
    seconds = min(seconds, _SECONDS_MAX) if seconds > 0 else _SECONDS_DEFAULT
    return asyncio.get_running_loop().time() + seconds


class AdminChanges:
    """Bounds the changes that run at once; a change goes on when its client is gone.

    Parameters:
        at_once: how many.
    """

    def __init__(self, at_once: int) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._running: set[asyncio.Task[Any]] = set()

    async def run(
        self, work: Callable[[], Coroutine[Any, Any, _Result]], deadline: float
    ) -> _Result:
        """Do a piece of work, and wait for it.

        Parameters:
            work: makes it.
            deadline: until when to wait, by the loop's clock.

        Raises:
            TimeoutError: it is not begun, or not done yet; in this case it goes on.
        """
        loop = asyncio.get_running_loop()
        if loop.time() >= deadline:
            raise TimeoutError
        async with asyncio.timeout_at(deadline):
            await self._free.acquire()
            task = loop.create_task(self._do(work))
            self._running.add(task)
            task.add_done_callback(self._done)
            return await asyncio.shield(task)

    async def _do(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        try:
            return await work()
        finally:
            self._free.release()

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a change failed", error=repr(task.exception()))
