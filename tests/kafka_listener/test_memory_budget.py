"""The memory for requests: waits that end in vain leave nothing behind."""

import asyncio

import pytest

from proxy.kafka.memory_budget import MemoryBudget


async def test_a_wait_that_ends_in_vain_leaves_nothing() -> None:
    budget = MemoryBudget(1)
    assert budget.reserve(1)
    with pytest.raises(TimeoutError):
        await budget.freed(0.001)
    assert not budget._waiting


async def waits(budget: MemoryBudget) -> asyncio.Task[None]:
    """One that waits for memory."""
    assert budget.reserve(1)
    waiting = asyncio.create_task(budget.freed(60))
    while not budget._waiting:  # noqa: ASYNC110 - turns of the loop are what is waited for
        await asyncio.sleep(0)
    return waiting


async def test_a_wait_that_is_cancelled_leaves_nothing() -> None:
    budget = MemoryBudget(1)
    waiting = await waits(budget)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not budget._waiting


async def test_freed_memory_ends_a_wait() -> None:
    budget = MemoryBudget(1)
    waiting = await waits(budget)
    budget.release(1)
    await waiting
