"""Policies of topics by Kafka's admin API: of one topic, and of all (BROKER without a name)."""

from pathlib import Path
from typing import Any, Final, cast

import pytest

from pidlease.core.topic_policy import TopicPolicy
from tests.kafka_listener.admin_requests import (
    ALTER_CONFIGS,
    APPEND,
    BROKER,
    CREATE_TOPICS,
    DELETE,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    SET,
    SUBTRACT,
    TOPIC,
    alteration,
    config_question,
)
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import INIT, WireClient, creation
from tests.kafka_listener.harness import Server, Wanted, serving
from tests.kafka_listener.messages import INIT_PRODUCER_ID

_CONFIG, _REQUEST, _STORAGE, _GAP, _POLICY = 40, 42, 56, 45, 44
_OF_TOPIC, _OF_ALL, _DEFAULT = 1, 3, 5
_ALL_POLICIES: Final = "none,strict,kafka,monotonic,epoch"


async def _described(
    client: WireClient, kind: int, name: str, version: int = 4
) -> dict[str, tuple[str, int, list[tuple[str, int]]]]:
    """The three: value, source, and the synonyms' values and sources."""
    values = config_question((kind, name), include_synonyms=True)
    (result,) = (await client.call(DESCRIBE_CONFIGS, version, **values)).results
    assert result.error_code == 0
    return {
        each.name.removeprefix("pidlease."): (
            each.value, each.config_source, [(of.value, of.source) for of in each.synonyms],
        )
        for each in result.configs
        if each.name.startswith("pidlease.") and each.name != "pidlease.fsync"
    }  # fmt: skip


async def _alter(
    client: WireClient,
    *operations: tuple[str, int, str | None],
    kind: int = TOPIC,
    name: str = "t",
    key: int = INCREMENTAL_ALTER_CONFIGS,
    **more: Any,
) -> tuple[int, str]:
    named = [(f"pidlease.{setting}", how, value) for setting, how, value in operations]
    body = await client.call(key, 1, **alteration(name, *named, kind=kind, **more))
    (result,) = body.responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    return int(result.error_code), result.error_message or ""


async def _alter_all(
    client: WireClient, *operations: tuple[str, int, str | None], **more: Any
) -> Any:
    return await _alter(client, *operations, kind=BROKER, name="", **more)


def _policies(server: Server, topic: str = "t") -> set[TopicPolicy]:
    return {each.policy for each in server.engine.partitions_of(topic)}


# ---------------------------------------------------------------------- what is told


@pytest.mark.parametrize("version", range(1, 5))
async def test_value_and_source_from_nobody_from_all_and_from_the_topic(
    server: Server, client: WireClient, version: int
) -> None:
    await client.create("t", 2)
    assert await _described(client, BROKER, "", version) == {}
    nobody = {
        "deduplication": ("on", _DEFAULT, [("on", _DEFAULT)]),
        "policies": (_ALL_POLICIES, _DEFAULT, [(_ALL_POLICIES, _DEFAULT)]),
        "initial": ("policy", _DEFAULT, [("policy", _DEFAULT)]),
    }
    for _ in range(2):  # the second time from what is kept in encoded form
        assert await _described(client, TOPIC, "t", version) == nobody
        assert await _described(client, BROKER, "1", version) == nobody

    assert await _alter_all(client, ("initial", SET, "zero"), ("deduplication", SET, "off")) == (
        0,
        "",
    )
    of_all = {
        **nobody,
        "deduplication": ("off", _OF_ALL, [("off", _OF_ALL), ("on", _DEFAULT)]),
        "initial": ("zero", _OF_ALL, [("zero", _OF_ALL), ("policy", _DEFAULT)]),
    }
    assert await _described(client, TOPIC, "t", version) == of_all
    assert await _described(client, BROKER, "1", version) == of_all
    assert await _described(client, BROKER, "", version) == {
        "deduplication": ("off", _OF_ALL, [("off", _OF_ALL)]),
        "initial": ("zero", _OF_ALL, [("zero", _OF_ALL)]),
    }, "only what is set, and only by whom (ConfigHelper)"
    assert _policies(server) == {TopicPolicy(deduplication=False, starts_at_zero=True)}

    assert await _alter(client, ("initial", SET, "policy"), ("policies", SET, "kafka, none")) == (
        0,
        "",
    )
    found = await _described(client, TOPIC, "t", version)
    assert found["initial"] == (
        "policy", _OF_TOPIC, [("policy", _OF_TOPIC), ("zero", _OF_ALL), ("policy", _DEFAULT)],
    )  # fmt: skip
    assert found["policies"][:2] == ("none,kafka", _OF_TOPIC), "in its plainest form"
    (policy,) = _policies(server)
    assert (policy.deduplication, policy.starts_at_zero) == (False, False)
    assert policy.allowed == {0, 2}


