"""Parts of a partition are read whole, or not without an error."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pidlease.copier import cluster_reader
from pidlease.copier.cluster_pair import ClusterConnection
from pidlease.copier.cluster_reader import ClusterReader
from pidlease.copier.errors import CopyError
from pidlease.core.topic_partition import TopicPartition
from pidlease.kafka.client.broker_connection import BrokerConnection
from pidlease.kafka.client.connection_security import ConnectionSecurity
from pidlease.kafka.client.offset_requests import LATEST, list_offsets
from pidlease.spark.reader.kafka_batches import _Patience
from tests.kafka_listener.batches import NOW_MS, batch
from tests.kafka_listener.harness import Server, Wanted, serving

_BATCHES = 40
_MEMORY = 16 << 20
#: So much that a request still fits, and no response with records.
_HELD = _MEMORY * 9 // 10
_PLACE = TopicPartition("t", 0)


@asynccontextmanager
async def filled(folder: Path) -> AsyncIterator[Server]:
    async with serving(folder, Wanted(memory_bytes_max=_MEMORY)) as server:
        async with await server.connect() as client:
            await client.create("t")
            for _ in range(_BATCHES):
                await client.produce("t", batch([b"x" * 100_000]))
        yield server


@asynccontextmanager
async def reading(port: int, seconds: float = 60.0) -> AsyncIterator[ClusterReader]:
    patience = _Patience(30_000, seconds * 1000)
    cluster = ClusterConnection("here", f"127.0.0.1:{port}", patience, ConnectionSecurity())
    await cluster.start()
    try:
        yield cluster.reader
    finally:
        await cluster.close()


async def read(port: int, end: int = _BATCHES, seconds: float = 60.0) -> list[int]:
    async with reading(port, seconds) as reader:
        return [
            header.base_offset
            async for chunk in reader.chunks(_PLACE, 0, end)
            for header, _ in chunk.batches()
        ]


async def test_responses_without_records_are_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server without memory returns nothing. Once the rest was taken for compacted."""
    async with filled(tmp_path) as server:
        budget = server.door.budget
        empty: list[int] = []
        pause = asyncio.sleep

        async def after_an_empty_one(seconds: float) -> None:
            if seconds == cluster_reader.RETRY_S:
                empty.append(len(empty))
                if len(empty) == 2:
                    budget.release(_HELD)
                seconds = 0.01
            await pause(seconds)

        monkeypatch.setattr(asyncio, "sleep", after_an_empty_one)
        budget.add(_HELD)
        assert await read(server.port) == list(range(_BATCHES))
        assert len(empty) >= 2


async def test_an_end_that_is_never_there_is_an_error(tmp_path: Path) -> None:
    """Once it was looked for again and again."""
    async with filled(tmp_path) as server:
        with pytest.raises(CopyError, match=f"ends at {_BATCHES}, and should go up to 50"):
            await read(server.port, 50, 1.0)


async def test_the_error_names_the_right_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, a part that was compacted away cannot be told from one that does not come."""
    async with filled(tmp_path) as server:
        server.door.budget.add(_HELD)  # nothing comes
        with pytest.raises(CopyError, match=r"should go up to 40$"):
            await read(server.port, seconds=1.0)

        async def refused(*_: object) -> dict[str, bool]:
            return {}

        monkeypatch.setattr(cluster_reader, "compacted", refused)
        with pytest.raises(CopyError, match="the right DescribeConfigs on the topic"):
            await read(server.port, seconds=1.0)
        server.door.budget.release(_HELD)


async def test_what_is_not_known_to_be_compacted_is_not(tmp_path: Path) -> None:
    async with filled(tmp_path) as server, reading(server.port) as reader:
        assert [await reader._is_compacted(each) for each in ("t", "none")] == [False, None]


async def test_a_record_that_comes_while_a_time_is_looked_up_is_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record was so young, then there was one, and its offset was below the end after it."""
    ask = list_offsets
    later = NOW_MS + 1_000_000
    async with filled(tmp_path) as server, reading(server.port) as reader:

        async def and_produce(
            connection: BrokerConnection, places: list[TopicPartition], time_ms: int, isolation: int
        ) -> dict[TopicPartition, Any]:
            rows = await ask(connection, places, time_ms, isolation)
            if time_ms == later:
                async with await server.connect() as client:
                    await client.produce("t", batch([b"young"], timestamp=later))
            return rows

        monkeypatch.setattr(cluster_reader, "list_offsets", and_produce)
        assert await reader.offset(_PLACE, later) == _BATCHES
        assert await reader.offset(_PLACE, later) == _BATCHES
        assert await reader.offset(_PLACE, LATEST) == _BATCHES + 2
