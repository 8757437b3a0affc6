"""What is no request, or no batch: each a clear error, and nobody else notices.

A well-behaved idempotent producer runs beside every test; at the end its records are all there,
once and in order.
"""

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from tests.kafka_listener.batches import batch, changed, records_of
from tests.kafka_listener.bodies import plain, spoilt
from tests.kafka_listener.client import WireClient, fetched, fetched_of
from tests.kafka_listener.harness import Server
from tests.kafka_listener.messages import FETCH, METADATA, PRODUCE, encode_request

_GOOD: Final = batch([b"one", b"two", b"three"])


class Bystander:
    """A producer with five batches in flight, as unmodified clients have."""

    def __init__(self, client: WireClient, pid: int) -> None:
        self._client = client
        self._pid = pid
        self._stop = False
        self.acknowledged = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        sent = 0
        while not self._stop or self.acknowledged < sent:
            while sent - self.acknowledged < 5 and not self._stop:
                self._client.send_produce(
                    "calm", batch([b"%d" % sent], self._pid, 0, sent), partition=0
                )
                sent += 1
            answer = await self._client.receive_produce()
            assert (answer.code, answer.offset) == (0, self.acknowledged), answer
            self.acknowledged += 1
            await asyncio.sleep(0.0005)

    async def finish(self) -> None:
        """Stop, and hold what is in the log against what was sent."""
        before = self.acknowledged
        await asyncio.sleep(0.05)
        self._stop = True
        await asyncio.wait_for(self._task, 20)
        assert self.acknowledged > before, "it was held up"
        values: list[bytes | None] = []
        while len(values) < self.acknowledged:
            found = await self._client.fetch("calm", len(values))
            values += [record.value for record in records_of(found.data)]
        assert values == [b"%d" % number for number in range(self.acknowledged)]


@pytest.fixture(autouse=True)
async def bystander(server: Server) -> AsyncIterator[Bystander]:
    async with await server.connect() as client:
        await client.create("calm")
        await client.create("t")
        calm = Bystander(client, await client.lease())
        yield calm
        await calm.finish()


def _message(magic: int) -> bytes:
    """A message of an old format, shorter than a header of format 2."""
    builder: Any = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
    assert builder.append(0, 1_700_000_000_000, b"k", b"v")
    return bytes(builder.build())


_BROKEN_BATCHES: Final[dict[str, tuple[bytes, int, str]]] = {
    "bad crc": (_GOOD[:-1] + b"!", 2, "CRC"),
    "wrong crc field": (changed(_GOOD, fix_crc=False, records=3, max_timestamp=1), 2, "CRC"),
    "magic 0": (changed(_GOOD, magic=0), 87, "format 0"),
    "magic 1": (changed(_GOOD, magic=1), 87, "format 1"),
    "magic 3": (changed(_GOOD, magic=3), 87, "format 3"),
    "more records than offsets": (changed(_GOOD, records=4), 87, "4 records"),
    "fewer records than offsets": (changed(_GOOD, last_offset_delta=7), 87, "offset delta of 7"),
    "no records": (changed(_GOOD, records=0, last_offset_delta=-1), 87, "0 records"),
    "negative records": (changed(_GOOD, records=-1, last_offset_delta=-2), 87, "-1 records"),
    "two batches": (_GOOD + batch([b"second"]), 87, "one batch"),
    "a byte too many": (_GOOD + b"\0", 87, "one batch"),
    # The codes from here on are those of Kafka 4.1.
    "truncated": (_GOOD[:-5], 87, "cut off"),
    "truncated in the header": (_GOOD[:40], 87, "cut off"),
    "one byte": (b"\0", 87, "no batch"),
    "nothing but zeros": (bytes(20), 2, "header"),
    "a short message of format 0": (_message(0), 87, "format 0"),
    "a short message of format 1": (_message(1), 87, "format 1"),
    "a short message, damaged": (_message(1)[:-1] + b"!", 87, "format 1"),
    "a short message, cut off": (_message(1)[:-1], 87, "cut off"),
    "a short message, before its format": (_message(1)[:16], 87, "cut off"),
    "empty": (b"", 87, "no batch"),
    "negative length": (changed(_GOOD, batch_length=-1), 87, "one batch"),
    "length below the header": (changed(_GOOD, batch_length=10), 87, "one batch"),
    "huge length": (changed(_GOOD, batch_length=2**31 - 1), 87, "cut off"),
    "control": (changed(_GOOD, attributes=0x20), 87, "control"),
    "transactional": (changed(_GOOD, attributes=0x10), 87, "transactional"),
    "unknown codec": (changed(_GOOD, attributes=5), 87, "compression type 5"),
    "codec 7": (changed(_GOOD, attributes=7), 87, "compression type 7"),
    "too large": (batch([bytes(1_100_000)]), 10, "at most 1048588"),
}


