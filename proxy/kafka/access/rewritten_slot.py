"""A response slot that changes the response before it is sent."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from proxy.kafka.client_connection import Slot

if TYPE_CHECKING:
    import asyncio


class RewrittenSlot(Slot):
    """Passes everything on to another slot, and the response through a function.

    Parameters:
        outer: the request's slot.
        rewrite: makes the response that is sent.
    """

    __slots__ = ("_outer", "_rewrite")

    def __init__(self, outer: Slot, rewrite: Callable[[bytes], bytes]) -> None:
        super().__init__(outer.connection, outer.correlation_id, 0)
        self._outer: Final = outer
        self._rewrite: Final = rewrite
        self.api_key = outer.api_key

    @override
    def count_error(self, code: int) -> None:
        self._outer.count_error(code)

    @override
    async def turn(self) -> None:
        await self._outer.turn()

    @override
    def followed(self) -> "asyncio.Future[None]":
        return self._outer.followed()

    @override
    def reserve(self, size: int) -> bool:
        reserved = self._outer.reserve(size)
        self.reserved = self._outer.reserved
        return reserved

    @override
    def count(self, size: int) -> None:
        self._outer.count(size)
        self.reserved = self._outer.reserved

    @override
    def park(self) -> None:
        self._outer.park()

    @override
    def resize(self, size: int) -> None:
        self._outer.resize(size)
        self.reserved = self._outer.reserved

    @override
    def fill(self, *parts: bytes) -> None:
        if self.ready:
            return
        self.ready = True
        if parts:
            self._outer.fill(self._rewrite(b"".join(parts)))
        else:
            self._outer.fill()
