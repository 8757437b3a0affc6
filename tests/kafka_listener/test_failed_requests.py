"""Requests without responses by a bug of ours: they hold no memory, and nothing overtakes them."""

import asyncio
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from pidlease.engine.engine import Engine
from pidlease.kafka.codec.primitives import RequestHeader
from proxy.kafka import produce_api
from proxy.kafka.client_connection import Slot
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient, produced
from tests.kafka_listener.harness import Server
from tests.kafka_listener.messages import API_VERSIONS, PRODUCE
from tests.servers.waiting import WAIT_S

_UNKNOWN_TOPIC = 3
_STRING_MAX = 2**15 - 1


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("version", [7, 8, 9])
@pytest.mark.parametrize("size", [300, _STRING_MAX])
async def test_an_unknown_topic_with_a_long_name(server: Server, version: int, size: int) -> None:
    async with await server.connect() as client:
        name = "a" * size
        data = batch([bytes(100_000)])
        body = await client.call(PRODUCE, version, **produced([(name, 0, data)]))
        (topic,) = body.responses
        assert topic.name == name
        assert topic.partition_responses[0].error_code == _UNKNOWN_TOPIC
    await _until(lambda: server.door.budget.used == 0)


def _broken(*_: object) -> bytes:
    raise RuntimeError("a bug")


async def _missing(_: Engine, places: object) -> Any:
    raise RuntimeError("a bug")


@pytest.mark.parametrize("absent", [False, True])
async def test_a_response_that_cannot_be_made_ends_the_connection(
    server: Server, client: WireClient, monkeypatch: pytest.MonkeyPatch, *, absent: bool
) -> None:
    await client.create("t")
    if absent:
        monkeypatch.setattr(Engine, "missing", _missing)
    else:
        monkeypatch.setattr(produce_api, "write_produce_response", _broken)
    async with await server.connect() as other:
        other.send_produce("unknown" if absent else "t", batch([bytes(100_000)]))
        assert await other.is_closed(WAIT_S)
    await _until(lambda: server.door.budget.used == 0)
    monkeypatch.undo()
    assert (await client.produce("t", batch([b"v"]))).code == 0


async def test_nothing_overtakes_a_failed_request(
    server: Server, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that came with it are not handled: under policy monotonic it would be lost."""
    await client.create("t")
    handled: list[int] = []
    handle = server.door.handle

    def fail_second(slot: Slot, header: RequestHeader, frame: bytearray) -> None:
        handled.append(header.correlation_id)
        if len(handled) == 2:
            raise RuntimeError("a bug")
        handle(slot, header, frame)

    monkeypatch.setattr(server.door, "handle", fail_second)
    async with await server.connect() as other:
        for number in range(5):
            values = produced([("t", 0, batch([b"%d" % number]))])
            if number:
                other.send(PRODUCE, 9, **values | {"timeout": timedelta(seconds=1)})
            else:
                other.send(API_VERSIONS, 3)
        size = struct.unpack(">i", await other.reader.readexactly(4))[0]
        await other.reader.readexactly(size)
        assert await other.is_closed(WAIT_S)
    assert len(handled) == 2
    await _until(lambda: server.door.budget.used == 0)
