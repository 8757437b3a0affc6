"""The threads that write, read and fsync files, off the event loop.

The pool costs less than an executor with futures, because every append may use it: one queue of
jobs, one queue of results, and one wake-up of the event loop for all results that are ready.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

import structlog

Item = TypeVar("Item")
Result = TypeVar("Result")

_log = structlog.get_logger(__name__)

_Job = tuple[Callable[[], Any], Callable[[Any], None]]

THREADS_DEFAULT: Final = 8
#: How long a thread works on many items before it reports, in s.
_PIECE_SECONDS: Final = 0.01
#: Below this share of a core the process waits for the disk or the network.
_BUSY_SHARE: Final = 0.7


class _Many(Generic[Item, Result]):
    """Many items that threads take one by one.

    Parameters:
        work: is called with each item, in a thread.
        items: the items.
    """

    def __init__(self, work: Callable[[Item], Result], items: Sequence[Item]) -> None:
        self._work = work
        self._items = items
        #: The indexes of items that no thread has taken.
        self.left = deque(range(len(items)))
        self._results: dict[int, Result] = {}
        self._looked_at = time.monotonic()
        self._used_before = time.process_time()

    def piece(self) -> None:
        """Handle items for a short while. Blocks."""
        until = time.monotonic() + _PIECE_SECONDS
        while True:
            try:
                index = self.left.popleft()
            except IndexError:
                return  # other threads have taken the last ones
            try:
                self._results[index] = self._work(self._items[index])
            except BaseException:
                self.left.clear()
                raise
            if time.monotonic() >= until:
                return

    def waits(self) -> bool:
        """Whether the process has mostly waited since the last call."""
        now, used = time.monotonic(), time.process_time()
        if now - self._looked_at < _PIECE_SECONDS / 2:
            return False
        share = (used - self._used_before) / (now - self._looked_at)
        self._looked_at, self._used_before = now, used
        return share < _BUSY_SHARE

    def results(self) -> list[Result]:
        """Return the results in the order of the items."""
        return [self._results[index] for index in range(len(self._items))]


class IoPool:
    """Runs blocking work in a few threads.

    The callers bound the queue: each partition has one running append, each connection a bounded
    number of requests.

    Parameters:
        loop: the event loop that gets the results.
        threads: the number of threads.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = THREADS_DEFAULT) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._results: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._woken = False
        #: Until this time (monotonic, in s) the disk is busy: write nothing on the event loop.
        self.calm_from = 0.0
        self._threads = [
            threading.Thread(target=self._work, name=f"io-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run `work` in a thread, and call `done` on the event loop with its result.

        If `work` raises, `done` gets the exception as the result.
        """
        self._jobs.put((work, done))

    def deliver(self, done: Callable[[Any], None], result: object) -> None:
        """Call `done` in a later turn of the event loop with a result that is ready."""
        self._loop.call_soon(done, result)

    def call_from_thread(self, call: Callable[[], object]) -> None:
        """Call something on the event loop, from one of the threads."""
        self._loop.call_soon_threadsafe(call)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run `work` in a thread, and wait for its result.

        Raises:
            Exception: the exception that `work` raises.
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

    async def run_each(
        self, work: Callable[[Item], Result], items: Sequence[Item], first_threads: int = 1
    ) -> list[Result]:
        """Run `work` for each of many items, in as many threads as help.

        Short calls of the system in several threads cost more than they gain, because the threads
        wait for the interpreter's lock after each. So more threads join only while the process
        waits for the disk or the network.

        Parameters:
            work: runs in a thread, and usually takes less than a millisecond.
            items: the items.
            first_threads: how many threads begin.

        Returns:
            The results in the order of the items.

        Raises:
            Exception: one that `work` raises; then no further item is begun.
        """
        many = _Many(work, items)
        threads = min(first_threads, len(self._threads))
        running: set[asyncio.Task[None]] = set()
        try:
            while many.left or running:
                while many.left and len(running) < threads:
                    running.add(asyncio.create_task(self.run(many.piece)))
                done, running = await asyncio.wait(
                    running, timeout=_PIECE_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                errors = [error for piece in done if (error := piece.exception()) is not None]
                if errors:
                    raise errors[0]
                if many.waits():
                    threads = min(threads + 1, len(self._threads))
        finally:
            many.left.clear()
            await asyncio.gather(*running, return_exceptions=True)
        return many.results()

    def close(self) -> None:
        """Run the queued jobs, and end the threads. Blocks; a loop that ended gets no results."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done = job
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - passed to `done`
                result = error
            self._results.append((done, result))
            if not self._woken:
                self._woken = True
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Cleared first: a result that arrives from now on wakes the loop again.
        self._woken = False
        while self._results:
            done, result = self._results.popleft()
            try:
                done(result)
            except Exception:  # noqa: BLE001 - a bug of one caller must not strand the others
                _log.exception("a result could not be delivered")
