"""Reads over HTTP: what every client wrote, page by page, with and without waiting."""

import asyncio
import json
import random
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import cramjam
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Producer

from pidlease.engine.partition import Partition
from pidlease.http_api.record_messages import READ_BYTES_MAX, RecordsAnswer
from pidlease.kafka.records.batch_records import UNPACKED_MAX
from pidlease.kafka.records.identity_header import HEADER_KEY, Identity, decode_identity
from pidlease.kafka.records.record_batch import HEADER_BYTES
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.http import log_reads
from proxy.http import record_pages as records_pages
from proxy.http import request_memory as records_room
from proxy.http.record_pages import Page, page_of
from proxy.http.record_responses import UnreadableError
from proxy.http.record_routes import RecordLimits
from tests.http_api.appending import Answer, Door, door, listening, path_of, producer, values
from tests.kafka_listener.batches import NOW_MS, batch, changed
from tests.servers.waiting import WAIT_S

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
ODD = [b"", b"text", "ä€\U0001f600".encode(), b"\x00\x01", bytes(range(256)), b'"\\\n', b"x" * 5000]


async def produced(here: Door, *batches: bytes) -> None:
    """Have batches in the log just as they are."""
    async with await here.server.connect() as client:
        for each in batches:
            assert (await client.produce("t", each)).code == 0


async def all_values(here: Door, offset: int = 0, **query: int) -> list[bytes | None]:
    """Everything from an offset on, page by page, as a reader does it."""
    found: list[bytes | None] = []
    while True:
        page = await here.records(offset=offset, **query)
        assert [each.offset for each in page.records] == list(range(offset, page.next_offset))
        found += [each.value for each in page.records]
        offset = page.next_offset
        if offset == page.log_end:
            return found


# ---------------------------------------------------------------------- what others wrote


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_what_aiokafka_wrote(tmp_path: Path, codec: str | None) -> None:
    async with door(tmp_path) as here:
        async with AIOKafkaProducer(
            bootstrap_servers=f"{LOOPBACK}:{here.server.port}",
            compression_type=codec,
            enable_idempotence=True,
            linger_ms=20,
        ) as client:
            sent = [
                await client.send("t", each, key=each[::-1] or None, partition=0,
                                  timestamp_ms=1000 + n, headers=[("n", each), ("", b"")])
                for n, each in enumerate(ODD * 5)
            ]  # fmt: skip
            await asyncio.gather(*sent)
        found = await here.records()
        assert [each.value for each in found.records] == ODD * 5
        assert [each.key for each in found.records] == [each[::-1] or None for each in ODD * 5]
        assert [each.timestamp_ms for each in found.records] == [1000 + n for n in range(35)]
        for each in found.records:
            assert [(x.key, x.value) for x in each.headers] == [("n", each.value), ("", b"")]
        assert (found.next_offset, found.log_start, found.log_end) == (35, 0, 35)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_what_librdkafka_wrote(tmp_path: Path, codec: str) -> None:
    async with door(tmp_path) as here:
        content = [each or None for each in ODD * 20]

        def write() -> None:
            client = Producer({
                "bootstrap.servers": f"{LOOPBACK}:{here.server.port}",
                "enable.idempotence": True, "compression.type": codec, "linger.ms": 20,
            })  # fmt: skip
            for each in content:
                client.produce("t", each, partition=0, headers=[("h", b"\xff")])
            assert client.flush(WAIT_S) == 0

        await asyncio.to_thread(write)
        assert await all_values(here, max_bytes=20_000) == content


async def test_snappy_without_a_frame(tmp_path: Path) -> None:
    """Raw blocks, as some clients send them."""
    async with door(tmp_path) as here:
        plain = batch([b"a" * 500] * 30)
        packed = bytes(cramjam.snappy.compress_raw(plain[HEADER_BYTES:]))
        await produced(here, with_records(plain, packed, CODECS["snappy"]))
        assert await all_values(here) == [b"a" * 500] * 30


def with_records(plain: bytes, records: bytes, codec: int) -> bytes:
    """A batch with other bytes for its records."""
    data = plain[:HEADER_BYTES] + records
    return changed(data, batch_length=len(data) - 12, attributes=codec)


