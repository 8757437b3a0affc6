"""lease_pid over HTTP: fresh PIDs, PIDs that go on, and what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pidlease.core.pid import Policy, number_of, policy_of
from pidlease.core.state import Batch
from pidlease.engine.engine import EngineConfig
from pidlease.engine.partition import Partition
from pidlease.http_api.lease_messages import LEASES_MAX
from pidlease.storage.topics.topic_store import Topic
from tests.http_api.serving import Http, append_state, http
from tests.kafka_listener.harness import Wanted
from tests.servers.waiting import WAIT_S


async def with_topic(door: Http, name: str = "t", partitions: int = 2) -> Partition:
    await door.server.engine.create_topic(Topic.new(name, partitions))
    found = door.server.engine.partition(name, 0)
    assert found is not None
    return found


async def test_a_fresh_lease(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        partition = await with_topic(door)
        lease_ms = door.server.engine.leases.lease_ms
        before_ms = door.server.clock()
        first, second = await door.lease(), await door.lease()
        assert policy_of(first["pid"]) is Policy.STRICT
        assert number_of(second["pid"]) == number_of(first["pid"]) + 1
        assert first == {
            "topic": "t",
            "partition": 0,
            "error": "",
            "code": "",
            "status": 200,
            "pid": first["pid"],
            "generation": first["generation"],
            "next_sequence": 0,
            "sequence_number": 0,
            "expire_ms": first["expire_ms"],
            "resume_at": 0,
            "name": "",
            "cluster_id": "",
        }
        assert before_ms <= first["expire_ms"] - lease_ms <= door.server.clock()
        assert partition.producers == {}, "a lease changes nothing that is known"


async def test_generations_begin_at_random(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await with_topic(door)
        generations = {(await door.lease())["generation"] for _ in range(20)}
        assert len(generations) > 15
        assert all(0 <= each < 2**30 for each in generations)


async def test_a_pid_that_wrote_goes_on(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        partition = await with_topic(door)
        lease = await door.lease()
        pid, generation = lease["pid"], lease["generation"]
        append_state(partition, pid, Batch(generation, 0, 41, 42), offset=0)
        before = dict(partition.producers)
        again = await door.lease(pid=pid)
        assert (again["generation"], again["sequence_number"]) == (generation + 1, 42)
        assert await door.lease(pid=pid) == again, "asked twice, it is still one higher"
        other = await door.lease(partition=1, pid=pid)
        assert (other["pid"], other["sequence_number"]) == (pid, 0), "it never wrote there"
        assert partition.producers == before
        assert len(door.server.engine.leases) == 1


async def test_a_lease_that_has_ended_is_gone(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await with_topic(door)
        pid = (await door.lease())["pid"]
        door.server.clock.ahead_ms += door.server.engine.leases.lease_ms + 1
        door.server.engine.leases.expire()
        body = {"topic": "t", "partition": 0, "pid": pid}
        status, answer = await door.post("/v1/leases", body)
        assert (status, answer["field"]) == (410, "pid")
        assert "pid -1" in answer["error"]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"topic": "u", "partition": 0}, 404, "topic"),
        ({"topic": "t", "partition": 2}, 404, "partition"),
        ({"topic": "t", "partition": -1}, 400, "partition"),
        ({"topic": "t", "partition": 2**31}, 400, "partition"),
        ({"topic": "t", "partition": "0"}, 400, "partition"),
        ({"topic": "t", "partition": 0.0}, 400, "partition"),
        ({"topic": "", "partition": 0}, 400, "topic"),
        ({"topic": "x" * 250, "partition": 0}, 400, "topic"),
        ({"topic": 1, "partition": 0}, 400, "topic"),
        ({"partition": 0}, 400, "topic"),
        ({"topic": "t"}, 400, "partition"),
        ({"topic": "t", "partition": 0, "pid": -2}, 400, "pid"),
        ({"topic": "t", "partition": 0, "pid": 2**53}, 400, "pid"),
        ({"topic": "t", "partition": 0, "pid": 0}, 400, "pid"),
        ({"topic": "t", "partition": 0, "pid": 7}, 400, "pid"),
        ({"topic": "t", "partition": 0, "pid": Policy.KAFKA << 48 | 1}, 400, "pid"),
        ({"topic": "t", "partition": 0, "pid": Policy.WRITER << 48 | 1}, 400, "pid"),
        ({"topic": "t", "partition": 0, "pid": Policy.STRICT << 48 | 10**9}, 410, "pid"),
        ({"topic": "t", "partition": 0, "more": 1}, 400, "more"),
        ({"topic": "t", "partition": 0, "name": ""}, 400, "name"),
        ({"topic": "t", "partition": 0, "name": "x" * 257}, 400, "name"),
        ({"topic": "t", "partition": 0, "name": "\u20ac" * 86}, 400, "name"),
        ({"topic": "t", "partition": 0, "name": "a", "pid": 1 << 48 | 1}, 400, "name"),
        ({"topic": "t", "partition": 0, "policy": "monotonic"}, 400, "name"),
        ({"topic": "t", "partition": 0, "policy": "kafka"}, 400, "policy"),
        ({"topic": "t", "partition": 0, "policy": 1}, 400, "policy"),
        ({"topic": "t", "partition": 0, "renew": "yes"}, 400, "renew"),
        ([], 400, "body"),
        (None, 400, "body"),
        ("t", 400, "body"),
    ],
)
async def test_what_makes_no_sense_is_told(
    tmp_path: Path, body: Any, status: int, field: str
) -> None:
    async with http(tmp_path) as door:
        await with_topic(door)
        found, answer = await door.post("/v1/leases", body)
        assert (found, answer["field"]) == (status, field), answer
        assert answer["error"]
        assert (await door.lease())["error"] == "", "and it serves on"


async def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await with_topic(door)
        content = b'{"topic": "t", "partition": 0, "name": "\\ud800"}'
        headers = {"content-type": "application/json"}
        response = await door.client.post("/v1/leases", content=content, headers=headers)
        assert (response.status_code, response.json()["field"]) == (400, "name")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"NaN"])
async def test_a_body_that_is_no_json(tmp_path: Path, content: bytes) -> None:
    async with http(tmp_path) as door:
        headers = {"content-type": "application/json"}
        response = await door.client.post("/v1/leases", content=content, headers=headers)
        assert response.status_code == 400
        assert response.json()["field"] == "body"


async def test_a_body_that_is_too_long(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        response = await door.client.post("/v1/leases", content=b" " * ((1 << 20) + 1))
        assert response.status_code == 413
        assert "1048576" in response.json()["error"]


async def test_no_pid_to_be_had(tmp_path: Path) -> None:
    async with http(tmp_path, Wanted(engine=EngineConfig(ring_capacity=3))) as door:
        await with_topic(door)
        for _ in range(3):
            await door.lease()
        response = await door.client.post("/v1/leases", json={"topic": "t", "partition": 0})
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        assert "all 3 lease slots" in response.json()["error"]


async def test_a_server_that_recovers(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        door.server.engine.ready = False
        for response in (
            await door.client.post("/v1/leases", json={"topic": "t", "partition": 0}),
            await door.client.post(
                "/v1/leases/batch", json={"leases": [{"topic": "t", "partition": 0}]}
            ),
            await door.client.get("/v1/producers"),
        ):
            assert response.status_code == 503
            assert "retry-after" in response.headers


# ---------------------------------------------------------------------- many at once


async def test_a_batch_is_answered_for_each(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await with_topic(door)
        wanted = [
            {"topic": "t", "partition": 0},
            {"topic": "u", "partition": 0},
            {"topic": "t", "partition": 1},
            {"topic": "t", "partition": 9},
        ]
        status, answer = await door.post("/v1/leases/batch", {"leases": wanted})
        assert status == 200
        rows = answer["leases"]
        assert [row["status"] for row in rows] == [200, 404, 200, 404]
        assert [(row["topic"], row["partition"]) for row in rows] == [
            (each["topic"], each["partition"]) for each in wanted
        ]
        assert rows[1]["pid"] == -1
        assert "topic u" in rows[1]["error"]
        assert rows[0]["pid"] != rows[2]["pid"]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy disk the fsyncs of many blocks take longer than a lease waits."""
    monkeypatch.setattr("pidlease.engine.lease_service._BLOCK_WAIT_SECONDS", WAIT_S)


