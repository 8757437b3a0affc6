"""A Kafka cluster, or the Kafka port of a pidlease: its topics, and what stands in them."""

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from aiokafka.errors import KafkaError
from aiokafka.helpers import create_ssl_context
from aiokafka.structs import TopicPartition

from pidlease.copier.batch_translator import BatchTranslator
from pidlease.copier.cluster_pair import ClusterConnection
from pidlease.copier.cluster_reader import EARLIEST, LATEST, READ_COMMITTED, FetchedChunk
from pidlease.copier.errors import CopyError
from pidlease.spark.reader.errors import ReadError
from pidlease.spark.reader.log_directory import Span
from pidlease.spark.reader.read_parts import KafkaPart, Security, name_of
from pidlease.spark.reader.stored_batch import Stored

#: Fetches that are read ahead, of a MiB each.
_AHEAD: Final = 4
#: How often a reader whose rows are not wanted any more looks for that.
_LOOK_S: Final = 0.2
#: Kafka's settings that say how a cluster is reached, and aiokafka's words for them.
SECURITY: Final = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "",
}
_REQUEST_MS: Final = 30_000
Answer = TypeVar("Answer")


class _Patience(NamedTuple):
    """See `clusters.Patience`."""

    request_timeout_ms: int
    give_up_ms: float


class Servers:
    """Asks a cluster, from a thread that has no event loop; connected when it is first asked.

    Parameters:
        servers: HOST:PORT, or several with commas.
        security: how they are reached.
        seconds: how long they are asked again when they do not answer.
    """

    def __init__(self, servers: str, security: Security, seconds: float) -> None:
        self._reached: Final = servers, security, seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cluster: ClusterConnection | None = None

    def topics(self) -> dict[str, int]:
        """All topics, and how many partitions each has.

        Raises:
            ReadError: there is no answer.
        """

        async def ask(cluster: ClusterConnection) -> dict[str, int]:
            loop = asyncio.get_running_loop()
            give_up = loop.time() + self._reached[2]
            while True:
                try:
                    found = await cluster.client.fetch_all_metadata()
                except (KafkaError, OSError, TimeoutError) as error:
                    if loop.time() > give_up:
                        text = f"{cluster.name} does not list its topics: {error!r}"
                        raise CopyError(text) from None
                    await asyncio.sleep(_LOOK_S)
                else:
                    names = found.topics()  # without Kafka's own
                    return {name: len(found.partitions_for_topic(name)) for name in names}

        return self._run(ask)

    def spans(self, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Span]:
        """From where to where partitions go, as far as they are committed.

        Raises:
            ReadError: there is no answer.
        """

        async def span(cluster: ClusterConnection, place: tuple[str, int]) -> Span:
            where = TopicPartition(*place)
            start = await cluster.reader.offset(where, EARLIEST)
            return Span(start, await cluster.reader.offset(where, LATEST, READ_COMMITTED))

        async def ask(cluster: ClusterConnection) -> list[Span]:
            return await asyncio.gather(*(span(cluster, place) for place in places))

        return dict(zip(places, self._run(ask), strict=True))

    def close(self) -> None:
        """Close all connections."""
        loop, cluster, self._loop, self._cluster = self._loop, self._cluster, None, None
        if loop is not None:
            if cluster is not None:
                loop.run_until_complete(cluster.close())
            loop.close()

    def _run(self, ask: Callable[[ClusterConnection], Awaitable[Answer]]) -> Answer:
        async def run() -> Answer:
            if self._cluster is None:
                self._cluster = await _connected(*self._reached)
            return await ask(self._cluster)

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        try:
            return self._loop.run_until_complete(run())
        except CopyError as error:
            raise ReadError(str(error)) from None


async def _connected(servers: str, security: Security, seconds: float) -> ClusterConnection:
    """A cluster, connected.

    Raises:
        CopyError: nobody answers, or it cannot be reached in that way.
    """
    give_up_ms = seconds * 1000
    settings = _Patience(int(min(give_up_ms, _REQUEST_MS)), give_up_ms)
    try:
        options = {"client_id": "pidlease-spark", **_aiokafka(security)}
        cluster = ClusterConnection(servers, servers, settings, options)
    except (OSError, ValueError) as error:
        raise CopyError(f"{servers} cannot be reached so: {error}") from None
    try:
        await cluster.start()
    except BaseException:
        await cluster.close()
        raise
    return cluster


def _aiokafka(security: Security) -> dict[str, Any]:
    """How a cluster is reached, in aiokafka's words."""
    found: dict[str, Any] = {SECURITY[key]: text for key, text in security if SECURITY[key]}
    if found.get("security_protocol", "").endswith("SSL"):
        found["ssl_context"] = create_ssl_context(cafile=dict(security).get("ssl.ca.location"))
    return found


def batches(part: KafkaPart) -> Iterator[Stored]:
    """The committed batches of a part, in their order; first and last may go beyond it.

    Raises:
        ReadError: they cannot be read.
    """
    translator = BatchTranslator(f"{name_of(part)} of {part.servers}", part.start)
    try:
        for chunk in _Ahead(part).chunks():
            for header, data in translator.committed(chunk):
                if header.base_offset >= part.end:
                    return
                if header.last_offset >= part.start and header.records:
                    yield Stored("", -1, header, data)
    except CopyError as error:
        raise ReadError(str(error)) from None


class _Ahead:
    """A part's fetches, of which the next ones are under way in a thread.

    Parameters:
        part: the part.
    """

    def __init__(self, part: KafkaPart) -> None:
        self._part: Final = part
        #: What came; None: that is all.
        self._came: Final[queue.Queue[FetchedChunk | None]] = queue.Queue(_AHEAD)
        self._over: Final = threading.Event()
        self._error: BaseException | None = None
        self._cancel: Callable[[], None] | None = None
        self._thread: Final = threading.Thread(target=self._run, name=f"read {name_of(part)}")

    def chunks(self) -> Iterator[FetchedChunk]:
        """The fetches.

        Raises:
            CopyError: they cannot be read.
        """
        self._thread.start()
        try:
            while (found := self._came.get()) is not None:
                yield found
            if self._error is not None:
                raise self._error
        finally:
            self._over.set()
            if self._cancel is not None:
                self._cancel()
            self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._fetch())
        except asyncio.CancelledError:
            pass  # nobody reads on
        except BaseException as error:  # noqa: BLE001 - it is raised where it is read
            self._error = error
        self._put(None)

    async def _fetch(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def cancel() -> None:
            with suppress(RuntimeError):  # it has ended by itself
                loop.call_soon_threadsafe(task.cancel)  # type: ignore[union-attr]

        self._cancel = cancel
        part = self._part
        cluster = await _connected(part.servers, part.security, part.seconds)
        try:
            place = TopicPartition(part.topic, part.partition)
            span = part.start, part.end
            moved = loop.time()
            async for chunk in cluster.reader.chunks(place, *span, READ_COMMITTED):
                if not self._put(chunk):
                    return
                if chunk.next_offset >= 0:
                    moved = loop.time()
                elif loop.time() - moved > part.seconds:
                    # It was cut since that was planned; what is asked does not wait for ever.
                    raise CopyError(
                        f"{name_of(part)} of {part.servers} ends at {chunk.end_offset}, and should"
                        f" go up to {part.end}"
                    )
        finally:
            await cluster.close()

    def _put(self, found: FetchedChunk | None) -> bool:
        """Hand over; whether anybody takes it."""
        while not self._over.is_set():
            try:
                self._came.put(found, timeout=_LOOK_S)
            except queue.Full:
                continue
            return True
        return False
