"""An IoPool without threads: the same jobs, one at a time, in an order that a seed decides."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from typing_extensions import override

from pidlease.storage.io_pool import IoPool, Item, Result


class SeededPool(IoPool):
    """Does jobs on the loop, so that a run can be repeated exactly.

    Jobs that wait together are done in any order, as threads might; each of them as a whole.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        super().__init__(loop, threads=0)
        self._seeded_loop = loop
        self._random = random
        self._waiting: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    @override
    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._waiting.append((work, done))
        self._seeded_loop.call_soon(self._do_one)

    @override
    async def run_each(
        self, work: Callable[[Item], Result], items: Sequence[Item], first_threads: int = 1
    ) -> list[Result]:
        return await asyncio.gather(*(self.run(partial(work, each)) for each in items))

    def _do_one(self) -> None:
        place = self._random.randrange(len(self._waiting))
        work, done = self._waiting.pop(place)
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - a simulated crash, too, goes to the waiter
            result = error
        # Not at once: a thread's result takes a while, in which the loop does other things.
        self._seeded_loop.call_soon(done, result)
