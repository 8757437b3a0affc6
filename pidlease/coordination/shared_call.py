"""One call for many callers, whose answer is never older than the question."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

Result = TypeVar("Result")


class SharedCall(Generic[Result]):
    """Calls a function once for all who ask before the call begins; one call runs at a time.

    A caller never gets the result of a call that began before it asked.

    Parameters:
        call: the function.
    """

    def __init__(self, call: Callable[[], Awaitable[Result]]) -> None:
        self._call: Final = call
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
        self._running, self._next = self._next, None
        return await self._call()
