"""Reads a log from a Kafka cluster, or from the Kafka listener of a pidlease server."""

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from pidlease.copier.batch_translator import BatchTranslator
from pidlease.copier.cluster_pair import ClusterConnection
from pidlease.copier.cluster_reader import FetchedChunk
from pidlease.copier.errors import CopyError
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.connection_security import ConnectionSecurity
from pidlease.kafka.client.kafka_options import Security, connection_options
from pidlease.kafka.client.offset_requests import EARLIEST, LATEST
from pidlease.kafka.codec.fetch import READ_COMMITTED
from pidlease.spark.errors import ReadError
from pidlease.spark.partition_offsets import OffsetRange
from pidlease.spark.reader.log_parts import KafkaPart, Part, StoredBatch, name_of

#: Fetches that are read ahead, of 1 MiB each.
_AHEAD: Final = 4
#: How often a fetch loop checks that its rows are still read.
_LOOK_S: Final = 0.2
_REQUEST_MS: Final = 30_000
Answer = TypeVar("Answer")


class _Patience(NamedTuple):
    """The `Patience` of a reader."""

    request_timeout_ms: int
    give_up_ms: float


class ClusterLog:
    """The topics of a cluster, for a thread without an event loop; connects at the first request.

    Parameters:
        servers: HOST:PORT, or several with commas.
        seconds: how long requests are retried.
    """

    def __init__(self, servers: str, security: Security, seconds: float) -> None:
        self._connection: Final = servers, security, seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._cluster: ClusterConnection | None = None

    def topics(self) -> dict[str, int]:
        """Return all topics, with their number of partitions.

        Raises:
            ReadError: the cluster does not respond.
        """
        return self._run(ClusterConnection.topics)

    def ranges(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        """Return the committed offsets that partitions have.

        Raises:
            ReadError: the cluster does not respond.
        """

        async def of_one(cluster: ClusterConnection, partition: TopicPartition) -> OffsetRange:
            start = await cluster.reader.offset(partition, EARLIEST)
            end = await cluster.reader.offset(partition, LATEST, READ_COMMITTED)
            return OffsetRange(start, end)

        async def ask(cluster: ClusterConnection) -> list[OffsetRange]:
            return await asyncio.gather(*(of_one(cluster, each) for each in partitions))

        return dict(zip(partitions, self._run(ask), strict=True))

    def part(self, partition: TopicPartition, start: int, end: int) -> KafkaPart:
        """Return the part of a partition between two offsets."""
        servers, security, seconds = self._connection
        return KafkaPart(servers, *partition, start, end, security, seconds)

    def split(self, part: Part) -> Sequence[Part]:
        """Return the part itself: a cluster's partition is read in order."""
        return [part]

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
                self._cluster = await _connected(*self._connection)
            return await ask(self._cluster)

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        try:
            return self._loop.run_until_complete(run())
        except CopyError as error:
            raise ReadError(str(error)) from None


async def _connected(servers: str, security: Security, seconds: float) -> ClusterConnection:
    """Connect to a cluster.

    Raises:
        CopyError: it does not respond, or the settings are invalid.
    """
    give_up_ms = seconds * 1000
    settings = _Patience(int(min(give_up_ms, _REQUEST_MS)), give_up_ms)
    try:
        options = ConnectionSecurity(**connection_options(security))
        cluster = ClusterConnection(servers, servers, settings, options, "pidlease-spark")
    except (OSError, ValueError) as error:
        raise CopyError(f"{servers} cannot be reached so: {error}") from None
    try:
        await cluster.start()
    except BaseException:
        await cluster.close()
        raise
    return cluster


def kafka_batches(part: KafkaPart) -> Iterator[StoredBatch]:
    """Read the committed batches of a part, in order; the first and the last may exceed it.

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
                    yield StoredBatch("", -1, header, data)
    except CopyError as error:
        raise ReadError(str(error)) from None


class _Ahead:
    """Fetches a part, and reads ahead in a thread."""

    def __init__(self, part: KafkaPart) -> None:
        self._part: Final = part
        #: Fetched chunks; None: the end.
        self._came: Final[queue.Queue[FetchedChunk | None]] = queue.Queue(_AHEAD)
        self._over: Final = threading.Event()
        self._error: BaseException | None = None
        self._cancel: Callable[[], None] | None = None
        self._thread: Final = threading.Thread(target=self._run, name=f"read {name_of(part)}")

    def chunks(self) -> Iterator[FetchedChunk]:
        """Return the chunks in order.

        Raises:
            CopyError: they cannot be fetched.
        """
        self._thread.start()
        try:
            while (chunk := self._came.get()) is not None:
                yield chunk
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
            pass  # the reader has stopped
        except BaseException as error:  # noqa: BLE001 - raised in `chunks`
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
            partition = TopicPartition(part.topic, part.partition)
            async for chunk in cluster.reader.chunks(
                partition, part.start, part.end, READ_COMMITTED
            ):
                if not self._put(chunk):
                    return
        finally:
            await cluster.close()

    def _put(self, chunk: FetchedChunk | None) -> bool:
        """Hand a chunk to the reader; return whether it still reads."""
        while not self._over.is_set():
            try:
                self._came.put(chunk, timeout=_LOOK_S)
            except queue.Full:
                continue
            return True
        return False
