"""Appends of clients that log in: served in the protocol, as the application serves them."""

import base64
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from fastapi import FastAPI

from pidlease.engine.append_outcome import Done
from pidlease.engine.append_service import AppendService
from pidlease.storage.topics.topic_store import Topic
from proxy.http.access.http_access import HttpAccess
from proxy.http.access.request_access import RequestAccess
from proxy.http.access.route_rights import RouteRights
from proxy.http.direct_appends import wrap
from proxy.http.http_listener import add_http_api
from proxy.http.immediate_appends import ImmediateAppends
from proxy.ops.http_metrics import HttpCounts, HttpMetrics
from proxy.security.acls import Operation, ResourceKind
from proxy.security.quota_rules import Entity, Quota
from proxy.security.security_config import ListenerSecurity, SecurityConfig
from tests.client.harness import until
from tests.http_api.appending import listening, post
from tests.http_api.test_immediate_appends import Connection, numbered
from tests.secure.secured import Secured, allow, secured
from tests.secure.test_tokens import _CONFIG, _Keys
from tests.secure.tokens import Issuer

_CONFIGURED: Final = SecurityConfig(
    http=ListenerSecurity(tls=True, login=True), acls=True, tokens=_CONFIG
)
_ACLS: Final = [allow("alice", Operation.WRITE, ResourceKind.TOPIC, each) for each in ("t", "s")]
_DATE: Final = re.compile(rb"date: [^\r]*\r\n")


class _Way(NamedTuple):
    """A secured listener, and how it served the appends of the test so far."""

    running: Secured
    port: int
    counts: HttpCounts
    submitted: list[bool]


@asynccontextmanager
async def _way(
    folder: Path, *, immediate: bool, config: SecurityConfig = _CONFIGURED
) -> AsyncIterator[_Way]:
    """A listener that serves appends in its protocol, or one that leaves all to the application."""
    async with secured(folder, config, _ACLS) as running:
        server, app = running.server, FastAPI()
        server.engine.ready = True
        api = add_http_api(app, lambda: server.engine, lambda: server.topics)
        rights, counts = RouteRights("/v1/stream"), HttpCounts()
        wrap(app, partial(HttpAccess, security=running.security, rights=rights, login=True))
        wrap(app, partial(HttpMetrics, counts=counts))
        submitted: list[bool] = []
        if immediate:
            access = RequestAccess(running.security, rights, login=True)
            appends = ImmediateAppends(api, counts.answered, access.admit_now)
            submit = appends.submit

            def noted(*given: Any) -> bool:
                submitted.append(submit(*given))
                return submitted[-1]

            app.state.immediate = appends
            appends.submit = noted  # type: ignore[method-assign, assignment]
        await server.engine.create_topic(Topic.new("t", 1))
        async with listening(app) as port:
            yield _Way(running, port, counts, submitted)


def _basic(user: str, password: str = "") -> str:
    given = f"{user}:{password or f'{user}-secret'}"
    return f"Authorization: Basic {base64.b64encode(given.encode()).decode()}"


def _to_stream(method: str, *headers: str) -> bytes:
    lines = [f"{method} /v1/stream/s HTTP/1.1", "Host: x", "Content-Type: text/plain"]
    return "\r\n".join((*lines, "Content-Length: 5", *headers, "", "value")).encode()


async def _response(client: Connection) -> bytes:
    """A response, without its date."""
    head = await client.reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head)
    body = await client.reader.readexactly(int(found[1])) if found else b""
    return _DATE.sub(b"", head) + body


async def test_the_same_by_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = Issuer()
    bearer = f"Authorization: Bearer {issuer.token()}"
    invalid = f"Authorization: Bearer {issuer.token(aud='x')}"
    alice, number = _basic("alice"), partial(numbered, "p")
    requests = [
        (post(b"none"), 401, False),
        (post(b"wrong", _basic("alice", "guess")), 401, False),
        (post(b"first", alice), 200, False),  # its password is hashed in a thread
        (post(b"second", alice), 200, True),
        (post(b"0", alice, *number(0)), 200, True),
        (post(b"0", alice, *number(0)), 200, True),
        (post(b"9", alice, *number(9)), 409, True),
        (post(b"1", alice, "producer-id: p"), 400, False),
        (post(b"wrong again", _basic("alice", "guess")), 401, False),
        (post(b"twice", alice, alice), 401, False),
        (post(b"scheme", "Authorization: Digest x"), 401, False),
        (post(b"base64", "Authorization: Basic !!"), 401, False),
        (post(b"no right", _basic("bob")), 403, False),
        (post(b"no right again", _basic("bob")), 403, False),
        (post(b"super user", _basic("root")), 200, False),
        (post(b"super user again", _basic("root")), 200, True),
        (post(b"token", bearer), 200, False),  # the issuer's keys are read
        (post(b"token again", bearer), 200, True),
        (post(b"another audience", invalid), 401, False),
        (post(b"no token", "Authorization: Bearer x"), 401, False),
        (post(b"a page", alice, "Origin: https://x"), 200, None),
        (post(b"nowhere", alice, partition=7), 404, False),
        (post(b"key", alice, "Idempotency-Key: k"), 200, True),
        (post(b"key", alice, "Idempotency-Key: k"), 200, True),
        (_to_stream("PUT", _basic("root")), 201, None),
        (_to_stream("POST", alice), 204, True),
        (_to_stream("POST", _basic("bob")), 403, False),
        (_to_stream("POST"), 401, False),
    ]
    found: list[Any] = []
    for immediate in (True, False):
        async with _way(tmp_path / str(immediate), immediate=immediate) as way:
            assert way.running.security.tokens is not None
            monkeypatch.setattr(way.running.security.tokens, "_fetch", _Keys(issuer).fetch)
            client = await Connection.open(way.port)
            responses = []
            for request, status, _ in requests:
                client.writer.write(request)
                responses.append(await _response(client))
                assert int(responses[-1].split()[1]) == status, request
            partition = way.running.server.engine.partition("t", 0)
            assert partition is not None
            audit = [{**each, "time": None} for each in way.running.audit()]
            found.append((responses, partition.next_offset, audit, way.counts.responses))
            tried = [each for _, _, each in requests if each is not None]
            assert way.submitted == (tried if immediate else [])
    assert found[0] == found[1]
    assert {each["outcome"] for each in found[0][2]} >= {"wrong user or password", "denied"}


