"""Topics over HTTP: created, deleted, and created on first use."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pidlease.engine.engine import EngineConfig
from pidlease.engine.topic_admin import TopicForbiddenError, TopicsUnavailableError
from tests.http_api.appending import JSON, RAW, path_of, producer
from tests.http_api.serving import Http, http
from tests.kafka_listener.harness import Wanted


async def delete(door: Http, name: str) -> tuple[int, dict[str, Any]]:
    response = await door.client.delete(f"/v1/topics/{name}")
    return response.status_code, response.json() if response.content else {}


async def append(
    door: Http, topic: str, partition: int = 0, named: Mapping[str, str | bytes] | None = None
) -> int:
    headers: Any = {**RAW, **(named or {})}
    path = path_of(topic, partition)
    response = await door.client.post(path, content=b"x", headers=headers)
    return response.status_code


async def test_a_topic_is_created_and_deleted(tmp_path: Path) -> None:
    async with http(tmp_path, Wanted(default_partitions=4, auto_create=False)) as door:
        settings = {"retention.ms": "86400000"}
        body = {"name": "orders", "partitions": 3, "settings": settings}
        status, answer = await door.post("/v1/topics", body)
        assert (status, answer["name"], answer["partitions"]) == (201, "orders", 3)
        assert answer["settings"]["retention.ms"] == {"value": "86400000", "source": "topic"}
        assert await door.get("/v1/topics/orders") == (200, answer)
        assert door.server.engine.topics["orders"].overrides == settings
        assert await append(door, "orders", 2) == 200
        status, answer = await door.post("/v1/topics", body)
        assert (status, answer["code"], answer["field"]) == (409, "topic_exists", "name")
        assert (await door.post("/v1/topics", {"name": "more"}))[1]["partitions"] == 4
        assert await delete(door, "orders") == (204, {})
        assert "orders" not in door.server.engine.topics
        status, answer = await delete(door, "orders")
        assert (status, answer["code"]) == (404, "unknown_topic")
        assert await append(door, "orders") == 404
        assert (await door.post("/v1/topics", body))[0] == 201
        assert (await door.get(path_of("orders", 2)))[1]["log_end"] == 0, "its records are gone"


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"name": "a b"}, "invalid_topic", "name"),
        ({"name": ".."}, "invalid_topic", "name"),
        ({"name": ""}, "invalid_request", "name"),
        ({"name": "x" * 250}, "invalid_request", "name"),
        ({"name": "t", "partitions": 0}, "invalid_request", "partitions"),
        ({"name": "t", "partitions": "3"}, "invalid_request", "partitions"),
        ({"name": "t", "partitions": 11}, "invalid_topic", "partitions"),
        ({"name": "t", "settings": {"no.such": "1"}}, "invalid_setting", "no.such"),
        ({"name": "t", "settings": {"retention.ms": "soon"}}, "invalid_setting", "retention.ms"),
        ({"name": "t", "settings": {"retention.ms": 5}}, "invalid_request", None),
        ({"name": "t", "more": 1}, "invalid_request", "more"),
        ({}, "invalid_request", "name"),
    ],
)
async def test_an_invalid_topic_is_refused_by_name(
    tmp_path: Path, body: dict[str, Any], code: str, field: str | None
) -> None:
    async with http(tmp_path, Wanted(engine=EngineConfig(partitions_max=10))) as door:
        status, answer = await door.post("/v1/topics", body)
        assert (status, answer["code"]) == (400, code), answer
        assert field in (None, answer["field"]), answer
        assert not door.server.engine.topics


@pytest.mark.parametrize(
    "content",
    [
        b'{"name": "\\ud800"}',
        b'{"name": "t", "settings": {"\\ud800": "1"}}',
        b'{"name": "t", "settings": {"retention.ms": "\\ud800"}}',
        b"[" * 100_000,
    ],
)
async def test_bodies_that_are_no_text(tmp_path: Path, content: bytes) -> None:
    async with http(tmp_path) as door:
        response = await door.client.post("/v1/topics", content=content, headers=JSON)
        assert response.status_code == 400
        assert not door.server.engine.topics


async def test_of_several_who_create_it_one_does(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        made = await asyncio.gather(*(door.post("/v1/topics", {"name": "t"}) for _ in range(5)))
        assert sorted(status for status, _ in made) == [201, 409, 409, 409, 409]


async def test_a_full_disk(tmp_path: Path) -> None:
    async with http(tmp_path, Wanted(faults="fail before rename */t.json 1")) as door:
        status, answer = await door.post("/v1/topics", {"name": "t"})
        assert (status, answer["code"]) == (503, "not_stored")
        assert (await door.post("/v1/topics", {"name": "t"}))[0] == 201


async def test_an_append_creates_its_topic(tmp_path: Path) -> None:
    async with http(tmp_path, Wanted(default_partitions=2)) as door:
        assert await append(door, "a", 1) == 200
        assert door.server.engine.topics["a"].partitions == 2
        assert await append(door, "b", 2) == 404, "the topic is there, the partition is not"
        assert (await door.get(path_of("c")))[0] == 404, "a read creates nothing"
        assert (await door.post("/v1/leases", {"topic": "c", "partition": 0}))[0] == 404
        body = {"records": [{"value": "x"}]}
        for path in (path_of("a%20b"), "/v1/topics/a%20b/records"):
            status, answer = await door.post(path, body)
            assert (status, answer["code"], answer["field"]) == (400, "invalid_topic", "topic")
            assert "ASCII letters" in answer["detail"]
        assert sorted(door.server.engine.topics) == ["a", "b"]
        found = [await append(door, "d", named=producer("p", 0, 0)) for _ in range(2)]
        assert found == [200, 200]
        assert (await door.get(path_of("d")))[1]["log_end"] == 1


async def test_an_append_creates_nothing_where_that_is_off(tmp_path: Path) -> None:
    async with http(tmp_path, Wanted(auto_create=False)) as door:
        assert await append(door, "a") == 404
        assert not door.server.engine.topics


@pytest.mark.parametrize(
    ("error", "code"),
    [(TopicForbiddenError, "kafka_forbidden"), (TopicsUnavailableError, "kafka_unavailable")],
)
async def test_what_kafka_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception], code: str
) -> None:
    async def refuse(*_: object) -> None:
        raise error("Kafka refuses it")

    async with http(tmp_path) as door:
        assert (await door.post("/v1/topics", {"name": "t"}))[0] == 201
        for name in ("create", "delete"):
            monkeypatch.setattr(door.server.topics, name, refuse)
        for answer in ((await door.post("/v1/topics", {"name": "u"})), await delete(door, "t")):
            assert answer[1]["code"] == code
