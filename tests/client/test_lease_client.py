"""lease_pid over HTTP: what is asked, what is understood, when a lease ends."""

import asyncio
import json
import ssl
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import certifi
import httpx
import pytest

from pidlease.client import (
    Lease,
    LeaseClient,
    LeaseRefusedError,
    LeaseUnavailableError,
    LeaseWanted,
)
from pidlease.client.lease_client import _trusted
from pidlease.http_api.lease_messages import LeaseRequest
from pidlease.testing.loopback_ports import LOOPBACK
from tests.client.fake_leases import FakeLeases
from tests.servers.authority import Authority

GRANTED = {
    "topic": "t", "partition": 3, "error": "", "status": 200, "pid": 7, "generation": 5,
    "sequence_number": 9, "resume_at": 12, "name": "n", "cluster_id": "a",
}  # fmt: skip


def client(
    answer: Any, status: int = 200, headers: dict[str, str] | None = None
) -> tuple[LeaseClient, list[Any]]:
    asked: list[Any] = []

    def handle(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.path, json.loads(request.content)))
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return httpx.Response(status, content=content, headers=headers)

    return LeaseClient("http://x", transport=httpx.MockTransport(handle)), asked


async def test_what_is_asked() -> None:
    leases, asked = client({**GRANTED, "expire_ms": -1})
    async with leases:
        await leases.lease_pid("t", 3)
        await leases.lease_pid("t", 3, 7)
        lease = await leases.lease_named("t", 3, "n", policy="monotonic", renew=True)
    assert [path for path, _ in asked] == ["/v1/leases"] * 3
    bodies = [body for _, body in asked]
    assert bodies[0] == {"topic": "t", "partition": 3, "pid": -1}
    assert bodies[1]["pid"] == 7
    assert bodies[2] == {**bodies[0], "name": "n", "policy": "monotonic", "renew": True}
    for body in bodies:
        LeaseRequest.model_validate(body)
    assert lease == Lease("t", 3, 7, 5, 9, 12, -1, float("inf"), "n")


async def test_several_at_once() -> None:
    refused = {**GRANTED, "error": "no", "status": 410, "expire_ms": -1}
    full = {**GRANTED, "error": "full", "status": 503, "expire_ms": -1}
    leases, asked = client({"leases": [{**GRANTED, "expire_ms": -1}, refused, full]})
    wanted = [LeaseWanted("t", number) for number in range(3)]
    answers = await leases.lease_pids(wanted)
    assert asked[0][0] == "/v1/leases/batch"
    assert [type(each) for each in answers] == [Lease, LeaseRefusedError, LeaseUnavailableError]
    assert isinstance(answers[1], LeaseRefusedError)
    assert answers[1].status == 410
    for wrong in ([], wanted * 400):
        with pytest.raises(ValueError, match="at once"):
            await leases.lease_pids(wrong)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_not_now(status: int) -> None:
    for text in ("error", "detail"):  # of the previous version, and of this one
        leases, _ = client({text: "not now", "field": None}, status)
        with pytest.raises(LeaseUnavailableError, match="not now"):
            await leases.lease_pid("t", 0)


@pytest.mark.parametrize("status", [400, 404, 409, 410])
async def test_never(status: int) -> None:
    leases, _ = client({"error": "never", "field": "pid"}, status)
    with pytest.raises(LeaseRefusedError, match=f"never.*{status}") as caught:
        await leases.lease_pid("t", 0)
    assert (caught.value.status, caught.value.field) == (status, "pid")
    with pytest.raises(LeaseRefusedError):
        await leases.lease_pids([LeaseWanted("t", 0)] * 2)


@pytest.mark.parametrize(
    "answer", [b"", b"<html>", b"[]", b"{}", b'"x"', b'{"leases": 5}', b'{"leases": [5]}']
)
async def test_an_answer_that_is_none(answer: bytes) -> None:
    leases, _ = client(answer)
    for count in (1, 2):
        with pytest.raises(LeaseUnavailableError):
            await leases.lease_pids([LeaseWanted("t", 0)] * count)


async def test_fewer_answers_than_asked() -> None:
    leases, _ = client({"leases": [{**GRANTED, "expire_ms": 5}]})
    with pytest.raises(LeaseUnavailableError):
        await leases.lease_pids([LeaseWanted("t", 0)] * 2)


async def test_no_server() -> None:
    async with LeaseClient("http://127.0.0.1:1") as leases:
        with pytest.raises(LeaseUnavailableError, match=":1"):
            await leases.lease_pid("t", 0)


@pytest.mark.parametrize("server_off", [0.0, 3600.0, -3600.0])
@pytest.mark.parametrize("says_date", [True, False])
async def test_when_it_ends_by_our_clock(server_off: float, says_date: bool) -> None:
    """A server whose clock is wrong counts by its own; the answer's Date tells it."""
    server_time = time.time() + server_off
    headers = {"Date": formatdate(server_time, usegmt=True)} if says_date else {}
    leases, _ = client({**GRANTED, "expire_ms": int((server_time + 100) * 1000)}, headers=headers)
    before = time.monotonic()
    lease = await leases.lease_pid("t", 3)
    left = lease.ends_at - before
    if says_date:
        assert 95 < left < 110
    else:
        assert abs(left - 100 - server_off) < 10


async def test_against_a_server() -> None:
    async with FakeLeases() as fake, LeaseClient(fake.url) as leases:
        first = await leases.lease_pid("t", 0)
        second = await leases.lease_pid("t", 0)
        assert (first.sequence_number, first.resume_at, first.name) == (0, 0, None)
        assert second.pid != first.pid
        assert (await leases.lease_pid("t", 5, first.pid)).pid == first.pid
        assert (await leases.lease_named("t", 0, "n")).name == "n"


def test_certificates_are_loaded_for_https_only_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a bug: each producer loaded all of them, and blocked the event loop for 10 to 60 ms."""
    loads: list[object] = []
    load = ssl.SSLContext.load_verify_locations

    def counted(self: ssl.SSLContext, *given: Any, **named: Any) -> None:
        loads.append(self)
        load(self, *given, **named)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", counted)
    _trusted.cache_clear()
    for url in ("http://x", "http://y", "HTTP://z"):
        LeaseClient(url)
    assert loads == []
    for url in ("https://x", "https://y", "HTTPS://z"):
        LeaseClient(url)
    assert loads == [_trusted()]


async def test_a_certificate_that_is_not_trusted_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    mine = authority.issue("server", "DNS:localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(mine.certificate, mine.key)
    body = json.dumps({**GRANTED, "expire_ms": -1}).encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, LOOPBACK, 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with server:
        for _ in range(2):
            async with LeaseClient(f"https://localhost:{port}") as leases:
                with pytest.raises(LeaseUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
                    await leases.lease_pid("t", 3)
        with monkeypatch.context() as patch:
            patch.setattr(certifi, "where", lambda: str(authority.root.certificate))
            _trusted.cache_clear()
            async with LeaseClient(f"https://localhost:{port}") as leases:
                assert (await leases.lease_pid("t", 3)).pid == 7
            async with LeaseClient(f"https://{LOOPBACK}:{port}") as leases:
                with pytest.raises(LeaseUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
                    await leases.lease_pid("t", 3)  # the certificate is for another host
        _trusted.cache_clear()
