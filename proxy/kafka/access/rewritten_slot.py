"""Response slots that change or check the response before it is sent."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from proxy.kafka.client_connection import Slot

if TYPE_CHECKING:
    import asyncio


class RewrittenSlot(Slot):
    """Passes everything on to another slot, but for the response.

    Parameters:
        outer: the request's slot.

    Attributes:
        filled: the response; None: there is none, or not yet.
    """

    __slots__ = ("_outer", "filled")

    def __init__(self, outer: Slot) -> None:
        super().__init__(outer.connection, outer.correlation_id, 0)
        self._outer: Final = outer
        self.filled: bytes | None = None
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
            self.filled = b"".join(parts)


class GuardedSlot(RewrittenSlot):
    """Passes the response on, too, if the client has its rights then.

    Parameters:
        is_allowed: whether it still has them.

    Attributes:
        revoked: whether there was a response, and it was dropped.
    """

    __slots__ = ("_is_allowed", "revoked")

    def __init__(self, outer: Slot, is_allowed: Callable[[], bool]) -> None:
        super().__init__(outer)
        self._is_allowed: Final = is_allowed
        self.revoked = False

    @override
    def followed(self) -> "asyncio.Future[None]":
        future = super().followed()
        if not future.done() and not self._is_allowed():
            future.set_result(None)  # wait for no record
        return future

    @override
    def fill(self, *parts: bytes) -> None:
        if self.ready:
            return
        self.ready = True
        if self._is_allowed():
            self._outer.fill(*parts)
        else:
            self.revoked = True
            self.resize(0)
