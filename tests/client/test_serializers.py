"""Values and keys that are not bytes: by the producer's serializers, or an error that says so."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pidlease.client import BlockingProducer, LeasedProducer, ProducerError
from tests.client.fake_broker import Fault
from tests.client.harness import world
from tests.client.test_blocking import producer_of, served


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


async def test_values_and_keys_of_the_asyncio_producer() -> None:
    async with (
        world() as all_,
        all_.producer(value_serializer=as_json, key_serializer=str.encode) as producer,
    ):
        await producer.send_and_wait("t", {"n": 1}, key="k")
        await producer.send_and_wait("t", None)  # a tombstone, not "null"
        assert all_.broker.values() == [b'{"n": 1}', None]


def test_values_and_keys_of_the_blocking_producer() -> None:
    """They are serialized once, in the caller's thread."""
    with served() as all_, producer_of(all_, value_serializer=as_json) as producer:
        producer.send_and_wait("t", "text", key=b"k")
        producer.send_and_wait("t", None)
        assert all_.broker.values() == [b'"text"', None]


@pytest.mark.parametrize(
    ("sends", "says"),
    [
        (lambda p: p.send("t", "text"), "value is str.*value_serializer=str.encode"),
        (lambda p: p.send("t", {"n": 1}), "value is dict.*value_serializer"),
        (lambda p: p.send("t", b"", key="k"), "key is str.*key_serializer=str.encode"),
        (lambda p: p.send("t", b"", key=5), "key is int.*key_serializer"),
    ],
)
async def test_without_a_serializer(sends: Callable[[LeasedProducer], Any], says: str) -> None:
    async with world() as all_, all_.producer() as producer:
        with pytest.raises(TypeError, match=says):
            await sends(producer)
        assert (await producer.send_and_wait("t", b"")).sequence == 0


async def test_a_serializer_that_returns_no_bytes() -> None:
    async with world() as all_, all_.producer(value_serializer=str) as producer:
        with pytest.raises(TypeError, match="value_serializer returned str; bytes are needed"):
            await producer.send("t", 5)


@pytest.mark.parametrize("kind", [LeasedProducer, BlockingProducer])
@pytest.mark.parametrize("which", ["value_serializer", "key_serializer"])
def test_a_serializer_is_a_function(kind: Any, which: str) -> None:
    with pytest.raises(ValueError, match=f"{which} is a function"):
        kind(bootstrap_servers="a:1", leases="http://x", **{which: "utf-8"})


def numbers() -> Iterator[bytes]:
    return (b"%d" % number for number in range(5_000))


async def test_many() -> None:
    async with world() as all_, all_.producer(buffer_memory=100_000) as producer:
        sent = await producer.send_many("t", numbers(), key_of=lambda value: value[-1:])
        assert [each.offset for each in sent] == list(range(5_000))
        assert await producer.send_many("t", []) == []
        assert all_.broker.values() == list(numbers())


def test_many_of_the_blocking_producer() -> None:
    with served() as all_, producer_of(all_) as producer:
        sent = producer.send_many("t", numbers(), partition=0)
        assert [each.offset for each in sent] == list(range(5_000))
        assert producer.send_many("t", []) == []


async def test_many_of_which_some_fail() -> None:
    """All have their outcome when it raises, and `flush` does not report them again."""
    async with world() as all_:
        producer = all_.producer(delivery_timeout_ms=300)
        await producer.start()
        all_.broker.fault = lambda _: Fault("late", seconds=3600)
        with pytest.raises(ProducerError) as failed:
            await producer.send_many("t", [b"1", b"2", b"3"])
        assert failed.value.__notes__ == ["failed records: 3 of 3"]
        assert producer.metrics.buffered_bytes == 0
        await producer.stop(0)
