"""Small appends in the protocol of their connection: the same responses, in the requests' order."""

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pidlease.engine.append_service import AppendService
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.http import http_protocol
from proxy.http.record_routes import RecordLimits
from tests.client.harness import until
from tests.http_api.appending import (
    JSON,
    Answer,
    Door,
    door,
    listening,
    noted_submits,
    path_of,
    post,
    producer,
)
from tests.http_api.test_direct_appends import REQUESTS
from tests.servers.waiting import WAIT_S

_HANG_S: Final = WAIT_S


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    return noted_submits(monkeypatch)


def _encoded(headers: Mapping[str, str | bytes]) -> dict[bytes, bytes]:
    return {
        name.encode(): value if isinstance(value, bytes) else value.encode()
        for name, value in {**JSON, **headers}.items()
    }


def numbered(name: str, seq: int) -> list[str]:
    return [f"{key}: {value!s}" for key, value in producer(name, 0, seq).items()]


class Connection:
    """A client without a library, which sends what it is given."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> "Connection":
        return cls(*await asyncio.open_connection(LOOPBACK, port))

    async def answer(self) -> tuple[int, Any]:
        async with asyncio.timeout(_HANG_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
            found = re.search(rb"content-length: (\d+)", head)
            assert found is not None, head
            body = await self.reader.readexactly(int(found[1]))
        return int(head.split()[1]), json.loads(body)

    async def answers(self, count: int) -> list[tuple[int, Any]]:
        return [await self.answer() for _ in range(count)]


async def test_the_same_responses_as_by_the_application(
    tmp_path: Path, submitted: list[bool]
) -> None:
    requests = [each for each in REQUESTS if "content-length" not in each[1]]
    given: list[list[Answer]] = [[], []]
    async with door(tmp_path / "application") as here:
        for topic, headers, body in requests:
            given[0].append(await here.append(body, headers, topic=topic))
    assert not submitted
    async with (
        door(tmp_path / "protocol") as here,
        listening(here.app) as port,
        httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}") as client,
    ):
        for topic, headers, body in requests:
            response = await client.post(
                path_of(topic),
                content=json.dumps(body).encode(),
                headers=_encoded(headers),
            )
            assert "date" in response.headers
            given[1].append((response.status_code, response.json()))
    assert given[0] == given[1]
    # What the partition refuses was submitted, what is invalid was not.
    assert submitted == [status in (200, 409) for status, _ in given[1]]


async def test_pipelined_appends_share_the_writes_of_the_log(
    tmp_path: Path, submitted: list[bool]
) -> None:
    """Also more of them than are submitted at once."""
    count = 5 * http_protocol._SUBMITTED_MAX
    async with door(tmp_path) as here, listening(here.app) as port:
        before = here.partition.totals.appends
        client = await Connection.open(port)
        client.writer.write(b"".join(post(b"%d" % n, *numbered("p", n)) for n in range(count)))
        answers = await client.answers(count)
        assert answers == [(200, {"offset": n, "duplicate": False}) for n in range(count)]
        assert submitted == [True] * count
        assert here.partition.totals.appends - before < count / 4
        found = [each.value for each in (await here.records()).records]
        assert found == [b"%d" % n for n in range(count)]


async def test_responses_wait_for_their_turn(tmp_path: Path, submitted: list[bool]) -> None:
    """Those that are known at once, as duplicates are, come behind those that are not."""
    async with door(tmp_path) as here, listening(here.app) as port:
        client = await Connection.open(port)
        client.writer.write(post(b"first", *numbered("p", 0)))
        await client.answer()
        del submitted[:]
        read = f"GET {path_of()} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
        client.writer.write(
            post(b"a", partition=1)
            + post(b"first", *numbered("p", 0))
            + post(b"gap", *numbered("p", 7))
            + read
            + post(b"b", partition=1)
            + post(b"", "producer-id: p")
            + post(b"c", partition=1)
        )
        answers = await client.answers(7)
        assert [status for status, _ in answers] == [200, 200, 409, 200, 200, 400, 200]
        assert answers[1][1]["duplicate"]
        assert answers[2][1]["expected_seq"] == 1
        assert [each["offset"] for _, each in (answers[0], answers[4], answers[6])] == [0, 1, 2]


async def test_an_append_that_overtook_another_of_its_connection(tmp_path: Path) -> None:
    limits = RecordLimits(reorder_ms=int(_HANG_S * 1000))
    async with door(tmp_path, limits=limits) as here, listening(here.app) as port:
        client = await Connection.open(port)
        client.writer.write(b"".join(post(b"%d" % n, *numbered("p", n)) for n in (2, 1, 0)))
        assert [each["offset"] for _, each in await client.answers(3)] == [2, 1, 0]


async def test_one_key_twice_on_a_connection(tmp_path: Path) -> None:
    """The second is not refused for the first, as it would be on another connection."""
    async with door(tmp_path) as here, listening(here.app) as port:
        client = await Connection.open(port)
        client.writer.write(post(b"a", "idempotency-key: k") * 2)
        answers = await client.answers(2)
        assert [(status, each["duplicate"]) for status, each in answers] == [
            (200, False), (200, True),
        ]  # fmt: skip


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the requests that a task serves."""
    found: list[str] = []
    start = HttpToolsProtocol._start_asgi_task

    def noted(self: HttpToolsProtocol, cycle: Any, app: Any) -> None:
        found.append(cycle.scope["path"])
        start(self, cycle, app)

    monkeypatch.setattr(HttpToolsProtocol, "_start_asgi_task", noted)
    return found


