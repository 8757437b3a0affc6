"""Fetch and ListOffsets: long polls, limits, offsets and times."""

import asyncio
import time
from datetime import timedelta
from pathlib import Path

import pytest

from pidlease.engine.partition import Partition
from tests.kafka_listener.batches import NOW_MS, batch, batches_of, records_of
from tests.kafka_listener.client import WireClient, fetched, fetched_of
from tests.kafka_listener.harness import Server, Wanted, serving
from tests.kafka_listener.messages import FETCH, LIST_OFFSETS, METADATA

#: The longest poll of the server; one that does not wait ends well before, on any machine.
_LONG_MS = 60_000
_LONG_S = _LONG_MS / 1000


async def _fill(client: WireClient, batches: int, size: int = 1000) -> None:
    await client.create("t")
    for number in range(batches):
        data = batch([b"%d" % number + bytes(size)], timestamp=NOW_MS + 1000 * number)
        assert (await client.produce("t", data)).offset == number


async def test_the_end_of_the_log_is_held_for_max_wait(client: WireClient) -> None:
    await _fill(client, 1)
    started = time.monotonic()
    found = await client.fetch("t", 1, wait_ms=250)
    assert (found.code, found.end, found.data) == (0, 1, b"")
    assert 0.2 < time.monotonic() - started < _LONG_S / 6


async def test_answers_do_not_wait_for_later_polls(client: WireClient) -> None:
    """One that is long to read once let a short one pass it, which then waited for records."""
    await _fill(client, 1)
    await client.create("empty")
    started = time.monotonic()
    client.send(FETCH, 11, **fetched([("t", 0, 0)] * 600, wait_ms=0))
    client.send(FETCH, 11, **fetched([("empty", 0, 0)], wait_ms=_LONG_MS))
    assert fetched_of(await client.receive())[0].data
    assert time.monotonic() - started < _LONG_S / 2


async def test_a_poll_ends_when_records_come(server: Server, client: WireClient) -> None:
    await _fill(client, 1)
    started = time.monotonic()
    client.send(FETCH, 11, **fetched([("t", 0, 1)], wait_ms=_LONG_MS))
    async with await server.connect() as other:
        await asyncio.sleep(0.05)
        await other.produce("t", batch([b"new"]))
    found = fetched_of(await client.receive())[0]
    assert [record.value for record in records_of(found.data)] == [b"new"]
    assert time.monotonic() - started < _LONG_S / 2


@pytest.mark.parametrize("polls", [1, 3])
async def test_a_poll_ends_when_another_request_follows(client: WireClient, polls: int) -> None:
    """librdkafka asks for its coordinator where it reads, and loses it while it has no answer."""
    await _fill(client, 1)
    started = time.monotonic()
    for _ in range(polls):
        client.send(FETCH, 11, **fetched([("t", 0, 1)], wait_ms=_LONG_MS))
    await asyncio.sleep(0.05)  # it waits
    client.send(METADATA, 1, topics=[])
    for _ in range(polls):
        assert not fetched_of(await client.receive())[0].data
    assert (await client.receive()).brokers
    # Both at once: it does not begin to wait.
    client.send(FETCH, 11, **fetched([("t", 0, 1)], wait_ms=_LONG_MS))
    client.send(METADATA, 1, topics=[])
    assert not fetched_of(await client.receive())[0].data
    assert (await client.receive()).brokers
    assert time.monotonic() - started < _LONG_S / 2


async def test_a_poll_goes_on_when_a_poll_follows(server: Server, client: WireClient) -> None:
    await _fill(client, 1)
    for _ in range(2):
        client.send(FETCH, 11, **fetched([("t", 0, 1)], wait_ms=_LONG_MS))
    first = asyncio.create_task(client.receive())
    async with await server.connect() as other:
        await asyncio.sleep(0.1)
        assert not first.done()
        await other.produce("t", batch([b"new"]))
    for answer in (await first, await client.receive()):
        assert [each.value for each in records_of(fetched_of(answer)[0].data)] == [b"new"]


