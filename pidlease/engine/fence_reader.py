"""Reads the fences of names that other servers have granted.

Several active servers grant names. Each reads the others' grants every second, before it answers
where a PID continues, and after it has taken a partition's writer: if a name was granted again
before that, its earlier producer must not write under this server.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import takewhile
from typing import Final

import structlog

from pidlease.coordination.fence_log import FenceLog, FenceLogError, FencePosition
from pidlease.coordination.name_bindings import NamesError
from pidlease.coordination.shared_call import SharedCall
from pidlease.engine.leases.leases import Leases
from pidlease.engine.named_leases import NamedLeases
from pidlease.storage.errors import LogError
from pidlease.storage.io_pool import IoPool

#: Fences noted before other tasks run.
_AT_ONCE: Final = 500

_log = structlog.get_logger(__name__)


class FenceReader:
    """Follows the fence log.

    Parameters:
        log: the fence log.
        naming: gets the fences.
        leases: where fences are kept.
    """

    def __init__(self, log: FenceLog, pool: IoPool, naming: NamedLeases, leases: Leases) -> None:
        self._fences: Final = log
        self._pool: Final = pool
        self._naming: Final = naming
        self._leases: Final = leases
        self._position = FencePosition(0, 0)
        self._call: Final = SharedCall(self._read_on)
        #: Until when the fence of a PID is kept, in ms since 1970; in this order.
        self._kept: Final[dict[int, int]] = {}
        self.read_count = 0

    async def begin(self, load: Callable[[], Awaitable[None]]) -> None:
        """Begin before all bindings are loaded, so that no grant is missed in between.

        Parameters:
            load: loads the fences of all bindings.

        Raises:
            NamesError: the fence log cannot be read.
        """
        try:
            position = await self._pool.run(self._fences.end)
        except FenceLogError as error:
            raise NamesError(str(error)) from error
        await load()
        self._keep(self._leases.fences)
        # Last: if the bindings cannot be loaded, the next read begins where this one did.
        self._position = position

    async def read(self) -> None:
        """Note all grants that were made before this call.

        Raises:
            LogError: the fence log cannot be read now.
        """
        try:
            await self._call()
        except (FenceLogError, NamesError) as error:
            raise LogError(f"the fences of names cannot be read now: {error}") from error

    async def _read_on(self) -> None:
        found, position = await self._pool.run(partial(self._fences.read, self._position))
        if position is None:
            # This server has not read for so long that entries were removed.
            _log.warning("the fence log was cut; all bindings are read again")
            await self.begin(self._naming.load)
            return
        for number, (name, binding) in enumerate(found):
            self._naming.note_grant(name, binding)
            self._keep(binding.pids())
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
        self._position = position
        self.read_count += len(found)
        self._sweep()

    def _keep(self, pids: Iterable[int]) -> None:
        until_ms = self._leases.fence_until_ms()
        for pid in pids:
            self._kept.pop(pid, None)  # the latest grant counts
            self._kept[pid] = until_ms

    def _sweep(self) -> None:
        """Forget fences that no producer can need any more."""
        now_ms = self._leases.now_ms()
        for pid, _ in list(takewhile(lambda kept: kept[1] < now_ms, self._kept.items())):
            if pid in self._leases:
                self._keep([pid])
            else:
                del self._kept[pid]
                self._leases.unbind(pid)