async def test_a_client_that_asks_before_its_body(tmp_path: Path, tasks: list[str]) -> None:
    async with door(tmp_path) as here, listening(here.app) as port:
        client = await Connection.open(port)
        head, _, body = post(b"value", "expect: 100-continue").partition(b"\r\n\r\n")
        client.writer.write(head + b"\r\n\r\n")
        async with asyncio.timeout(_HANG_S):
            assert b" 100 " in await client.reader.readuntil(b"\r\n\r\n")
        client.writer.write(body)
        assert await client.answer() == (200, {"offset": 0, "duplicate": False})
        assert tasks == [path_of()]


@pytest.mark.parametrize("waits", [False, True])
async def test_a_body_that_comes_later(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    submitted: list[bool],
    tasks: list[str],
    *,
    waits: bool,
) -> None:
    """The protocol waits for it for a moment, and then a task, with its limit of time."""
    monkeypatch.setattr(http_protocol, "_BODY_SECONDS", 0.001 if waits else _HANG_S)
    async with door(tmp_path) as here, listening(here.app) as port:
        client = await Connection.open(port)
        head, _, body = post(b"value").partition(b"\r\n\r\n")
        client.writer.write(head + b"\r\n\r\n" + body[:2])
        if waits:
            await until(lambda: tasks == [path_of()])
        client.writer.write(body[2:])
        assert await client.answer() == (200, {"offset": 0, "duplicate": False})
        assert (submitted, tasks) == (([], [path_of()]) if waits else ([True], []))


async def test_a_client_that_goes_before_its_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submitted: list[bool]
) -> None:
    """Its records are stored, and its memory is released."""
    async with door(tmp_path) as here, listening(here.app) as port:
        client = await Connection.open(port)
        client.writer.write(b"".join(post(b"%d" % n) for n in range(9)))
        await until(lambda: len(submitted) > 0)
        client.writer.transport.abort()
        await until(lambda: here.partition.next_offset == len(submitted))
        await until(lambda: here.app.state.immediate._records.append_memory.used == 0)
        await _serves_on(port, here)


async def test_an_error_of_the_server_closes_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the batch was stored is not known: nothing else may serve the request."""
    async with door(tmp_path) as here, listening(here.app) as port:
        client = await Connection.open(port)
        errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, found: errors.append(found))
        with monkeypatch.context() as broken:

            def fails(*_: Any, **__: Any) -> None:
                raise RuntimeError("a bug")

            broken.setattr(AppendService, "submit", fails)
            client.writer.write(post(b"a"))
            async with asyncio.timeout(_HANG_S):
                assert await client.reader.read() == b""
        assert errors
        await _serves_on(port, here)


async def _serves_on(port: int, here: Door) -> None:
    client = await Connection.open(port)
    expected = here.partition.next_offset
    client.writer.write(post(b"fine"))
    assert await client.answer() == (200, {"offset": expected, "duplicate": False})
