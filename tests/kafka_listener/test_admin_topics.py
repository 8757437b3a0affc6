"""CreateTopics, DeleteTopics, CreatePartitions: what they do, and what they say is wrong."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pidlease.engine.engine import EngineConfig
from tests.kafka_listener.admin_requests import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    deletion,
    more_partitions,
)
from tests.kafka_listener.batches import batch, records_of
from tests.kafka_listener.client import WireClient, creation, fetched, fetched_of
from tests.kafka_listener.harness import Server, Wanted, serving
from tests.kafka_listener.messages import FETCH, LIST_OFFSETS

_TIMED_OUT, _UNKNOWN, _PARTITIONS, _ASSIGNMENT, _CONFIG, _REQUEST, _STORAGE, _UNKNOWN_ID = (
    7, 3, 37, 39, 40, 42, 56, 100,
)  # fmt: skip


async def _delete(client: WireClient, *names: str, ids: Any = (), version: int = 6) -> Any:
    body = await client.call(DELETE_TOPICS, version, **deletion(*names, ids=ids))
    return [(each.name, int(each.error_code)) for each in body.responses]


# ---------------------------------------------------------------------- CreateTopics


@pytest.mark.parametrize("version", [2, 5, 7])
async def test_settings_that_have_only_one_value_may_be_set_to_it(
    server: Server, client: WireClient, version: int
) -> None:
    configs: dict[str, Any] = {
        "cleanup_policy": "delete", "compression_type": "producer",
        "message_timestamp_type": "CreateTime", "max_message_bytes": "1048588",
        "min_insync_replicas": "1", "retention_ms": "77",
    }  # fmt: skip
    body = await client.call(CREATE_TOPICS, version, **creation("t", 3, **configs))
    (made,) = body.topics
    assert made.error_code == 0, made.error_message
    assert server.engine.topics["t"].overrides == {"retention.ms": "77"}
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (3, 1)
        told = {each.name: (each.value, each.config_source, each.read_only)
                for each in made.configs}  # fmt: skip
        assert told["retention.ms"] == ("77", 1, False)
        assert told["cleanup.policy"] == ("delete", 5, True)
        # The server's fsync is another than the usual one here.
        assert told["pidlease.fsync"] == ("never", 4, False)
    if version >= 7:
        assert made.topic_id.hex == server.engine.topics["t"].topic_id


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("cleanup_policy", "compact", "cleanup.policy is delete"),
        ("cleanup_policy", "compact,delete", "cleanup.policy is delete"),
        ("min_insync_replicas", "2", "min.insync.replicas is 1"),
        ("max_message_bytes", "5", "max.message.bytes is 1048588"),
        ("segment_ms", "5", "segment.ms is not known"),
        ("x" * 5000, "5", "x..."),
    ],
)
async def test_a_setting_that_cannot_be_had(
    server: Server, client: WireClient, name: str, value: Any, reason: str
) -> None:
    body = await client.call(CREATE_TOPICS, 5, **creation("t", **{name: value}))
    (topic,) = body.topics
    assert (topic.error_code, topic.num_partitions, topic.configs) == (_CONFIG, -1, ())
    assert reason in topic.error_message
    known = "segment.bytes, retention.ms, retention.bytes, pidlease.fsync"
    assert known in topic.error_message
    assert len(topic.error_message) < 400
    assert not server.engine.topics


async def test_a_request_whose_time_is_up_begins_nothing_more(tmp_path: Path) -> None:
    wanted = Wanted(faults="slow=0.4 before rename */topics/slow.json 1")
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        topics = [
            {"name": name, "num_partitions": 1, "replication_factor": 1}
            for name in ("slow", "later", "latest")
        ]
        body = await client.call(
            CREATE_TOPICS, 5, topics=topics, timeout=timedelta(milliseconds=100)
        )
        assert [int(each.error_code) for each in body.topics] == [_TIMED_OUT] * 3
        assert "time is up" in body.topics[0].error_message
        # What was begun is done, and nothing stays locked behind it.
        await client.create("another")
        assert set(server.engine.topics) == {"slow", "another"}


async def test_who_asked_may_go_away(tmp_path: Path) -> None:
    wanted = Wanted(faults="slow=0.2 before rename */topics/slow.json 1")
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        async with await server.connect() as leaver:
            leaver.send(CREATE_TOPICS, 5, **creation("slow"))
            await leaver.writer.drain()
            await asyncio.sleep(0.05)
        await client.create("next")
        assert set(server.engine.topics) == {"slow", "next"}


# ---------------------------------------------------------------------- DeleteTopics


@pytest.mark.parametrize("version", range(1, 7))
async def test_a_deleted_topic_is_gone_and_its_name_is_free(
    server: Server, client: WireClient, version: int
) -> None:
    await client.create("t", 2)
    pid = await client.lease()
    assert (await client.produce("t", batch([b"old"], pid, 0, 0))).code == 0

    assert await _delete(client, "t", version=version) == [("t", 0)]

    assert not server.engine.topics
    assert (await client.produce("t", batch([b"old"]))).code == _UNKNOWN
    assert (await client.fetch("t")).code == _UNKNOWN
    assert (await client.metadata("t")).topics[0].error_code == _UNKNOWN

    await client.create("t")
    assert (await client.produce("t", batch([b"new"], pid, 0, 0))).offset == 0
    found = await client.fetch("t")
    assert [record.value for record in records_of(found.data)] == [b"new"]


async def test_by_id(server: Server, client: WireClient) -> None:
    await client.create("a")
    await client.create("b")
    ids = {name: uuid.UUID(topic.topic_id) for name, topic in server.engine.topics.items()}
    strange = uuid.uuid4()
    body = await client.call(DELETE_TOPICS, 6, **deletion("b", ids=[ids["a"], strange]))
    told = [(each.name, each.topic_id, int(each.error_code)) for each in body.responses]
    assert told == [
        ("b", ids["b"], 0),
        ("a", ids["a"], 0),
        (None, strange, _UNKNOWN_ID),
    ]
    assert not server.engine.topics


async def test_what_is_wrong_with_a_deletion(server: Server, client: WireClient) -> None:
    for name in ("a", "b", "c", "d"):
        await client.create(name)
    ids = {name: uuid.UUID(topic.topic_id) for name, topic in server.engine.topics.items()}
    topics = [
        {"name": "a"}, {"name": "a"},  # by name twice
        {"topic_id": ids["b"]}, {"topic_id": ids["b"]},  # by id twice
        {"name": "c"}, {"topic_id": ids["c"]},  # by both
        {"name": "d", "topic_id": ids["d"]},
        {"name": None, "topic_id": None},
        {"name": "absent"}, {"name": "in valid"},
    ]  # fmt: skip
    body = await client.call(DELETE_TOPICS, 6, topics=topics)
    told = [(each.name, int(each.error_code)) for each in body.responses]
    assert told == [
        ("a", _REQUEST), (None, _REQUEST), ("c", _REQUEST), ("c", _REQUEST), ("d", _REQUEST),
        (None, _REQUEST), ("absent", _UNKNOWN), ("in valid", _UNKNOWN),
    ]  # fmt: skip
    assert all(each.error_message for each in body.responses)
    assert set(server.engine.topics) == {"a", "b", "c", "d"}


async def test_a_full_disk_while_a_topic_is_deleted(tmp_path: Path) -> None:
    wanted = Wanted(faults="fail before rename */topics/t* 2")
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t")
        assert await _delete(client, "t") == [("t", _STORAGE)]
        assert (await client.produce("t", batch([b"v"]))).code == 0
        assert await _delete(client, "t") == [("t", 0)]
        assert not server.engine.topics


async def test_who_polls_a_topic_is_told_at_once_that_it_is_deleted(
    server: Server, client: WireClient
) -> None:
    await client.create("t")
    async with await server.connect() as reader:
        reader.send(FETCH, 11, **fetched([("t", 0, 0)], wait_ms=30_000))
        await reader.writer.drain()
        await asyncio.sleep(0.05)
        assert await _delete(client, "t") == [("t", 0)]
        async with asyncio.timeout(60):
            (found,) = fetched_of(await reader.receive())
        assert found.code == _UNKNOWN


async def test_who_reads_while_it_is_deleted_is_told_so(
    server: Server, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create("t")
    assert (await client.produce("t", batch([b"v"]))).code == 0
    partition = server.engine.partition("t", 0)
    assert partition is not None
    reading, go_on = asyncio.Semaphore(0), asyncio.Event()

    def slowed(read: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        async def slow(*args: Any) -> Any:
            found = await read(*args)
            reading.release()
            await go_on.wait()
            return found

        return slow

    monkeypatch.setattr(partition.log, "read", slowed(partition.log.read))
    monkeypatch.setattr(partition.log, "find_time", slowed(partition.log.find_time))
    async with await server.connect() as reader, await server.connect() as finder:
        reader.send(FETCH, 11, **fetched([("t", 0, 0)]))
        asked = [{"partition_index": 0, "timestamp": 5}]
        finder.send(LIST_OFFSETS, 5, replica_id=-1, topics=[{"name": "t", "partitions": asked}])
        for _ in range(2):
            await reading.acquire()
        assert await _delete(client, "t") == [("t", 0)]
        go_on.set()
        assert fetched_of(await reader.receive())[0].code == _UNKNOWN
        (part,) = (await finder.receive()).topics[0].partitions
        assert (int(part.error_code), part.offset) == (_UNKNOWN, -1)


async def test_many_topics_in_one_request(server: Server, client: WireClient) -> None:
    names = [f"t-{number}" for number in range(120)]
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    body = await client.call(CREATE_TOPICS, 7, topics=topics, timeout=timedelta(seconds=200))
    assert {int(each.error_code) for each in body.topics} == {0}
    half = [uuid.UUID(server.engine.topics[name].topic_id) for name in names[:60]]
    assert {code for _, code in await _delete(client, *names[60:], ids=half)} == {0}
    assert not server.engine.topics


# ---------------------------------------------------------------------- CreatePartitions


async def _grow(client: WireClient, **values: Any) -> list[tuple[int, str]]:
    body = await client.call(CREATE_PARTITIONS, 3, **values)
    return [(int(each.error_code), each.error_message or "") for each in body.results]


async def test_new_partitions_can_be_used_at_once(server: Server, client: WireClient) -> None:
    await client.create("t")
    assert (await client.produce("t", batch([b"v"]), partition=2)).code == _UNKNOWN
    assert await _grow(client, **more_partitions(("t", 3))) == [(0, "")]
    assert (await client.produce("t", batch([b"v"]), partition=2)).code == 0
    (topic,) = (await client.metadata("t", version=12)).topics
    assert [each.partition_index for each in topic.partitions] == [0, 1, 2]
    assert topic.topic_id.hex == server.engine.topics["t"].topic_id


async def test_what_is_wrong_with_new_partitions(tmp_path: Path) -> None:
    config = replace(EngineConfig(), partitions_max=6)
    async with serving(tmp_path, Wanted(engine=config)) as server, await server.connect() as client:
        await client.create("t", 2)
        asked = [("t", 2), ("t", 1), ("t", 0), ("t", -1)]
        for topic in asked:
            ((code, reason),) = await _grow(client, **more_partitions(topic))
            assert (code, "2 partitions" in reason) == (_PARTITIONS, True), reason
        ((code, reason),) = await _grow(client, **more_partitions(("t", 2**31 - 1)))
        assert (code, "4 more partitions" in reason) == (_PARTITIONS, True)
        ((code, _),) = await _grow(client, **more_partitions(("absent", 5)))
        assert code == _UNKNOWN
        assert [code for code, _ in await _grow(client, **more_partitions(("t", 3), ("t", 4)))] == [
            _REQUEST
        ]
        for brokers in ([[1]], [[1], [2]], [[1], []], [[1], [1], [1]]):
            assignments = [{"broker_ids": each} for each in brokers]
            topics = [{"name": "t", "count": 4, "assignments": assignments}]
            ((code, _),) = await _grow(client, topics=topics)
            assert code == _ASSIGNMENT
        assert await _grow(client, **more_partitions(("t", 5), validate_only=True)) == [(0, "")]
        assert server.engine.topics["t"].partitions == 2
        assignments = [{"broker_ids": [1]}] * 2
        topics = [{"name": "t", "count": 4, "assignments": assignments}]
        assert await _grow(client, topics=topics) == [(0, "")]
        assert server.engine.topics["t"].partitions == 4


async def test_a_full_disk_while_partitions_are_made(tmp_path: Path) -> None:
    wanted = Wanted(faults="fail before rename */topics/t.json* 2")
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t")
        assert [code for code, _ in await _grow(client, **more_partitions(("t", 3)))] == [_STORAGE]
        assert server.engine.topics["t"].partitions == 1
        assert await _grow(client, **more_partitions(("t", 3))) == [(0, "")]
