"""The threads in which files are written, read and fsynced, off the event loop.

Thinner than an executor's futures, because every append comes through here: one queue in, one
queue back, and one wake-up of the loop for all results that are there.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import structlog

Result = TypeVar("Result")

_log = structlog.get_logger(__name__)

_Job = tuple[Callable[[], Any], Callable[[Any], None]]

THREADS_DEFAULT: Final = 8


class IoPool:
    """A few threads for blocking work.

    The queue is bounded by its users: each partition has one running append, each connection
    a bounded number of requests.

    Parameters:
        loop: where results are delivered.
        threads: how many.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = THREADS_DEFAULT) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._results: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._woken = False
        #: Before this time (monotonic, s) nothing should be written on the loop: the disk is busy.
        self.calm_from = 0.0
        self._threads = [
            threading.Thread(target=self._work, name=f"io-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Have `work` done in a thread, and `done` called on the loop with what it returned.

        What it raises is handed to `done` as the exception itself.
        """
        self._jobs.put((work, done))

    def deliver(self, done: Callable[[Any], None], result: object) -> None:
        """Have `done` called on the loop, soon, with a result that is there already."""
        self._loop.call_soon(done, result)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Have `work` done in a thread, and wait for it.

        Raises:
            Exception: what `work` raises.
        """
        future: asyncio.Future[Result] = self._loop.create_future()

        def done(result: Result | BaseException) -> None:
            if future.cancelled():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.submit(work, done)
        return await future

    def close(self) -> None:
        """Finish what is queued, and end the threads. Results no longer arrive by themselves."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done = job
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits for it
                result = error
            self._results.append((done, result))
            if not self._woken:
                self._woken = True
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Cleared first: a result that comes from here on wakes the loop again.
        self._woken = False
        while self._results:
            done, result = self._results.popleft()
            try:
                done(result)
            except Exception:  # noqa: BLE001 - one waiter's bug is not to strand the others
                _log.exception("a result could not be delivered")
