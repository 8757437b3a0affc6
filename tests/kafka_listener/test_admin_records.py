"""DeleteRecords, DescribeProducers, DescribeCluster; large requests and what they take."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pidlease.core.state import ProducerState
from pidlease.engine.partition import Partition
from pidlease.engine.producer_table import ProducerTable
from pidlease.storage.topics.topic_store import Topic
from tests.kafka_listener.admin_requests import (
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_PRODUCERS,
    config_question,
    deletion,
    producer_question,
    record_deletion,
)
from tests.kafka_listener.batches import batch, records_of
from tests.kafka_listener.client import WireClient
from tests.kafka_listener.harness import Server, Wanted, serving
from tests.kafka_listener.messages import API_VERSIONS, METADATA

_OUT_OF_RANGE, _UNKNOWN, _INVALID_TOPIC, _REQUEST, _STORAGE = 1, 3, 17, 42, 56
_MISMATCHED, _UNSUPPORTED = 114, 115


async def _delete(client: WireClient, *, version: int = 2, **topics: Any) -> list[tuple[int, int]]:
    body = await client.call(DELETE_RECORDS, version, **record_deletion(topics))
    return [
        (each.low_watermark, int(each.error_code))
        for topic in body.topics
        for each in topic.partitions
    ]


# ---------------------------------------------------------------------- DeleteRecords


@pytest.mark.parametrize("version", range(3))
async def test_what_was_deleted_is_not_read_any_more(client: WireClient, version: int) -> None:
    await client.create("t")
    for number in range(6):
        await client.produce("t", batch([b"%d" % number]))
    assert await _delete(client, version=version, t={0: 3}) == [(3, 0)]
    assert (await client.fetch("t", 2)).code == _OUT_OF_RANGE
    found = await client.fetch("t", 3)
    assert [record.value for record in records_of(found.data)] == [b"3", b"4", b"5"]
    assert await _delete(client, version=version, t={0: 1}) == [(3, 0)], "it is deleted already"
    assert await _delete(client, version=version, t={0: -1}) == [(6, 0)]
    assert (await client.fetch("t", 6)).code == 0
    assert (await client.produce("t", batch([b"6"]))).offset == 6


async def test_what_cannot_be_deleted(client: WireClient) -> None:
    await client.create("t", 2)
    await client.produce("t", batch([b"v"]))
    found = await _delete(client, t={0: 2, 1: -2, 2: 0, -1: 0}, absent={0: -1})
    assert found == [
        (-1, _OUT_OF_RANGE), (-1, _OUT_OF_RANGE), (-1, _UNKNOWN), (-1, _UNKNOWN), (-1, _UNKNOWN),
    ]  # fmt: skip
    assert await _delete(client, t={0: 2**63 - 1}) == [(-1, _OUT_OF_RANGE)]


async def test_of_a_partition_that_is_named_twice_the_last_counts(client: WireClient) -> None:
    await client.create("t")
    for _ in range(3):
        await client.produce("t", batch([b"v"]))
    parts = [{"partition_index": 0, "offset": offset} for offset in (99, 1)]
    topics = [
        {"name": "t", "partitions": parts},
        {"name": "t", "partitions": [{"partition_index": 0, "offset": 2}]},
    ]
    body = await client.call(DELETE_RECORDS, 2, topics=topics)
    (topic,) = body.topics
    assert [(each.low_watermark, each.error_code) for each in topic.partitions] == [(2, 0)]


async def test_many_partitions_in_one_request(client: WireClient) -> None:
    await client.create("t", 50)
    for number in range(50):
        await client.produce("t", batch([b"v"]), partition=number)
    assert await _delete(client, t=dict.fromkeys(range(50), -1)) == [(1, 0)] * 50


async def test_a_full_disk_while_records_are_deleted(tmp_path: Path) -> None:
    wanted = Wanted(faults="fail before rename */log-start* 1")
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t")
        await client.produce("t", batch([b"v"]))
        assert await _delete(client, t={0: 1}) == [(-1, _STORAGE)]
        assert (await client.fetch("t")).data
        assert await _delete(client, t={0: 1}) == [(1, 0)]


# ---------------------------------------------------------------------- DescribeProducers


async def test_producers(server: Server, client: WireClient) -> None:
    await client.create("t", 2)
    pids = [await client.lease() for _ in range(3)]
    for number, pid in enumerate(pids):
        for first in (0, 2):
            data = batch([b"a", b"b"], pid, number, first)
            assert (await client.produce("t", data)).code == 0
    before = server.clock()
    asked = producer_question({"t": [0, 1, 2], "absent": [0], "in valid": [0]})
    known, absent, invalid = (await client.call(DESCRIBE_PRODUCERS, 0, **asked)).topics
    zero, one, two = known.partitions
    assert [(each.partition_index, int(each.error_code)) for each in known.partitions] == [
        (0, 0), (1, 0), (2, _UNKNOWN),
    ]  # fmt: skip
    assert "t-2" in two.error_message
    assert one.active_producers == ()
    told = {each.producer_id: each for each in zero.active_producers}
    assert {pid: (each.producer_epoch, each.last_sequence) for pid, each in told.items()} == {
        pid: (number, 3) for number, pid in enumerate(pids)
    }
    for each in told.values():
        assert before - 60_000 < each.last_timestamp <= before
        assert (each.coordinator_epoch, each.current_txn_start_offset) == (-1, -1)
    assert [int(each.partitions[0].error_code) for each in (absent, invalid)] == [
        _UNKNOWN, _INVALID_TOPIC,
    ]  # fmt: skip


async def _with_producers(server: Server, client: WireClient, count: int) -> Partition:
    """A partition that knows so many producers; three others of its topic know none."""
    await client.create("t", 4)
    pid = await client.lease()
    await client.produce("t", batch([b"v"], pid, 0, 0))
    partition = server.engine.partition("t", 0)
    assert partition is not None
    state = partition.producers[pid]
    partition.producers.update({pid + number: state for number in range(count)})
    return partition


async def test_more_producers_than_are_written_at_once(server: Server, client: WireClient) -> None:
    partition = await _with_producers(server, client, 1234)
    body = await client.call(DESCRIBE_PRODUCERS, 0, **producer_question({"t": [0]}))
    (part,) = body.topics[0].partitions
    assert {each.producer_id for each in part.active_producers} == set(partition.producers)


async def test_a_partition_that_is_named_often_is_told_once(
    server: Server, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await _with_producers(server, client, 10)
    copies = 0

    def described() -> Iterator[tuple[int, ProducerState]]:
        nonlocal copies
        copies += 1
        return ProducerTable.described_producers(partition.table)

    monkeypatch.setattr(partition.table, "described_producers", described)
    topics = [{"name": name, "partition_indexes": [0, 9, 0] * 1000} for name in ("t", "u", "t")]
    body = await client.call(DESCRIBE_PRODUCERS, 0, topics=topics)
    found = [(topic.name, [(part.partition_index, int(part.error_code))
                           for part in topic.partitions]) for topic in body.topics]  # fmt: skip
    assert found == [("t", [(0, 0), (9, _UNKNOWN)]), ("u", [(0, _UNKNOWN), (9, _UNKNOWN)])]
    assert copies == 1


async def test_more_producers_than_an_answer_may_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        serving(tmp_path, Wanted(memory_bytes_max=1 << 20)) as server,
        await server.connect() as client,
    ):
        partition = await _with_producers(server, client, 3000)  # 111,000 bytes of 262,144
        others = [server.engine.partition("t", number) for number in (1, 2, 3)]
        for each in others:
            assert each is not None
            each.producers.update(partition.producers)
        last, copies = others[2], 0
        assert last is not None

        def described() -> Iterator[tuple[int, ProducerState]]:
            nonlocal copies
            copies += 1
            return ProducerTable.described_producers(last.table)

        monkeypatch.setattr(last.table, "described_producers", described)
        body = await client.call(DESCRIBE_PRODUCERS, 0, **producer_question({"t": range(4)}))
        *parts, beyond = body.topics[0].partitions
        assert (int(beyond.error_code), copies) == (_REQUEST, 0), "not even looked at"
        assert [int(each.error_code) for each in parts] == [0, 0, _REQUEST]
        assert [len(each.active_producers) for each in parts] == [3000, 3000, 0]
        assert "fewer" in parts[2].error_message
        assert server.door.budget.used == 0


# ---------------------------------------------------------------------- DescribeCluster


async def test_the_endpoints_of_controllers_are_elsewhere(
    server: Server, client: WireClient
) -> None:
    body = await client.call(DESCRIBE_CLUSTER, 2, endpoint_type=1)
    assert (body.cluster_id, body.controller_id) == (server.cluster_id, 1)
    (broker,) = body.brokers
    assert (broker.broker_id, broker.host, broker.port) == (1, "127.0.0.1", server.port)
    for kind, code in ((2, _MISMATCHED), (3, _UNSUPPORTED), (0, _UNSUPPORTED)):
        body = await client.call(DESCRIBE_CLUSTER, 2, endpoint_type=kind)
        assert (int(body.error_code), body.brokers, bool(body.error_message)) == (code, (), True)


# ---------------------------------------------------------------------- large requests


async def _others_go_on(server: Server, client: WireClient) -> int:
    """How many requests of somebody else are answered until the next answer of this client."""
    answered = 0
    waiting = asyncio.ensure_future(client.receive_frame())
    async with await server.connect() as other:
        while not waiting.done():
            await other.call(API_VERSIONS, 0)
            answered += 1
    assert len(await waiting) > 0
    return answered


@pytest.mark.parametrize("key", [DELETE_TOPICS, DELETE_RECORDS, DESCRIBE_CONFIGS, METADATA])
async def test_a_request_of_many_names_leaves_others_their_turn(
    server: Server, client: WireClient, key: int
) -> None:
    """How often depends on steps that are taken, not on how fast the machine is."""
    names = [f"absent-{number}" for number in range(20_000)]
    not_made = {"allow_auto_topic_creation": False}
    values: dict[int, tuple[int, dict[str, object]]] = {
        DELETE_TOPICS: (6, deletion(*names)),
        DELETE_RECORDS: (2, record_deletion({name: {0: 1} for name in names})),
        DESCRIBE_CONFIGS: (4, config_question(*((2, name) for name in names))),
        METADATA: (12, {"topics": [{"name": name} for name in names], **not_made}),
    }
    version, request = values[key]
    client.send(key, version, **request)
    client.forget_last()
    assert await _others_go_on(server, client) >= 20
    assert server.door.budget.used == 0


async def test_more_elements_than_a_request_may_have(server: Server) -> None:
    for key, version, name in ((DELETE_TOPICS, 5, "x"), (DESCRIBE_CONFIGS, 1, "")):
        async with await server.connect() as client:
            values = deletion(*[name] * 60_000)
            if key == DESCRIBE_CONFIGS:
                values = config_question(*[(2, name)] * 60_000)
            client.send(key, version, **values)
            assert await client.is_closed()


async def test_metadata_waits_for_memory_and_for_who_does_not_take_it(tmp_path: Path) -> None:
    """Answers that nobody takes are bounded by the memory of all, and others are served."""
    wanted = Wanted(memory_bytes_max=2 << 20)
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        server.engine.topics["t"] = Topic.new("t", 8000)  # what is told of it is all that counts
        greedy = await server.connect()
        greedy.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(100):
            greedy.send(METADATA, 9, topics=None)
        await asyncio.sleep(0.3)
        assert server.door.budget.used <= server.door.budget.limit
        async with asyncio.timeout(20):
            (topic,) = (await client.call(METADATA, 9, topics=None)).topics
        assert len(topic.partitions) == 8000
        await greedy.__aexit__()
        async with asyncio.timeout(60):
            while server.door.budget.used:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
