"""Topics and their settings over HTTP: as they are, as they are to be, and what is refused."""

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from pidlease.core.topic_policy import TopicPolicy
from pidlease.http_api.topic_messages import PARTITIONS_MAX, SETTINGS_MAX, TOPICS_MAX
from pidlease.storage.topics.topic_store import Topic
from proxy.http import topic_routes as topics
from tests.http_api.serving import Http, http
from tests.kafka_listener.harness import Wanted

_DEFAULTS: Final = "/v1/topic-defaults"
_NOBODY: Final = {
    "segment.bytes": {"value": "1073741824", "source": "default"},
    "retention.ms": {"value": "604800000", "source": "default"},
    "retention.bytes": {"value": "-1", "source": "default"},
    "pidlease.fsync": {"value": "never", "source": "start"},
    "pidlease.deduplication": {"value": "on", "source": "default"},
    "pidlease.policies": {"value": "none,strict,kafka,monotonic,epoch", "source": "default"},
    "pidlease.initial": {"value": "policy", "source": "default"},
}


async def make(door: Http, *names: str, partitions: int = 1) -> None:
    for name in names:
        await door.server.engine.create_topic(Topic.new(name, partitions))


async def patch(door: Http, path: str, body: object) -> tuple[int, dict[str, Any]]:
    response = await door.client.patch(path, json=body)
    return response.status_code, response.json()