async def test_a_poll_waits_for_min_bytes(server: Server, client: WireClient) -> None:
    await _fill(client, 1, size=10)
    started = time.monotonic()
    client.send(FETCH, 11, **fetched([("t", 0, 1)], wait_ms=400, min_bytes=5000))
    async with await server.connect() as other:
        await other.produce("t", batch([b"small"]))
    found = fetched_of(await client.receive())[0]
    assert 0.3 < time.monotonic() - started < _LONG_S / 6
    assert [record.value for record in records_of(found.data)] == [b"small"]


async def test_a_poll_ends_when_min_bytes_are_there(client: WireClient) -> None:
    """A few large records are enough, too: what counts is bytes."""
    await _fill(client, 3, size=50_000)
    started = time.monotonic()
    found = await client.fetch("t", 0, wait_ms=_LONG_MS, min_bytes=10_000)
    assert found.data
    assert time.monotonic() - started < _LONG_S / 2


@pytest.mark.parametrize("offset", [0, 1])
async def test_no_min_bytes_is_no_wait(client: WireClient, offset: int) -> None:
    await _fill(client, 1)
    started = time.monotonic()
    await client.fetch("t", offset, wait_ms=_LONG_MS, min_bytes=0)
    assert time.monotonic() - started < _LONG_S / 2


async def test_no_topics_is_no_wait(client: WireClient) -> None:
    started = time.monotonic()
    assert fetched_of(await client.call(FETCH, 11, **fetched([], wait_ms=_LONG_MS))) == []
    assert time.monotonic() - started < _LONG_S / 2


async def test_an_error_ends_a_poll_at_once(client: WireClient) -> None:
    await _fill(client, 1)
    started = time.monotonic()
    wanted = fetched([("t", 0, 1), ("absent", 0, 0)], wait_ms=_LONG_MS)
    found = fetched_of(await client.call(FETCH, 11, **wanted))
    assert [part.code for part in found] == [0, 3]
    assert time.monotonic() - started < _LONG_S / 2


async def test_the_first_batch_is_whole_whatever_the_limits(client: WireClient) -> None:
    await _fill(client, 3, size=30_000)
    for limits in ({"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0}):
        found = await client.fetch("t", 1, **limits)
        assert [record.offset for record in records_of(found.data)] == [1], limits


async def test_max_bytes_of_a_partition_and_of_all(client: WireClient) -> None:
    await _fill(client, 20)
    found = await client.fetch("t", 0, partition_max_bytes=5000)
    assert len(found.data) <= 5000
    assert len(batches_of(found.data)) == 4
    parts = [("t", 0, 0), ("t", 0, 5), ("t", 0, 10)]
    found_all = fetched_of(await client.call(FETCH, 11, **fetched(parts, max_bytes=3000)))
    assert sum(len(part.data) for part in found_all) < 3000 + 1100
    assert [part.code for part in found_all] == [0, 0, 0]


async def test_the_servers_own_limit_holds(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, Wanted(fetch_bytes_max=10_000)) as server,
        await server.connect() as client,
    ):
        await _fill(client, 30)
        found = await client.fetch("t", 0, partition_max_bytes=1 << 30)
        assert 8000 < len(found.data) <= 10_000


async def test_an_offset_in_the_middle_of_a_batch_brings_the_batch(client: WireClient) -> None:
    await client.create("t")
    await client.produce("t", batch([b"%d" % number for number in range(10)]))
    found = await client.fetch("t", 7)
    assert [record.offset for record in records_of(found.data)] == list(range(10))


async def test_reading_over_segments(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, Wanted(segment_bytes=5000)) as server,
        await server.connect() as client,
    ):
        await _fill(client, 40)
        offset, values = 0, []
        while offset < 40:
            for record in records_of((await client.fetch("t", offset)).data):
                values.append((record.value or b"").rstrip(b"\0"))
                offset = record.offset + 1
        assert values == [b"%d" % number for number in range(40)]


