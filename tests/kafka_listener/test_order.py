"""Answers on one connection come in the order of the requests, whatever takes longer."""

import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

from pidlease.core.log_config import FsyncPolicy
from tests.kafka_listener.batches import batch, records_of
from tests.kafka_listener.client import (
    INIT,
    WireClient,
    answers_of,
    creation,
    fetched,
    fetched_of,
    produced,
)
from tests.kafka_listener.harness import Server, Wanted, serving
from tests.kafka_listener.messages import (
    API_VERSIONS,
    CREATE_TOPICS,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
)


async def test_a_long_poll_comes_before_what_was_asked_behind_it(client: WireClient) -> None:
    await client.create("t")
    started = time.monotonic()
    client.send(FETCH, 11, **fetched([("t", 0, 0)], wait_ms=60_000))
    client.send(METADATA, 9, topics=[])
    client.send(INIT_PRODUCER_ID, 4, **INIT)
    assert fetched_of(await client.receive())[0].data == b""
    await client.receive()
    assert (await client.receive()).error_code == 0
    assert time.monotonic() - started < 30, "the poll ended when others followed"


async def test_a_produce_behind_a_long_poll_on_its_own_connection_ends_the_poll(
    client: WireClient,
) -> None:
    await client.create("t")
    client.send(FETCH, 11, **fetched([("t", 0, 0)], wait_ms=60_000))
    client.send(PRODUCE, 9, **produced([("t", 0, batch([b"v"]))]))
    started = time.monotonic()
    assert fetched_of(await client.receive())[0].code == 0
    assert answers_of(await client.receive())[0].offset == 0
    assert [each.value for each in records_of((await client.fetch("t", 0)).data)] == [b"v"]
    assert time.monotonic() - started < 30


async def test_mixed_requests_by_chance(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    choice = random.Random(seed)
    wanted = Wanted(fsync=FsyncPolicy.BATCH, faults="slow=0.003 before fsync *.log 1")
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t", 2)
        pid = await client.lease()
        sequences = [0, 0]
        asked: list[tuple[int, int]] = []
        for number in range(300):  # more than a connection may have in flight
            kind = choice.choice(
                [PRODUCE, PRODUCE, FETCH, METADATA, API_VERSIONS, LIST_OFFSETS, 19]
            )
            partition = choice.randrange(2)
            asked.append((kind, partition))
            if kind == PRODUCE:
                data = batch([b"v"], pid, 0, sequences[partition])
                sequences[partition] += 1
                client.send(PRODUCE, choice.randrange(3, 13), **produced([("t", partition, data)]))
            elif kind == FETCH:
                wait = fetched([("t", partition, 0)], wait_ms=choice.randrange(20))
                client.send(FETCH, choice.randrange(4, 12), **wait)
            elif kind == CREATE_TOPICS:
                client.send(CREATE_TOPICS, 5, **creation(f"n{number % 5}"))
            elif kind == METADATA:
                client.send(METADATA, choice.randrange(13), topics=[{"name": "t"}])
            elif kind == LIST_OFFSETS:
                client.send(LIST_OFFSETS, 6, topics=[{"name": "t"}])
            else:
                client.send(API_VERSIONS, choice.randrange(5))
        offsets = [0, 0]
        for kind, partition in asked:
            body = await client.receive()  # holds the correlation ids against each other
            if kind == PRODUCE:
                answer = answers_of(body)[0]
                assert (answer.code, answer.offset) == (0, offsets[partition])
                offsets[partition] += 1
        assert offsets == sequences


async def test_acks_0_gets_no_answer_and_its_records_are_there(client: WireClient) -> None:
    await client.create("t")
    for number in range(5):
        client.send_produce("t", batch([b"%d" % number]), acks=0)
        client.forget_last()
    assert (await client.metadata("t")).topics[0].error_code == 0
    found = await client.fetch("t", 4, wait_ms=2000)
    assert [record.value for record in records_of(found.data)] == [b"4"]
    assert found.end == 5


async def test_a_refused_batch_with_acks_0_closes_the_connection(
    server: Server, client: WireClient
) -> None:
    await client.create("t")
    pid = await client.lease()
    client.send_produce("t", batch([b"v"], pid, 0, 7), acks=0)
    client.forget_last()
    assert await client.is_closed()
    async with await server.connect() as other:
        assert (await other.fetch("t")).end == 0


async def test_one_request_in_many_pieces_and_many_in_one(client: WireClient) -> None:
    await client.create("t")
    client.send_produce("t", batch([b"x" * 40_000]))
    client.send_produce("t", batch([b"y" * 10]))
    client.send_produce("t", batch([b"z" * 17_000]))
    assert [(await client.receive_produce()).offset for _ in range(3)] == [0, 1, 2]
    found = records_of((await client.fetch("t")).data)
    assert [len(record.value or b"") for record in found] == [40_000, 10, 17_000]


async def test_frames_of_every_size_around_the_limits_of_the_buffers(client: WireClient) -> None:
    await client.create("t")
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    choice = random.Random(seed)
    edges = (16 << 10, 48 << 10, 64 << 10, 128 << 10)
    sizes = [max(1, edge + choice.randrange(-200, 200)) for edge in edges for _ in range(20)]
    sizes += [choice.randrange(1, 3000) for _ in range(100)]
    choice.shuffle(sizes)
    for number, size in enumerate(sizes):
        client.send_produce("t", batch([b"%05d" % number + bytes(size)]))
    for number in range(len(sizes)):
        answer = await client.receive_produce()
        assert (answer.code, answer.offset) == (0, number)
    found = [record async for record in _all(client, len(sizes))]
    assert found == [(b"%05d" % number, 5 + size) for number, size in enumerate(sizes)]


async def _all(client: WireClient, end: int) -> AsyncIterator[tuple[bytes, int]]:
    offset = 0
    while offset < end:
        for record in records_of(
            (await client.fetch("t", offset, partition_max_bytes=9 << 20)).data
        ):
            if record.offset >= offset:
                yield (record.value or b"")[:5], len(record.value or b"")
                offset = record.offset + 1
