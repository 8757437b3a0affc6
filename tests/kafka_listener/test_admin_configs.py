"""DescribeConfigs, IncrementalAlterConfigs and AlterConfigs."""

from pathlib import Path
from typing import Any, Final, cast

import pytest

from pidlease.storage.topics.topic_store import Topic
from tests.kafka_listener.admin_requests import (
    ALTER_CONFIGS,
    APPEND,
    BROKER,
    BROKER_LOGGER,
    CREATE_TOPICS,
    DELETE,
    DESCRIBE_CONFIGS,
    GROUP,
    INCREMENTAL_ALTER_CONFIGS,
    SET,
    SUBTRACT,
    TOPIC,
    alteration,
    config_question,
)
from tests.kafka_listener.client import WireClient, creation
from tests.kafka_listener.harness import Server, Wanted, serving

_INVALID_TOPIC, _UNKNOWN, _CONFIG, _REQUEST, _STORAGE = 17, 3, 40, 42, 56
_OF_TOPIC, _OF_SERVER, _DEFAULT = 1, 4, 5
_WEEK_MS: Final = str(7 * 24 * 3600 * 1000)


async def _described(
    client: WireClient, name: str = "t", kind: int = TOPIC, version: int = 4, **more: Any
) -> dict[str, Any]:
    values = config_question((kind, name), **more)
    (result,) = (await client.call(DESCRIBE_CONFIGS, version, **values)).results
    assert (result.error_code, result.error_message) == (0, None)
    assert (result.resource_type, result.resource_name) == (kind, name)
    return {each.name: each for each in result.configs}


async def _alter(
    client: WireClient,
    *operations: tuple[str, int, str | None],
    key: int = INCREMENTAL_ALTER_CONFIGS,
    version: int = 1,
    topic: str = "t",
    **more: Any,
) -> tuple[int, str]:
    body = await client.call(key, version, **alteration(topic, *operations, **more))
    (result,) = body.responses
    assert result.resource_name == topic
    return int(result.error_code), result.error_message or ""


# ---------------------------------------------------------------------- DescribeConfigs


@pytest.mark.parametrize("version", range(1, 5))
async def test_where_the_value_of_a_setting_comes_from(tmp_path: Path, version: int) -> None:
    wanted = Wanted(segment_bytes=4096, batch_bytes_max=100_000)
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t", retention_ms="77", segment_bytes="2048")
        found = await _described(client, version=version, include_synonyms=True)
        told = {
            name: (each.value, each.config_source,
                   [(of.name, of.value, of.source) for of in each.synonyms])
            for name, each in found.items()
        }  # fmt: skip
        assert told["segment.bytes"] == (
            "2048", _OF_TOPIC,
            [
                ("segment.bytes", "2048", _OF_TOPIC),
                ("log.segment.bytes", "4096", _OF_SERVER),
                ("log.segment.bytes", str(1 << 30), _DEFAULT),
            ],
        )  # fmt: skip
        assert told["retention.ms"] == (
            "77", _OF_TOPIC,
            [("retention.ms", "77", _OF_TOPIC), ("log.retention.ms", _WEEK_MS, _DEFAULT)],
        )  # fmt: skip
        assert told["pidlease.fsync"][:2] == ("never", _OF_SERVER)
        assert told["retention.bytes"][:2] == ("-1", _DEFAULT)
        assert told["max.message.bytes"][:2] == ("100000", _OF_SERVER)
        assert told["cleanup.policy"][:2] == ("delete", _DEFAULT)
        assert {name for name, each in found.items() if not each.read_only} == {
            "segment.bytes", "retention.ms", "retention.bytes", "pidlease.fsync",
            "pidlease.deduplication", "pidlease.policies", "pidlease.initial",
        }  # fmt: skip
        if version >= 3:
            kinds = {name: each.config_type for name, each in found.items()}
            assert kinds == {
                "segment.bytes": 3, "retention.ms": 5, "retention.bytes": 5, "pidlease.fsync": 2,
                "cleanup.policy": 7, "compression.type": 2, "message.timestamp.type": 2,
                "max.message.bytes": 3, "min.insync.replicas": 3,
                "pidlease.deduplication": 2, "pidlease.policies": 7, "pidlease.initial": 2,
            }  # fmt: skip


async def test_synonyms_and_documentation_only_where_they_are_asked_for(
    client: WireClient,
) -> None:
    await client.create("t")
    for synonyms, text in ((False, False), (True, False), (False, True), (False, False)):
        found = await _described(client, include_synonyms=synonyms, include_documentation=text)
        assert all(bool(each.synonyms) == synonyms for each in found.values())
        assert all(bool(each.documentation) == text for each in found.values())


