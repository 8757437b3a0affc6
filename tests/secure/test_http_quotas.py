"""Quotas on the HTTP listener, alone and together with the Kafka listener."""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from proxy.http.access.request_meter import RequestMeter
from proxy.http.access.route_rights import Traffic
from proxy.http.current_caller import QuotaExceededError
from proxy.security.quota_rules import FETCHED_BYTES, PRODUCED_BYTES, REQUESTS, Entity, Quota
from proxy.security.quotas import Quotas
from proxy.security.security_config import ListenerSecurity, SecurityConfig
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import fetched
from tests.kafka_listener.messages import FETCH
from tests.secure.secured import LOGIN
from tests.secure.test_http_access import _LOGIN, Api, _api

_CONFIG: Final = replace(_LOGIN, kafka=LOGIN, quota_window_num=2, quota_window_seconds=0.1)
_RATE: Final = 100_000
_RECORDS: Final = "/v1/topics/t/partitions/0/records"
_TEXT: Final = {"Content-Type": "text/plain"}


@asynccontextmanager
async def _limited(
    folder: Path, user: str | None, config: SecurityConfig = _CONFIG, **limits: float
) -> AsyncIterator[Api]:
    """An application with a topic and a stream, and quotas of a user."""
    async with _api(folder, config) as api:
        async with api.client("root") as root:
            assert (await root.post("/v1/topics", json={"name": "t"})).status_code == 201
            made = await root.put("/v1/stream/s", headers=_TEXT, content=b"x")
            assert made.status_code == 201
        await _set(api, user, **limits)
        yield api


async def _set(api: Api, user: str | None, **limits: float) -> None:
    quota = Quota(Entity(user), tuple(sorted(limits.items())))
    await api.running.security.change_quotas(lambda _: [quota])


def _sized(size: int) -> dict[str, Any]:
    return {"records": [{"value": "x" * size}]}


def _is_refused(response: httpx.Response, quota: str) -> None:
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["code"] == "quota_exceeded"
    assert quota in response.json()["detail"]


async def test_appends_beyond_the_quota_are_refused(tmp_path: Path) -> None:
    """With Retry-After; all ways to append count together, and other requests go on."""
    async with (
        _limited(tmp_path, "alice", producer_byte_rate=_RATE) as api,
        api.client("alice") as alice, api.client("bob") as bob,
    ):  # fmt: skip
        assert (await alice.post(_RECORDS, json=_sized(19_000))).status_code == 200
        other = {"Origin": "https://web.test"}
        ways: list[Callable[[], Awaitable[httpx.Response]]] = [
            partial(alice.post, _RECORDS, json=_sized(1)),
            partial(alice.post, "/v1/topics/t/records", json=_sized(1)),
            partial(alice.post, "/v1/stream/s", headers=_TEXT, content=b"y"),
            partial(alice.put, "/v1/stream/other", headers=_TEXT, content=b"y"),
            partial(alice.post, _RECORDS, json=_sized(1), headers=other),
        ]
        for send in ways:
            await _owe(api, 500_000)
            _is_refused(await send(), PRODUCED_BYTES)
        assert (await alice.get(_RECORDS)).status_code == 200
        assert (await bob.post(_RECORDS, json=_sized(19_000))).status_code == 200
        await _set(api, "alice", producer_byte_rate=1e9)
        await _until_full(api)
        assert (await alice.post(_RECORDS, json=_sized(1))).status_code == 200
        throttles = api.running.security.quotas.throttles
        assert throttles == {(PRODUCED_BYTES, "http"): 5}


async def _owe(api: Api, size: int) -> None:
    """Let alice owe so many bytes."""
    buckets = api.running.security.quotas.buckets("alice", "")
    assert buckets is not None
    assert buckets.produced is not None
    now = time.monotonic()
    buckets.produced.take(buckets.produced.size + size, now)


async def _until_full(api: Api) -> None:
    buckets = api.running.security.quotas.buckets("alice", "")
    assert buckets is not None
    assert buckets.produced is not None
    await asyncio.sleep(buckets.produced.debt_seconds(time.monotonic()) + 0.15)
    assert buckets.produced.is_full(time.monotonic())


async def test_appends_at_once_are_bounded(tmp_path: Path) -> None:
    """Each began without a debt: what is received counts at once, before it is appended."""
    async with (
        _limited(tmp_path, "alice", producer_byte_rate=20_000) as api, api.client("alice") as alice,
    ):  # fmt: skip
        responses = await asyncio.gather(
            *(alice.post(_RECORDS, json=_sized(1_800)) for _ in range(60))
        )
        stored = [each for each in responses if each.status_code == 200]
        assert 1 <= len(stored) < 60
        for each in responses:
            if each.status_code != 200:
                _is_refused(each, PRODUCED_BYTES)
        partition = api.running.server.engine.partition("t", 0)
        assert partition is not None
        assert partition.readable_end == len(stored)


