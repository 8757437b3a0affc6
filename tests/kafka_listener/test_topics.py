"""CreateTopics and Metadata: every error, and topics that make themselves."""

from dataclasses import replace
from pathlib import Path

import pytest

from pidlease.engine.engine import EngineConfig
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient, creation
from tests.kafka_listener.harness import Server, Wanted, serving
from tests.kafka_listener.messages import CREATE_TOPICS, METADATA

_INVALID_TOPIC, _EXISTS, _PARTITIONS, _FACTOR, _ASSIGNMENT, _CONFIG, _REQUEST = (
    17, 36, 37, 38, 39, 40, 42,
)  # fmt: skip


async def _create(client: WireClient, **fields: object) -> tuple[int, str]:
    wanted = {"name": "t", "num_partitions": 1, "replication_factor": 1, **fields}
    body = await client.call(CREATE_TOPICS, 7, topics=[wanted])
    (topic,) = body.topics
    return int(topic.error_code), topic.error_message or ""


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"name": "in valid"}, _INVALID_TOPIC, "letters"),
        ({"name": ""}, _INVALID_TOPIC, "empty"),
        ({"name": "x" * 250}, _INVALID_TOPIC, "249"),
        ({"name": "there"}, _EXISTS, "there"),
        ({"num_partitions": 0}, _PARTITIONS, "0"),
        ({"num_partitions": -5}, _PARTITIONS, "-5"),
        ({"num_partitions": 2**31 - 1}, _PARTITIONS, "partitions"),
        ({"replication_factor": 3}, _FACTOR, "3"),
        ({"replication_factor": 0}, _FACTOR, "0"),
        ({"assignments": [{"partition_index": 0, "broker_ids": [7]}]}, _ASSIGNMENT, "1"),
        ({"configs": [{"name": "cleanup.policy", "value": "compact"}]}, _CONFIG, "cleanup"),
        ({"configs": [{"name": "retention.ms", "value": "soon"}]}, _CONFIG, "soon"),
        ({"configs": [{"name": "retention.ms", "value": "-7"}]}, _CONFIG, "retention.ms"),
        ({"configs": [{"name": "retention.ms", "value": None}]}, _CONFIG, "retention.ms"),
        ({"configs": [{"name": "segment.bytes", "value": str(2**31)}]}, _CONFIG, "segment"),
        ({"configs": [{"name": "pidlease.fsync", "value": "maybe"}]}, _CONFIG, "maybe"),
    ],
)
async def test_what_is_wrong_with_a_new_topic(
    server: Server, client: WireClient, fields: dict[str, object], code: int, reason: str
) -> None:
    await client.create("there")
    found, message = await _create(client, **fields)
    assert (found, reason in message) == (code, True), message
    assert set(server.engine.topics) == {"there"}


async def test_validate_only_makes_nothing_and_says_the_same(
    server: Server, client: WireClient
) -> None:
    for partitions, code in ((3, 0), (0, _PARTITIONS), (10**9, _PARTITIONS)):
        values = {**creation("t", partitions), "validate_only": True}
        body = await client.call(CREATE_TOPICS, 7, **values)
        assert int(body.topics[0].error_code) == code, partitions
    assert not server.engine.topics


async def test_a_topic_named_twice_is_made_not_even_once(
    server: Server, client: WireClient
) -> None:
    twice = [{"name": "t", "num_partitions": 1, "replication_factor": 1}] * 2
    other = {"name": "u", "num_partitions": 2, "replication_factor": -1}
    body = await client.call(CREATE_TOPICS, 7, topics=[*twice, other])
    codes = {(topic.name, int(topic.error_code)) for topic in body.topics}
    assert codes == {("t", _REQUEST), ("u", 0)}
    assert set(server.engine.topics) == {"u"}


async def test_a_topic_with_settings_of_its_own(server: Server, client: WireClient) -> None:
    configs = [
        {"name": "retention.ms", "value": "-1"},
        {"name": "segment.bytes", "value": "2048"},
        {"name": "pidlease.fsync", "value": "never"},
    ]
    assert await _create(client, num_partitions=3, configs=configs) == (0, "")
    assert server.engine.topics["t"].overrides["segment.bytes"] == "2048"
    (topic,) = (await client.metadata("t", version=12)).topics
    assert (topic.topic_id.hex, len(topic.partitions)) == (server.engine.topics["t"].topic_id, 3)
    by_id = {"topic_id": topic.topic_id, "name": None}
    (again,) = (await client.call(METADATA, 12, topics=[by_id])).topics
    assert (again.error_code, again.name) == (0, "t")


async def test_partitions_by_assignment_and_by_default(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, Wanted(default_partitions=4)) as server,
        await server.connect() as client,
    ):
        assignments = [{"partition_index": n, "broker_ids": [1]} for n in range(2)]
        code, _ = await _create(
            client, num_partitions=-1, replication_factor=-1, assignments=assignments
        )
        assert code == 0
        assert await _create(client, name="u", num_partitions=-1) == (0, "")
        await client.metadata("v", create=True)
        found = {name: topic.partitions for name, topic in server.engine.topics.items()}
        assert found == {"t": 2, "u": 4, "v": 4}


async def test_the_longest_name_there_is(client: WireClient) -> None:
    name = "n" * 249
    assert await _create(client, name=name) == (0, "")
    assert (await client.produce(name, batch([b"v"]))).offset == 0


async def test_topics_that_make_themselves(server: Server, client: WireClient) -> None:
    body = await client.metadata("fresh", create=True)
    assert [(topic.error_code, len(topic.partitions)) for topic in body.topics] == [(0, 1)]
    body = await client.metadata("other", create=False)
    assert [topic.error_code for topic in body.topics] == [3]
    assert set(server.engine.topics) == {"fresh"}
    # Below version 4 a client cannot say that it does not want it.
    assert (await client.call(METADATA, 1, topics=[{"name": "old"}])).topics[0].error_code == 0


async def test_no_topic_makes_itself_where_that_is_switched_off(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, Wanted(auto_create=False)) as server,
        await server.connect() as client,
    ):
        for version in (0, 1, 4, 12):
            body = await client.call(METADATA, version, topics=[{"name": "t"}])
            assert [topic.error_code for topic in body.topics] == [3]
        assert (await client.produce("t", batch([b"v"]))).code == 3
        assert not server.engine.topics


@pytest.mark.parametrize("version", [0, 1, 9, 12])
async def test_all_topics_and_none(client: WireClient, version: int) -> None:
    await client.create("a")
    await client.create("b", 2)
    everything = await client.call(METADATA, version, topics=() if version == 0 else None)
    assert {topic.name: len(topic.partitions) for topic in everything.topics} == {"a": 1, "b": 2}
    if version > 0:
        assert (await client.call(METADATA, version, topics=())).topics == ()


async def test_more_partitions_than_the_server_is_set_to_hold(tmp_path: Path) -> None:
    wanted = Wanted(engine=replace(EngineConfig(), partitions_max=3))
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        assert await _create(client, num_partitions=3) == (0, "")
        assert (await _create(client, name="u"))[0] == _PARTITIONS
        body = await client.metadata("v", create=True)
        assert body.topics[0].error_code != 0
        assert set(server.engine.topics) == {"t"}


async def test_a_full_disk_while_a_topic_is_made(tmp_path: Path) -> None:
    wanted = Wanted(faults="fail before write */topics/* 1")
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        code, message = await _create(client)
        assert (code, "space" in message) == (56, True)
        assert await _create(client) == (0, "")
        assert set(server.engine.topics) == {"t"}
