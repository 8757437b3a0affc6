"""Answers that wait for their turn: in order, one large one at a time, and never stuck."""

import asyncio
from pathlib import Path

from pidlease.storage.topics import Topic
from tests.wire.admin_requests import (
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    TOPIC,
    config_question,
    deletion,
)
from tests.wire.batches import batch
from tests.wire.client import WireClient, creation, fetched, fetched_of
from tests.wire.harness import Server, Wanted, serving
from tests.wire.messages import API_VERSIONS, FETCH, METADATA


async def test_large_answers_of_every_kind_on_one_connection(tmp_path: Path) -> None:
    """With far less memory than all of them together: those behind do not keep those before."""
    wanted = Wanted(memory_bytes_max=1 << 20)
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t")
        for _ in range(3):
            await client.produce("t", batch([bytes(100_000)]))
        server.engine.topics["large"] = Topic.new("large", 9000)
        asked = config_question(*[(TOPIC, "t")] * 200, include_documentation=True)
        for _ in range(12):
            client.send(METADATA, 9, topics=None)
            client.send(FETCH, 11, **fetched([("t", 0, 0)]))
            client.send(DESCRIBE_CONFIGS, 4, **asked)
        async with asyncio.timeout(60):
            for _ in range(12):
                assert len((await client.receive()).topics) == 2
                assert fetched_of(await client.receive())[0].code == 0
                assert len((await client.receive()).results) == 200
        assert server.door.budget.used == 0


async def test_what_is_asked_behind_a_poll_is_told_behind_it(
    server: Server, client: WireClient
) -> None:
    await client.create("t")
    client.send(FETCH, 11, **fetched([("t", 0, 0)], wait_ms=300))
    client.send(METADATA, 9, topics=None)
    client.send(API_VERSIONS, 0)
    await client.writer.drain()
    async with await server.connect() as other:
        await other.create("later")
    assert fetched_of(await client.receive())[0].end == 0
    names = {topic.name for topic in (await client.receive()).topics}
    assert names == {"t", "later"}, "it tells what is there when it is told"
    assert (await client.receive()).error_code == 0


async def test_changes_on_one_connection_come_one_after_the_other(
    server: Server, client: WireClient
) -> None:
    for number in range(10):
        client.send(CREATE_TOPICS, 5, **creation(f"t-{number}"))
        client.send(DELETE_TOPICS, 5, **deletion(f"t-{number}"))
    for _ in range(10):
        assert (await client.receive()).topics[0].error_code == 0
        assert (await client.receive()).responses[0].error_code == 0
    assert not server.engine.topics


async def test_who_leaves_while_waiting_holds_nothing(server: Server, client: WireClient) -> None:
    await client.create("t")
    async with await server.connect() as leaver:
        leaver.send(FETCH, 11, **fetched([("t", 0, 0)], wait_ms=30_000))
        for _ in range(20):
            leaver.send(METADATA, 9, topics=None)
            leaver.send(CREATE_TOPICS, 5, **creation("never"))
        await leaver.writer.drain()
        await asyncio.sleep(0.05)
    async with asyncio.timeout(10):
        while server.door.budget.used:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    await client.create("next")
    assert set(server.engine.topics) == {"t", "next"}
