"""Leases past the framework: the same responses as through it, and it gets all that is unusual."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from pidlease.testing.loopback_ports import LOOPBACK
from tests.http_api.appending import Door, door, listening
from tests.servers.waiting import WAIT_S

JSON: Final = ("content-type", "application/json")
#: A web page of this server, which the framework serves.
_PAGE: Final = ("origin", "http://pidlease")
#: What differs from one lease to the next.
_OF_ITS_OWN: Final = ("generation", "expire_ms")


def _body(**fields: object) -> bytes:
    return json.dumps({"topic": "t", "partition": 0, **fields}).encode()


#: Bodies that are served past the framework.
USUAL: Final = [
    _body(),
    _body(pid=-1, generation=-1, name=None, assign_name=False, policy="strict", renew=False),
    _body(name="n"),
    _body(name="n"),
    _body(name="n", policy="monotonic"),
    _body(name="é"),
    _body(name="m", policy="monotonic"),
    _body(policy="monotonic"),
    _body(assign_name=True, name="given"),
    _body(name="n", generation=10**40),
    _body(name="n", pid=5),
    _body(pid=5),
    _body(pid=2**53 - 1),
    _body(topic="none"),
    _body(partition=2**31 - 1),
    b' \n{"topic":"t","partition":0} ',
    b'{"topic":"t","partition":-0}',
]
#: Bodies that the framework serves or refuses.
UNUSUAL: Final = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b"{}",
    _body(colour="red"),
    b'{"topic":"none","partition":7,"topic":"t","partition":0}',
    _body(topic=""),
    _body(topic="x" * 250),
    _body(topic=3),
    _body(partition="0"),
    _body(partition=0.0),
    b'{"topic":"t","partition":0e0}',
    b'{"topic":"t","partition":NaN}',
    b'{"topic":"t","partition":00}',
    b'{"topic":"t","partition":0,}',
    _body(partition=True),
    _body(partition=-1),
    _body(partition=2**31),
    _body(pid=2**53),
    _body(pid=None),
    _body(name=""),
    _body(name="x" * 257),
    _body(name="\ud800"),
    _body(policy="epoch"),
    _body(policy=["strict"]),
    _body(renew=1),
    b"\xef\xbb\xbf" + _body(),
    _body().decode().encode("utf-16"),
    b'{"topic":"\xff","partition":0}',
    _body() + b" " * 4096,
    b'{"topic":' * 200,
]


async def _post(here: Door, body: bytes, *headers: tuple[str, str]) -> tuple[int, str, Any]:
    """Return status, content type and content, without what differs each time."""
    response = await here.client.post("/v1/leases", content=body, headers=[*headers])
    found = response.json()
    if response.status_code == 200:
        assert list(found) == [  # in the order of the framework
            "topic", "partition", "error", "code", "status", "pid", "generation", "next_sequence",
            "sequence_number", "expire_ms", "resume_at", "name", "cluster_id",
        ]  # fmt: skip
        for each in _OF_ITS_OWN:
            assert isinstance(found.pop(each), int)
    return response.status_code, response.headers["content-type"], found


async def test_both_ways_give_the_same_responses(
    tmp_path: Path, framework_calls: Counter[str]
) -> None:
    given = {}
    for way, more in (("direct", ()), ("framework", (_PAGE,))):
        async with door(tmp_path / way) as here:
            given[way] = [await _post(here, body, JSON, *more) for body in (*USUAL, *UNUSUAL)]
        if way == "direct":
            # The framework calls it only for those that are valid in its own eyes.
            served = [status for status, *_ in given[way][len(USUAL) :] if status == 200]
            assert framework_calls["lease"] == len(served) > 0
    assert framework_calls["lease"] == 2 * len(served) + len(USUAL)
    for body, direct, framework in zip(
        (*USUAL, *UNUSUAL), given["direct"], given["framework"], strict=True
    ):
        assert direct == framework, body
    assert [status for status, *_ in given["direct"][: len(USUAL)]] == [
        200, 200, 200, 200, 409, 200, 200, 400, 200, 200, 400, 400, 400, 404, 404, 200, 200,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "status", "direct"),
    [
        (("application/json; charset=utf-8",), 200, True),
        (("APPLICATION/JSON",), 200, True),
        (("application/vnd.lease+json",), 200, False),
        (("application/json", "text/plain"), 200, False),
        (("text/plain",), 400, False),
        ((), 400, False),
    ],
)
async def test_types_of_bodies(
    tmp_path: Path,
    framework_calls: Counter[str],
    kinds: tuple[str, ...],
    status: int,
    direct: bool,
) -> None:
    async with door(tmp_path) as here:
        headers = [("content-type", kind) for kind in kinds]
        found, _, answer = await _post(here, _body(), *headers)
        assert (found, framework_calls["lease"]) == (status, int(status == 200 and not direct))
        assert ("Content-Type: application/json" in str(answer)) == (status == 400)


async def test_a_body_of_unknown_length(tmp_path: Path, framework_calls: Counter[str]) -> None:
    async def parts() -> Any:
        yield _body()[:5]
        yield _body()[5:]

    async with door(tmp_path) as here, listening(here.app) as port:
        async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}") as client:
            response = await client.post("/v1/leases", content=parts(), headers=[JSON])
        assert (response.status_code, framework_calls["lease"]) == (200, 1)
        assert "transfer-encoding" in response.request.headers


async def test_a_body_in_parts_and_two_requests_at_once(
    tmp_path: Path, framework_calls: Counter[str]
) -> None:
    body = _body(name="slow")
    head = (
        "POST /v1/leases HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode()

    async def answer(reader: asyncio.StreamReader) -> Any:
        found = await reader.readuntil(b"\r\n\r\n")
        assert found.startswith(b"HTTP/1.1 200 "), found
        return json.loads(await reader.readuntil(b"}"))

    async with asyncio.timeout(WAIT_S), door(tmp_path) as here, listening(here.app) as port:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        try:
            writer.write(head + b"{")
            # A response on another connection shows that the server has read this far.
            async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}") as client:
                assert (await client.get("/v1/producers")).status_code == 200
            writer.write(body[1:])
            leases = [await answer(reader)]
            writer.write(head + body + head + body)
            leases += [await answer(reader), await answer(reader)]
        finally:
            writer.close()
    assert framework_calls["lease"] == 0
    assert len({each["pid"] for each in leases}) == 1
    numbers = [each["generation"] for each in leases]
    assert numbers == sorted(set(numbers)), "each grant raises it, in the order of the requests"


async def test_a_server_that_is_not_ready(tmp_path: Path, framework_calls: Counter[str]) -> None:
    async with door(tmp_path) as here:
        here.server.engine.ready = False
        status, _, problem = await _post(here, _body(), JSON)
        assert (status, problem["code"]) == (503, "not_ready")
        assert not framework_calls