async def test_only_some_settings(client: WireClient) -> None:
    await client.create("t")
    everything = await _described(client)
    assert await _described(client, keys=()) == everything
    some = await _described(client, keys=["retention.ms", "cleanup.policy", "no.such"])
    assert some == {name: everything[name] for name in ("retention.ms", "cleanup.policy")}
    many = [f"no.such.{number}" for number in range(20_000)]
    assert await _described(client, keys=[*many, "retention.ms"]) == {
        "retention.ms": everything["retention.ms"]
    }


async def test_the_server(server: Server, client: WireClient) -> None:
    found = await _described(client, "1", BROKER, include_documentation=True)
    assert all(each.read_only and each.documentation for each in found.values())
    assert (found["node.id"].value, found["log.retention.ms"].value) == ("1", _WEEK_MS)
    assert found["message.max.bytes"].value == "1048588"
    assert found["auto.create.topics.enable"].value == "true"
    assert found["pidlease.fsync"].config_source == _OF_SERVER
    assert found["advertised.listeners"].value == f"PLAINTEXT://127.0.0.1:{server.port}"
    assert await _described(client, "", BROKER) == {}, "nothing is set for all brokers"


async def test_what_has_no_settings(client: WireClient) -> None:
    await client.create("t")
    wrong = [
        (TOPIC, "absent", _UNKNOWN), (TOPIC, "in valid", _INVALID_TOPIC),
        (TOPIC, "", _INVALID_TOPIC), (BROKER, "2", _REQUEST), (BROKER, "one", _REQUEST),
        (BROKER_LOGGER, "1", _REQUEST), (GROUP, "g", _REQUEST), (16, "m", _REQUEST),
        (0, "x", _REQUEST), (-128, "x", _REQUEST), (127, "x", _REQUEST),
    ]  # fmt: skip
    values = config_question(*((kind, name) for kind, name, _ in wrong), (TOPIC, "t"))
    body = await client.call(DESCRIBE_CONFIGS, 4, **values)
    codes = [int(each.error_code) for each in body.results]
    assert codes == [*(code for _, _, code in wrong), 0]
    assert all(each.error_message and not each.configs for each in body.results[:-1])


async def test_an_answer_has_its_bounds(tmp_path: Path) -> None:
    """What does not fit any more gets an error that says so; the rest is there."""
    async with (
        serving(tmp_path, Wanted(memory_bytes_max=1 << 20)) as server,
        await server.connect() as client,
    ):
        await client.create("t")
        asked = [(TOPIC, "t")] * 3000
        values = config_question(*asked, include_synonyms=True, include_documentation=True)
        body = await client.call(DESCRIBE_CONFIGS, 4, **values)
        codes = [int(each.error_code) for each in body.results]
        assert len(codes) == 3000
        whole = codes.index(_REQUEST)
        assert set(codes[:whole]) == {0}
        assert set(codes[whole:]) == {_REQUEST}
        assert 50 < whole < 1000
        assert "fewer" in body.results[-1].error_message
        assert server.door.budget.used == 0


# ---------------------------------------------------------------------- IncrementalAlterConfigs


@pytest.mark.parametrize("version", [0, 1])
async def test_what_is_not_named_stays(server: Server, client: WireClient, version: int) -> None:
    await client.create("t", retention_ms="77", segment_bytes="2048")
    operations = [("retention.ms", SET, "88"), ("segment.bytes", DELETE, None)]
    operations += [("retention.bytes", SET, "99"), ("cleanup.policy", SET, "delete")]
    operations += [("min.insync.replicas", DELETE, None)]
    assert await _alter(client, *operations, version=version) == (0, "")
    own = {"retention.ms": "88", "retention.bytes": "99"}
    assert server.engine.topics["t"].overrides == own
    found = await _described(client)
    assert {name: each.value for name, each in found.items() if each.config_source == 1} == own
    assert found["segment.bytes"].value == str(1 << 30)


