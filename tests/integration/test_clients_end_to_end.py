"""librdkafka and aiokafka, unmodified: one sends, the other reads it, complete and in order."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka import admin as kafka_admin

from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

_RECORDS: Final = 100_000
_RECORDS_PER_CODEC: Final = 3000
_PARTITIONS: Final = 3
_CODECS: Final = ("gzip", "snappy", "lz4", "zstd")
_DEADLINE_S: Final = WAIT_S

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True)
class Seen:
    """A record, as a consumer sees it."""

    value: bytes | None
    key: bytes | None = None
    timestamp: int | None = None
    headers: Headers = ()


@pytest.fixture(scope="module")
def pidlease(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PidleaseServer]:
    directory = tmp_path_factory.mktemp("clients")
    with PidleaseServer(directory, settings={"default_partitions": str(_PARTITIONS)}) as server:
        yield server
    assert "Traceback" not in server.log_text()


def _create(pidlease: PidleaseServer, topic: str) -> None:
    library: Any = kafka_admin
    admin = library.AdminClient({"bootstrap.servers": pidlease.bootstrap})
    for future in admin.create_topics([library.NewTopic(topic, _PARTITIONS, 1)]).values():
        future.result(WAIT_S)


# ---------------------------------------------------------------------- librdkafka


def _librdkafka(pidlease: PidleaseServer, **more: object) -> Any:
    return Producer({"bootstrap.servers": pidlease.bootstrap, "enable.idempotence": True, **more})


def _send_by_librdkafka(
    pidlease: PidleaseServer, topic: str, count: int, codec: str = "none"
) -> None:
    """Record n goes to partition n % 3; every one must be acknowledged."""
    failed: list[KafkaError] = []
    acknowledged = 0

    def delivered(error: KafkaError | None, _: Message) -> None:
        nonlocal acknowledged
        if error is not None:
            failed.append(error)
        acknowledged += 1

    producer = _librdkafka(pidlease, **{"compression.type": codec})
    for number in range(count):
        while True:
            try:
                producer.produce(
                    topic, b"%d" % number, partition=number % _PARTITIONS, on_delivery=delivered
                )
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(_DEADLINE_S) == 0
    assert not failed
    assert acknowledged == count


def _read_by_librdkafka(pidlease: PidleaseServer, topic: str, count: int) -> list[list[Seen]]:
    """All records of each partition, in order; `count` of them must be there, and no more."""
    consumer: Any = Consumer(
        {"bootstrap.servers": pidlease.bootstrap, "group.id": "-", "enable.auto.commit": False,
         "auto.offset.reset": "earliest", "enable.partition.eof": True, "check.crcs": True}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, number, 0) for number in range(_PARTITIONS)])
    found: list[list[Seen]] = [[] for _ in range(_PARTITIONS)]
    ended: set[int] = set()
    deadline = time.monotonic() + _DEADLINE_S
    while len(ended) < _PARTITIONS and time.monotonic() < deadline:
        for message in consumer.consume(10_000, 0.5):
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
                continue
            rows = found[message.partition()]
            assert message.offset() == len(rows)
            headers = tuple(message.headers() or ())
            rows.append(Seen(message.value(), message.key(), message.timestamp()[1], headers))
    consumer.close()
    assert sum(map(len, found)) == count
    return found


# ---------------------------------------------------------------------- aiokafka


async def _send_by_aiokafka(
    pidlease: PidleaseServer, topic: str, count: int, codec: str | None = None
) -> None:
    producer: Any = AIOKafkaProducer(
        bootstrap_servers=pidlease.bootstrap, enable_idempotence=True, compression_type=codec,
        linger_ms=5,
    )  # fmt: skip
    await producer.start()
    try:
        futures = [
            await producer.send(topic, b"%d" % number, partition=number % _PARTITIONS)
            for number in range(count)
        ]
        await asyncio.wait_for(asyncio.gather(*futures), _DEADLINE_S)
    finally:
        await producer.stop()


async def _read_by_aiokafka(pidlease: PidleaseServer, topic: str, count: int) -> list[list[Seen]]:
    consumer: Any = AIOKafkaConsumer(
        bootstrap_servers=pidlease.bootstrap, enable_auto_commit=False, check_crcs=True
    )
    await consumer.start()
    partitions = [AioPartition(topic, number) for number in range(_PARTITIONS)]
    found: list[list[Seen]] = [[] for _ in partitions]
    try:
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        assert sum(ends.values()) == count
        async with asyncio.timeout(_DEADLINE_S):
            while sum(map(len, found)) < count:
                batches = await consumer.getmany(timeout_ms=1000, max_records=50_000)
                for partition, records in batches.items():
                    rows = found[partition.partition]
                    for record in records:
                        assert record.offset == len(rows)
                        rows.append(
                            Seen(record.value, record.key, record.timestamp, record.headers)
                        )
    finally:
        await consumer.stop()
    return found


# ---------------------------------------------------------------------- tests


def _check(found: list[list[Seen]], count: int) -> None:
    for partition, rows in enumerate(found):
        wanted = [b"%d" % number for number in range(partition, count, _PARTITIONS)]
        assert [row.value for row in rows] == wanted


async def test_librdkafka_sends_and_aiokafka_reads(pidlease: PidleaseServer) -> None:
    await asyncio.to_thread(_create, pidlease, "from-librdkafka")
    await asyncio.to_thread(_send_by_librdkafka, pidlease, "from-librdkafka", _RECORDS)
    _check(await _read_by_aiokafka(pidlease, "from-librdkafka", _RECORDS), _RECORDS)


async def test_aiokafka_sends_and_librdkafka_reads(pidlease: PidleaseServer) -> None:
    # The topic makes itself.
    await _send_by_aiokafka(pidlease, "from-aiokafka", _RECORDS)
    found = await asyncio.to_thread(_read_by_librdkafka, pidlease, "from-aiokafka", _RECORDS)
    _check(found, _RECORDS)


@pytest.mark.parametrize("codec", _CODECS)
async def test_codecs(pidlease: PidleaseServer, codec: str) -> None:
    count, topic = _RECORDS_PER_CODEC, f"codec-{codec}"
    await asyncio.to_thread(_create, pidlease, topic)
    await asyncio.to_thread(_send_by_librdkafka, pidlease, topic, count, codec)
    _check(await _read_by_aiokafka(pidlease, topic, count), count)
    await _send_by_aiokafka(pidlease, f"{topic}-aiokafka", count, codec)
    _check(
        await asyncio.to_thread(_read_by_librdkafka, pidlease, f"{topic}-aiokafka", count), count
    )


_ODD: Final = (
    Seen(b"value", b"key", 1_700_000_000_001, (("h", b"1"), ("h", b"2"), ("null", None))),
    Seen(None, b"tombstone", 1_700_000_000_000, ()),
    Seen(b"", b"", 0, (("", b""),)),
    Seen(None, None, 253_402_300_799_000, ()),
    Seen(bytes(range(256)) * 100, "ü".encode(), 1, (("ü", "ß".encode()),)),
)


async def test_headers_timestamps_and_nulls_from_librdkafka(pidlease: PidleaseServer) -> None:
    producer = _librdkafka(pidlease)
    for odd in _ODD:
        # librdkafka takes a timestamp of 0 for "now".
        producer.produce(
            "odd", odd.value, odd.key, partition=1, timestamp=odd.timestamp or 7,
            headers=list(odd.headers),
        )  # fmt: skip
    assert await asyncio.to_thread(producer.flush, 20) == 0
    found = await _read_by_aiokafka(pidlease, "odd", len(_ODD))
    wanted = [Seen(odd.value, odd.key, odd.timestamp or 7, odd.headers) for odd in _ODD]
    assert found == [[], wanted, []]


async def test_headers_timestamps_and_nulls_from_aiokafka(pidlease: PidleaseServer) -> None:
    producer: Any = AIOKafkaProducer(bootstrap_servers=pidlease.bootstrap, enable_idempotence=True)
    await producer.start()
    # aiokafka itself refuses a record without key and value.
    sent = [odd for odd in _ODD if (odd.value, odd.key) != (None, None)]
    for odd in sent:
        await producer.send_and_wait(
            "odd-aiokafka", odd.value, odd.key, partition=2, timestamp_ms=odd.timestamp,
            headers=list(odd.headers),
        )  # fmt: skip
    await producer.stop()
    found = await asyncio.to_thread(_read_by_librdkafka, pidlease, "odd-aiokafka", len(sent))
    assert found == [[], [], sent]


async def test_no_client_had_to_try_twice(pidlease: PidleaseServer) -> None:
    """Pipelining alone makes no duplicate and no gap, here or in the tests before."""
    _create(pidlease, "once")
    await asyncio.to_thread(_send_by_librdkafka, pidlease, "once", _RECORDS_PER_CODEC)
    verdicts = {
        name: value
        for name, value in pidlease.metrics().items()
        if "verdict" in name or "outcome" in name
    }
    needless = [name for name in verdicts if "gap" in name or "duplicate" in name]
    assert verdicts
    assert all(verdicts[name] == 0 for name in needless), verdicts