async def _offsets(client: WireClient, *times: int, version: int = 6) -> list[tuple[int, int, int]]:
    asked = [
        {"partition_index": 0, "timestamp": each, "current_leader_epoch": -1} for each in times
    ]
    topics = [{"name": "t", "partitions": asked}]
    body = await client.call(LIST_OFFSETS, version, replica_id=-1, topics=topics)
    return [
        (int(part.error_code), part.offset, part.timestamp) for part in body.topics[0].partitions
    ]


@pytest.mark.parametrize("version", [1, 6])
async def test_earliest_latest_and_by_time(client: WireClient, version: int) -> None:
    await _fill(client, 5)
    found = await _offsets(
        client, -2, -1, 0, NOW_MS, NOW_MS + 1, NOW_MS + 4000, NOW_MS + 4001, version=version
    )
    assert found == [
        (0, 0, -1),
        (0, 5, -1),
        (0, 0, NOW_MS),
        (0, 0, NOW_MS),
        (0, 1, NOW_MS + 1000),
        (0, 4, NOW_MS + 4000),
        (0, -1, -1),
    ]


@pytest.mark.parametrize("version", range(1, 7))
async def test_offsets_of_several_topics(client: WireClient, version: int) -> None:
    await _fill(client, 2)
    await client.create("u", 2)

    def asked(*times: tuple[int, int]) -> list[dict[str, int]]:
        return [{"partition_index": number, "timestamp": at, "current_leader_epoch": -1}
                for number, at in times]  # fmt: skip

    topics = [
        {"name": "t", "partitions": asked((0, NOW_MS + 1), (1, -1), (0, -5))},
        {"name": "", "partitions": ()},
        {"name": "u", "partitions": asked((1, -1), (0, NOW_MS))},
    ]
    body = await client.call(LIST_OFFSETS, version, replica_id=-1, topics=topics)
    found = [
        (topic.name, part.partition_index, int(part.error_code), part.offset, part.timestamp,
         getattr(part, "leader_epoch", None))
        for topic in body.topics for part in topic.partitions
    ]  # fmt: skip
    known, none = (0, -1) if version >= 4 else (None, None)
    assert found == [
        ("t", 0, 0, 1, NOW_MS + 1000, known), ("t", 1, 3, -1, -1, none), ("t", 0, 35, -1, -1, none),
        ("u", 1, 0, 0, -1, known), ("u", 0, 0, -1, -1, none),
    ]  # fmt: skip
    assert [topic.name for topic in body.topics] == ["t", "", "u"]
    assert getattr(body, "throttle_time", timedelta(0)) == timedelta(0)


@pytest.mark.parametrize("version", range(4, 12))
async def test_several_topics_in_every_version_of_fetch(client: WireClient, version: int) -> None:
    await _fill(client, 1)
    await client.create("u", 2)
    await client.produce("u", batch([b"u"]), partition=1)
    parts = [("t", 0, 0), ("u", 0, 0), ("u", 1, 0), ("absent", 0, 0), ("t", 0, 1)]
    body = await client.call(FETCH, version, **fetched(parts))
    told = {(topic.topic, part.partition_index, part.high_watermark, int(part.error_code)):
            part for topic in body.responses for part in topic.partitions}  # fmt: skip
    assert set(told) == {("t", 0, 1, 0), ("u", 0, 0, 0), ("u", 1, 1, 0), ("absent", 0, -1, 3)}
    assert records_of(told["u", 1, 1, 0].records)[0].value == b"u"
    for (_, _, end, code), part in told.items():
        assert part.last_stable_offset == end
        assert getattr(part, "log_start_offset", 0) == (-1 if code and version >= 5 else 0)
        assert getattr(part, "preferred_read_replica", -1) == -1
        assert not part.aborted_transactions