async def test_what_came_by_http_is_read_by_aiokafka(tmp_path: Path) -> None:
    """The header pidlease is seen there, on the first record of each request."""
    async with door(tmp_path) as here:
        record = {"key": "k", "value": "a", "headers": [{"key": "h", "value": "x"}]}
        await here.append({"records": [record, {"value": "b"}]}, producer("p", 4, 0))
        lease = await here.lease()
        await here.append({**values("c"), **lease, "first_sequence": 0})
        await here.append(values("d"))
        consumer: Any = AIOKafkaConsumer(bootstrap_servers=f"{LOOPBACK}:{here.server.port}")
        async with consumer:
            consumer.assign([TopicPartition("t", 0)])
            await consumer.seek_to_beginning()
            found = [await consumer.getone() for _ in range(4)]
        assert [each.value for each in found] == [b"a", b"b", b"c", b"d"]
        assert found[0].key == b"k"
        name = HEADER_KEY.decode()
        (first, second), (third,) = found[0].headers, found[2].headers
        assert (first[0], third[0], second) == (name, name, ("h", b"x"))
        assert decode_identity(first[1]) == Identity(-1, "p", 4, 0, 0)
        assert decode_identity(third[1]) == Identity(lease["pid"], "", lease["generation"], 0, 0)
        assert [found[1].headers, found[3].headers] == [(), ()]
        assert [len(each.headers) for each in (await here.records()).records] == [1, 0, 0, 0]