@pytest.mark.parametrize("name", _BROKEN_BATCHES)
async def test_a_broken_batch_is_refused_and_leaves_nothing(client: WireClient, name: str) -> None:
    data, code, reason = _BROKEN_BATCHES[name]
    answer = await client.produce("t", data)
    assert (answer.code, answer.offset, answer.log_start) == (code, -1, 0)
    assert reason in (answer.message or "")
    # The connection goes on, and the log is as it was.
    assert (await client.produce("t", _GOOD)).offset == 0
    assert (await client.fetch("t")).end == 3


async def test_a_broken_batch_uses_up_no_sequence(client: WireClient) -> None:
    pid = await client.lease()
    good = batch([b"v"], pid, 0, 0)
    assert (await client.produce("t", good[:-1] + b"!")).code == 2
    assert (await client.produce("t", changed(good, records=2))).code == 87
    assert (await client.produce("t", good)).offset == 0


@pytest.mark.parametrize("name", ["a b", "a/b", "..", ".", "x" * 250, "ä", "a\nb", ""])
async def test_an_illegal_topic_name(client: WireClient, name: str) -> None:
    body = await client.metadata(name, create=True)
    assert [(topic.error_code, topic.name) for topic in body.topics] == [(17, name)]
    assert (await client.produce(name, _GOOD)).code == 3


def _head(key: int, version: int, length: int = 4) -> bytes:
    return struct.pack(">hhih", key, version, 1, length) + b"test"