async def test_a_topic_tells_its_settings_and_who_set_them(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await make(door, "t", partitions=3)
        topic = {"name": "t", "partitions": 3, "settings": _NOBODY}
        assert await door.get("/v1/topics/t") == (200, topic)
        assert await door.get(_DEFAULTS) == (200, {"settings": _NOBODY})

        change = {"pidlease.deduplication": "off", "pidlease.initial": "zero"}
        of_all = {
            **_NOBODY,
            **{name: {"value": value, "source": "all topics"} for name, value in change.items()},
        }
        assert await patch(door, _DEFAULTS, change) == (200, {"settings": of_all})
        assert await door.get("/v1/topics/t") == (200, {**topic, "settings": of_all})

        own = {
            "pidlease.initial": "policy",
            "pidlease.policies": "kafka, none",
            "retention.ms": "05",
        }
        of_topic = {
            **of_all,
            "pidlease.initial": {"value": "policy", "source": "topic"},
            "pidlease.policies": {"value": "none,kafka", "source": "topic"},
            "retention.ms": {"value": "5", "source": "topic"},
        }
        answer = {**topic, "settings": of_topic}
        assert await patch(door, "/v1/topics/t/settings", own) == (200, answer)
        assert await door.get("/v1/topics/t") == (200, answer)
        (policy,) = {each.policy for each in door.server.engine.partitions_of("t")}
        assert policy == TopicPolicy(deduplication=False, allowed=frozenset((0, 2)))

        nothing = dict.fromkeys([*own, "segment.bytes"])
        assert (await patch(door, "/v1/topics/t/settings", nothing))[1]["settings"] == of_all
        assert (await patch(door, _DEFAULTS, dict.fromkeys(change)))[1]["settings"] == _NOBODY
        assert await door.get("/v1/topics/t") == (200, topic)


async def test_names_that_look_like_routes(tmp_path: Path) -> None:
    names = ["settings", "topic-defaults", "defaults", "a.b_c-9"]
    async with http(tmp_path) as door:
        await make(door, *names)
        for name in names:
            assert (await door.get(f"/v1/topics/{name}"))[1]["name"] == name
            change = {"pidlease.initial": "zero"}
            status, answer = await patch(door, f"/v1/topics/{name}/settings", change)
            assert (status, answer["name"]) == (200, name)
            assert door.server.engine.topics[name].overrides == change
        assert door.server.engine.all_topics_settings == {}


async def test_topics_are_listed_in_order_a_part_at_a_time(tmp_path: Path) -> None:
    names = sorted(f"t{number:03d}" for number in range(TOPICS_MAX + 3))
    async with http(tmp_path) as door:
        await make(door, *reversed(names))
        status, answer = await door.get("/v1/topics")
        assert (status, answer["more"]) == (200, True)
        assert [each["name"] for each in answer["topics"]] == names[:TOPICS_MAX]
        assert answer["topics"][0] == {"name": "t000", "partitions": 1, "settings": _NOBODY}
        _, rest = await door.get("/v1/topics", after=names[TOPICS_MAX - 1])
        assert [each["name"] for each in rest["topics"]] == names[TOPICS_MAX:]
        assert rest["more"] is False
        _, some = await door.get("/v1/topics", after="t001", limit=2)
        assert [each["name"] for each in some["topics"]] == ["t002", "t003"]
        assert await door.get("/v1/topics", after="u") == (200, {"topics": [], "more": False})
        wrong: list[tuple[dict[str, object], str]] = [
            ({"limit": TOPICS_MAX + 1}, "limit"),
            ({"limit": 0}, "limit"),
            ({"limit": "x"}, "limit"),
            ({"after": "x" * 250}, "after"),
        ]
        for query, field in wrong:
            status, answer = await door.get("/v1/topics", **query)
            assert (status, answer["field"]) == (400, field)


async def test_partitions_are_listed_with_their_offsets_a_part_at_a_time(tmp_path: Path) -> None:
    count = PARTITIONS_MAX + 2
    async with http(tmp_path) as door:
        await make(door, "t", partitions=count)
        for records in (1, 3):
            body = {"records": [{"value": "x"}] * records}
            assert (await door.post("/v1/topics/t/partitions/1/records", body))[0] == 200
        partition = door.server.engine.partition("t", 1)
        assert partition is not None
        await partition.delete_records(3)

        path = "/v1/topics/t/partitions"
        status, first = await door.get(path)
        assert (status, len(first["partitions"]), first["more"]) == (200, PARTITIONS_MAX, True)
        row = {"partition": 1, "log_start": 3, "log_end": 4, "reason": ""}
        assert first["partitions"][1] == row
        status, rest = await door.get(path, after=PARTITIONS_MAX - 1)
        numbers = [each["partition"] for each in rest["partitions"]]
        assert (numbers, rest["more"]) == ([PARTITIONS_MAX, PARTITIONS_MAX + 1], False)
        assert await door.get(path, after=0, limit=1) == (200, {"partitions": [row], "more": True})
        assert await door.get(path, after=count) == (200, {"partitions": [], "more": False})
        for wrong in ({"after": -2}, {"after": "x"}, {"limit": 0}, {"limit": PARTITIONS_MAX + 1}):
            status, answer = await door.get(path, **wrong)
            assert (status, answer["field"]) == (400, next(iter(wrong)))
        assert (await door.get("/v1/topics/none/partitions"))[0] == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"pidlease.deduplication": "maybe"}, "pidlease.deduplication"),
        ({"pidlease.deduplication": True}, "pidlease.deduplication"),
        ({"pidlease.policies": ""}, "pidlease.policies"),
        ({"pidlease.policies": ["kafka"]}, "pidlease.policies"),
        ({"pidlease.policies": "kafka,fast"}, "pidlease.policies"),
        ({"pidlease.initial": "1"}, "pidlease.initial"),
        ({"pidlease.initial": "zero", "pidlease.policies": "fast"}, "pidlease.policies"),
        ({"retention.ms": "soon"}, "retention.ms"),
        ({"retention.ms": "\u0661"}, "retention.ms"),
        ({"retention.ms": "5" * 2000}, "retention.ms"),
        ({"retention.ms": 5}, "retention.ms"),
        ({"no.such": "1"}, "no.such"),
        ({"no.such": None}, "no.such"),
        ({"": "1"}, ""),
        ({"x" * 9000: "1"}, "x" * 100),
        ({f"x{number}": "1" for number in range(SETTINGS_MAX + 1)}, "body"),
        ({}, "body"),
        ([], "body"),
        ("off", "body"),
        (None, "body"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_name(
    tmp_path: Path, body: Any, field: str
) -> None:
    async with http(tmp_path) as door:
        await make(door, "t")
        for path in ("/v1/topics/t/settings", _DEFAULTS):
            status, answer = await patch(door, path, body)
            assert (status, answer["field"]) == (400, field), answer
            assert field[:50] in answer["error"]
            assert len(answer["error"]) < 300
        assert door.server.engine.topics["t"].overrides == {}
        assert door.server.engine.all_topics_settings == {}


async def test_what_cannot_be_set_for_all_topics(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        for value in ("5", None):
            status, answer = await patch(door, _DEFAULTS, {"retention.ms": value})
            assert (status, answer["field"]) == (400, "retention.ms")
            assert "at the server's start" in answer["error"]


@pytest.mark.parametrize("name", ["absent", "%20", "a%2Fb", "x" * 249, "..", "%00"])
async def test_topics_that_there_are_not(tmp_path: Path, name: str) -> None:
    async with http(tmp_path) as door:
        found = [
            await door.client.get(f"http://pidlease/v1/topics/{name}"),
            await door.client.patch(
                f"http://pidlease/v1/topics/{name}/settings", json={"pidlease.initial": "zero"}
            ),
        ]
        for response in found:
            assert response.status_code in (404, 405), response.text
            assert response.json()["error"]


async def test_a_full_disk(tmp_path: Path) -> None:
    wanted = Wanted(faults="fail before rename */topics/defaults 1; fail before rename */t.json 2")
    async with http(tmp_path, wanted) as door:
        await make(door, "t")
        change = {"pidlease.initial": "zero"}
        for path in (_DEFAULTS, "/v1/topics/t/settings"):
            response = await door.client.patch(path, json=change)
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) > 0
            assert "space" in response.json()["error"]
        assert (await door.get("/v1/topics/t"))[1]["settings"] == _NOBODY
        for path in (_DEFAULTS, "/v1/topics/t/settings"):
            assert (await patch(door, path, change))[0] == 200


async def test_a_server_that_recovers_or_stops(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await make(door, "t")
        door.server.engine.ready = False
        for path in ("/v1/topics", "/v1/topics/t", _DEFAULTS):
            assert (await door.get(path))[0] == 503
        for path in ("/v1/topics/t/settings", _DEFAULTS):
            assert (await patch(door, path, {"pidlease.initial": "zero"}))[0] == 503
        assert door.server.engine.all_topics_settings == {}


async def test_two_who_change_different_settings_both_do(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await make(door, "t")
        changes = [
            {"pidlease.initial": "zero"}, {"pidlease.deduplication": "off"}, {"retention.ms": "5"},
        ]  # fmt: skip
        done = await asyncio.gather(
            *(patch(door, "/v1/topics/t/settings", change) for change in changes)
        )
        assert [status for status, _ in done] == [200] * 3
        assert len(door.server.engine.topics["t"].overrides) == 3


async def test_changes_that_wait_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is refused may come again; who was not is done."""
    monkeypatch.setattr(topics, "_WAITING_MAX", 5)
    wanted = Wanted(faults="slow=0.05 before fsync */topics/* 2")
    async with http(tmp_path, wanted) as door:
        await make(door, "t")
        changes = (patch(door, _DEFAULTS, {"pidlease.initial": "zero"}) for _ in range(8))
        done = await asyncio.gather(*changes)
        assert sorted(status for status, _ in done) == [200] * 5 + [503] * 3
        assert (await patch(door, _DEFAULTS, {"pidlease.initial": None}))[0] == 200


async def test_all_partitions_are_told_when_it_is_answered(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await make(door, *(f"t{number}" for number in range(20)), partitions=50)
        await patch(door, _DEFAULTS, {"pidlease.policies": "strict"})
        found = {each.policy for each in door.server.engine.partitions()}
        assert found == {TopicPolicy(allowed=frozenset((1,)))}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b'{"a": 1e999}', b'{"\\ud800": "1"}', b'{"\\ud800": 1}',
     b'{"pidlease.initial": "\\ud800"}', b'{"retention.ms": "\\u0000"}', b"[" * 100_000],
)  # fmt: skip
async def test_bodies_that_are_no_text(tmp_path: Path, content: bytes) -> None:
    async with http(tmp_path) as door:
        await make(door, "t")
        for path in ("/v1/topics/t/settings", _DEFAULTS):
            response = await door.client.patch(
                path, content=content, headers={"content-type": "application/json"}
            )
            assert response.status_code == 400, response.text
            assert response.json()["error"]
        assert door.server.engine.all_topics_settings == {}
