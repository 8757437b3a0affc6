"""Callers that wait for room in a producer's buffer continue in the order of their calls."""

import asyncio

from pidlease.client.producer_memory import Memory


async def test_a_caller_that_was_woken_keeps_its_place() -> None:
    memory, used = Memory(1), []
    memory.add(1)

    async def use(name: str) -> None:
        await memory.room()
        memory.add(1)
        used.append(name)

    tasks = [asyncio.create_task(use(name)) for name in "abc"]
    await asyncio.sleep(0)
    memory.release(1)
    memory.wake()  # as a second batch does that is acknowledged before the first caller runs
    late = asyncio.create_task(use("d"))
    for _ in range(3):
        await asyncio.sleep(0.001)
        memory.release(1)
    await asyncio.gather(*tasks, late)
    assert used == ["a", "b", "c", "d"]


async def test_a_caller_that_leaves_after_it_was_woken_wakes_the_next() -> None:
    memory = Memory(1)
    memory.add(1)
    first, second = (asyncio.create_task(memory.room()) for _ in range(2))
    await asyncio.sleep(0)
    memory.release(1)
    first.cancel()
    async with asyncio.timeout(60):
        await second
    assert first.cancelled()
