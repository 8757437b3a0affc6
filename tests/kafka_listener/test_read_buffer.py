"""Connections read into one buffer, and a part of a request stays with its own connection."""

import asyncio
import struct
import tracemalloc
from random import Random

from proxy.kafka.client_connection import READ_BUFFER_BYTES
from tests.crash.seeds import SOAK, new_random
from tests.kafka_listener.batches import batch, records_of
from tests.kafka_listener.client import WireClient, fetched, fetched_of, produced
from tests.kafka_listener.harness import Server
from tests.kafka_listener.messages import FETCH, PRODUCE, encode_request

CLIENTS = 8
REQUESTS = 3_000 if SOAK else 150
IDLE = 300


def _request(partition: int, value: bytes, number: int) -> bytes:
    values = produced([("t", partition, batch([value]))])
    frame = encode_request(PRODUCE, 9, values, number, "cut")
    return struct.pack(">i", len(frame)) + frame


def _value(random: Random, partition: int, number: int) -> bytes:
    # Now and then larger than the buffer: such a request is read into one of its own.
    size = READ_BUFFER_BYTES * 2 if random.random() < 0.02 else random.randrange(3_000)
    return f"{partition}:{number}:".encode() + random.randbytes(size)


async def _send(random: Random, client: WireClient, data: bytes) -> None:
    """Send in pieces that end anywhere, and let the other clients send in between."""
    at = 0
    while at < len(data):
        size = random.choice((1, 3, 50, 500, 5_000, 40_000, READ_BUFFER_BYTES))
        client.send_bytes(data[at : at + size])
        at += size
        if random.random() < 0.5:
            await client.writer.drain()
            await asyncio.sleep(random.choice((0, 0, 0.001)))


async def test_requests_in_pieces_on_many_connections(server: Server) -> None:
    random = new_random("pieces")
    clients = [await server.connect() for _ in range(CLIENTS)]
    await clients[0].create("t", CLIENTS)
    values = [[_value(random, each, n) for n in range(REQUESTS)] for each in range(CLIENTS)]

    async def receive(client: WireClient) -> None:
        for number in range(REQUESTS):
            response = await client.receive_frame()
            assert struct.unpack_from(">i", response) == (number,)

    sending = [
        _send(Random(random.random()), client,
              b"".join(_request(each, value, n) for n, value in enumerate(values[each])))
        for each, client in enumerate(clients)
    ]  # fmt: skip
    await asyncio.gather(*sending, *map(receive, clients))
    for partition, sent in enumerate(values):
        found: list[bytes | None] = []
        while len(found) < len(sent):
            asked = fetched([("t", partition, len(found))])
            (part,) = fetched_of(await clients[0].call(FETCH, 11, **asked))
            assert part.code == 0
            found += [each.value for each in records_of(part.data)]
        assert found == sent
    for client in clients:
        client.writer.close()


async def test_an_idle_connection_takes_little_memory(server: Server) -> None:
    async with await server.connect() as first:
        await first.create("t")
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            clients = [await server.connect() for _ in range(IDLE)]
            for number, each in enumerate(clients):
                data = _request(0, b"v", number)
                each.send_bytes(data[:10])
                await asyncio.sleep(0.001)
                each.send_bytes(data[10:])
                await each.receive_frame()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        for each in clients:
            each.writer.transport.abort()
    assert (after - before) / IDLE < READ_BUFFER_BYTES / 3
