"""One call for all who ask before it begins."""

import asyncio

import pytest

from pidlease.coordination.shared_call import SharedCall


class Source:
    """Answers with the number of the call, when it is released."""

    def __init__(self) -> None:
        self.calls = 0
        self.release = asyncio.Event()
        self.failing = 0

    async def ask(self) -> int:
        self.calls += 1
        number = self.calls
        await self.release.wait()
        if number == self.failing:
            raise OSError("away")
        return number


async def _settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_callers_share_the_next_call_and_never_a_running_one() -> None:
    source = Source()
    shared = SharedCall(source.ask)
    first = [asyncio.create_task(shared()) for _ in range(3)]
    await _settle()
    assert source.calls == 1
    later = [asyncio.create_task(shared()) for _ in range(3)]
    await _settle()
    assert source.calls == 1, "one call at a time"
    source.release.set()
    assert await asyncio.gather(*first) == [1, 1, 1]
    assert await asyncio.gather(*later) == [2, 2, 2]
    assert await shared() == 3


async def test_a_caller_that_gives_up_takes_nothing_from_the_others() -> None:
    source = Source()
    shared = SharedCall(source.ask)
    impatient, patient = (asyncio.create_task(shared()) for _ in range(2))
    await _settle()
    impatient.cancel()
    await _settle()
    source.release.set()
    assert await patient == 1


async def test_an_error_is_raised_to_its_own_callers_only() -> None:
    source = Source()
    source.failing = 1
    shared = SharedCall(source.ask)
    failing = asyncio.create_task(shared())
    await _settle()
    waiting = asyncio.create_task(shared())
    source.release.set()
    with pytest.raises(OSError, match="away"):
        await failing
    assert await waiting == 2
