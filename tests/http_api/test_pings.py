"""Pings over HTTP: what counts as an answer, as a refusal, and as silence."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from pidlease.coordination.members import Member
from pidlease.core.liveness import PeerReport
from pidlease.engine.member_pings import MemberPings
from pidlease.http_api.ping_messages import PING_PATH
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.http import ping_connection
from proxy.http.direct_appends import wrap
from proxy.http.forwarding_headers import FORWARDED
from proxy.http.http_listener import add_http_api
from proxy.http.ping_connection import HttpPings
from proxy.ops.http_metrics import HttpCounts, HttpMetrics

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_REPORT = PeerReport(7, [3], [4], abstains=True)
_BODY = json.dumps({**_REPORT._asdict(), "later": "field"}).encode()


class Outcome:
    """What became of pings."""

    def __init__(self) -> None:
        self.found: asyncio.Queue[PeerReport | str | None] = asyncio.Queue()

    def answered(self, report: PeerReport | None) -> None:
        self.found.put_nowait(report)

    def refused(self) -> None:
        self.found.put_nowait("refused")


class Peer:
    """A member; its address may be served by something else."""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.connections = 0
        self.outcome = Outcome()
        self.writers: list[asyncio.StreamWriter] = []
        self.pings: HttpPings

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            await self.handle(reader, writer)
        finally:
            writer.close()

    async def ping(self, version: int = 5) -> PeerReport | str | None:
        self.pings.ping(version, 7)
        return await self.outcome.found.get()


@asynccontextmanager
async def served(handle: Handle) -> AsyncIterator[tuple[Peer, asyncio.Server]]:
    peer = Peer(handle)
    async with await asyncio.start_server(peer.serve, LOOPBACK, 0) as server:
        port = server.sockets[0].getsockname()[1]
        member = Member(2, "other:1", LOOPBACK, 1, f"http://{LOOPBACK}:{port}")
        peer.pings = HttpPings(member, peer.outcome)
        try:
            yield peer, server
        finally:
            peer.pings.close()
            for each in peer.writers:
                each.transport.abort()


def answering(status: str = "200 OK", body: bytes = _BODY, *, times: int = 1 << 30) -> Handle:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(times):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"GET /v1/servers/ping?to=2&version=5&topics=7 HTTP/1.1\r\n"), (
                head
            )
            assert f"\r\n{FORWARDED}: 1\r\n".encode() in head
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode())
            writer.write(body[:5])
            await asyncio.sleep(0.01)
            writer.write(body[5:])

    return answer


async def test_answers_come_over_one_connection() -> None:
    async with served(answering()) as (peer, _):
        assert [await peer.ping() for _ in range(5)] == [_REPORT] * 5
        assert peer.connections == 1


@pytest.mark.parametrize(("status", "body", "found"), [
    ("405 Method Not Allowed", b"{}", None),  # a version without pings is there
    ("200 OK", b"no JSON", None),
    ("200 OK", b"x" * (65 << 10), None),
    ("503 Service Unavailable", b"starting", "refused"),
    ("421 Misdirected Request", b"another server", "refused"),
])  # fmt: skip
async def test_other_answers(status: str, body: bytes, found: str | None) -> None:
    async with served(answering(status, body)) as (peer, _):
        assert await peer.ping() == found
        assert await peer.ping() == found


async def test_an_address_where_nothing_listens_refuses() -> None:
    async with served(answering()) as (peer, server):
        server.close()
        assert await peer.ping() == "refused"


async def test_the_end_of_a_process_is_noticed_between_two_pings() -> None:
    async with served(answering()) as (peer, server):
        assert await peer.ping() == _REPORT
        server.close()
        peer.writers[0].transport.abort()
        assert await peer.outcome.found.get() == "refused"


async def test_a_closed_connection_is_opened_again() -> None:
    async with served(answering()) as (peer, _):
        assert await peer.ping() == _REPORT
        peer.writers[0].close()
        assert await peer.outcome.found.get() == _REPORT
        assert peer.connections == 2


async def test_a_connection_that_is_lost_with_a_ping_is_tried_once_more() -> None:
    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        peer.handle = answering()
        writer.transport.abort()

    async with served(drop) as (peer, _):
        assert await peer.ping() == _REPORT
        assert peer.connections == 2


async def test_one_that_closes_after_each_answer_is_not_pinged_in_a_loop() -> None:
    async with served(answering(times=1)) as (peer, _):
        assert await peer.ping() == _REPORT
        assert await peer.outcome.found.get() == _REPORT
        await asyncio.sleep(0.2)
        assert peer.outcome.found.empty()
        assert peer.connections == 2
        assert await peer.ping() == _REPORT


async def test_one_that_is_silent_has_no_outcome_and_gets_a_new_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ping_connection, "_SECONDS", 0.1)
    silent, closed = asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        silent.set()
        assert await reader.read() == b""
        closed.set()

    async with served(hang) as (peer, _):
        peer.pings.ping(5, 7)
        await silent.wait()
        for _ in range(3):
            peer.pings.ping(5, 7)  # one is in flight
        await closed.wait()
        assert peer.connections == 1
        assert peer.outcome.found.empty()
        peer.handle = answering()
        assert await peer.ping() == _REPORT


async def test_nothing_comes_after_the_close() -> None:
    async with served(answering()) as (peer, server):
        assert await peer.ping() == _REPORT
        peer.pings.ping(5, 7)
        server.close()
        peer.pings.close()
        await asyncio.sleep(0.2)
        assert peer.outcome.found.empty()


async def test_the_route() -> None:
    pings = MemberPings(2, None, lambda: None)
    pings.follow({}, (), 9)
    cluster = SimpleNamespace(node_id=2, is_member=False, pings=pings)
    engine: Any = SimpleNamespace(shared_cluster=None)
    app = FastAPI()
    add_http_api(app, lambda: engine, lambda: None)
    counts = HttpCounts()
    wrap(app, partial(HttpMetrics, counts=counts))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://pidlease"
    ) as client:

        async def ping(query: str, mark: dict[str, str] | None = None) -> tuple[int, Any]:
            marked = {FORWARDED: "1"} if mark is None else mark
            found = await client.get(f"{PING_PATH}?{query}", headers=marked)
            return found.status_code, found.json()

        assert (await ping("to=2&version=5&topics=3"))[0] == 503, "it shares no cluster"
        engine.shared_cluster = cluster
        assert (await ping("to=2&version=5&topics=3"))[0] == 503, "it is no member yet"
        cluster.is_member = True
        assert await ping("to=2&version=5&topics=3") == (
            200, {"version": 9, "silent": [], "returning": [], "abstains": False, "topics": 3},
        )  # fmt: skip
        assert (await ping("to=3&version=5&topics=3"))[0] == 421
        for query in (
            "",
            "to=2",
            "to=2&version=5",
            "to=2&version=x&topics=3",
            "to=%ff&version=1&topics=3",
        ):
            assert (await ping(query))[0] == 400, query
        assert (await ping("to=2&version=5&topics=3", {}))[0] == 405, "for servers only"
    assert not counts.responses
