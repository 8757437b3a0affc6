"""A TCP relay between clients and server: it knows what has no answer yet, and loses things.

It follows the frames of the Kafka protocol in both directions, so it can cut a connection in
the middle of a request or of an answer, or swallow an answer whose batch stands in the log.
"""

import asyncio
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Self

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from tests.servers.waiting import WAIT_S, until

_PRODUCE = 0
_CHUNK = 64 << 10
_LENGTH = struct.Struct(">i")


@dataclass
class Weather:
    """What the network does.

    Attributes:
        random: decides.
        faults_every: a fault about every so many Produce requests; 0: none.
        delay_s: how long an answer is on its way at most.
    """

    random: Random
    faults_every: int = 0
    delay_s: float = 0.0
    done: Counter[str] = field(default_factory=Counter)

    def fault(self, *kinds: str) -> str:
        """The fault for this Produce; empty for none."""
        if not self.faults_every or self.random.randrange(self.faults_every):
            return ""
        kind = self.random.choice(kinds)
        self.done[kind] += 1
        return kind


Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Middle:
    """Stands between clients and a server: on a port of its own, in a thread of its own.

    Parameters:
        target_port: the server's.
    """

    def __init__(self, target_port: int) -> None:
        self.port = free_ports(1)[0]
        self.bootstrap = f"{LOOPBACK}:{self.port}"
        self.connections = 0
        self._target = target_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def serve(self, client: Side, server: Side) -> None:
        """One connection, until it ends."""
        raise NotImplementedError

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, self.port)

    async def _end(self) -> None:
        self._server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.01)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await asyncio.open_connection(LOOPBACK, self._target)
        except OSError:
            writer.transport.abort()
            return
        self.connections += 1
        try:
            await self.serve((reader, writer), upstream)
        finally:
            writer.transport.abort()
            upstream[1].transport.abort()
            self.connections -= 1