def _meters(count: int, traffic: Traffic, key: str) -> list[RequestMeter]:
    """Requests of one client that have begun together, while it owed nothing."""
    quotas = Quotas(10.0, 1.0)
    quotas.replace({Entity("alice"): {key: 1000.0}})
    found = [RequestMeter(quotas, "alice", traffic) for _ in range(count)]
    for each in found:
        each.begin()
    return found


async def test_appends_that_began_together_are_bounded() -> None:
    """By a window's debt: 10,000 bytes from an idle start, and 10,000 owed."""
    stored = 0
    for each in _meters(20, "produced", PRODUCED_BYTES):
        receive = each.receive(_chunk)
        try:
            await receive()
        except QuotaExceededError:
            continue
        stored += 1
    assert stored == 5


async def _chunk() -> Any:
    return {"type": "http.request", "body": b"x" * 4000, "more_body": False}


async def test_reads_that_began_together_are_bounded() -> None:
    """The response that finds a debt is replaced as a whole, by the refusal."""
    sent: list[list[Any]] = []
    for each in _meters(20, "fetched", FETCHED_BYTES):
        messages: list[Any] = []
        sent.append(messages)

        async def send(message: Any, to: list[Any] = messages) -> None:
            to.append(message)

        counted = each.send({"type": "http"}, _chunk, send, lambda: None)
        await counted({"type": "http.response.start", "status": 200, "headers": []})
        for more in (True, False):
            await counted({"type": "http.response.body", "body": b"x" * 4000, "more_body": more})
    statuses = [messages[0]["status"] for messages in sent]
    assert statuses == [200, 200] + 18 * [429]
    assert all(len(messages) == 2 for messages in sent[2:])
    assert b"x" * 4000 not in b"".join(each["body"] for each in sent[-1][1:])


async def test_an_event_waits_until_what_is_owed_is_paid() -> None:
    """And a client that loses its right while it waits gets nothing more."""
    quotas = Quotas(0.1, 1.0)
    quotas.replace({Entity("alice"): {FETCHED_BYTES: 100_000.0}})
    meter = RequestMeter(quotas, "alice", "fetched")
    sent: list[float] = []
    revoked = False

    async def send(_: Any) -> None:
        sent.append(time.monotonic())

    def check() -> None:
        if revoked:
            raise PermissionError

    counted = meter.send({"type": "http"}, _chunk, send, check)
    kind = (b"content-type", b"text/event-stream")
    await counted({"type": "http.response.start", "status": 200, "headers": [kind]})
    event = {"type": "http.response.body", "body": b"x" * 60_000, "more_body": True}
    await counted(event)
    await counted(event)
    assert sent[2] - sent[1] >= 0.45
    revoked = True
    with pytest.raises(PermissionError):
        await counted(event)
    assert len(sent) == 3


async def test_a_compressed_body_counts_as_what_is_stored(tmp_path: Path) -> None:
    slow = replace(_CONFIG, quota_window_seconds=10.0)
    async with (
        _limited(tmp_path, None, slow, producer_byte_rate=1000) as api,
        api.client("alice") as alice, api.client("bob") as bob,
    ):  # fmt: skip
        content = gzip.compress(json.dumps(_sized(18_000)).encode())
        assert len(content) < 200
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        response = await alice.post(_RECORDS, headers=headers, content=content)
        assert response.status_code == 200
        _is_refused(await alice.post(_RECORDS, headers=headers, content=content), PRODUCED_BYTES)
        content = gzip.compress(json.dumps(_sized(500_000)).encode())
        _is_refused(await bob.post(_RECORDS, headers=headers, content=content), PRODUCED_BYTES)


async def test_both_listeners_share_a_quota(tmp_path: Path) -> None:
    """What one client uses by HTTP it cannot use by Kafka's protocol, and the other way round."""
    slow = replace(_CONFIG, quota_window_seconds=10.0)
    async with (
        _limited(tmp_path, "alice", slow, producer_byte_rate=1000) as api,
        api.client("alice") as http, await api.running.login("alice") as kafka,
    ):  # fmt: skip
        assert (await kafka.produce("t", batch([b"x" * 15_000]))).code == 0  # it owes 5 s
        _is_refused(await http.post(_RECORDS, json=_sized(1)), PRODUCED_BYTES)
        await _set(api, "alice", consumer_byte_rate=1000, request_rate=1000.0)
        kafka.client_id = "another"
        body = await kafka.call(FETCH, 11, **fetched([("t", 0, 0)]))
        assert body.throttle_time.total_seconds() > 3
        _is_refused(await http.get(f"{_RECORDS}?offset=0"), FETCHED_BYTES)
        _is_refused(await http.get("/v1/stream/s?offset=-1"), FETCHED_BYTES)
    other = tmp_path / "other"
    other.mkdir()
    async with (
        _limited(other, "alice", producer_byte_rate=_RATE, consumer_byte_rate=_RATE,
                 request_rate=1000.0) as api,
        api.client("alice") as http, await api.running.login("alice") as kafka,
    ):  # fmt: skip
        assert (await kafka.produce("t", batch([b"x" * 300_000]))).code == 0
        _is_refused(await http.post(_RECORDS, json=_sized(1)), PRODUCED_BYTES)
        response = await http.get(f"{_RECORDS}?offset=0")
        assert response.status_code == 200
        assert len(response.content) > 300_000
        _is_refused(await http.get(f"{_RECORDS}?offset=0"), FETCHED_BYTES)
        await _until_full(api)
        kafka.client_id = "another"
        body = await kafka.call(FETCH, 11, **fetched([("t", 0, 0)]))
        assert not body.responses or body.throttle_time.total_seconds() > 0
        await _set(api, "alice", producer_byte_rate=_RATE)
        response = await http.post(_RECORDS, json=_sized(19_000))
        assert response.status_code == 200
        kafka.send_produce("t", batch([b"x"]))
        assert (await kafka.receive()).throttle_time.total_seconds() > 0