async def test_only_what_is_asked_for_of_all(client: WireClient) -> None:
    await _alter_all(client, ("initial", SET, "zero"), ("deduplication", SET, "off"))
    values = config_question((BROKER, ""), keys=["pidlease.initial", "pidlease.policies", "x"])
    (result,) = (await client.call(DESCRIBE_CONFIGS, 4, **values)).results
    assert [(each.name, each.read_only) for each in result.configs] == [("pidlease.initial", False)]


async def test_a_new_topic_tells_what_is_in_force(server: Server, client: WireClient) -> None:
    await _alter_all(client, ("initial", SET, "zero"))
    values = creation("t")
    (topic,) = cast("list[dict[str, object]]", values["topics"])
    topic["configs"] = [{"name": "pidlease.policies", "value": "kafka,kafka"}]
    (result,) = (await client.call(CREATE_TOPICS, 5, **values)).topics
    told = {each.name: (each.value, each.config_source) for each in result.configs}
    assert told["pidlease.initial"] == ("zero", _OF_ALL)
    assert told["pidlease.policies"] == ("kafka", _OF_TOPIC)
    assert told["pidlease.deduplication"] == ("on", _DEFAULT)
    assert _policies(server) == {TopicPolicy(allowed=frozenset((2,)), starts_at_zero=True)}


# ---------------------------------------------------------------------- what is refused

_WRONG: Final = [
    ("deduplication", "true"),
    ("deduplication", ""),
    ("initial", "1"),
    ("policies", "kafka,fast"),
    ("policies", ""),
    ("policies", "writer"),
    ("policies", "kafka," * 300),
]


@pytest.mark.parametrize(("setting", "value"), _WRONG)
async def test_wrong_values_are_refused_by_name(
    server: Server, client: WireClient, setting: str, value: str
) -> None:
    await client.create("t")
    name = f"pidlease.{setting}"
    for key in (INCREMENTAL_ALTER_CONFIGS, ALTER_CONFIGS):
        for only in (False, True):
            change = (setting, SET, value)
            code, message = await _alter(client, change, key=key, validate_only=only)
            assert (code, message[: len(name)], len(message) < 300) == (_CONFIG, name, True)
            code, message = await _alter_all(client, change, key=key, validate_only=only)
            assert (code, message[: len(name)], len(message) < 300) == (_REQUEST, name, True)
    values = creation("u")
    (topic,) = cast("list[dict[str, object]]", values["topics"])
    topic["configs"] = [{"name": name, "value": value}]
    (result,) = (await client.call(CREATE_TOPICS, 5, **values)).topics
    assert (int(result.error_code), result.error_message[: len(name)]) == (_CONFIG, name)
    assert set(server.engine.topics) == {"t"}
    assert (server.engine.topics["t"].overrides, server.engine.all_topics_settings) == ({}, {})
    assert _policies(server) == {TopicPolicy()}


@pytest.mark.parametrize("name", ["retention.ms", "log.retention.ms", "no.such", "x" * 20_000])
async def test_what_cannot_be_set_for_all_is_told_with_what_can(
    server: Server, client: WireClient, name: str
) -> None:
    for operation, value in ((SET, "5"), (DELETE, None), (APPEND, "5")):
        values = alteration("", (name, operation, value), kind=BROKER)
        (result,) = (await client.call(INCREMENTAL_ALTER_CONFIGS, 1, **values)).responses
        message = result.error_message
        assert (int(result.error_code), len(message) < 400) == (_REQUEST, True)
        assert message.startswith(name[:100])
        assert "pidlease.policies" in message
    assert server.engine.all_topics_settings == {}


async def test_one_broker_is_told_how_to_set_all(server: Server, client: WireClient) -> None:
    code, message = await _alter(client, ("initial", SET, "zero"), kind=BROKER, name="1")
    assert (code, "--entity-default" in message) == (_REQUEST, True)
    code, message = await _alter_all(client, ("initial", SET, "zero"), ("initial", DELETE, None))
    assert (code, message) == (_REQUEST, "a setting is named twice")
    code, message = await _alter_all(client, ("initial", SET, None))
    assert (code, "pidlease.initial has no value" in message) == (_REQUEST, True)
    code, message = await _alter_all(client, ("initial", 7, "zero"))
    assert (code, "operation 7" in message) == (_REQUEST, True)
    code, message = await _alter_all(client, ("initial", APPEND, "zero"))
    assert (code, "not a list" in message) == (_REQUEST, True)
    assert server.engine.all_topics_settings == {}