@pytest.mark.parametrize(
    ("operation", "code", "reason"),
    [
        (("retention.ms", SET, "soon"), _CONFIG, "soon"),
        (("retention.ms", SET, "-2"), _CONFIG, "retention.ms"),
        (("segment.bytes", SET, "1"), _CONFIG, "segment.bytes"),
        (("pidlease.fsync", SET, "maybe"), _CONFIG, "maybe"),
        (("no.such", SET, "1"), _CONFIG, "retention.ms"),
        (("no.such", DELETE, None), _CONFIG, "retention.ms"),
        (("cleanup.policy", SET, "compact"), _CONFIG, "cleanup.policy is delete"),
        (("cleanup.policy", APPEND, "compact"), _CONFIG, "APPEND"),
        (("retention.ms", APPEND, "1"), _CONFIG, "not a list"),
        (("retention.ms", SUBTRACT, "1"), _CONFIG, "SUBTRACT"),
        (("retention.ms", 4, "1"), _REQUEST, "operation 4"),
        (("retention.ms", -1, "1"), _REQUEST, "operation -1"),
        (("retention.ms", SET, None), _REQUEST, "no value"),
    ],
)
async def test_a_change_that_makes_no_sense_changes_nothing(
    server: Server, client: WireClient, operation: tuple[str, int, str | None], code: int,
    reason: str,
) -> None:  # fmt: skip
    await client.create("t", retention_ms="77")
    before = server.engine.topics["t"]
    found, message = await _alter(client, ("retention.bytes", SET, "5"), operation)
    assert (found, reason in message) == (code, True), message
    assert server.engine.topics["t"] is before


async def test_resources_that_cannot_be_changed(server: Server, client: WireClient) -> None:
    await client.create("t")
    one = ("retention.ms", SET, "5")
    wrong = [
        (TOPIC, "absent", _UNKNOWN), (TOPIC, "in valid", _INVALID_TOPIC), (BROKER, "1", _REQUEST),
        (BROKER, "", _REQUEST), (BROKER, "7", _REQUEST), (BROKER_LOGGER, "1", _REQUEST),
        (GROUP, "g", _REQUEST), (0, "t", _REQUEST),
    ]  # fmt: skip
    for kind, name, code in wrong:
        found, message = await _alter(client, one, topic=name, kind=kind)
        assert (found, bool(message)) == (code, True)
    (twice,) = (await _alter(client, one, ("retention.ms", DELETE, None)),)
    assert twice == (_REQUEST, "a setting is named twice")
    resource = alteration("t", one)["resources"]
    assert isinstance(resource, list)
    body = await client.call(INCREMENTAL_ALTER_CONFIGS, 1, resources=resource * 2)
    assert [int(each.error_code) for each in body.responses] == [_REQUEST, _REQUEST]
    assert server.engine.topics["t"].overrides == {}


async def test_validate_only_says_the_same_and_changes_nothing(
    server: Server, client: WireClient
) -> None:
    await client.create("t")
    before = server.engine.topics["t"]
    for key in (INCREMENTAL_ALTER_CONFIGS, ALTER_CONFIGS):
        for value, code in (("5", 0), ("x", _CONFIG)):
            found, _ = await _alter(
                client, ("retention.ms", SET, value), key=key, validate_only=True
            )
            assert found == code
    assert server.engine.topics["t"] is before


async def test_two_who_change_different_settings_both_do(
    server: Server, client: WireClient
) -> None:
    """Each reads what is there and writes it with its own change: one after the other."""
    await client.create("t")
    names = ["retention.ms", "retention.bytes", "segment.bytes"]
    clients = [await server.connect() for _ in names]
    for each, name in zip(clients, names, strict=True):
        each.send(INCREMENTAL_ALTER_CONFIGS, 1, **alteration("t", (name, SET, "5000")))
    for each in clients:
        assert (await each.receive()).responses[0].error_code == 0
        await each.__aexit__()
    assert server.engine.topics["t"].overrides == dict.fromkeys(names, "5000")


async def test_a_full_disk_while_settings_are_changed(tmp_path: Path) -> None:
    wanted = Wanted(faults="fail before rename */topics/t.json* 2")
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t")
        code, message = await _alter(client, ("retention.ms", SET, "5"))
        assert (code, "space" in message) == (_STORAGE, True)
        assert server.engine.topics["t"].overrides == {}
        assert await _alter(client, ("retention.ms", SET, "5")) == (0, "")


# ---------------------------------------------------------------------- any value

_LONG: Final = "x" * 32_760
_EACH_WAY: Final = [
    *((CREATE_TOPICS, version) for version in (2, 4, 5)),
    *((ALTER_CONFIGS, version) for version in range(3)),
    *((INCREMENTAL_ALTER_CONFIGS, version) for version in range(2)),
]


async def _set(
    client: WireClient, key: int, version: int, name: str, value: str
) -> tuple[int, str]:
    if key != CREATE_TOPICS:
        return await _alter(client, (name, SET, value), key=key, version=version)
    values = creation("new")
    (topic,) = cast("list[dict[str, object]]", values["topics"])
    topic["configs"] = [{"name": name, "value": value}]
    (result,) = (await client.call(CREATE_TOPICS, version, **values)).topics
    return int(result.error_code), result.error_message or ""


