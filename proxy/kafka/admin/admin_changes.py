"""Runs changes to their end, even if the client disconnects."""

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Final, TypeVar

import structlog

#: The timeout of a request that sets none, and the longest timeout.
_SECONDS_DEFAULT: Final = 30.0
_SECONDS_MAX: Final = 300.0

_Result = TypeVar("_Result")
_log = structlog.get_logger(__name__)


def deadline_of(timeout: timedelta | None = None) -> float:
    """Return the time of a request's timeout, by the loop's clock.

    Parameters:
        timeout: the request's; the default applies if it is 0 or less.
    """
    seconds = timeout.total_seconds() if timeout is not None else 0.0
    seconds = min(seconds, _SECONDS_MAX) if seconds > 0 else _SECONDS_DEFAULT
    return asyncio.get_running_loop().time() + seconds


class AdminChanges:
    """Runs at most `at_once` changes at a time; they go on when their client disconnects."""

    def __init__(self, at_once: int) -> None:
        self._free = asyncio.Semaphore(at_once)
        self._running: set[asyncio.Task[Any]] = set()

    async def run(
        self,
        work: Callable[[], Coroutine[Any, Any, _Result]],
        deadline: float,
        timed_out: _Result,
    ) -> _Result:
        """Run a change, and return its result.

        Parameters:
            work: makes the change.
            deadline: how long to wait, by the loop's clock.
            timed_out: returned at the deadline. The change goes on if it was begun.
        """
        loop = asyncio.get_running_loop()
        if loop.time() >= deadline:
            return timed_out
        try:
            async with asyncio.timeout_at(deadline):
                await self._free.acquire()
                task = loop.create_task(self._do(work))
                self._running.add(task)
                task.add_done_callback(self._done)
                return await asyncio.shield(task)
        except TimeoutError:
            return timed_out

    async def _do(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        try:
            return await work()
        finally:
            self._free.release()

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("a change failed", error=repr(task.exception()))
