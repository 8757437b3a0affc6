"""How long a server keeps the fences of names that other servers have granted."""

import asyncio
from typing import Any

import pytest

from pidlease.coordination.fence_log import FencePosition
from pidlease.coordination.name_bindings import Binding, NamesError
from pidlease.core.blocks import PidBlock
from pidlease.core.pid import Policy, make_pid
from pidlease.engine.fence_reader import FenceReader
from pidlease.engine.leases.leases import Leases
from pidlease.engine.named_leases import NamedLeases
from pidlease.storage.errors import LogError
from pidlease.storage.io_pool import IoPool

_LEASE_MS = 1_000_000
_SKEW_MS = 300_000
_PID = make_pid(Policy.MONOTONIC, 7)


class _World:
    """A server that reads a fence log, with a clock of its own."""

    def __init__(self) -> None:
        self.now_ms = 10**9
        self.grants: list[tuple[str, Binding]] = []
        self.bound: dict[str, Binding] = {}
        self.away = self.cut = False
        sequence: Any = self
        log: Any = self
        pool = IoPool(asyncio.get_running_loop(), 1)
        self.leases = Leases(sequence, pool, lambda: self.now_ms, lease_ms=_LEASE_MS, capacity=100)
        self.leases.keeps_fences = True
        self.naming = NamedLeases(log, pool, self.leases)
        self.reader = FenceReader(log, pool, self.naming, self.leases)

    shared = True

    def blocks(self, beyond: int = 0) -> list[PidBlock]:
        return []

    def take(self, at_least: int = 1) -> PidBlock:
        return PidBlock(at_least, 100, self.now_ms)

    def all(self) -> dict[str, Binding]:
        if self.away:
            raise NamesError("away")
        return self.bound

    def end(self) -> FencePosition:
        return FencePosition(0, len(self.grants))

    def read(
        self, position: FencePosition
    ) -> tuple[list[tuple[str, Binding]], FencePosition | None]:
        if self.cut and position != self.end():
            return [], None
        return self.grants[position[1] :], self.end()

    async def grant(self, generation: int) -> None:
        self.grants.append(("n", Binding(_PID, generation, -1, self.now_ms)))
        await self.reader.read()

    async def later(self, ms: int) -> None:
        """Let time pass, as far as a lease lasts at this server."""
        self.now_ms += ms
        self.leases.expire()
        await self.reader.read()


@pytest.fixture
async def world() -> _World:
    return _World()


async def test_a_fence_lasts_from_the_last_grant(world: _World) -> None:
    await world.grant(5)
    await world.later(2 * _LEASE_MS + _SKEW_MS - 1000)
    await world.grant(6)
    await world.later(_LEASE_MS + 1000)
    assert world.leases.fences[_PID] == 6
    await world.later(3 * _LEASE_MS)
    await world.later(2 * _LEASE_MS + _SKEW_MS + 1000)
    assert _PID not in world.leases.fences


async def test_a_fence_of_a_leased_pid_is_forgotten_later(world: _World) -> None:
    await world.grant(5)
    world.now_ms += 2 * _LEASE_MS + _SKEW_MS + 1000
    world.leases.hold(_PID, world.now_ms)
    await world.reader.read()
    assert world.leases.fences[_PID] == 5
    await world.later(2 * _LEASE_MS + _SKEW_MS + 1000)
    await world.later(2 * _LEASE_MS + _SKEW_MS + 1000)
    assert _PID not in world.leases.fences


async def test_bindings_that_could_not_be_read_are_read_the_next_time(world: _World) -> None:
    """Once the next read began at the end: all fences of a log that was cut were missed."""
    await world.grant(5)
    world.bound["n"] = Binding(_PID, 6, -1, world.now_ms)
    world.cut = world.away = True
    for _ in range(2):
        with pytest.raises(LogError, match="away"):
            await world.grant(6)
        assert world.leases.fences[_PID] == 5
    world.away = False
    await world.reader.read()
    assert world.leases.fences[_PID] == 6