@pytest.mark.parametrize(("key", "version"), _EACH_WAY)
async def test_a_long_value_is_refused_and_told_in_short(
    server: Server, client: WireClient, key: int, version: int
) -> None:
    """In old versions a message has 32,767 bytes at most; the connection lives on."""
    await client.create("t")
    for name in ("retention.ms", "pidlease.fsync", "cleanup.policy", _LONG):
        for value in (_LONG, "\U000e0001" * 8000, "\x01" * 8000, "\U000e0001" * 999):
            code, message = await _set(client, key, version, name, value)
            assert (code, bool(message)) == (_CONFIG, True)
            assert len(message.encode()) < 2500, message[:100]
    assert server.engine.topics["t"].overrides == {}
    assert set(server.engine.topics) == {"t"}


@pytest.mark.parametrize(("key", "version"), _EACH_WAY)
async def test_what_is_no_plain_number_is_refused(
    server: Server, client: WireClient, key: int, version: int
) -> None:
    await client.create("t")
    values = ["1_000", " 1000 ", "1000\n", "\u0661\u0662", "+5", "0x10", "1e3", "--1", "-", ""]
    for value in (*values, "0" * 20 + "5", " " * 30_000 + "5", str(2**63)):
        code, message = await _set(client, key, version, "retention.ms", value)
        assert (code, "retention.ms" in message, len(message) < 300) == (_CONFIG, True, True)
    assert server.engine.topics["t"].overrides == {}
    assert set(server.engine.topics) == {"t"}


@pytest.mark.parametrize(("key", "version"), [(19, 7), (33, 2), (44, 1)])
async def test_a_value_as_long_as_a_request(client: WireClient, key: int, version: int) -> None:
    await client.create("t")
    for name in ("retention.ms", "pidlease.fsync"):
        code, message = await _set(client, key, version, name, " " * 1_500_000 + "5")
        assert (code, "1000" in message, len(message) < 300) == (_CONFIG, True, True)


@pytest.mark.parametrize(("key", "version"), _EACH_WAY)
async def test_numbers_are_stored_in_their_plainest_form(
    server: Server, client: WireClient, key: int, version: int
) -> None:
    await client.create("t")
    for value, wanted in (("005", "5"), ("-0", "0"), ("-1", "-1"), ("0" * 19, "0")):
        assert await _set(client, key, version, "retention.ms", value) == (0, "")
        name = "new" if key == CREATE_TOPICS else "t"
        assert server.engine.topics[name].overrides == {"retention.ms": wanted}
        if key == CREATE_TOPICS:
            await server.engine.delete_topic("new")


async def test_a_number_that_was_stored_before_stays_and_is_told_plainly(tmp_path: Path) -> None:
    """Earlier versions took more than plain numbers, of any length."""
    odd = {"retention.ms": " " * 1_500_000 + "5", "segment.bytes": "2_048"}
    async with serving(tmp_path) as server:
        await server.engine.create_topic(Topic.new("t", 1, odd))
    async with serving(tmp_path) as server, await server.connect() as client:
        found = await _described(client, version=1, include_synonyms=True)
        assert (found["retention.ms"].value, found["segment.bytes"].value) == ("5", "2048")
        assert await _alter(client, ("retention.bytes", SET, "7")) == (0, "")
    async with serving(tmp_path) as server:
        assert server.engine.topics["t"].overrides == {
            "retention.ms": "5", "segment.bytes": "2048", "retention.bytes": "7",
        }  # fmt: skip


async def test_more_settings_than_there_can_be(client: WireClient) -> None:
    values = creation("t")
    (topic,) = cast("list[dict[str, object]]", values["topics"])
    topic["configs"] = [{"name": "retention.ms", "value": "5"}] * 40_000
    (result,) = (await client.call(CREATE_TOPICS, 5, **values)).topics
    assert (int(result.error_code), "40000" in result.error_message) == (_CONFIG, True)


# ---------------------------------------------------------------------- AlterConfigs


@pytest.mark.parametrize("version", range(3))
async def test_what_is_not_named_is_no_longer_set(
    server: Server, client: WireClient, version: int
) -> None:
    await client.create("t", retention_ms="77", segment_bytes="2048")
    operations = [("retention.bytes", SET, "99"), ("cleanup.policy", SET, "delete")]
    found = await _alter(client, *operations, key=ALTER_CONFIGS, version=version)
    assert found == (0, "")
    assert server.engine.topics["t"].overrides == {"retention.bytes": "99"}
    wrong = [("retention.bytes", SET, "5"), ("no.such", SET, "1")]
    code, message = await _alter(client, *wrong, key=ALTER_CONFIGS, version=version)
    assert (code, "no.such is not known" in message) == (_CONFIG, True)
    assert server.engine.topics["t"].overrides == {"retention.bytes": "99"}
