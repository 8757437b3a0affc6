"""Named leases: a name brings the same PID back, and fences who had it before."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pidlease.coordination.file.file_names import FileNames
from pidlease.coordination.name_bindings import (
    BindingChange,
    BindingConflictError,
    NamesError,
)
from pidlease.core.pid import Policy, policy_of
from pidlease.engine.append_outcome import FENCED_FOR_EVER
from pidlease.engine.engine import EngineConfig
from pidlease.kafka.records.identity_header import Identity
from pidlease.log.ports import AppendDone
from pidlease.storage.topics.topic_store import Topic
from tests.http_api.serving import Http, http
from tests.kafka_listener.batches import identified
from tests.kafka_listener.client import Answer
from tests.kafka_listener.harness import Wanted

Outcomes = list[BindingConflictError | NamesError | None]

SHORT = Wanted(engine=EngineConfig(lease_ms=60_000))


async def ready(door: Http) -> None:
    if "t" not in door.server.engine.topics:
        await door.server.engine.create_topic(Topic.new("t", 3))


async def send(door: Http, lease: dict[str, Any], first: int, last: int, part: int = 0) -> Answer:
    """A strict or monotonic batch under a lease, over the Kafka door."""
    identity = Identity(lease["pid"], "", lease["generation"], first, last)
    values = [b"%d" % number for number in range(first, last + 1)]
    async with await door.server.connect() as client:
        return await client.produce("t", identified(values, identity), partition=part)


async def test_a_name_brings_the_same_pid_back(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await ready(door)
        first = await door.lease(name="a")
        assert (first["name"], first["sequence_number"], first["resume_at"]) == ("a", 0, 0)
        assert (await send(door, first, 0, 4)).code == 0
        again = await door.lease(name="a")
        assert again["pid"] == first["pid"]
        assert again["generation"] == first["generation"] + 1
        assert (again["sequence_number"], again["resume_at"]) == (5, 5)
        fenced = await send(door, first, 5, 5)
        assert (fenced.code, "fenced" in (fenced.message or "")) == (47, True)
        assert (await send(door, again, 5, 6)).code == 0
        other = await door.lease(name="b")
        assert other["pid"] != first["pid"]


async def test_who_never_wrote_is_fenced_as_well(tmp_path: Path) -> None:
    """The model's named-race: or it would come in as the first ever seen."""
    async with http(tmp_path) as door:
        await ready(door)
        first = await door.lease(name="a")
        again = await door.lease(name="a")
        assert (await send(door, first, 0, 0)).code == 47
        assert (await send(door, again, 0, 0)).code == 0


async def test_a_grant_waits_for_what_is_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http(tmp_path) as door:
        await ready(door)
        first = await door.lease(name="a")
        partition = door.server.engine.partition("t", 0)
        assert partition is not None
        append, held = partition.log.append, []

        def hold(batches: Any, done: AppendDone) -> None:
            held.append((batches, done))

        monkeypatch.setattr(partition.log, "append", hold)
        sent = asyncio.create_task(send(door, first, 0, 2))
        while not held:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        granted = asyncio.create_task(door.lease(name="a"))
        await asyncio.sleep(0.2)
        assert not granted.done(), "what it would be told to send next is not known"
        monkeypatch.setattr(partition.log, "append", append)
        append(*held[0])
        assert (await sent).code == 0
        assert (await granted)["sequence_number"] == 3


async def test_fences_outlive_the_server(tmp_path: Path) -> None:
    """The log knows of no grant: of two servers only the binding tells the second one."""
    async with http(tmp_path) as door:
        await ready(door)
        first = await door.lease(name="a")
        assert (await send(door, first, 0, 0)).code == 0
        again = await door.lease(name="a")
    async with http(tmp_path) as door:
        assert (await send(door, first, 1, 1)).code == 47
        assert (await send(door, again, 1, 1)).code == 0
        third = await door.lease(name="a")
        assert (third["pid"], third["sequence_number"]) == (first["pid"], 2)


