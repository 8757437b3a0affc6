"""The Kafka door: which requests are served, and by whom."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from pidlease.engine.engine import Engine
from proxy.kafka.admin.api import AdminApi
from proxy.kafka.budget import MemoryBudget
from proxy.kafka.cluster import ClusterApi
from proxy.kafka.config import KafkaDoorConfig
from proxy.kafka.connection import KafkaConnection, Slot
from proxy.kafka.fetch import FetchApi
from proxy.kafka.groups.api import GroupsApi
from proxy.kafka.metadata import MetadataApi
from proxy.kafka.offsets import list_offsets
from proxy.kafka.ordered import Answered
from proxy.kafka.produce import ProduceApi
from proxy.kafka.producers import init_producer_id
from proxy.kafka.wire import MalformedRequestError, RequestHeader

_PRODUCE: Final = 0
_FETCH: Final = 1
_METADATA: Final = 3
_API_VERSIONS: Final = 18

#: What is served: key -> (lowest, highest version). Low ones are kept: some clients ignore the
#: lowest that is advertised.
VERSIONS: Final = {
    _PRODUCE: (3, 12),
    _FETCH: (4, 11),
    2: (1, 6),
    _METADATA: (0, 13),
    8: (2, 9),
    9: (1, 9),
    10: (0, 6),
    11: (0, 9),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    15: (0, 6),
    16: (0, 5),
    _API_VERSIONS: (0, 4),
    19: (2, 7),
    20: (1, 6),
    21: (0, 2),
    22: (0, 5),
    32: (1, 4),
    33: (0, 2),
    37: (0, 3),
    42: (0, 2),
    44: (0, 1),
    47: (0, 0),
    60: (0, 2),
    61: (0, 0),
}

#: What is advertised. librdkafka compresses only for brokers that know Produce from version 0 on
#: (KAFKA-18659), so Kafka 4 advertises it without serving it, and so do we.
ADVERTISED: Final = {**VERSIONS, _PRODUCE: (0, VERSIONS[_PRODUCE][1])}

#: The largest request that is no Produce: it is read on the event loop, by Python.
_ADMIN_BYTES_MAX: Final = 2 << 20
#: An answer that is larger counts as memory of the client's until it has taken it.
_LARGE_ANSWER_BYTES: Final = 16 << 10
#: How long a stop waits for clients to take their last answers.
_CLOSE_SECONDS: Final = 10.0
_SWEEP_SECONDS: Final = 5.0

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class DoorCounts:
    """What came through the door since the start."""

    requests: dict[int, int] = field(default_factory=dict)
    malformed: int = 0
    refused_connections: int = 0


Answering = Callable[[RequestHeader, bytearray], Coroutine[Any, Any, bytes]]


class KafkaDoor:
    """Listens for Kafka clients (see `connection.Handler`).

    Parameters:
        engine: what is behind.
        config: how it listens.
        check_settings: raises ValueError for topic settings that make no sense.
        groups: consumer groups.
    """

    def __init__(
        self,
        engine: Engine,
        config: KafkaDoorConfig,
        check_settings: Callable[[dict[str, str]], None],
        groups: GroupsApi,
    ) -> None:
        self.budget = MemoryBudget(config.memory_bytes_max)
        self.request_bytes_max = config.request_bytes_max
        self.counts: Final = DoorCounts()
        self.connections: set[KafkaConnection] = set()
        self._config = config
        self._engine = engine
        self._cluster = ClusterApi(config.cluster, ADVERTISED)
        self._metadata = MetadataApi(engine, config.cluster)
        self._admin = AdminApi(engine, config, check_settings)
        self._produce = ProduceApi(engine, config.batch_bytes_max)
        self._fetch = FetchApi(engine, self.budget, config.fetch_bytes_max)
        self._now: dict[int, Callable[[RequestHeader, bytearray], bytes]] = {
            22: lambda header, frame: init_producer_id(engine, header, frame),
            60: self._cluster.describe_cluster,
        }
        self._later: dict[int, Answering] = {
            2: lambda header, frame: list_offsets(engine, header, frame),
        }
        self._groups = groups
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ listening

    async def listen(self, host: str, port: int) -> None:
        """Begin to take connections.

        Raises:
            OSError: the port is in use, or the address is not this machine's.
        """
        self._groups.start()
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: KafkaConnection(self), host, port, backlog=1024
            )
        except OSError:
            await self._groups.close()
            raise
        self._sweeper = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """Take no more connections, and close those there are when they have their answers."""
        if self._server is not None:
            self._server.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper
        self._fetch.close()
        await self._groups.close()
        deadline = time.monotonic() + _CLOSE_SECONDS
        while self.connections and time.monotonic() < deadline:
            for connection in list(self.connections):
                connection.finish()
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()

    async def _sweep(self) -> None:
        """Close what is stalled in the middle of a request or an answer, or long idle."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = time.monotonic()
            for connection in list(self.connections):
                if connection.is_stalled(now):
                    _log.warning("connection closed: a request or an answer came to a halt",
                                 peer=connection.peer)  # fmt: skip
                    connection.abort()
                elif connection.idle and now - connection.last_read > self._config.idle_seconds:
                    connection.close()

    # ------------------------------------------------------------------ connections

    def opened(self, connection: KafkaConnection) -> bool:
        """See `connection.Handler`."""
        if len(self.connections) >= self._config.connections_max:
            self.counts.refused_connections += 1
            return False
        self.connections.add(connection)
        return True

    def closed(self, connection: KafkaConnection) -> None:
        """See `connection.Handler`."""
        self.connections.discard(connection)

    # ------------------------------------------------------------------ requests

    def handle(self, slot: Slot, header: RequestHeader, frame: bytearray) -> None:
        """See `connection.Handler`."""
        key = header.api_key
        if key == _PRODUCE and 3 <= header.version <= 12:
            self.counts.requests[key] = self.counts.requests.get(key, 0) + 1
            self._produce.handle(slot, header, frame)
            return
        if key == _API_VERSIONS:
            slot.fill(self._cluster.api_versions(header))
        else:
            self._check_version(header)
            if len(frame) > _ADMIN_BYTES_MAX:
                raise MalformedRequestError(
                    f"API {header.api_key}: {len(frame)} bytes; at most {_ADMIN_BYTES_MAX}"
                )
            if key in self._groups.requests:
                self._fill(slot, header, self._groups.requests[key](header, frame, slot))
            elif key in self._now:
                slot.fill(self._now[key](header, frame))
            else:
                self._answer_later(slot, header, self._work(slot, header, frame))
        self.counts.requests[key] = self.counts.requests.get(key, 0) + 1

    def _work(
        self, slot: Slot, header: RequestHeader, frame: bytearray
    ) -> Coroutine[Any, Any, bytes | None]:
        if header.api_key == _FETCH:
            return self._fetch.answer(slot, header, frame)
        if header.api_key == _METADATA:
            return self._metadata.answer(slot, header, frame)
        if header.api_key in self._admin.requests:
            return self._admin.answer(slot, header, frame)
        return self._later[header.api_key](header, frame)

    def _check_version(self, header: RequestHeader) -> None:
        lowest, highest = VERSIONS.get(header.api_key, (0, -1))
        if not lowest <= header.version <= highest:
            self.counts.malformed += 1
            served = f"versions {lowest} to {highest} are" if highest >= 0 else "this API is not"
            raise MalformedRequestError(
                f"API {header.api_key} version {header.version} from client"
                f" {header.client_id!r}; {served} served here (ApiVersions tells)"
            )

    def _fill(self, slot: Slot, header: RequestHeader, answered: Answered) -> None:
        if isinstance(answered, bytes):
            slot.fill(answered)
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
            work.close()  # where the client went away before it had begun
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
                slot.fill(answer)
        except asyncio.CancelledError:
            slot.fill()
            raise
        except MalformedRequestError as error:
            self.counts.malformed += 1
            slot.connection.refuse(str(error))
            slot.fill()
        except Exception:  # noqa: BLE001 - a bug of ours: this client starts over, others go on
            _log.exception("request failed", api_key=header.api_key, version=header.version,
                           client=header.client_id)  # fmt: skip
            slot.connection.close()
            slot.fill()
