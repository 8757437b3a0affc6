"""Requests that are like the one before on their connection, and what happens in between."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pidlease.kafka.codec.produce import ProduceTemplate
from tests.kafka_listener.batches import batch, changed, records_of
from tests.kafka_listener.client import WireClient
from tests.kafka_listener.harness import Server, Wanted, serving

_VERSIONS = (5, 8, 9, 12)
_SECONDS = timedelta(seconds=10)


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each request that had a template before it: whether it was like that."""
    found: list[bool] = []
    whole = ProduceTemplate.batch

    def noted(self: ProduceTemplate, frame: bytearray) -> memoryview | None:
        data = whole(self, frame)
        found.append(data is not None)
        return data

    monkeypatch.setattr(ProduceTemplate, "batch", noted)
    return found


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path, Wanted(batch_bytes_max=200)) as server:
        yield server


@pytest.mark.parametrize("version", _VERSIONS)
async def test_every_answer_is_as_without_a_template(
    client: WireClient, repeated: list[bool], version: int
) -> None:
    await client.create("t")
    pid = await client.lease()

    async def send(data: bytes) -> tuple[int, int]:
        answer = await client.produce("t", data, version=version)
        return answer.code, answer.offset

    for number in range(3):
        assert await send(batch([b"%d" % number], pid, 0, number)) == (0, number)
    assert repeated == [True, True]
    good = batch([b"3"], pid, 0, 3)
    assert await send(batch([b"1"], pid, 0, 1)) == (0, 1)  # a duplicate
    assert await send(batch([b"9"], pid, 0, 9)) == (45, -1)
    assert await send(changed(good, fix_crc=False, base_sequence=4)) == (2, -1)
    assert await send(changed(good, attributes=0x20)) == (87, -1)
    assert await send(changed(good, magic=1)) == (87, -1)
    assert await send(good + b"\0") == (87, -1)
    assert await send(good[:40]) == (87, -1)
    assert await send(batch([b"x"], 7, 0, 0)) == (59, -1)  # one of Kafka's own ids
    assert await send(batch([b"x"], 9 << 48 | 1, 0, 0)) == (87, -1)
    assert await send(batch([b"x"], 2 << 48, 0, 0)) == (87, -1)
    assert await send(batch([b"x"])) == (0, 3)  # no PID
    assert await send(good) == (0, 4)
    assert all(repeated)


async def test_a_batch_as_large_as_allowed_and_one_byte_more(small: Server) -> None:
    async with await small.connect() as client:
        await client.create("t")
        spare = 200 - len(batch([b""]))
        data = batch([b"x" * spare])
        while len(data) > 200:  # lengths take more bytes, too
            spare -= 1
            data = batch([b"x" * spare])
        assert len(data) == 200
        larger = batch([b"x" * (spare + 1)])
        for _ in range(2):
            assert (await client.produce("t", data)).code == 0
            assert (await client.produce("t", larger)).code == 10


async def test_a_topic_that_is_deleted_and_made_again(
    client: WireClient, repeated: list[bool]
) -> None:
    """The template names a partition that has gone: nothing goes there any more."""
    await client.create("t")
    for number in range(2):
        assert (await client.produce("t", batch([b"old %d" % number]))).offset == number
    other = await WireClient.connect(*client.writer.get_extra_info("peername")[:2])
    async with other:
        await other.call(20, 4, topic_names=["t"], timeout=_SECONDS)
        assert (await client.produce("t", batch([b"between"]))).code == 3
        await other.create("t")
    for number in range(2):
        assert (await client.produce("t", batch([b"new %d" % number]))).offset == number
    assert any(repeated)
    found = await client.fetch("t")
    assert [each.value for each in records_of(found.data)] == [b"new 0", b"new 1"]


async def test_turns_between_partitions_and_apis(client: WireClient, repeated: list[bool]) -> None:
    await client.create("t", 2)
    for number in range(3):
        for partition in (0, 1):
            answer = await client.produce("t", batch([b"x"]), partition=partition)
            assert (answer.code, answer.offset) == (0, number)
        await client.metadata("t")
    assert repeated
    assert not any(repeated)


async def test_turns_between_partitions_make_no_templates(
    client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template costs more than it saves if the next request does not fit it."""
    made: list[int] = []
    whole = ProduceTemplate.of

    def noted(*given: Any) -> ProduceTemplate | None:
        made.append(1)
        return whole(*given)

    monkeypatch.setattr(ProduceTemplate, "of", noted)
    await client.create("t", 2)
    for _ in range(5):
        for partition in (0, 1):
            assert (await client.produce("t", batch([b"x"]), partition=partition)).code == 0
    assert len(made) == 1, "of the first request"
    for _ in range(3):
        assert (await client.produce("t", batch([b"x"]), partition=1)).code == 0
    assert len(made) == 2


async def test_many_in_one_go(client: WireClient, repeated: list[bool]) -> None:
    await client.create("t")
    pid = await client.lease()
    for number in range(300):
        client.send_produce("t", batch([b"%d" % number], pid, 0, number))
    for number in range(300):
        answer = await client.receive_produce()
        assert (answer.code, answer.offset) == (0, number)
    assert repeated == [True] * 299
