"""One call for many callers; its result is never older than their requests."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

Result = TypeVar("Result")


class SharedCall(Generic[Result]):
    """Calls a function once for all callers that come before the call begins.

    One call runs at a time. A caller never gets the result of a call that began before it came.

    Parameters:
        rest_seconds: the least time between two calls, to gather callers meanwhile.
    """

    def __init__(self, call: Callable[[], Awaitable[Result]], *, rest_seconds: float = 0.0) -> None:
        self._call: Final = call
        self._rest_seconds: Final = rest_seconds
        self._rests_until = 0.0
        self._running: asyncio.Task[Result] | None = None
        self._next: asyncio.Task[Result] | None = None

    async def __call__(self) -> Result:
        """Return the result of the next call, or raise its error."""
        if self._next is None:
            self._next = asyncio.create_task(self._run(self._running))
        return await asyncio.shield(self._next)

    async def _run(self, previous: asyncio.Task[Result] | None) -> Result:
        if previous is not None:
            await asyncio.wait({previous})
        rest = self._rests_until - time.monotonic()
        if rest > 0:
            await asyncio.sleep(rest)
        # From here on callers wait for the call after this one.
        self._running, self._next = self._next, None
        try:
            return await self._call()
        finally:
            self._rests_until = time.monotonic() + self._rest_seconds
