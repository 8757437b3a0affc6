"""Reads that wait for more of a stream: long polls, and server-sent events."""

import asyncio
import base64
import json
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final, Self

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from pidlease.engine.partition import Partition
from proxy.http.request_memory import IDLE_SECONDS, HeldBytes
from proxy.http.streams.stream_catalog import Stream
from proxy.http.streams.stream_offsets import offset_text
from proxy.http.streams.stream_requests import DATA_ENCODING, next_cursor

#: What ends a line of server-sent events.
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
#: From this number of readers on, each rests after an event: so long for each reader, and at most.
_READERS_MANY: Final = 20
_REST_SECONDS: Final = 0.0004
_REST_SECONDS_MAX: Final = 0.5
#: How many events are kept for other readers, and how large one may be, in bytes.
_SHARED_MAX: Final = 32
_SHARED_BYTES: Final = 64 << 10

#: The partition, the media type, the offsets before and after the values, whether the stream has no
#: more values, whether it is closed, and the reader's cursor.
EventKey = tuple[Partition, str, int, int, bool, bool, str]


class LiveReads:
    """All reads that wait.

    Attributes:
        ending: whether the server ends them.
    """

    def __init__(self) -> None:
        self.ending = False
        self._waiting: set[asyncio.Event] = set()
        self._events: OrderedDict[EventKey, bytes] = OrderedDict()

    def event(self, key: EventKey, make: Callable[[], bytes]) -> bytes:
        """Return the bytes of an event: many readers at the end of a stream share them.

        Parameters:
            key: says all that the event depends on.
            make: makes it, if no other reader had it lately.
        """
        found = self._events.get(key)
        if found is None:
            found = make()
            if len(found) <= _SHARED_BYTES:
                self._events[key] = found
                if len(self._events) > _SHARED_MAX:
                    self._events.popitem(last=False)
        return found

    async def rest(self) -> None:
        """Let values come together before a reader's next event, if there are many readers.

        An event costs the server as much as an append. Without a rest each event would have one
        value, and many readers would leave appends little time.
        """
        readers = len(self._waiting)
        if readers > _READERS_MANY:
            await asyncio.sleep(min(readers * _REST_SECONDS, _REST_SECONDS_MAX))

    def close(self) -> None:
        """End all reads that wait."""
        self.ending = True
        for event in self._waiting:
            event.set()

    def reader(self, request: Request, stream: Stream) -> "LiveReader":
        """Return a reader that waits for more of a stream; a context manager."""
        return LiveReader(self, self._waiting, request, stream)


class LiveReader:
    """Waits for more of a stream, until its client disconnects."""

    def __init__(
        self, reads: LiveReads, waiting: set[asyncio.Event], request: Request, stream: Stream
    ) -> None:
        self._reads: Final = reads
        self._waiting: Final = waiting
        self._stream: Final = stream
        self._event: Final = asyncio.Event()
        self._left: Final = asyncio.create_task(self._disconnected(request))

    def __enter__(self) -> Self:
        self._waiting.add(self._event)
        self._stream.partition.watch(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        self._left.cancel()
        self._stream.partition.unwatch(self._event)
        self._waiting.discard(self._event)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to wait for any more."""
        partition = self._stream.partition
        is_away = partition.gone or bool(partition.elsewhere)
        return self._reads.ending or is_away or self._left.done()

    async def wait(self, offset: int, seconds: float) -> None:
        """Return when the stream goes on, or ends, at an offset, or the time is up.

        If its log has other writers, only a read says whether it goes on: return when it may.
        """
        stream = self._stream
        is_shared = stream.partition.log_is_shared
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0)):
                while (
                    (is_shared or offset >= stream.tail)
                    and stream.gate.closed is None
                    and not self.is_over
                ):
                    await self._event.wait()
                    self._event.clear()
                    if is_shared:
                        return

    async def _disconnected(self, request: Request) -> None:
        try:
            while (await request.receive())["type"] == "http.request":
                pass  # the rest of a body that a read does not need
        finally:
            self._event.set()


class EventStream(Response):
    """A response of server-sent events.

    Parameters:
        events: the events; may end with an exception, which ends the connection.
        held: the memory of the reader, released at the end.
        headers: beside those that all such responses have.
    """

    def __init__(self, events: AsyncIterator[bytes], held: HeldBytes, *, is_binary: bool) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        if is_binary:
            headers[DATA_ENCODING] = "base64"
        super().__init__(headers=headers)
        del self.headers["content-length"]
        # Exactly so: with a charset, clients do not recognize it.
        self.headers["content-type"] = "text/event-stream"
        self._events: Final = events
        self._held: Final = held

    @override
    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for event in self._events:
                # Disconnect a client that does not read: others need the memory.
                async with asyncio.timeout(IDLE_SECONDS):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._held.release()


def is_text(media_type: str) -> bool:
    """Whether values of a media type are sent as they are, not in base64."""
    return media_type.startswith("text/") or media_type == "application/json"


def data_event(values: list[bytes], media_type: str) -> bytes:
    """Return the event with some values."""
    if media_type == "application/json":
        text = f"[{b','.join(values).decode(errors='replace')}]"
    elif is_text(media_type):
        text = b"".join(values).decode(errors="replace")
    else:
        text = base64.b64encode(b"".join(values)).decode()
    # A blank at the beginning of a line is dropped by the client, so such a line gets another one.
    lines = "\n".join(
        f"data:{' ' if line.startswith(' ') else ''}{line}" for line in _LINE_END.split(text)
    )
    return f"event: data\n{lines}\n\n".encode()


def control_event(offset: int, cursor: str, *, up_to_date: bool, closed: bool) -> bytes:
    """Return the event that follows one with values.

    Parameters:
        offset: the one after the values.
        cursor: the last one that the client got; empty: none.
    """
    fields: dict[str, object] = {"streamNextOffset": offset_text(offset)}
    if closed:
        fields["streamClosed"] = True
    else:
        fields["streamCursor"] = next_cursor(cursor)
    if up_to_date:
        fields["upToDate"] = True
    text = json.dumps(fields, separators=(",", ":"))
    return f"event: control\ndata:{text}\n\n".encode()


def seconds_left(began: float, seconds: float) -> float:
    """Return how much of a time is left.

    Parameters:
        began: by `time.monotonic`.
    """
    return began + seconds - time.monotonic()
