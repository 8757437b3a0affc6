"""The threads for blocking work: many items, in as many threads as help."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from pidlease.storage.io_pool import IoPool
from tests.servers.waiting import WAIT_S

_THREADS = 4


@pytest.fixture
async def pool() -> AsyncIterator[IoPool]:
    pool = IoPool(asyncio.get_running_loop(), _THREADS)
    yield pool
    pool.close()


async def test_results_come_in_the_order_of_the_items(pool: IoPool) -> None:
    items = range(10_000)
    assert await pool.run_each(lambda item: item * 2, items, _THREADS) == [2 * n for n in items]
    assert await pool.run_each(lambda item: item, []) == []


async def test_threads_join_while_the_process_waits(pool: IoPool) -> None:
    """The items wait for each other: one thread alone would never end."""
    together = threading.Barrier(_THREADS)

    def wait_for_others(_: int) -> bool:
        together.wait(WAIT_S)
        return True

    assert await pool.run_each(wait_for_others, range(_THREADS)) == [True] * _THREADS


async def test_an_error_ends_the_rest(pool: IoPool) -> None:
    begun = []

    def fail(item: int) -> None:
        begun.append(item)
        raise ConnectionError(item)

    with pytest.raises(ConnectionError):
        await pool.run_each(fail, range(10_000))
    assert len(begun) <= _THREADS
