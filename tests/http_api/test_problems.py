"""Errors over HTTP: one shape, stable codes, and the fields of the previous version."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from pidlease.core.pid import Policy, make_pid
from pidlease.http_api.problems import MEDIA_TYPE, Problem, ProblemAnswer
from pidlease.testing.loopback_ports import LOOPBACK
from tests.http_api.appending import JSON, RAW, door, listening, path_of, producer, values

_LEASE = "/v1/leases"
_NAME = "/v1/producers?name=x"
_STRICT = make_pid(Policy.STRICT, 10**12)
_REQUESTS: list[tuple[Problem, str | None, str, str, dict[str, Any]]] = [
    (Problem.NOT_FOUND, None, "GET", "/v1/nothing", {}),
    (Problem.METHOD_NOT_ALLOWED, None, "PUT", _LEASE, {}),
    (Problem.INVALID_JSON, "body", "POST", _LEASE, {"content": b"{", "headers": JSON}),
    (Problem.INVALID_REQUEST, "partition", "POST", _LEASE, {"json": {"topic": "t"}}),
    (Problem.UNKNOWN_TOPIC, "topic", "GET", path_of("u"), {}),
    (Problem.UNKNOWN_PARTITION, "partition", "GET", path_of("t", 2), {}),
    (Problem.UNKNOWN_NAME, "name", "DELETE", _NAME, {}),
    (Problem.NAME_REQUIRED, "name", "POST", _LEASE,
     {"json": {"topic": "t", "partition": 0, "policy": "monotonic"}}),
    (Problem.UNKNOWN_PID, "pid", "POST", _LEASE,
     {"json": {"topic": "t", "partition": 0, "pid": _STRICT}}),
    (Problem.OFFSET_OUT_OF_RANGE, "offset", "GET", path_of() + "?offset=9", {}),
    (Problem.UNSUPPORTED_BODY, "Content-Type", "POST", path_of(), {"content": b"x"}),
    (Problem.BODY_TOO_LARGE, "body", "POST", _LEASE, {"content": b"x" * (1 << 21)}),
    (Problem.INVALID_PRODUCER, "Producer-Epoch", "POST", path_of(),
     {"content": b"x", "headers": {**RAW, "Producer-Id": "p"}}),
    (Problem.INVALID_SETTING, "no.such", "PATCH", "/v1/topic-defaults",
     {"json": {"no.such": "1"}}),
    (Problem.PRODUCER_SEQ_CONFLICT, "Producer-Seq", "POST", path_of(),
     {"content": b"x", "headers": {**RAW, **producer("p", 0, 7)}}),
]  # fmt: skip


async def test_errors_are_problem_documents(tmp_path: Path) -> None:
    async with (
        door(tmp_path) as here,
        listening(here.app) as port,
        httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}") as client,
    ):
        for problem, field, method, path, more in _REQUESTS:
            response = await client.request(method, path, **more)
            _check(response, problem, field)
        for path, allowed in (
            (_LEASE, "GET, POST"), (path_of(), "GET, POST"), ("/v1/producers", "DELETE, GET"),
            ("/v1/topics/t", "DELETE, GET"), ("/v1/topic-defaults", "GET, PATCH"),
        ):  # fmt: skip
            response = await client.put(path)
            assert response.headers["allow"] == allowed, path
            detail = f"PUT is not supported here; supported: {allowed}"
            assert (response.status_code, response.json()["detail"]) == (405, detail)


async def test_the_previous_versions_fields_are_there(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        status, answer = await here.read(offset=5)
        problem = ProblemAnswer.model_validate(answer)
        assert (status, answer["error"], answer["log_end"]) == (416, problem.detail, 0)
        _, answer = await here.append(values("a"), producer("p", 0, 3))
        assert (answer["error"], answer["expected_seq"]) == ("producer_seq_conflict", 0)
        assert answer["message"] == answer["detail"]
        _, answer = await here.read(topic="u")
        assert (answer["error"], answer["field"]) == (answer["detail"], "topic")
        response = await here.client.get("/v1/nothing")
        assert response.json()["field"] is None


async def test_each_lease_of_a_batch_has_its_code(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        body = {"leases": [{"topic": topic, "partition": 0} for topic in "tu"]}
        response = await here.client.post("/v1/leases/batch", json=body)
        found = [(each["code"], each["status"]) for each in response.json()["leases"]]
        assert found == [("", 200), ("unknown_topic", 404)]


async def test_a_failure_of_the_server_is_a_problem_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with door(tmp_path) as here, listening(here.app) as port:
        monkeypatch.setattr("proxy.http.topic_routes.heapq", None)
        async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}") as client:
            _check(await client.get("/v1/topics"), Problem.INTERNAL_ERROR, None)


async def test_a_problem_that_passes_says_when_to_come_again(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        here.server.engine.ready = False
        response = await here.client.get("/v1/topics")
        _check(response, Problem.NOT_READY, None)
        assert int(response.headers["retry-after"]) > 0


def _check(response: httpx.Response, problem: Problem, field: str | None) -> None:
    assert response.headers["content-type"] == MEDIA_TYPE
    found = ProblemAnswer.model_validate_json(response.content)
    assert (found.code, found.status, found.field) == (problem.code, problem.status, field), found
    assert response.status_code == problem.status
    assert (found.title, found.type) == (problem.title, f"urn:pidlease:error:{problem.code}")
    assert found.detail
