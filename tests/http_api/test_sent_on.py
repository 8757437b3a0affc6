"""A request that another active server serves arrives there with all that makes it exact."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from pidlease.coordination.members import Member
from pidlease.core.byte_budget import ByteBudget
from pidlease.core.lease import LeaseWanted
from pidlease.core.topic_partition import TopicPartition
from pidlease.engine.member_pings import MemberPings
from pidlease.engine.named_leases import NameBusyError
from pidlease.http_api.record_messages import WAIT_MS_MAX
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.http import owner_requests
from proxy.http.current_caller import CALLER, HttpCaller
from proxy.http.forwarding_headers import CLIENT, FORWARDED, client_of
from proxy.http.owner_requests import OwnerRequests
from proxy.http.request_batch import _NAMES
from proxy.security.authorizer import Caller
from tests.http_api.appending import path_of
from tests.http_api.serving import http
from tests.servers.waiting import WAIT_S

_RECORDS = path_of()
_OWNER = Member(2, "other:1", LOOPBACK, 1, "http://other:1", joined=2)


def owned_elsewhere(
    serve: Callable[[httpx.Request], Any], pings: MemberPings | None = None
) -> OwnerRequests:
    """A server of a cluster in which another one, `_OWNER`, owns all partitions.

    Parameters:
        serve: responds for the other one.
    """
    shared = SimpleNamespace(
        node_id=1, owner_of=lambda _: _OWNER, view=SimpleNamespace(members={2: _OWNER}),
        pings=pings or MemberPings(1, None, lambda: None),
    )  # fmt: skip
    engine = cast("Any", SimpleNamespace(shared_cluster=shared))
    return OwnerRequests(lambda: engine, transport=httpx.MockTransport(serve))


def request_of(
    method: str, path: str = _RECORDS, headers: Iterable[tuple[bytes, bytes]] = ()
) -> Request:
    return Request({
        "type": "http", "method": method, "path": path, "query_string": b"", "scheme": "http",
        "server": ("here", 1), "headers": [*headers],
    })  # fmt: skip


async def test_no_header_of_an_append_is_left_out() -> None:
    got: list[httpx.Request] = []

    def serve(request: httpx.Request) -> httpx.Response:
        got.append(request)
        return httpx.Response(200, json={"offset": 0, "duplicate": False})

    owners = owned_elsewhere(serve)
    given = dict.fromkeys(_NAMES, b"7")
    request = request_of("POST", headers=given.items())
    response = await owners.send_on(
        request, TopicPartition("t", 0), b"content", ByteBudget(1 << 20)
    )
    await owners.close()
    assert response.status_code == 200
    assert got[0].content == b"content"
    assert got[0].headers[FORWARDED] == "1"
    assert CLIENT not in got[0].headers
    assert {got[0].headers[name.decode()] for name in given} == {"7"}


async def test_the_client_is_named_where_its_rights_count() -> None:
    """Not in a question where a PID continues: its right to the lease was checked before."""
    got: list[httpx.Request] = []

    def serve(request: httpx.Request) -> httpx.Response:
        got.append(request)
        return httpx.Response(503)

    owners = owned_elsewhere(serve)
    request = request_of("PATCH", "/v1/servers/2", [(b"authorization", b"Basic secret")])
    client = Caller("User:alice", "10.0.0.7")
    token = CALLER.set(HttpCaller(client, None, lambda _: None, lambda *_: None))
    try:
        await owners.send_on(request, TopicPartition("t", 0), b"", ByteBudget(1 << 20))
        await owners.change(request, _OWNER, {"draining": True})
        with pytest.raises(NameBusyError):
            await owners.ask(LeaseWanted("t", 0, pid=7))
    finally:
        CALLER.reset(token)
    await owners.close()
    assert [each.headers[FORWARDED] for each in got] == ["1"] * 3
    named = [each.headers.get(CLIENT) for each in got]
    assert named[2] is None
    assert [client_of((each or "").encode()) for each in named[:2]] == [client] * 2
    assert all("authorization" not in each.headers for each in got)


async def test_an_owner_that_hangs_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_requests, "_CONNECTIONS_MAX", 2)
    held: list[asyncio.StreamWriter] = []

    full = asyncio.Event()

    def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)
        if len(held) == 2:
            full.set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    async with AsyncExitStack() as stack:
        members = {}
        for node_id, handle in ((2, hang), (3, serve)):
            server = await asyncio.start_server(handle, LOOPBACK, 0)
            await stack.enter_async_context(server)
            port = server.sockets[0].getsockname()[1]
            members[node_id] = SimpleNamespace(
                node_id=node_id, server=f"{node_id}", http_url=f"http://{LOOPBACK}:{port}"
            )
        shared = SimpleNamespace(
            node_id=1, owner_of=lambda place: members[place.partition],
            view=SimpleNamespace(members=members), pings=MemberPings(1, None, lambda: None),
        )  # fmt: skip
        engine = cast("Any", SimpleNamespace(shared_cluster=shared))
        owners = OwnerRequests(lambda: engine)

        def send(number: int) -> "asyncio.Task[Response]":
            place, budget = TopicPartition("t", number), ByteBudget(1 << 20)
            return asyncio.create_task(owners.send_on(request_of("GET", "/"), place, b"", budget))

        hanging = [send(2) for _ in range(3)]
        await full.wait()
        assert (await send(3)).body == b"ok"
        assert not any(each.done() for each in hanging)

        for each in hanging:
            each.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        await owners.close()
        for writer in held:
            writer.close()


async def test_a_request_to_an_owner_that_does_not_answer_pings_ends_at_once() -> None:
    """Those in flight end when it becomes silent; later ones are not sent."""
    arrived: asyncio.Queue[str] = asyncio.Queue()

    async def hang(request: httpx.Request) -> httpx.Response:
        arrived.put_nowait(request.url.path)
        await asyncio.Event().wait()
        raise AssertionError

    pings = MemberPings(1, None, lambda: None)
    pings.follow({2: _OWNER}, (1, 2), 0)
    owners = owned_elsewhere(hang, pings)
    request = request_of("GET")
    send = partial(owners.send_on, request, TopicPartition("t", 0), b"", ByteBudget(1 << 20))
    ask = partial(owners.ask, LeaseWanted("t", 0, pid=7))

    sent, asked = asyncio.create_task(send()), asyncio.create_task(ask())
    assert {await arrived.get(), await arrived.get()} == {_RECORDS, "/v1/leases"}
    pings.note_refusal(2)
    answer = await sent
    assert answer.status_code == 503
    assert b"whether it has done this is unknown" in answer.body
    with pytest.raises(NameBusyError, match="does not answer pings any more"):
        await asked

    answer = await send()
    assert (answer.status_code, b"does not answer; try again" in answer.body) == (503, True)
    with pytest.raises(NameBusyError, match="does not answer; try again"):
        await ask()
    assert arrived.empty()
    await owners.close()


async def test_reads_that_wait_hold_up_no_append() -> None:
    """Once 200 of them used up the connections, and one of the longest wait got an error."""
    free = asyncio.Event()
    waiting: list[float] = []

    async def serve(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            waiting.append(request.extensions["timeout"]["read"])
            await free.wait()
        return httpx.Response(200, json={})

    def sent(owners: OwnerRequests, method: str) -> asyncio.Task[Response]:
        place, budget = TopicPartition("t", 0), ByteBudget(1 << 20)
        return asyncio.create_task(owners.send_on(request_of(method), place, b"", budget))

    owners = owned_elsewhere(serve)
    reads = [sent(owners, "GET") for _ in range(3)]
    assert (await sent(owners, "POST")).status_code == 200
    pools = {waits: client for (_, waits), client in owners._clients.items()}
    assert pools[True] is not pools[False]
    free.set()
    assert [(await each).status_code for each in reads] == [200] * 3
    assert min(waiting) > WAIT_MS_MAX / 1000
    await owners.close()


async def test_an_append_whose_partition_turns_out_to_be_another_servers(tmp_path: Path) -> None:
    """It is sent on then, too; here nothing knows the owner, which is another error than 421."""
    headers = {"content-type": "application/octet-stream"}
    async with http(tmp_path) as here:
        await here.server.topics.create("t", 1, {})
        partition = here.server.engine.partition("t", 0)
        assert partition is not None

        async def body() -> AsyncIterator[bytes]:
            yield b"t"
            partition.leave_to("server 2 owns it")
            yield b"ea"

        meanwhile = await here.client.post(_RECORDS, content=body(), headers=headers)
        before = await here.client.post(_RECORDS, content=b"tea", headers=headers)
        for each in (meanwhile, before):
            assert (each.status_code, each.json()["code"]) == (503, "append_failed")
            assert "is being taken over" in each.json()["error"]


async def test_a_read_that_waits_ends_when_its_partition_moves(tmp_path: Path) -> None:
    """Once it waited on at the former owner, where no record came any more."""
    async with http(tmp_path) as here:
        await here.server.topics.create("t", 1, {})
        partition = here.server.engine.partition("t", 0)
        assert partition is not None
        query = {"offset": 0, "wait_ms": WAIT_MS_MAX}
        waits = asyncio.create_task(here.client.get(_RECORDS, params=query))
        async with asyncio.timeout(WAIT_S):
            while not partition._watchers:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.001)
            partition.leave_to("server 2 owns it")
            page = await waits
        assert (page.status_code, page.json()["records"]) == (200, [])