async def test_what_is_read_can_be_sent_as_it_is(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        await produced(here, batch([*ODD, None], codec=4))
        _, answer = await here.read()
        for each in answer["records"]:
            del each["offset"]
        status, _ = await here.append({"records": answer["records"]}, partition=1)
        assert status == 200
        _, again = await here.read(1)
        for each in again["records"]:
            del each["offset"]
        assert again["records"] == answer["records"]


# ---------------------------------------------------------------------- pages


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
async def test_pages_of_any_size(tmp_path: Path, codec: int) -> None:
    async with door(tmp_path) as here:
        due: list[bytes | None] = []
        batches = []
        for size in (1, 7, 300, 1, 40):
            content = [b"%d/%d" % (size, n) for n in range(size)]
            due += content
            batches.append(batch(content, codec=codec))
        await produced(here, *batches)
        for max_bytes in (1, 70, 1000, READ_BYTES_MAX):
            begin = 0 if max_bytes > 1 else len(due) - 60
            assert await all_values(here, begin, max_bytes=max_bytes) == due[begin:]
        for offset in range(0, len(due) + 1, 13):
            assert await all_values(here, offset) == due[offset:]
        one = await here.records(offset=3, max_bytes=1)
        assert [each.offset for each in one.records] == [3], "one at least, and no more"


async def test_without_an_offset_it_begins_where_the_log_does(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        empty = await here.records()
        assert empty == RecordsAnswer(records=[], next_offset=0, log_start=0, log_end=0)
        await produced(here, *(batch([b"%d" % n] * 3, codec=4) for n in range(5)))
        await here.partition.delete_records(7)
        found = await here.records()
        assert [each.offset for each in found.records] == list(range(7, 15))
        assert [each.value for each in found.records[:3]] == [b"2", b"2", b"3"]
        assert (found.log_start, found.log_end) == (7, 15)


async def test_an_offset_outside_of_the_log(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        await produced(here, batch([b"a"] * 10))
        await here.partition.delete_records(5)
        for offset in (0, 4, 11, 2**63 - 1):
            for wait_ms in (0, 60_000):
                status, answer = await here.read(offset=offset, wait_ms=wait_ms)
                assert (status, answer["field"]) == (416, "offset")
                assert (answer["log_start"], answer["log_end"]) == (5, 10)
        assert (await here.records(offset=10)).next_offset == 10


async def test_times_that_are_none(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        await produced(here, batch([b"a"], timestamp=-1), batch([b"b"], timestamp=2**60))
        found = await here.records()
        assert [each.timestamp_ms for each in found.records] == [-1, 2**60]


# ---------------------------------------------------------------------- what cannot be told


async def test_what_unpacks_to_more_than_may_be(tmp_path: Path) -> None:
    """A small batch of very much: it is named, and there is a way on."""
    async with door(tmp_path) as here:
        bomb = batch([b"\0" * (UNPACKED_MAX + 1)], codec=4)
        just = batch([b"\0" * (UNPACKED_MAX - 100)], codec=4)
        assert len(bomb) < 10_000
        await produced(here, batch([b"a"]), bomb, bomb, batch([b"b"]), just, batch([b"c"]))
        page = await here.records()
        assert ([each.value for each in page.records], page.next_offset) == ([b"a"], 1)
        for offset in (1, 2):
            status, answer = await here.read(offset=offset)
            assert (status, answer["field"]) == (422, "offset")
            assert (answer["offset"], answer["next_offset"]) == (offset, offset + 1)
            assert str(UNPACKED_MAX) in answer["error"]
        page = await here.records(offset=3)
        assert [len(each.value or b"") for each in page.records] == [1, UNPACKED_MAX - 100]
        assert (await here.records(offset=5)).records[0].value == b"c"


@pytest.mark.parametrize("codec", [1, 2, 3, 4], ids=["gzip", "snappy", "lz4", "zstd"])
async def test_what_is_not_what_it_says(tmp_path: Path, codec: int) -> None:
    async with door(tmp_path) as here:
        plain = batch([b"a" * 100] * 10)
        good = batch([b"a" * 100] * 10, codec=codec)
        broken = [
            with_records(plain, b"no such thing", codec),
            with_records(plain, b"", codec),
            changed(good, records=12, last_offset_delta=11),
            changed(good, records=1, last_offset_delta=0),
            changed(plain, attributes=codec),
        ]
        await produced(here, *broken, good)
        offset = 0
        for number in range(len(broken)):
            status, answer = await here.read(offset=offset)
            assert (status, answer["offset"]) == (422, offset), (number, answer)
            offset = answer["next_offset"]
        assert await all_values(here, offset) == [b"a" * 100] * 10


@pytest.mark.parametrize("records", [1, 5, 5000])
@pytest.mark.parametrize("codec", [0, 4], ids=["none", "zstd"])
async def test_nothing_is_returned_of_a_batch_with_another_number_of_records(
    tmp_path: Path, codec: int, records: int
) -> None:
    """Neither the first records of a page nor those of a batch that ends too early or too late."""
    async with door(tmp_path) as here:
        written = batch([b"a" * 10] * (records + 1), codec=codec)
        fewer = changed(written, records=records + 2, last_offset_delta=records + 1)
        more = changed(written, records=records, last_offset_delta=records - 1)
        await produced(here, batch([b"before"]), fewer, more, batch([b"after"]))
        page = await here.records()
        assert ([each.value for each in page.records], page.next_offset) == ([b"before"], 1)
        for offset, following in ((1, records + 3), (records + 3, 2 * records + 3)):
            for bytes_max in (1, READ_BYTES_MAX):
                status, answer = await here.read(offset=offset, max_bytes=bytes_max)
                assert (status, answer["code"]) == (422, "unreadable_records"), answer
                assert (answer["offset"], answer["next_offset"]) == (offset, following)
        assert await all_values(here, 2 * records + 3) == [b"after"]


async def test_a_header_that_is_no_text(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        plain = batch([b"a"])
        (length,) = struct.unpack_from(">b", plain, HEADER_BYTES)
        record = bytearray(plain[HEADER_BYTES:])
        assert record[-1] == 0
        record[-1:] = bytes((2, 4)) + b"\xff\xff" + bytes((1,))  # one header, whose key is FF FF
        record[0] = length + 8
        await produced(here, with_records(plain, bytes(record), 0), batch([b"b"]))
        status, answer = await here.read()
        assert (status, answer["next_offset"]) == (422, 1), answer
        assert await all_values(here, 1) == [b"b"]


def damage(folder: Path) -> None:
    (log,) = folder.glob("logs/*-0/*.log")
    log.write_bytes(log.read_bytes().replace(b"abcdefgh", b"abcdefgi"))


async def test_a_damaged_log(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        await produced(here, batch([b"abcdefgh"]))
        damage(tmp_path)
        status, answer = await here.read()
        assert status == 422, answer
        assert "CRC" in answer["error"]


def test_whatever_stands_there_is_told_or_named() -> None:
    """Any bytes with a CRC that fits: never a crash, never without a way on."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    outcomes: set[type] = set()
    for _ in range(3000):
        data = bytearray(batch([b"a" * chance.randrange(40) for _ in range(5)], codec=0))
        for _ in range(chance.randrange(1, 5)):
            data[chance.randrange(HEADER_BYTES, len(data))] = chance.randrange(256)
        if chance.random() < 0.3:
            del data[chance.randrange(HEADER_BYTES, len(data)) :]
        data = bytearray(changed(bytes(data), batch_length=len(data) - 12))
        offset = next_offset = 0
        while next_offset < 5:
            found = told_or_named(bytes(data), offset)
            outcomes.add(type(found))
            if isinstance(found, Page):
                told = json.loads(b"[%s]" % found.records)
                assert all(each["offset"] >= offset for each in told)
            else:
                assert found.offset == offset
            next_offset = found.next_offset
            assert next_offset > offset
            offset = next_offset
    assert outcomes == {Page, UnreadableError}


def told_or_named(data: bytes, offset: int) -> Page | UnreadableError:
    try:
        return page_of(data, offset, 1000)
    except UnreadableError as error:
        return error


# ---------------------------------------------------------------------- waiting


async def test_a_read_that_waits_wakes_up(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        reads = [asyncio.create_task(here.records(offset=0, wait_ms=60_000)) for _ in range(20)]
        other = asyncio.create_task(here.records(1, offset=0, wait_ms=60_000))
        async with asyncio.timeout(20):
            await waiting(here, 20)
            assert not any(each.done() for each in reads)
            await here.append(values("a"), producer("p", 0, 0))
            for each in await asyncio.gather(*reads):
                assert [x.value for x in each.records] == [b"a"]
                assert each.next_offset == 1
            assert not other.done()
            await here.append(values("b"), partition=1)
            assert [x.value for x in (await other).records] == [b"b"]
        assert not here.partition._watchers


async def waiting(here: Door, count: int) -> None:
    while len(here.partition._watchers) < count:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.001)


async def test_a_read_does_not_wait_longer_than_asked(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        async with asyncio.timeout(20):
            for wait_ms in (0, 1, 50):
                assert (await here.records(wait_ms=wait_ms)).records == []
        assert not here.partition._watchers
        await here.append(values("a"))
        async with asyncio.timeout(20):
            assert len((await here.records(offset=0, wait_ms=60_000)).records) == 1


async def test_a_read_ends_with_its_topic(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        read = asyncio.create_task(here.read(wait_ms=60_000))
        async with asyncio.timeout(20):
            await waiting(here, 1)
            await here.server.engine.delete_topic("t")
            status, answer = await read
        assert (status, answer["field"]) == (404, "topic")


async def test_reads_end_when_the_door_closes(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        read = asyncio.create_task(here.records(wait_ms=60_000))
        async with asyncio.timeout(20):
            await waiting(here, 1)
            here.close()
            assert (await read).records == []
            assert (await here.records(wait_ms=60_000)).records == []


async def test_who_goes_away_is_not_waited_for(tmp_path: Path) -> None:
    async with door(tmp_path) as here, listening(here.app) as port:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.write(b"GET %s?wait_ms=60000 HTTP/1.1\r\nHost: x\r\n\r\n" % path_of().encode())
        async with asyncio.timeout(20):
            await waiting(here, 1)
            writer.transport.abort()
            while here.partition._watchers:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.001)


# ---------------------------------------------------------------------- bounds


async def test_large_pages_are_made_in_a_thread_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = most = 0
    places = set()
    main = threading.current_thread()

    def counted(data: bytes, offset: int, bytes_max: int) -> Page:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        places.add(threading.current_thread())
        try:
            return page_of(data, offset, bytes_max)
        finally:
            at_once -= 1

    monkeypatch.setattr(records_pages, "page_of", counted)
    async with door(tmp_path) as here:
        await produced(here, batch([b"x" * 100] * 5000, codec=4))
        pages = await asyncio.gather(*(here.records() for _ in range(10)))
        assert {len(page.records) for page in pages} == {5000}
        assert 1 <= most <= 2
        assert main not in places
        await here.append(values("small"))
        assert len((await here.records(offset=5000)).records) == 1
        assert main in places


async def test_reads_that_wait_for_kafka_hold_up_no_reads_of_other_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition of Kafka without a leader: once two such reads stopped all."""
    monkeypatch.setattr(Partition, "log_is_shared", True)
    monkeypatch.setattr(log_reads, "_LONG_SECONDS", 0.05)
    limits = RecordLimits(memory_bytes_max=2_000_000)
    async with door(tmp_path, limits=limits) as here:
        for number in range(2):
            assert (await here.append(values("x" * 900_000), partition=number))[0] == 200
        waiting, go_on = asyncio.Semaphore(0), asyncio.Event()
        read = here.partition.log.read

        async def held(*arguments: int) -> Any:
            waiting.release()
            await go_on.wait()
            return await read(*arguments)

        page, go_on_converting = records_pages.page_of, threading.Event()

        def slow(*arguments: Any) -> Page:
            go_on_converting.wait(WAIT_S)
            return page(*arguments)

        async with asyncio.timeout(WAIT_S):
            monkeypatch.setattr(here.partition.log, "read", held)
            readers = [asyncio.create_task(here.read(0)) for _ in range(20)]
            for _ in readers:
                await waiting.acquire()
            assert (await here.read(1))[0] == 200
            # What has arrived and is not converted yet counts.
            monkeypatch.setattr(records_pages, "page_of", slow)
            go_on.set()
            done, _ = await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
            go_on_converting.set()
            assert {each.result()[0] for each in done} == {503}
            assert {(await each)[0] for each in readers} == {200, 503}
            monkeypatch.undo()
            assert [(await here.read(number))[0] for number in (0, 1)] == [200, 200]


async def test_many_reads_of_kafka_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What arrives faster than it is converted must not be refused."""
    monkeypatch.setattr(Partition, "log_is_shared", True)
    async with door(tmp_path, limits=RecordLimits(memory_bytes_max=8_000_000)) as here:
        assert (await here.append(values("x" * 900_000), partition=0))[0] == 200
        page = records_pages.page_of

        def slow(*arguments: Any) -> Page:
            time.sleep(0.02)
            return page(*arguments)

        monkeypatch.setattr(records_pages, "page_of", slow)
        async with asyncio.timeout(WAIT_S):
            found = await asyncio.gather(*(here.read(0) for _ in range(60)))
        assert {each[0] for each in found} == {200}


async def test_many_tiny_records_come_to_an_end(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        await produced(here, batch([b""] * 50_000, codec=4))
        page = await here.records(max_bytes=64_000)
        assert len(page.records) == 1000
        assert len(await all_values(here, 20_000)) == 30_000


async def test_answers_that_are_not_taken_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who does not read an answer holds room, until it is cut off."""
    monkeypatch.setattr(records_room, "IDLE_SECONDS", 1.0)
    limits = RecordLimits(memory_bytes_max=9 << 20)
    async with door(tmp_path, limits=limits) as here, listening(here.app) as port:
        for _ in range(4):
            await here.raw(b"x" * 1_000_000)
        asked = b"GET %s?max_bytes=4000000 HTTP/1.1\r\nHost: x\r\n\r\n" % path_of().encode()
        clients = [socket.socket() for _ in range(3)]
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((LOOPBACK, port))
            client.sendall(asked)
        _, answer = await until(here, 503)
        assert "in flight" in answer["error"]
        assert (await here.raw(b"y"))[0] == 200, "appends have room of their own"
        await until(here, 200)
        for client in clients:
            client.close()


async def until(here: Door, wanted: int) -> Answer:
    async with asyncio.timeout(30):
        while True:
            answer = await here.read(max_bytes=4_000_000)
            if answer[0] == wanted:
                return answer
            await asyncio.sleep(0.01)


def test_markers_are_passed_over() -> None:
    marker = changed(batch([b"x"] * 2), attributes=0x20)
    page = page_of(marker + changed(batch([b"a"]), base_offset=2), 0, 1000)
    assert json.loads(page.records)["offset"] == 2
    assert page_of(marker, 0, 1000) == Page(b"", 2)


def test_json_is_what_the_contract_says() -> None:
    page = page_of(batch([*ODD, None]), 0, 1 << 20)
    content = b'{"records":[%s],"next_offset":8,"log_start":0,"log_end":8}' % page.records
    found = RecordsAnswer.model_validate_json(content)
    assert [each.value for each in found.records] == [*ODD, None]
    assert found.records[0].timestamp_ms == NOW_MS
    assert json.loads(found.model_dump_json()) == json.loads(content)
    assert UNPACKED_MAX == 16 << 20