async def test_a_batch_is_one_grant(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await ready(door)
        wanted = [{"topic": "t", "partition": each, "name": "a"} for each in (0, 1, 2, 9)]
        _, answer = await door.post("/v1/leases/batch", {"leases": wanted})
        rows = answer["leases"]
        assert [row["status"] for row in rows] == [200, 200, 200, 404]
        assert len({(row["pid"], row["generation"]) for row in rows[:3]}) == 1
        later = await door.lease(partition=1, pid=rows[0]["pid"])
        assert later["generation"] == rows[0]["generation"], "asked by pid, nothing is raised"
        assert later["name"] == "a"


async def test_many_ask_for_one_name_at_once(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await ready(door)
        found = await asyncio.gather(*(door.lease(name="a") for _ in range(30)))
        assert len({each["pid"] for each in found}) == 1
        assert len({each["generation"] for each in found}) == 30


async def test_a_name_is_assigned(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await ready(door)
        first, second = [await door.lease(assign_name=True) for _ in range(2)]
        assert first["name"]
        assert first["name"] != second["name"]
        assert (await door.lease(name=first["name"]))["pid"] == first["pid"]


async def test_a_name_has_one_policy(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await ready(door)
        lease = await door.lease(name="m", policy="monotonic")
        assert policy_of(lease["pid"]) is Policy.MONOTONIC
        status, answer = await door.post("/v1/leases", {"topic": "t", "partition": 0, "name": "m"})
        assert (status, answer["field"]) == (409, "policy")
        assert "monotonic" in answer["error"]
        assert (await send(door, lease, 17, 17)).code == 0
        assert (await door.lease(name="m", policy="monotonic"))["sequence_number"] == 18
        by_pid = await door.lease(pid=lease["pid"])
        assert by_pid["sequence_number"] == 18


async def test_a_name_whose_state_has_ended_is_new(tmp_path: Path) -> None:
    async with http(tmp_path, SHORT) as door:
        await ready(door)
        first = await door.lease(name="a")
        assert (await send(door, first, 0, 0)).code == 0
        door.server.clock.ahead_ms += 120_001
        door.server.engine.leases.expire()
        assert door.server.engine.leases.fences == {}
        assert door.server.engine.naming.names == {}
        again = await door.lease(name="a")
        assert again["pid"] != first["pid"]
        assert (again["sequence_number"], again["resume_at"]) == (0, 0)


async def test_renewed_the_numbering_goes_on(tmp_path: Path) -> None:
    async with http(tmp_path, SHORT) as door:
        await ready(door)
        first = await door.lease(name="a")
        assert (await send(door, first, 0, 9)).code == 0
        second = await door.lease(name="a", renew=True)
        assert second["pid"] != first["pid"]
        assert (second["sequence_number"], second["resume_at"]) == (0, 10)
        assert (await send(door, first, 10, 10)).code == 47
        once_more = await door.lease(name="a", renew=True)
        assert once_more["pid"] == second["pid"], "the one before still lasts"
        assert once_more["resume_at"] == 10
        assert (await send(door, once_more, 0, 11)).code == 0, (
            "the range is chained: ten are before"
        )
    async with http(tmp_path, SHORT) as door:
        assert (await send(door, first, 10, 10)).code == 47
        after = await door.lease(name="a")
        assert (after["pid"], after["sequence_number"], after["resume_at"]) == (
            second["pid"],
            12,
            12,
        )
        unused = await door.lease(name="a", partition=1)
        assert (unused["sequence_number"], unused["resume_at"]) == (0, 0)


async def test_a_name_is_let_go_of(tmp_path: Path) -> None:
    async with http(tmp_path) as door:
        await ready(door)
        lease = await door.lease(name="a/b")
        assert (await send(door, lease, 0, 0)).code == 0
        row = (await door.get("/v1/producers", name="a/b"))[1]["producers"]
        assert [(each["pid"], each["name"]) for each in row] == [(lease["pid"], "a/b")]
        response = await door.client.delete("/v1/producers", params={"name": "a/b"})
        assert (response.status_code, response.content) == (204, b"")
        assert (await send(door, lease, 1, 1)).code == 47
        assert (await door.get("/v1/producers", name="a/b"))[1]["producers"] == []
        status, answer = await door.post(
            "/v1/leases", {"topic": "t", "partition": 0, "pid": lease["pid"]}
        )
        assert (status, answer["field"]) == (410, "pid")
        for name in ("a/b", "never"):
            response = await door.client.delete("/v1/producers", params={"name": name})
            assert (response.status_code, response.json()["field"]) == (404, "name")
        assert door.server.engine.leases.fences[lease["pid"]] == FENCED_FOR_EVER
    async with http(tmp_path) as door:
        assert (await send(door, lease, 1, 1)).code == 47
        assert (await door.lease(name="a/b"))["pid"] != lease["pid"]


async def test_names_that_cannot_be_bound_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http(tmp_path) as door:
        await ready(door)

        def fail(*_: object) -> None:
            raise OSError(28, "no space left on device")

        monkeypatch.setattr(FileNames, "_append", fail)
        body = {"topic": "t", "partition": 0, "name": "a"}
        response = await door.client.post("/v1/leases", json=body)
        assert response.status_code == 503
        assert "no space" in response.json()["error"]
        assert "retry-after" in response.headers
        monkeypatch.undo()
        assert (await door.lease(name="a"))["error"] == ""


async def test_what_a_crash_leaves_between_the_binding_and_the_answer(tmp_path: Path) -> None:
    """Granted durably and never told: who asks again gets the next generation, none twice."""
    async with http(tmp_path) as door:
        await ready(door)
        first = await door.lease(name="a")
        naming = door.server.engine.naming
        binding = await naming.binding("a")
        assert binding is not None
        naming._bindings.change("a", binding, binding._replace(generation=binding.generation + 1))
    async with http(tmp_path) as door:
        assert (await send(door, first, 0, 0)).code == 47
        again = await door.lease(name="a")
        assert (again["pid"], again["generation"]) == (first["pid"], first["generation"] + 2)
        assert (await send(door, again, 0, 0)).code == 0


async def test_another_server_grants_the_same_name_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its write comes first; who was slower looks again, and grants the generation behind."""
    async with http(tmp_path) as door:
        await ready(door)
        first = await door.lease(name="a")
        change, others = FileNames.change_many, list[Sequence[BindingChange]]()

        def beaten(self: FileNames, changes: Sequence[BindingChange]) -> Outcomes:
            if not others:
                others.append(changes)
                assert change(self, changes) == [None]
            return change(self, changes)

        monkeypatch.setattr(FileNames, "change_many", beaten)
        again = await door.lease(name="a")
        ((other,),) = others
        assert other.new is not None
        assert other.new.generation == first["generation"] + 1
        assert again["generation"] == first["generation"] + 2


async def test_only_who_has_the_name_renews_it_so(tmp_path: Path) -> None:
    """Else the renewal of one that was fenced would take the name away again."""
    async with http(tmp_path) as door:
        await ready(door)
        first = await door.lease(name="a")
        assert (await send(door, first, 0, 4)).code == 0
        second = await door.lease(name="a")
        mine = {"topic": "t", "partition": 0, "name": "a", "renew": True, "pid": first["pid"]}
        status, answer = await door.post("/v1/leases", {**mine, "generation": first["generation"]})
        assert (status, answer["field"]) == (409, "generation")
        assert (await send(door, second, 5, 5)).code == 0, "nothing has changed"
        renewed = await door.lease(**{**mine, "generation": second["generation"]})
        assert (renewed["pid"] != second["pid"], renewed["resume_at"]) == (True, 6)
        status, answer = await door.post("/v1/leases", {**mine, "name": "never", "generation": 0})
        assert (status, answer["field"]) == (409, "generation")


async def test_a_renewal_whose_answer_was_lost_is_asked_for_again(tmp_path: Path) -> None:
    """It is answered as before; behind a take-over it is not."""
    async with http(tmp_path) as door:
        await ready(door)
        first = await door.lease(name="a")
        assert (await send(door, first, 0, 4)).code == 0
        mine = {"pid": first["pid"], "generation": first["generation"], "name": "a", "renew": True}
        renewed = await door.lease(**mine)
        again = await door.lease(**mine)
        assert (again["pid"], again["generation"]) == (renewed["pid"], renewed["generation"])
        assert (await send(door, again, 0, 5)).code == 0
        await door.lease(name="a")
        status, answer = await door.post("/v1/leases", {"topic": "t", "partition": 0, **mine})
        assert (status, answer["field"]) == (409, "generation")


async def test_an_append_under_a_released_name(tmp_path: Path) -> None:
    """No generation has been here: the name has no PID any more."""
    async with http(tmp_path) as door:
        await ready(door)
        lease = await door.lease(name="a")
        body = {"records": [{"value": "x"}], "pid": lease["pid"]}
        body |= {"generation": lease["generation"], "first_sequence": 0}
        status, _ = await door.post("/v1/topics/t/partitions/0/records", body)
        assert status == 200
        assert (await door.client.delete("/v1/producers", params={"name": "a"})).status_code < 300
        body["first_sequence"] = 1
        status, refused = await door.post("/v1/topics/t/partitions/0/records", body)
        assert status == 409
        assert "lease by the name" in refused["detail"]
        assert refused.get("current_epoch") is None