_NO_REQUESTS: Final[dict[str, tuple[bytes, str]]] = {
    "http": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "Kafka's protocol"),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), "Kafka's protocol"),
    "negative size": (struct.pack(">i", -1) + bytes(20), "-1 bytes"),
    "no size": (bytes(20), "0 bytes"),
    "size below a header": (struct.pack(">i", 7) + bytes(20), "7 bytes"),
    "size of 8": (struct.pack(">i", 8) + bytes(8), "header"),
    "over the limit": (struct.pack(">i", (100 << 20) + 1) + bytes(20), "at most 104857600"),
    "unknown api": (struct.pack(">i", 14) + _head(999, 0), "API 999"),
    "negative api": (struct.pack(">i", 14) + _head(-1, 0), "API -1"),
    "unknown version": (struct.pack(">i", 14) + _head(METADATA, 99), "API 3 version 99"),
    "negative version": (struct.pack(">i", 14) + _head(METADATA, -1), "API 3 version -1"),
    "old produce": (struct.pack(">i", 14) + _head(PRODUCE, 2), "API 0 version 2"),
    "new fetch": (struct.pack(">i", 14) + _head(FETCH, 12), "API 1 version 12"),
    "client id too long": (struct.pack(">i", 14) + _head(METADATA, 1, 99), "client id"),
    "produce without a body": (struct.pack(">i", 14) + _head(PRODUCE, 3), "too early"),
    "metadata without a body": (struct.pack(">i", 14) + _head(METADATA, 1), "Metadata"),
    "fetch without a body": (struct.pack(">i", 14) + _head(FETCH, 4), "too early"),
    "produce with more": (
        struct.pack(">i", 27) + _head(PRODUCE, 3) + b"\xff\xff\xff\xff" + bytes(8) + b"!",
        "bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _NO_REQUESTS)
async def test_no_request_closes_the_connection_and_says_why(
    server: Server, client: WireClient, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data, reason = _NO_REQUESTS[name]
    client.send_bytes(data)
    assert await client.is_closed()
    told = capsys.readouterr().out
    assert "connection closed" in told
    assert reason in told
    assert server.door.budget.used < 10_000


async def test_what_was_asked_before_garbage_is_stored(server: Server, client: WireClient) -> None:
    """The answer may be lost with the connection; the retry finds the original."""
    pid = await client.lease()
    data = batch([b"v"], pid, 0, 0)
    client.send_produce("t", data)
    client.send_bytes(b"\xff" * 50)
    async with await server.connect() as other:
        answer = await other.produce("t", data)
        assert (answer.code, answer.offset) == (0, 0)
        assert (await other.fetch("t")).end == 1


async def test_a_request_that_is_malformed_behind_its_first_batch_has_no_effect(
    server: Server, client: WireClient
) -> None:
    frame = encode_request(PRODUCE, 9, {"acks": -1, "topic_data": [
        {"name": "t", "partition_data": [{"index": 0, "records": _GOOD}]}]})  # fmt: skip
    client.send_frame(frame[:-1])
    assert await client.is_closed()
    async with await server.connect() as other:
        assert (await other.fetch("t")).end == 0


@pytest.mark.parametrize("size", [10, 1000, 70_000])
async def test_a_connection_that_ends_in_the_middle_of_a_request(
    server: Server, client: WireClient, size: int
) -> None:
    client.send_bytes(struct.pack(">i", size + 100) + bytes(size))
    await client.writer.drain()
    await asyncio.sleep(0.02)
    client.writer.close()
    await _settled(lambda: len(server.door.connections) == 1)
    await _settled(lambda: server.door.budget.used < 1000)


async def test_random_bytes_by_chance(server: Server) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    choice = random.Random(seed)
    for _ in range(60):
        async with await server.connect() as client:
            body = choice.randbytes(choice.randrange(200))
            if choice.random() < 0.7:
                body = struct.pack(">i", len(body)) + body
            client.send_bytes(body)
            client.writer.write_eof()
            await client.is_closed()
    await _settled(lambda: len(server.door.connections) == 1)
    await _settled(lambda: server.door.budget.used < 1000)


async def test_spoilt_requests_by_chance(server: Server) -> None:
    """Spoilt in the old encodings only; tests.kafka_listener.bodies spoils the others."""
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    choice = random.Random(seed)
    for _ in range(150):
        key, version = choice.choice([(1, 4), (1, 11), (2, 1), (3, 0), (3, 8), (19, 2), (22, 0)])
        body = spoilt(plain(key, version), choice)
        async with await server.connect() as client:
            client.send_frame(struct.pack(">hhih", key, version, 1, 0) + body)
            client.writer.write_eof()
            while await client.reader.read(1 << 16):
                pass
    await _settled(lambda: len(server.door.connections) == 1)
    await _settled(lambda: server.door.budget.used < 1000)


async def test_an_unknown_tagged_field_is_skipped(client: WireClient) -> None:
    frame = encode_request(22, 2, {"transactional_id": None})
    client.send_frame(frame[:-1] + b"\x01\x63\x02hi")
    answer = await client.receive_frame()
    assert answer[9:11] == b"\0\0"  # behind correlation id, tags and throttle time


async def test_metadata_by_a_null_name(client: WireClient) -> None:
    """Versions 10 and 11 can say it (by topic id), and must get an answer or an orderly end."""
    for version in (10, 11, 12):
        body = await client.call(METADATA, version, topics=[{"name": None, "topic_id": None}])
        assert [int(topic.error_code) for topic in body.topics] in ([42], [100], [3]), version


async def test_fetch_of_nonsense(client: WireClient) -> None:
    parts = [("t", -1, 0), ("t", 2**31 - 1, 0), ("t", 0, 2**63 - 1), ("t", 0, -(2**63)), ("", 0, 0)]
    body = await client.call(
        FETCH, 11, **fetched(parts, max_bytes=-5, partition_max_bytes=-1, wait_ms=-7)
    )
    assert [part.code for part in fetched_of(body)] == [3, 3, 1, 1, 3]


async def _settled(holds: Callable[[], bool]) -> None:
    for _ in range(300):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it does not settle")