@pytest.mark.usefixtures("patient")
async def test_a_batch_goes_over_many_blocks(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await with_topic(door)
        body = {"leases": [{"topic": "t", "partition": 0}] * LEASES_MAX}
        pids = []
        for _ in range(3):
            _, answer = await door.post("/v1/leases/batch", body)
            assert {row["status"] for row in answer["leases"]} == {200}
            pids += [row["pid"] for row in answer["leases"]]
        assert len(set(pids)) == 3 * LEASES_MAX
        # Once a bug: each wait for a block was counted as a refusal.
        assert door.server.engine.leases.refused["no block"] == 0


@pytest.mark.usefixtures("patient")
async def test_batches_that_come_together_share_blocks(tmp_path: Path) -> None:
    """Once a bug: who came second to a block that was used up meanwhile got no PID."""
    async with http(tmp_path) as door:
        await with_topic(door)
        body = {"leases": [{"topic": "t", "partition": 0}] * 700}
        found = await asyncio.gather(*(door.post("/v1/leases/batch", body) for _ in range(5)))
        rows = [row for _, answer in found for row in answer["leases"]]
        assert {row["status"] for row in rows} == {200}
        assert len({row["pid"] for row in rows}) == 5 * 700


@pytest.mark.parametrize(("count", "field"), [(0, "leases"), (LEASES_MAX + 1, "leases")])
async def test_a_batch_of_none_or_too_many(tmp_path: Path, count: int, field: str) -> None:
    async with http(tmp_path) as door:
        body = {"leases": [{"topic": "t", "partition": 0}] * count}
        status, answer = await door.post("/v1/leases/batch", body)
        assert (status, answer["field"]) == (400, field)
        body = {"leases": [{"topic": "t", "partition": -1}]}
        status, answer = await door.post("/v1/leases/batch", body)
        assert (status, answer["field"]) == (400, "leases.0.partition")


# ---------------------------------------------------------------------- what is known


async def test_producers_are_told(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await with_topic(door)
        engine = door.server.engine
        leases = [await door.lease() for _ in range(3)]
        for number, lease in enumerate(leases):
            partition = engine.partition("t", number % 2)
            assert partition is not None
            append_state(partition, lease["pid"], Batch(lease["generation"], 0, 4, 5), number)
        status, answer = await door.get("/v1/producers")
        assert status == 200
        assert not answer["more"]
        assert [row["pid"] for row in answer["producers"]] == [
            leases[0]["pid"],
            leases[2]["pid"],
            leases[1]["pid"],
        ]
        _, answer = await door.get("/v1/producers", pid=leases[1]["pid"])
        (row,) = answer["producers"]
        assert (row["policy"], row["topic"], row["partition"]) == ("strict", "t", 1)
        assert (row["generation"], row["sequence_number"]) == (leases[1]["generation"], 4)
        assert row["last_offset"] == 1
        assert row["expire_ms"] >= leases[1]["expire_ms"], "from its first message on"
        _, answer = await door.get("/v1/producers", topic="t", partition=0, limit=1)
        assert (len(answer["producers"]), answer["more"]) == (1, True)
        for query, status, field in (
            ({"topic": "u"}, 404, "topic"),
            ({"topic": "t", "partition": 2}, 404, "partition"),
            ({"pid": "x"}, 400, "pid"),
            ({"limit": 0}, 400, "limit"),
            ({"limit": 1001}, 400, "limit"),
        ):
            found, answer = await door.get("/v1/producers", **query)
            assert (found, answer["field"]) == (status, field)