@pytest.mark.parametrize("codec", range(5))
async def test_a_time_within_a_batch_of_any_codec(client: WireClient, codec: int) -> None:
    await client.create("t")
    await client.produce("t", batch([b"v" * 200] * 50, codec=codec))
    # Of a compressed batch its first record: nothing bounds what it unpacks to.
    found = (33, NOW_MS + 33) if codec == 0 else (0, NOW_MS + 49)
    assert await _offsets(client, NOW_MS + 33) == [(0, *found)]


async def test_an_empty_log(client: WireClient) -> None:
    await client.create("t")
    assert await _offsets(client, -2, -1, NOW_MS) == [(0, 0, -1), (0, 0, -1), (0, -1, -1)]


async def test_special_times_of_later_versions_are_refused(client: WireClient) -> None:
    await _fill(client, 1)
    assert [code for code, _, _ in await _offsets(client, -3, -4, -100)] == [35, 35, 35]


async def test_a_damaged_record_is_told_when_looking_for_a_time(client: WireClient) -> None:
    """A batch is not decoded when it comes in; what no one can read must not kill the server."""
    await client.create("t")
    from tests.kafka_listener.batches import changed

    broken = changed(batch([b"v" * 50]), attributes=1)  # says gzip, and is none
    assert (await client.produce("t", broken)).code == 0
    found = await _offsets(client, NOW_MS - 5)
    assert found[0][0] in (0, 2, 56), found
    assert (await client.fetch("t")).end == 1


async def test_a_batch_that_the_limit_cuts_is_not_sent(client: WireClient) -> None:
    """It counts for min_bytes: nothing more would come."""
    await _fill(client, 3, size=600)
    started = time.monotonic()
    wanted = {"partition_max_bytes": 1000, "min_bytes": 1000, "wait_ms": _LONG_MS}
    for offset in range(2):
        found = await client.fetch("t", offset, **wanted)
        (only,) = batches_of(found.data)
        assert [record.offset for record in records_of(found.data)] == [offset]
        assert len(only) == len(found.data)
    assert time.monotonic() - started < _LONG_S / 2


async def test_records_that_count_for_no_producer_yet_are_not_sent(
    server: Server, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append stands in the log before the event loop applies it."""
    await _fill(client, 4)
    monkeypatch.setattr(Partition, "readable_end", property(lambda _: 2))
    found = await client.fetch("t", 0)
    assert (found.end, [each.offset for each in records_of(found.data)]) == (2, [0, 1])
    monkeypatch.undo()
    found = await client.fetch("t", 2)
    assert (found.end, [each.offset for each in records_of(found.data)]) == (4, [2, 3])
    counts = server.engine.counts.of("t")
    assert (counts.read_batches, counts.read_records) == (4, 4)


async def test_a_reader_of_a_topic_that_is_made_again_reads_the_new_one(
    server: Server, client: WireClient
) -> None:
    await _fill(client, 4)
    for offset in range(2):
        assert (await client.fetch("t", offset, partition_max_bytes=1)).data
    await server.topics.delete("t")
    assert (await client.fetch("t", 2)).code == 3
    await client.create("t")
    for value in (b"new 0", b"new 1", b"new 2"):
        await client.produce("t", batch([value]))
    for offset in range(3):
        found = await client.fetch("t", offset, partition_max_bytes=1)
        assert [each.value for each in records_of(found.data)] == [b"new %d" % offset]
    assert (await client.fetch("t", 4)).code == 1


async def test_a_reader_whose_records_are_deleted_is_out_of_range(
    server: Server, client: WireClient
) -> None:
    await _fill(client, 4)
    assert (await client.fetch("t", 0, partition_max_bytes=1)).data
    partition = server.engine.partition("t", 0)
    assert partition is not None
    assert await partition.delete_records(3) == 3
    assert (await client.fetch("t", 1)).code == 1
    assert [each.offset for each in records_of((await client.fetch("t", 3)).data)] == [3]
