"""The Kafka listeners: accept connections, and dispatch their requests to the APIs."""

import asyncio
import time
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from socket import socket
from typing import Any, Final, Protocol

import structlog

from pidlease.kafka.api import API_API_VERSIONS, API_PRODUCE
from pidlease.kafka.codec.primitives import MalformedError, RequestHeader
from pidlease.kafka.codec.response_error_codes import code_of
from pidlease.observability.repeated_lines import LINES
from proxy.kafka.client_connection import READ_BUFFER_BYTES, KafkaConnection, Slot, Turns
from proxy.kafka.embedded_apis import Apis
from proxy.kafka.listener_config import KafkaListenerConfig
from proxy.kafka.listener_counts import ListenerCounts
from proxy.kafka.memory_budget import MemoryBudget
from proxy.kafka.request_order import Answered

#: The largest request of an API other than Produce: Python decodes it on the event loop.
_ADMIN_BYTES_MAX: Final = 2 << 20
#: A larger response counts against the memory budget until the client has read it.
_LARGE_ANSWER_BYTES: Final = 16 << 10
#: How long a stop waits for clients to read their last responses.
_CLOSE_SECONDS: Final = 10.0
_SWEEP_SECONDS: Final = 5.0

_log = structlog.get_logger(__name__)


class Acceptor(Protocol):
    """Accepts connections at an address."""

    def close(self) -> None:
        """Accept no more."""


