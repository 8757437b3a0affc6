"""Every API in every version that is served answers something that kio reads back completely."""

from collections.abc import Callable
from typing import Any

import pytest

from pidlease.kafka.codec.metadata import NODE_ID
from proxy.kafka.served_versions import ADVERTISED, SERVED_VERSIONS
from tests.kafka_listener.admin_requests import ADMIN_KEYS, admin_request, look_at_admin_answer
from tests.kafka_listener.batches import batch, records_of
from tests.kafka_listener.client import (
    INIT,
    WireClient,
    answers_of,
    creation,
    fetched,
    fetched_of,
    produced,
)
from tests.kafka_listener.group_requests import group_request, look_at_group_answer
from tests.kafka_listener.harness import Server
from tests.kafka_listener.messages import (
    API_VERSIONS,
    CREATE_TOPICS,
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    decode_response,
    encode_request,
)

_EACH = [
    (key, version)
    for key, (lowest, highest) in sorted(SERVED_VERSIONS.items())
    for version in range(lowest, highest + 1)
]


def _versions(key: int) -> list[int]:
    return [version for each, version in _EACH if each == key]


def _request(key: int, topic: str) -> dict[str, object]:
    asked = [{"partition_index": index, "timestamp": -1} for index in (0, 7)]
    values: dict[int, Callable[[], dict[str, object]]] = {
        PRODUCE: lambda: produced([(topic, 0, batch([b"v"])), ("absent", 3, batch([b"w"]))]),
        FETCH: lambda: fetched([(topic, 0, 0), ("absent", 0, 0)]),
        LIST_OFFSETS: lambda: {"replica_id": -1, "topics": [{"name": topic, "partitions": asked}]},
        METADATA: lambda: {"topics": [{"name": topic}, {"name": "in valid"}]},
        API_VERSIONS: lambda: {"client_software_name": "test", "client_software_version": "1"},
        CREATE_TOPICS: lambda: creation("new"),
        INIT_PRODUCER_ID: lambda: INIT,
    }
    if key in ADMIN_KEYS:
        return admin_request(key, topic)
    return values[key]() if key in values else group_request(key, topic)


def _look(key: int, version: int, body: Any, topic: str) -> None:
    """The least that any version must have told."""
    if key == PRODUCE:
        assert [(part.code, part.offset) for part in answers_of(body)] == [(0, 1), (3, -1)]
    elif key == FETCH:
        first, second = fetched_of(body)
        assert (first.code, first.end, second.code) == (0, 1, 3)
        assert [record.value for record in records_of(first.data)] == [b"zero"]
    elif key == LIST_OFFSETS:
        known, unknown = body.topics[0].partitions
        assert (known.error_code, known.offset, unknown.error_code) == (0, 1, 3)
    elif key == METADATA:
        assert [(each.error_code, each.name) for each in body.topics] == [
            (0, topic),
            (17, "in valid"),
        ]
        assert [each.node_id for each in body.brokers] == [NODE_ID]
    elif key == API_VERSIONS:
        found = {each.api_key: (each.min_version, each.max_version) for each in body.api_keys}
        assert (body.error_code, found) == (0, ADVERTISED)
    elif key == CREATE_TOPICS:
        assert [(each.name, each.error_code) for each in body.topics] == [("new", 0)]
    elif key == INIT_PRODUCER_ID:
        assert (body.error_code, body.producer_epoch, body.producer_id >> 48) == (0, 0, 2)
    elif key in ADMIN_KEYS:
        look_at_admin_answer(key, version, body, topic)
    else:
        look_at_group_answer(key, version, body, topic)


@pytest.mark.parametrize(("key", "version"), _EACH)
async def test_an_answer_of_every_version(client: WireClient, key: int, version: int) -> None:
    await client.create("known")
    assert (await client.produce("known", batch([b"zero"]))).code == 0
    body = await client.call(key, version, **_request(key, "known"))
    _look(key, version, body, "known")


@pytest.mark.parametrize("client_id", [None, "", "ü" * 40, "x" * 32_000])
@pytest.mark.parametrize("version", [2, 9], ids=["header v1", "header v2"])
async def test_any_client_id(client: WireClient, client_id: str | None, version: int) -> None:
    client.send_frame(encode_request(METADATA, version, {"topics": []}, 77, client_id))
    correlation_id, _ = decode_response(METADATA, version, await client.receive_frame())
    assert correlation_id == 77


