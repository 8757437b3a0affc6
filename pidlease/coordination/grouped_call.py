"""One call for many items: those that come during a call go together into the next one."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class GroupedCall(Generic[Item, Result]):
    """Calls a function for groups of items.

    One call runs at a time, and it begins after all of its items have come.

    Parameters:
        call: given the items of a group, returns a result for each, in their order. A result that
            is an exception is raised to the caller that brought the item; an exception that `call`
            raises, to all callers of the group.
        size_max: the most items of one call.
    """

    def __init__(
        self,
        call: Callable[[Sequence[Item]], Awaitable[Sequence[Result | Exception]]],
        size_max: int,
    ) -> None:
        self._call: Final = call
        self._size_max: Final = size_max
        self._waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._calls: asyncio.Task[None] | None = None

    async def __call__(self, item: Item) -> Result:
        """Return the result for an item, or raise its error."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._calls is None:
            # In the loop's next turn: items that come together go into one call.
            self._calls = asyncio.create_task(self._run())
        return await future

    async def _run(self) -> None:
        group: list[tuple[Item, asyncio.Future[Result]]] = []
        try:
            while group := self._next_group():
                try:
                    results = await self._call([item for item, _ in group])
                except Exception as error:  # noqa: BLE001 - raised to the callers
                    results = [error] * len(group)
                for (_, future), result in zip(group, results, strict=True):
                    if future.done():
                        continue  # its caller was cancelled
                    if isinstance(result, Exception):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
        finally:
            # None is left, unless this task was cancelled.
            self._calls = None
            for _, future in (*group, *self._waiting):
                future.cancel()
            self._waiting.clear()

    def _next_group(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        """Remove the items of the next call, except those of cancelled callers."""
        group: list[tuple[Item, asyncio.Future[Result]]] = []
        while self._waiting and len(group) < self._size_max:
            item, future = self._waiting.popleft()
            if not future.done():
                group.append((item, future))
        return group
