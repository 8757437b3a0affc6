"""The memory for the large responses of leaders to one Fetch.

It is reserved for all of them before the first one is read. So a request that holds memory waits
for no more, and no two requests wait for each other.
"""

import asyncio
import time
from typing import Final

from pidlease.kafka.client.broker_connection import BrokerConnection
from proxy.kafka.client_connection import Slot

#: How long a request waits at least for memory.
_ROOM_SECONDS: Final = 0.05


class ResponseMemory:
    """Admits the large responses to one request when there is memory for them.

    Parameters:
        slot: of the request; it holds the memory until the client's response is sent.
        bytes_max: the most bytes of the client's response; its first batch may be larger.
        deadline: until when to wait for memory, by time.monotonic.
    """

    def __init__(self, slot: Slot, bytes_max: int, deadline: float) -> None:
        self.bytes_max: Final = min(bytes_max, slot.connection.budget.limit // 4)
        #: The bytes of the responses that were admitted.
        self.admitted = 0
        #: Completes when there is no memory for a response.
        self.over: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self.deadline: Final = deadline
        self._slot: Final = slot
        #: The most bytes of the responses of all leaders but one.
        self._others = 0
        self._reserved = self._closed = False
        self._waiting: list[BrokerConnection] = []
        self._task: asyncio.Task[None] | None = None

    def share(self, leaders: int) -> int:
        """Return the most bytes to request from each of the leaders."""
        share = self.bytes_max // max(leaders, 1)
        self._others = max(self._others, self.bytes_max - share)
        return share

    def admits(self, connection: BrokerConnection, size: int) -> bool:
        """Return whether to read a response now; if not, `read_on` follows if there is memory."""
        if not self._reserved:
            budget = self._slot.connection.budget
            need = min(size + self._others, budget.limit // 4)
            self._reserved = self._task is None and self._slot.reserve(need)
            if not self._reserved:
                self._waiting.append(connection)
                self._task = self._task or asyncio.create_task(self._wait(need))
                return False
        return self._admit(size)

    def close(self) -> None:
        """Admit no more responses."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()

    async def _wait(self, need: int) -> None:
        seconds = max(self.deadline - time.monotonic(), _ROOM_SECONDS)
        if not await self._slot.hold(need, seconds):
            self._end()
            return
        if self._closed:  # `asyncio.wait_for` loses a cancellation that comes with the memory
            self._slot.resize(self._slot.reserved - need)
            return
        self._reserved = True
        for connection in self._waiting:
            if self._admit(connection.announced):
                connection.read_on()

    def _admit(self, size: int) -> bool:
        # A first batch may be larger than what was requested.
        more = self.admitted + size - self._slot.reserved
        if more > 0 and not self.admitted:
            self._slot.count(more)  # even above the limit, or it would never be read
        elif more > 0 and not self._slot.reserve(more):
            self._end()  # the next request gets it
            return False
        self.admitted += size
        return True

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)