@pytest.mark.parametrize("immediate", [True, False])
async def test_quotas_count_the_same(tmp_path: Path, immediate: bool) -> None:
    """A token is a byte, and one comes back each second; so what is used shows what was counted."""
    config = replace(_CONFIGURED, quota_window_num=2, quota_window_seconds=40_000.0)
    alice, value = _basic("alice"), b"x" * 7000
    async with _way(tmp_path, immediate=immediate, config=config) as way:
        quotas = way.running.security.quotas
        client = await Connection.open(way.port)
        client.writer.write(post(b"the first login", alice))
        assert b" 200 " in await _response(client)
        limits = (("producer_byte_rate", 1.0), ("request_rate", 1.0))
        await way.running.security.change_quotas(lambda _: [Quota(Entity("alice"), limits)])
        began = time.monotonic()
        buckets = quotas.buckets("alice", "")
        assert buckets is not None
        assert buckets.produced is not None
        assert buckets.requests is not None
        partition = way.running.server.engine.partition("t", 0)
        assert partition is not None
        stored, sent = partition.counts.bytes, 0
        while buckets.produced.debt_seconds(time.monotonic()) == 0 and sent < 10:
            client.writer.write(post(value, alice))
            assert b" 200 " in await _response(client)
            sent += 1
        # It owes: the next one is refused, and counts as a throttle.
        client.writer.write(post(value, alice))
        refused = await _response(client)
        assert b" 429 " in refused
        assert json.loads(refused.partition(b"\r\n\r\n")[2])["code"] == "quota_exceeded"
        assert partition.next_offset == sent + 1
        assert quotas.throttles == {("producer_byte_rate", "http"): 1}
        now = time.monotonic()
        used = {
            "bytes": buckets.produced.debt_seconds(now) + 40_000,
            "requests": 40_000 + buckets.requests._paid_at - now,
        }
        passed = time.monotonic() - began
        assert -0.01 <= partition.counts.bytes - stored - used["bytes"] <= passed
        assert -0.01 <= sent - used["requests"] <= passed
        assert way.submitted == ([False, *[True] * sent, False] if immediate else [])


@pytest.mark.parametrize("immediate", [True, False])
async def test_an_append_that_would_owe_too_much(tmp_path: Path, immediate: bool) -> None:
    config = replace(_CONFIGURED, quota_window_num=2, quota_window_seconds=1_000.0)
    alice = _basic("alice")
    async with _way(tmp_path, immediate=immediate, config=config) as way:
        client = await Connection.open(way.port)
        client.writer.write(post(b"the first login", alice))
        assert b" 200 " in await _response(client)
        limits = (("producer_byte_rate", 1.0),)
        await way.running.security.change_quotas(lambda _: [Quota(Entity("alice"), limits)])
        client.writer.write(post(b"x" * 7000, alice))
        assert b" 429 " in await _response(client)
        partition = way.running.server.engine.partition("t", 0)
        assert partition is not None
        assert partition.next_offset == 1
        assert way.submitted == [False] * (2 * immediate)


@contextmanager
def _held(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Keep the outcomes of appends back."""
    kept: list[Any] = []
    submit = AppendService.submit

    def held(self: AppendService, one: Any, two: Any, three: Any, done: Done, **more: Any) -> None:
        submit(self, one, two, three, lambda outcome: kept.append(partial(done, outcome)), **more)

    with monkeypatch.context() as patched:
        patched.setattr(AppendService, "submit", held)
        yield kept


@pytest.mark.parametrize("lost", ["right", "user"])
async def test_a_client_that_loses_its_right_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """It learns nothing about its append, and its connection ends."""
    found = []
    for immediate in (True, False):
        async with _way(tmp_path / str(immediate), immediate=immediate) as way:
            client = await Connection.open(way.port)
            client.writer.write(post(b"first", _basic("alice")))
            assert b" 200 " in await _response(client)
            with _held(monkeypatch) as kept:
                client.writer.write(post(b"second", _basic("alice")))
                await until(lambda: kept)
                if lost == "right":
                    await way.running.set_acls()
                else:
                    way.running.security.credentials = {
                        key: each
                        for key, each in way.running.security.credentials.items()
                        if key[0] != "alice"
                    }
                kept[0]()
                response = await _response(client)
            assert await client.reader.read() == b""
            assert way.submitted == ([False, True] if immediate else [])
            audit = [{**each, "time": None} for each in way.running.audit()]
            assert audit[-1]["outcome"] == "revoked"
            path = "POST /v1/topics/{topic}/partitions/{partition}/records"
            assert way.counts.responses[path, 500] == 1
            found.append((response, audit))
    assert found[0] == found[1]