async def test_reads_beyond_the_quota_are_refused(tmp_path: Path) -> None:
    async with (
        _limited(tmp_path, "alice", consumer_byte_rate=_RATE) as api,
        api.client("alice") as alice, api.client("bob") as bob,
    ):  # fmt: skip
        for _ in range(5):
            assert (await bob.post(_RECORDS, json=_sized(100_000))).status_code == 200
        responses = await asyncio.gather(*(alice.get(f"{_RECORDS}?offset=0") for _ in range(10)))
        read = [each for each in responses if each.status_code == 200]
        assert len(read) == 1
        for each in responses:
            if each.status_code != 200:
                _is_refused(each, FETCHED_BYTES)
        _is_refused(await alice.get("/v1/stream/s?offset=-1"), FETCHED_BYTES)
        assert (await alice.get("/v1/topics/t")).status_code == 200
        assert (await bob.get(f"{_RECORDS}?offset=0")).status_code == 200


async def test_requests_a_second(tmp_path: Path) -> None:
    """Of all routes but those for everyone. A request without a login counts for no user."""
    async with (
        _limited(tmp_path, None, request_rate=20.0) as api,
        api.client("alice") as alice, api.client() as nobody,
    ):  # fmt: skip
        for _ in range(30):
            assert (await nobody.get("/v1/topics")).status_code == 401
        assert (await alice.get("/v1/topics")).status_code == 200
        responses = await asyncio.gather(*(alice.get("/v1/topics") for _ in range(100)))
        refused = [each for each in responses if each.status_code != 200]
        assert 0 < len(refused) < 100
        for each in refused:
            _is_refused(each, REQUESTS)
        assert (await alice.get("/readyz")).status_code == 200
        await asyncio.sleep(0.3)
        assert (await alice.get("/v1/topics")).status_code == 200


async def test_an_anonymous_client_has_the_quota_of_the_default(tmp_path: Path) -> None:
    """Of a listener without logins, beside one with."""
    config = replace(_CONFIG, http=ListenerSecurity())
    async with _api(tmp_path, config) as api, api.client() as client:
        assert (await client.post("/v1/topics", json={"name": "t"})).status_code == 201
        await _set(api, None, producer_byte_rate=_RATE)
        assert (await client.post(_RECORDS, json=_sized(19_000))).status_code == 200
        forged = {"X-Forwarded-For": "10.0.0.1", "X-Forwarded-User": "root"}
        _is_refused(await client.post(_RECORDS, json=_sized(1), headers=forged), PRODUCED_BYTES)


async def test_events_wait(tmp_path: Path) -> None:
    """A stream of events goes on slowly, and not beyond the quota."""
    async with (
        _limited(tmp_path, "alice", consumer_byte_rate=_RATE) as api, api.client("root") as root,
    ):  # fmt: skip
        for _ in range(6):
            await root.post("/v1/stream/s", headers=_TEXT, content=b"z" * 9_000)
        seen: list[tuple[float, int]] = []
        began = time.monotonic()
        messages = asyncio.Event()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                seen.append((time.monotonic() - began, len(message["body"])))
                if sum(size for _, size in seen) > 50_000:
                    messages.set()
            await asyncio.sleep(0)

        async def receive() -> Any:
            await messages.wait()
            return {"type": "http.disconnect"}

        login = httpx.BasicAuth("alice", "alice-secret")
        request = next(login.auth_flow(httpx.Request("GET", "https://pidlease/")))
        scope = {
            "type": "http", "method": "GET", "path": "/v1/stream/s", "raw_path": b"/v1/stream/s",
            "query_string": b"offset=-1&live=sse", "client": ("127.0.0.1", 1), "state": {},
            "headers": [(b"authorization", request.headers["authorization"].encode())],
            "scheme": "https", "server": ("pidlease", 443), "http_version": "1.1", "root_path": "",
        }  # fmt: skip
        serving = asyncio.create_task(api.app(scope, receive, send))
        async with asyncio.timeout(60):
            await messages.wait()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        total = 0
        largest = max(size for _, size in seen)
        for at, size in seen:
            total += size
            assert total <= _RATE * (at + 0.1) + largest