@pytest.mark.parametrize("correlation_id", [0, -1, 2**31 - 1, -(2**31)])
async def test_any_correlation_id(client: WireClient, correlation_id: int) -> None:
    for key, version in ((PRODUCE, 3), (PRODUCE, 12), (FETCH, 4), (METADATA, 12), (22, 0)):
        values = _request(key, "known")
        client.send_frame(encode_request(key, version, values, correlation_id))
        found, _ = decode_response(key, version, await client.receive_frame())
        assert found == correlation_id


@pytest.mark.parametrize("version", [5, 17, 32_767, -1, -32_768])
async def test_an_unknown_version_of_api_versions_is_answered_in_version_0(
    client: WireClient, version: int
) -> None:
    frame = bytearray(encode_request(API_VERSIONS, 4, _request(API_VERSIONS, ""), 5))
    frame[2:4] = version.to_bytes(2, "big", signed=True)
    client.send_frame(bytes(frame))

    correlation_id, body = decode_response(API_VERSIONS, 0, await client.receive_frame())

    assert (correlation_id, body.error_code) == (5, 35)
    found = [(each.api_key, each.min_version, each.max_version) for each in body.api_keys]
    assert found == [(API_VERSIONS, *SERVED_VERSIONS[API_VERSIONS])]
    # The client then goes on, on the same connection, with a version that is served.
    assert (await client.call(API_VERSIONS, 0)).error_code == 0


@pytest.mark.parametrize("version", _versions(PRODUCE))
async def test_errors_in_every_version_of_produce(server: Server, version: int) -> None:
    async with await server.connect() as client:
        await client.create("t")
        pid = await client.lease()
        answer = await client.produce("t", batch([b"v"], pid, 0, 5), version=version)
        assert (answer.code, answer.offset) == (45, -1)
        if version >= 5:
            assert answer.log_start == 0
        if version >= 8:
            assert answer.message is not None
            assert "expected sequence 0" in answer.message


@pytest.mark.parametrize("version", _versions(PRODUCE))
async def test_several_topics_partitions_and_null_records(client: WireClient, version: int) -> None:
    await client.create("a", 3)
    await client.create("b")
    parts = [
        {"index": 2, "records": batch([b"1"])},
        {"index": 0, "records": None},
        {"index": 9, "records": batch([b"1"])},
    ]
    topics = [
        {"name": "a", "partition_data": parts},
        {"name": "b", "partition_data": ()},
        {"name": "b", "partition_data": [{"index": 0, "records": batch([b"1", b"2"])}]},
    ]
    body = await client.call(PRODUCE, version, acks=1, topic_data=topics)
    found = [
        (topic.name, part.index, int(part.error_code), part.base_offset)
        for topic in body.responses
        for part in topic.partition_responses
    ]
    assert found == [("a", 2, 0, 0), ("a", 0, 87, -1), ("a", 9, 3, -1), ("b", 0, 0, 0)]
    one = {"name": "a", "partition_data": [{"index": 2, "records": batch([b"2"])}]}
    empty = {"name": "b", "partition_data": ()}
    body = await client.call(PRODUCE, version, acks=1, topic_data=[empty, one])
    assert [(topic.name, len(topic.partition_responses)) for topic in body.responses] == [
        ("b", 0), ("a", 1),
    ]  # fmt: skip


@pytest.mark.parametrize("version", _versions(FETCH))
async def test_records_and_errors_in_every_version_of_fetch(
    client: WireClient, version: int
) -> None:
    await client.create("a", 2)
    for value in (b"0", b"1"):
        assert (await client.produce("a", batch([value]), partition=1)).code == 0
    wanted = [("a", 1, 1), ("a", 0, 0), ("a", 1, 3), ("a", 1, -4), ("a", 5, 0), ("a", 0, 1)]
    body = await client.call(FETCH, version, **fetched(wanted))
    found = [(part.code, part.end, part.data != b"") for part in fetched_of(body)]
    assert found == [
        (0, 2, True), (0, 0, False), (1, 2, False), (1, 2, False), (3, -1, False), (1, 0, False),
    ]  # fmt: skip
    assert [record.offset for record in records_of(fetched_of(body)[0].data)] == [1]
