"""Many readers at the end of one stream share a read, and none gets what is deleted."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from pidlease.engine.partition import Partition
from pidlease.http_api.record_messages import READ_BYTES_DEFAULT
from pidlease.kafka.records.record_batch import HEADER_BYTES
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.http.streams.stream_offsets import offset_text
from tests.http_api.appending import Door, door, listening
from tests.kafka_listener.batches import batch, changed
from tests.servers.waiting import WAIT_S

_HANG_S = WAIT_S
_READERS = 40
_PATH = "/v1/stream/s"
_TEXT = {"content-type": "text/plain"}


def client_of(here: Door) -> httpx.AsyncClient:
    """A client without a network between."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(here.app), base_url="http://pidlease")


async def made(here: Door, client: httpx.AsyncClient, *values: str) -> Any:
    """A stream with values; its partition."""
    assert (await client.put(_PATH, headers=_TEXT)).status_code == 201
    for value in values:
        reply = await client.post(_PATH, content=value, headers=_TEXT)
        assert reply.status_code == 204
    partition = here.server.engine.partition("s", 0)
    assert partition is not None
    return partition


async def test_deleted_values_are_not_served_from_memory(tmp_path: Path) -> None:
    async with door(tmp_path) as here, client_of(here) as client:
        partition = await made(here, client, "a", "b")
        for _ in range(2):  # the second one from memory
            assert (await client.get(_PATH)).content == b"ab"
        await partition.delete_records(1)
        reply = await client.get(_PATH)
        assert (reply.status_code, reply.json()["code"]) == (410, "stream_truncated")
        rest = f"{_PATH}?offset=0000000000000000_0000000000000001"
        assert (await client.get(rest)).content == b"b"


async def test_readers_at_the_end_share_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with door(tmp_path) as here, listening(here.app) as port, client_of(here) as client:
        partition = await made(here, client, "a")
        reads = 0
        read = partition.log.read

        async def counted(*arguments: int) -> bytes:
            nonlocal reads
            reads += 1
            await asyncio.sleep(0)  # as a thread's read takes its time
            found: bytes = await read(*arguments)
            return found

        monkeypatch.setattr(partition.log, "read", counted)
        url, limits = f"http://{LOOPBACK}:{port}", httpx.Limits(max_connections=None)
        async with (
            asyncio.timeout(_HANG_S),
            httpx.AsyncClient(base_url=url, limits=limits, timeout=None) as listeners,
            asyncio.TaskGroup() as group,
        ):  # fmt: skip
            kinds = ["long-poll"] * _READERS + ["sse"] * _READERS
            readers = [group.create_task(first_of(listeners, kind)) for kind in kinds]
            while len(partition._watchers) < len(readers):  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)
            for gone in (readers[0], readers[-1]):
                gone.cancel()
            assert (await client.post(_PATH, content="b", headers=_TEXT)).status_code == 204
        assert all(each.result() == "b" for each in readers[1:-1])
        assert 1 <= reads < len(readers) // 4


async def first_of(client: httpx.AsyncClient, live: str) -> str:
    """The first values that a reader at the end of the stream gets."""
    path = f"{_PATH}?offset=now&live={live}"
    async with client.stream("GET", path) as response:
        if live == "long-poll":
            return (await response.aread()).decode()
        async for line in response.aiter_lines():
            if line.startswith("data:b"):
                return line.removeprefix("data:")
    return ""


async def test_a_reader_that_leaves_does_not_end_the_read_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with door(tmp_path) as here, client_of(here) as client:
        partition = await made(here, client, "a")
        began, go_on = asyncio.Event(), asyncio.Event()
        read = partition.log.read

        async def held(*arguments: int) -> bytes:
            began.set()
            await go_on.wait()
            found: bytes = await read(*arguments)
            return found

        monkeypatch.setattr(partition.log, "read", held)
        readers = [asyncio.create_task(client.get(_PATH)) for _ in range(3)]
        await began.wait()
        readers[0].cancel()
        await asyncio.wait([readers[0]])
        go_on.set()
        async with asyncio.timeout(_HANG_S):
            assert [(await each).content for each in readers[1:]] == [b"a", b"a"]


async def test_reads_that_wait_for_kafka_hold_up_no_reads_of_other_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition of Kafka without a leader: once two such reads stopped all."""
    monkeypatch.setattr(Partition, "log_is_shared", True)
    async with door(tmp_path) as here, client_of(here) as client:
        partition = await made(here, client, "a")
        other = _PATH + "2"
        assert (await client.put(other, headers=_TEXT, content="b")).status_code == 201
        waiting, go_on = asyncio.Semaphore(0), asyncio.Event()
        read = partition.log.read

        async def held(*arguments: int) -> Any:
            waiting.release()
            await go_on.wait()
            return await read(*arguments)

        monkeypatch.setattr(partition.log, "read", held)
        readers = []
        async with asyncio.timeout(_HANG_S):
            for _ in range(3):  # each comes after the reads before it began, and shares none
                readers.append(asyncio.create_task(client.get(_PATH)))
                await waiting.acquire()
                assert (await client.post(_PATH, content="c", headers=_TEXT)).status_code == 204
            assert (await client.get(other)).content == b"b"
            go_on.set()
            assert [(await each).content for each in readers] == [b"accc"] * 3


async def test_values_before_what_cannot_be_read_are_a_page(tmp_path: Path) -> None:
    """Once the page was the error about what follows, and pointed past both."""
    async with door(tmp_path) as here, client_of(here) as client:
        await made(here, client, "a" * (READ_BYTES_DEFAULT // 2))
        # The first read of a page ends within it: so it is the second one that fails.
        noise = bytes(Random(0).randbytes(READ_BYTES_DEFAULT * 3 // 4))
        data = batch([b"x"])[:HEADER_BYTES] + noise
        broken = changed(data, batch_length=len(data) - 12, attributes=1)
        async with await here.server.connect() as kafka:
            assert (await kafka.produce("s", broken)).code == 0
        assert (await client.post(_PATH, content="c", headers=_TEXT)).status_code == 204
        reply = await client.get(_PATH)
        assert (reply.status_code, len(reply.content)) == (200, READ_BYTES_DEFAULT // 2)
        assert "stream-up-to-date" not in reply.headers
        reply = await client.get(f"{_PATH}?offset={reply.headers['stream-next-offset']}")
        assert (reply.status_code, reply.json()["code"]) == (422, "unreadable_records")
        offset = offset_text(reply.json()["next_offset"])
        assert (await client.get(f"{_PATH}?offset={offset}")).content == b"c"