async def test_a_full_disk_while_all_are_changed(tmp_path: Path) -> None:
    wanted = Wanted(faults="fail before rename */topics/defaults 1")
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t")
        code, message = await _alter_all(client, ("initial", SET, "zero"))
        assert (code, "space" in message) == (_STORAGE, True)
        assert _policies(server) == {TopicPolicy()}
        assert await _alter_all(client, ("initial", SET, "zero")) == (0, "")
        assert _policies(server) == {TopicPolicy(starts_at_zero=True)}


# ---------------------------------------------------------------------- how they are changed


async def test_validate_only_changes_nothing(server: Server, client: WireClient) -> None:
    for key in (INCREMENTAL_ALTER_CONFIGS, ALTER_CONFIGS):
        change = ("initial", SET, "zero")
        assert await _alter_all(client, change, key=key, validate_only=True) == (0, "")
    assert server.engine.all_topics_settings == {}


async def test_all_of_what_is_set_for_all_is_replaced(server: Server, client: WireClient) -> None:
    await _alter_all(client, ("initial", SET, "zero"), ("deduplication", SET, "off"))
    assert await _alter_all(client, ("policies", SET, "none"), key=ALTER_CONFIGS) == (0, "")
    assert server.engine.all_topics_settings == {"pidlease.policies": "none"}
    assert await _alter_all(client, ("policies", DELETE, None), ("initial", DELETE, None)) == (
        0,
        "",
    )
    assert server.engine.all_topics_settings == {}


async def test_lists_grow_and_shrink(server: Server, client: WireClient) -> None:
    """From what holds for the topic: not what is not allowed by those who set it for all."""
    await client.create("t")
    assert await _alter_all(client, ("policies", SUBTRACT, "epoch, none")) == (0, "")
    assert server.engine.all_topics_settings == {"pidlease.policies": "strict,kafka,monotonic"}
    assert await _alter(client, ("policies", SUBTRACT, "monotonic")) == (0, "")
    assert server.engine.topics["t"].overrides == {"pidlease.policies": "strict,kafka"}
    assert await _alter(client, ("policies", APPEND, "none,kafka")) == (0, "")
    assert server.engine.topics["t"].overrides == {"pidlease.policies": "none,strict,kafka"}
    code, message = await _alter(client, ("policies", SUBTRACT, "none,strict,kafka"))
    assert (code, "pidlease.policies" in message) == (_CONFIG, True)
    code, message = await _alter(client, ("policies", APPEND, "fast"))
    assert (code, "pidlease.policies" in message) == (_CONFIG, True)
    assert server.engine.topics["t"].overrides == {"pidlease.policies": "none,strict,kafka"}


# ---------------------------------------------------------------------- what they do


async def _pid(client: WireClient) -> int:
    body = await client.call(INIT_PRODUCER_ID, 4, **INIT)
    assert body.error_code == 0
    return int(body.producer_id)


async def test_without_deduplication_a_repeat_is_stored(server: Server, client: WireClient) -> None:
    await client.create("t")
    pid = await _pid(client)
    data = batch([b"once"], pid, 0, 0)
    assert [(await client.produce("t", data)).offset for _ in range(2)] == [0, 0]
    await _alter(client, ("deduplication", SET, "off"))
    assert [(await client.produce("t", data)).offset for _ in range(2)] == [1, 2]
    await _alter(client, ("deduplication", DELETE, None))
    answer = await client.produce("t", data)
    assert (answer.code, answer.offset in (0, 1, 2)) == (0, True)
    (partition,) = server.engine.partitions_of("t")
    assert partition.readable_end == 3


async def test_a_policy_that_is_not_allowed_gets_a_policy_violation(client: WireClient) -> None:
    await client.create("t")
    pid = await _pid(client)
    await _alter_all(client, ("policies", SET, "none,strict"))
    answer = await client.produce("t", batch([b"x"], pid, 0, 0))
    assert answer.code == _POLICY
    assert "pidlease.policies" in (answer.message or "")
    assert (await client.produce("t", batch([b"x"], -1, -1, -1))).code == 0
    await _alter(client, ("policies", SET, "kafka"))
    assert (await client.produce("t", batch([b"x"], pid, 0, 0))).code == 0
    assert (await client.produce("t", batch([b"x"], -1, -1, -1))).code == _POLICY


async def test_an_unknown_producer_begins_at_zero_where_it_must(
    server: Server, client: WireClient
) -> None:
    await client.create("t")
    await client.create("u")
    pid = await _pid(client)
    server.let_leases_end()
    await _alter(client, ("initial", SET, "zero"))
    assert (await client.produce("t", batch([b"x"], pid, 0, 5))).code == _GAP
    assert (await client.produce("u", batch([b"x"], pid, 0, 5))).code == 0, "as Kafka takes it"
    assert (await client.produce("t", batch([b"x"], pid, 0, 0))).code == 0
    assert (await client.produce("t", batch([b"y"], pid, 0, 1))).code == 0