class Line(Middle):
    """A way that can be cut."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self._cut = asyncio.Event()

    async def serve(self, client: Side, server: Side) -> None:
        """Pass everything on until a side ends, or the line is cut."""
        if not self._cut.is_set():
            await until_one_ends(
                self.pass_on(client[0], server[1]), self.pass_on(server[0], client[1]),
                self._until_cut(),
            )  # fmt: skip

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one direction on, until it ends."""
        while data := await reader.read(_CHUNK):
            await self.before_passing()
            writer.write(data)
            await writer.drain()

    async def before_passing(self) -> None:
        """Called before each piece is passed on."""

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Close all connections, and accept none, during the block."""
        self._loop.call_soon_threadsafe(self._cut.set)
        try:
            until(lambda: not self.connections, "the connections to end")
            yield
        finally:
            self._loop.call_soon_threadsafe(self._cut.clear)

    async def _until_cut(self) -> None:
        await self._cut.wait()


class Relay(Middle):
    """Between the producers and our server.

    Attributes:
        lost: when those Produce requests were sent on whose answers never reached the client.
        cut: set at a kill: what is under way is lost with the server's machine. A dying process
            takes some milliseconds to close its connections, and answers would still arrive.
        held: on so many connections an answer to a Produce request is held back.
    """

    def __init__(self, target_port: int, weather: Weather) -> None:
        super().__init__(target_port)
        self.weather = weather
        self.lost: list[float] = []
        self.cut = False
        self.held = 0
        self.at_server = 0
        self.on_the_way = 0
        self._open: set[_Connection] = set()
        #: Not set: answers to Produce requests get no further than here.
        self.passing = asyncio.Event()
        self.passing.set()

    def wait_no_connection(self, timeout_s: float = 10) -> None:
        """Wait until everything of the dead server is closed."""
        deadline = time.monotonic() + timeout_s
        while self.connections:
            assert time.monotonic() < deadline, "connections to a dead server"
            time.sleep(0.002)

    def asks(self, request: bytes) -> None:
        """A client sends this; for those who look at what goes by."""

    def answers(self, answer: bytes) -> None:
        """The server answers this; for those who look at what goes by."""

    def hold(self) -> None:
        """Deliver no answer to a Produce request, until they may pass again."""
        self._loop.call_soon_threadsafe(self.passing.clear)

    def let_pass(self) -> None:
        """Deliver what was held back, as far as its connection is still there."""
        self._loop.call_soon_threadsafe(self.passing.set)

    def drop(self) -> None:
        """Close all connections, whatever is under way on them."""
        self._do(self._drop())

    async def _drop(self) -> None:
        for connection in self._open:
            connection.drop()

    async def serve(self, client: Side, server: Side) -> None:
        """See `Middle`."""
        connection = _Connection(self, client, server)
        self._open.add(connection)
        try:
            await connection.run()
        finally:
            self._open.remove(connection)


async def until_one_ends(*works: Coroutine[Any, Any, None]) -> None:
    """Do all of them; when one has come to its end, or failed, the others are given up."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Connection:
    """One client's connection, and ours to the server for it."""

    def __init__(
        self,
        relay: Relay,
        client: Side,
        server: Side,
    ) -> None:
        self._relay = relay
        self._weather = relay.weather
        self._client = client
        self._server = server
        self._waiting: deque[tuple[bool, float]] = deque()
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self._undelivered: deque[tuple[bool, float]] = deque()

    async def run(self) -> None:
        """Until either side closes, or a fault cuts it."""
        try:
            await until_one_ends(self._up(), self._down(), self._deliver())
        finally:
            self._count_lost()

    def drop(self) -> None:
        """Close both sides."""
        for _, writer in (self._client, self._server):
            writer.transport.abort()

    def _count_lost(self) -> None:
        self._relay.lost += [at for produce, at in self._waiting if produce]
        self._relay.lost += [at for produce, at in self._undelivered if produce]
        self._relay.at_server -= sum(produce for produce, _ in self._waiting)
        self._relay.on_the_way -= sum(produce for produce, _ in self._undelivered)

    async def _up(self) -> None:
        """Requests."""
        reader, writer = self._client[0], self._server[1]
        while True:
            frame = await read_frame(reader)
            if self._relay.cut:
                return
            self._relay.asks(frame[_LENGTH.size :])
            produce = struct.unpack_from(">h", frame, 4)[0] == _PRODUCE
            if produce and self._weather.fault("cut request"):
                writer.write(frame[: self._weather.random.randrange(1, len(frame))])
                await writer.drain()
                await asyncio.sleep(0.002)
                return
            self._waiting.append((produce, time.monotonic()))
            self._relay.at_server += produce
            writer.write(frame)
            await writer.drain()

    async def _down(self) -> None:
        """Answers, up to here."""
        reader = self._server[0]
        while True:
            frame = await read_frame(reader)
            self._relay.answers(frame[_LENGTH.size :])
            entry = self._waiting.popleft()
            self._relay.at_server -= entry[0]
            self._relay.on_the_way += entry[0]
            self._undelivered.append(entry)
            self._answers.put_nowait(frame)

    async def _deliver(self) -> None:
        """Answers, from here to the client, in their order."""
        writer = self._client[1]
        while True:
            frame = await self._answers.get()
            produce, _ = self._undelivered[0]
            if produce and self._weather.delay_s:
                await asyncio.sleep(self._weather.random.random() * self._weather.delay_s)
            if produce and not self._relay.passing.is_set():
                await self._held()
            if self._relay.cut:
                return
            fault = self._weather.fault("cut answer", "lose answer") if produce else ""
            if fault == "cut answer":
                writer.write(frame[: self._weather.random.randrange(1, len(frame))])
                await writer.drain()
                await asyncio.sleep(0.002)
            if fault:
                return
            writer.write(frame)
            await writer.drain()
            self._undelivered.popleft()
            self._relay.on_the_way -= produce

    async def _held(self) -> None:
        self._relay.held += 1
        try:
            await self._relay.passing.wait()
        finally:
            self._relay.held -= 1


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """A frame, with the length in front of it."""
    head = await reader.readexactly(_LENGTH.size)
    return head + await reader.readexactly(_LENGTH.unpack(head)[0])
