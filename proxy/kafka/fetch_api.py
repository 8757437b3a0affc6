"""Fetch (key 1): records as they stand in the log, with a long poll.

Source: FetchRequest.json / FetchResponse.json of Kafka 4.1, versions 4 to 11. Fetch sessions
(KIP-227) are not kept: the answer's session id 0 makes a client send a full request each time.
"""

import asyncio
import time
from contextlib import suppress
from typing import Final

from pidlease.engine.engine import Engine
from pidlease.kafka.codec.fetch import write_fetch_response
from pidlease.kafka.codec.messages import read_request_slowly
from pidlease.kafka.codec.primitives import RequestHeader
from proxy.kafka.client_connection import Slot
from proxy.kafka.fetch_poll import Poll, found
from proxy.kafka.memory_budget import MemoryBudget

#: How long a poll may be held, whatever the client asks for.
_WAIT_MS_MAX: Final = 60_000
#: How long records gather for a poll that asks for more than the first.
_GATHER_SECONDS: Final = 0.005


class FetchApi:
    """Answers Fetch requests.

    Parameters:
        engine: where the partitions are.
        budget: memory for the answers.
        fetch_bytes_max: the most that one answer holds, beyond its first batch.
    """

    def __init__(self, engine: Engine, budget: MemoryBudget, fetch_bytes_max: int) -> None:
        self._engine = engine
        self._budget = budget
        self._fetch_bytes_max = fetch_bytes_max
        self._polls: set[asyncio.Event] = set()
        self._closing = False

    def close(self) -> None:
        """Let all polls end with what there is."""
        self._closing = True
        for event in self._polls:
            event.set()

    async def answer(self, slot: Slot, header: RequestHeader, frame: bytearray) -> None:
        """Answer a request, at once or when there is enough to read.

        Raises:
            MalformedError: it is none.
        """
        # One answer of a connection at a time, in order, and none while it does not take them.
        async with slot.connection.answering:
            poll = await self._begin(header, frame)
            if not await self._read(slot, poll):
                await self._read_later(slot, poll)
            topics = {name: (len(rows), map(found, rows)) for name, rows in poll.topics.items()}
            parts = await write_fetch_response(header.version, slot.correlation_id, topics)
            await poll.count(slot.count_error)
        slot.fill(*parts)

    async def _begin(self, header: RequestHeader, frame: bytearray) -> Poll:
        request = await read_request_slowly(header, frame)
        wait_ms = min(int(request.max_wait.total_seconds() * 1000), _WAIT_MS_MAX)
        poll = Poll(request, time.monotonic() + wait_ms / 1000)
        await poll.find(request, self._engine)
        return poll

    async def _read_later(self, slot: Slot, poll: Poll) -> None:
        """Hold the poll until there is enough, or its time is up."""
        event = asyncio.Event()
        self._polls.add(event)
        poll.followed = slot.followed()
        poll.followed.add_done_callback(lambda _: event.set())
        try:
            await poll.watch(event)
            # Once more before the first wait: something may have come before it was watched for.
            while not await self._read(slot, poll):
                await self._wait(event, poll)
        finally:
            self._polls.discard(event)
            poll.unwatch(event)

    async def _wait(self, event: asyncio.Event, poll: Poll) -> None:
        """Return when records came, or time is up."""
        left = poll.deadline - time.monotonic()
        if left <= 0 or self._closing or poll.is_followed:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), left)
        event.clear()
        if poll.min_bytes > 1:
            # Not for every record that comes: what is there is read again each time.
            left = poll.deadline - time.monotonic()
            await asyncio.sleep(max(min(_GATHER_SECONDS, left), 0))

    async def _read(self, slot: Slot, poll: Poll) -> bool:
        """Read what is there; True: respond, for it is enough, an error, or time is up.

        The memory counts as the request's own until the answer is out.
        """
        # A part of the memory at most: the first batch is given whole in any case.
        limit = min(poll.max_bytes, self._fetch_bytes_max, self._budget.limit // 4)
        ready = await poll.ready()
        if ready:
            await slot.connection.writable.wait()
            # Not longer than the poll lasts (and a little, if it lasts not).
            seconds = max(poll.deadline - time.monotonic(), _GATHER_SECONDS)
            if not await slot.hold(limit, seconds):
                return True
        found = await poll.read(ready, limit)
        if slot.reserved:
            # The first batch is given whole, and may be more than was asked for.
            slot.resize(found)
        if found >= poll.min_bytes or poll.failed or not poll.rows:
            return True
        if self._closing or poll.is_followed or time.monotonic() >= poll.deadline:
            return True
        # What is not enough is not kept, for it would count as nobody's: it is read again.
        for row in ready:
            row.data = b""
        slot.resize(0)
        return False
