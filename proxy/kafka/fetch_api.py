"""Fetch (key 1) on the embedded log: stored batches, unchanged, with a long poll.

Source: FetchRequest.json / FetchResponse.json of Kafka 4.1, versions 4 to 11. There are no fetch
sessions (KIP-227): session id 0 in the response makes a client send a full request each time.
"""

import asyncio
import time
from contextlib import suppress
from typing import Final

from pidlease.engine.engine import Engine
from pidlease.kafka.codec.fetch import read_fetch_request, write_fetch_response
from pidlease.kafka.codec.primitives import RequestHeader
from proxy.kafka.client_connection import Slot
from proxy.kafka.fetch_poll import Poll, partition_records
from proxy.kafka.memory_budget import MemoryBudget

#: The upper bound of a request's max_wait_ms.
_WAIT_MS_MAX: Final = 60_000
#: How long to collect records before the next read, if the poll's min_bytes is more than 1.
_GATHER_SECONDS: Final = 0.005


class FetchApi:
    """Handles Fetch requests.

    Parameters:
        budget: memory for responses.
        fetch_bytes_max: the largest response; its first batch may be larger.
    """

    def __init__(self, engine: Engine, budget: MemoryBudget, fetch_bytes_max: int) -> None:
        self._engine = engine
        self._budget = budget
        self._fetch_bytes_max = fetch_bytes_max
        self._polls: set[asyncio.Event] = set()
        self._closing = False

    def close(self) -> None:
        """End all polls: they respond with the records that are there."""
        self._closing = True
        for event in self._polls:
            event.set()

    async def answer(self, slot: Slot, header: RequestHeader, frame: bytearray) -> None:
        """Answer a request, at once or when there are enough bytes to read.

        Raises:
            MalformedError: the frame is not a valid request.
        """
        # A connection makes one response at a time, in order, and only while the client reads.
        async with slot.connection.answering:
            poll = await self._begin(header, frame)
            if not await self._read(slot, poll):
                await self._read_later(slot, poll)
            topics = {
                name: (len(rows), map(partition_records, rows))
                for name, rows in poll.topics.items()
            }
            parts = await write_fetch_response(header.version, slot.correlation_id, topics)
            poll.count(slot.count_error)
        slot.fill(*parts)

    async def _begin(self, header: RequestHeader, frame: bytearray) -> Poll:
        request = read_fetch_request(frame, header.body, header.version)
        poll = Poll(request, time.monotonic() + min(request.wait_ms, _WAIT_MS_MAX) / 1000)
        await poll.find(request, self._engine)
        return poll

    async def _read_later(self, slot: Slot, poll: Poll) -> None:
        """Hold the poll until there are enough bytes, or its time is up."""
        event = asyncio.Event()
        self._polls.add(event)
        poll.followed = slot.followed()
        poll.followed.add_done_callback(lambda _: event.set())
        try:
            await poll.watch(event)
            # Read again before the first wait: records may have come before the event was set up.
            while not await self._read(slot, poll):
                await self._wait(event, poll)
        finally:
            self._polls.discard(event)
            poll.unwatch(event)

    async def _wait(self, event: asyncio.Event, poll: Poll) -> None:
        """Return when there are new records, or the poll's time is up."""
        left = poll.deadline - time.monotonic()
        if left <= 0 or self._closing or poll.is_followed:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), left)
        event.clear()
        if poll.min_bytes > 1:
            # Do not wake for each new record: every wake-up reads all records again.
            left = poll.deadline - time.monotonic()
            await asyncio.sleep(max(min(_GATHER_SECONDS, left), 0))

    async def _read(self, slot: Slot, poll: Poll) -> bool:
        """Read records; return True if there are enough, an error, or no time left: respond.

        The memory is counted as the request's until the response is sent.
        """
        # At most a quarter of the memory; the first batch is returned whole in any case.
        limit = min(poll.max_bytes, self._fetch_bytes_max, self._budget.limit // 4)
        ready = await poll.ready()
        if ready:
            await slot.connection.writable.wait()
            # Wait for memory until the poll's deadline, but a little even if that has passed.
            seconds = max(poll.deadline - time.monotonic(), _GATHER_SECONDS)
            if not await slot.hold(limit, seconds):
                return True
        size = await poll.read(ready, limit)
        if slot.reserved:
            # The first batch is returned whole, so `size` may be more than was reserved.
            slot.resize(size)
        if size >= poll.min_bytes or poll.failed or not poll.rows:
            return True
        if self._closing or poll.is_followed or time.monotonic() >= poll.deadline:
            return True
        # Drop the records and read them again later: no memory is reserved for them meanwhile.
        for row in ready:
            row.clear()
        slot.resize(0)
        return False