class KafkaListener:
    """Listens for Kafka clients (implements `client_connection.Handler`).

    Named listeners have one such object: its limits count for all their connections together.

    Parameters:
        config: the limits for connections and requests.
        budget: the memory for requests and responses.
        apis: the APIs, which make the responses.
    """

    def __init__(self, config: KafkaListenerConfig, budget: MemoryBudget, apis: Apis) -> None:
        self.budget = budget
        self.turns = Turns()
        self.read_buffer = bytearray(READ_BUFFER_BYTES)
        self.request_bytes_max = config.request_bytes_max
        self.counts: Final = ListenerCounts()
        self.connections: set[KafkaConnection] = set()
        self._config = config
        self._apis = apis
        self._servers: list[Acceptor] = []
        self._sweeper: asyncio.Task[None] | None = None

    def reconfigure(self, config: KafkaListenerConfig) -> None:
        """Apply a new limit of connections, and a new idle time."""
        self._config = replace(
            self._config, connections_max=config.connections_max, idle_seconds=config.idle_seconds
        )

    # ------------------------------------------------------------------ listening

    async def listen(self, sockets: Iterable[socket], listener: str = "") -> None:
        """Start accepting connections of a listener; after an error, all listeners are closed.

        Parameters:
            sockets: bound to the addresses at which clients connect.
            listener: its name; empty: there is only one.

        Raises:
            OSError: another process listens at such an address.
        """
        if self._sweeper is None:
            self._apis.start()
            self._sweeper = asyncio.create_task(self._sweep())
        try:
            for each in sockets:
                self._servers.append(await self.accept_at(each, listener))
        except OSError:
            await self.close()
            raise

    def new_connection(self, listener: str = "") -> KafkaConnection:
        """Make the protocol of a connection that a listener has accepted."""
        return KafkaConnection(self, listener)

    async def accept_at(self, listening: socket, listener: str = "") -> Acceptor:
        """Accept a listener's connections at an address until the returned object is closed.

        Raises:
            OSError: another process listens there.
        """
        loop = asyncio.get_running_loop()
        accepted = partial(self.new_connection, listener)
        return await loop.create_server(accepted, sock=listening, backlog=1024)

    async def close(self) -> None:
        """Stop accepting connections, and close each one when all its responses are sent."""
        for server in self._servers:
            server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper
        await self._apis.close()
        deadline = time.monotonic() + _CLOSE_SECONDS
        while self.connections and time.monotonic() < deadline:
            for connection in list(self.connections):
                connection.finish()
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()

    async def _sweep(self) -> None:
        """Close connections that stall within a request or a response, or are idle too long."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = time.monotonic()
            for connection in list(self.connections):
                self.close_overdue(connection, now)

    def close_overdue(self, connection: KafkaConnection, now: float) -> None:
        """Close a connection that stalls, or is idle too long.

        Parameters:
            now: the time, by the monotonic clock.
        """
        if connection.is_stalled(now):
            LINES.write(_log, "warning", "connection closed: a request or a response stalled",
                        connection.host, peer=connection.peer)  # fmt: skip
            connection.abort()
        elif connection.idle and now - connection.last_read > self._config.idle_seconds:
            connection.close()

    # ------------------------------------------------------------------ connections

    def opened(self, connection: KafkaConnection) -> bool:
        """Register a new connection; False: there are too many."""
        if len(self.connections) >= self._config.connections_max:
            self.counts.refused_connections += 1
            return False
        self.connections.add(connection)
        return True

    def closed(self, connection: KafkaConnection) -> None:
        """Remove a connection that has ended."""
        self.connections.discard(connection)
        self._apis.closed(connection)

    # ------------------------------------------------------------------ requests

    def handle(self, slot: Slot, header: RequestHeader, frame: bytearray) -> None:
        """Respond to a request, now or later, by filling the slot.

        Raises:
            MalformedError: the request is malformed; the connection closes.
        """
        key = header.api_key
        if key == API_PRODUCE:
            self._check_version(header)
            slot.measure(self.counts, key)
            self._apis.produce(slot, header, frame)
            return
        if key == API_API_VERSIONS:
            slot.measure(self.counts, key)
            slot.fill(self._apis.api_versions(header))
        else:
            self._check_version(header)
            slot.measure(self.counts, key)
            if len(frame) > _ADMIN_BYTES_MAX:
                raise MalformedError(
                    f"API {header.api_key}: {len(frame)} bytes; at most {_ADMIN_BYTES_MAX}"
                )
            self._fill(slot, header, self._apis.answer(slot, header, frame))

    def _check_version(self, header: RequestHeader) -> None:
        lowest, highest = self._apis.versions.get(header.api_key, (0, -1))
        if not lowest <= header.version <= highest:
            served = f"versions {lowest} to {highest} are" if highest >= 0 else "this API is not"
            raise MalformedError(
                f"API {header.api_key} version {header.version} from client"
                f" {header.client_id!r}; {served} served here (see ApiVersions)"
            )

    def _fill(self, slot: Slot, header: RequestHeader, answered: Answered) -> None:
        if isinstance(answered, bytes):
            _give(slot, header, answered)
        else:
            self._answer_later(slot, header, answered)

    def _answer_later(
        self, slot: Slot, header: RequestHeader, work: Coroutine[Any, Any, bytes | None]
    ) -> None:
        connection = slot.connection
        task = asyncio.create_task(self._answer(slot, header, work))
        connection.tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            connection.tasks.discard(task)
            work.close()  # in case the client disconnected before the work had begun
            if not slot.ready:
                slot.fill()

        task.add_done_callback(ended)

    async def _answer(
        self, slot: Slot, header: RequestHeader, work: Coroutine[Any, Any, bytes | None]
    ) -> None:
        try:
            answer = await work
            if answer is not None:
                if len(answer) > _LARGE_ANSWER_BYTES:
                    slot.count(len(answer))
                _give(slot, header, answer)
        except asyncio.CancelledError:
            slot.fill()
            raise
        except MalformedError as error:
            slot.connection.refuse(str(error))
            slot.fill()
        except Exception as error:  # noqa: BLE001 - a bug of ours: this client reconnects
            slot.connection.fail(slot, error)


def _give(slot: Slot, header: RequestHeader, answer: bytes) -> None:
    code = code_of(header.api_key, header.version, answer)
    if code:
        slot.count_error(code)
    slot.fill(answer)
