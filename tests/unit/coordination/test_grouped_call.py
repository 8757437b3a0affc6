"""One call for the items that came during the one before it."""

import asyncio
from collections.abc import Sequence

import pytest

from pidlease.coordination.grouped_call import GroupedCall


class Doubling:
    """Doubles numbers when it is released; some of them, or some groups, fail."""

    def __init__(self, size_max: int = 100) -> None:
        self.groups: list[list[int]] = []
        self.release = asyncio.Semaphore(0)
        self.failing_group = -1
        self.double = GroupedCall(self._double_all, size_max)

    async def _double_all(self, numbers: Sequence[int]) -> list[int | Exception]:
        self.groups.append(list(numbers))
        await self.release.acquire()
        if len(self.groups) == self.failing_group:
            raise OSError("away")
        return [ValueError(number) if number < 0 else 2 * number for number in numbers]


async def _settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def _begin(source: Doubling, *numbers: int) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(source.double(number)) for number in numbers]
    await _settle()
    return tasks


async def test_what_comes_during_a_call_goes_together_into_the_next() -> None:
    source = Doubling()
    first = await _begin(source, 1, 2)
    later = [*await _begin(source, 3), *await _begin(source, 4, 5)]
    assert source.groups == [[1, 2]], "one call at a time"
    source.release.release()
    await _settle()
    assert source.groups == [[1, 2], [3, 4, 5]]
    assert [task.done() for task in later] == [False] * 3
    source.release.release()
    assert await asyncio.gather(*first, *later) == [2, 4, 6, 8, 10]
    source.release.release()
    assert await source.double(6) == 12, "it begins again after a pause"


async def test_a_call_has_a_largest_size() -> None:
    source = Doubling(size_max=2)
    tasks = await _begin(source, 1, 2, 3, 4, 5)
    for _ in range(3):
        source.release.release()
    assert await asyncio.gather(*tasks) == [2, 4, 6, 8, 10]
    assert source.groups == [[1, 2], [3, 4], [5]]


async def test_an_error_of_one_item_concerns_no_other() -> None:
    source = Doubling()
    tasks = await _begin(source, 1, -2, 3)
    source.release.release()
    one, other, third = await asyncio.gather(*tasks, return_exceptions=True)
    assert (one, third) == (2, 6)
    assert isinstance(other, ValueError)


async def test_an_error_of_a_call_concerns_its_items_only() -> None:
    source = Doubling()
    source.failing_group = 1
    failed = await _begin(source, 1, 2)
    made = await _begin(source, 3)
    source.release.release()
    source.release.release()
    for task in failed:
        with pytest.raises(OSError, match="away"):
            await task
    assert await made[0] == 6


async def test_callers_that_are_cancelled() -> None:
    """Their items go into no call that begins later, and other callers get their results."""
    source = Doubling()
    first = await _begin(source, 1, 2)
    later = await _begin(source, 3, 4)
    first[0].cancel()
    later[0].cancel()
    await _settle()
    source.release.release()
    source.release.release()
    assert await first[1] == 4
    assert await later[1] == 8
    assert source.groups == [[1, 2], [4]]


async def test_no_caller_waits_for_ever_when_the_calls_are_cancelled() -> None:
    source = Doubling()
    tasks = [*await _begin(source, 1), *await _begin(source, 2)]
    assert source.double._calls is not None
    source.double._calls.cancel()
    for task in tasks:
        with pytest.raises(asyncio.CancelledError):
            await task
    source.release.release()
    assert await source.double(3) == 6
