"""Servers are drained, and their slots divided anew, by requests to any of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi import FastAPI

from pidlease.coordination.members import Member
from pidlease.core.slots import SLOTS, slot_of
from pidlease.engine.shared_cluster import SharedCluster
from pidlease.http_api.problems import Problem
from proxy.http.forwarding_headers import FORWARDED
from proxy.http.http_listener import add_http_api
from proxy.http.owner_requests import OwnerRequests
from tests.http_api.openapi_check import openapi_hooks
from tests.sim.pool import SeededPool
from tests.unit.engine.shared_memory import Coordinator, Link

_REBALANCE = "/v1/servers/rebalance"
_DRAIN, _UNDRAIN = {"draining": True}, {"draining": False}


class Here(NamedTuple):
    """One of the servers."""

    link: Link
    cluster: SharedCluster
    client: httpx.AsyncClient


@asynccontextmanager
async def servers(
    shared: Coordinator, monkeypatch: pytest.MonkeyPatch, count: int
) -> AsyncIterator[list[Here]]:
    """Servers with node ids from 1 on; each reaches the others' applications."""
    apps: dict[str, FastAPI] = {}
    found = []

    class Reaching(OwnerRequests):
        def __init__(self, engine: Any, tls: Any) -> None:
            async def pass_on(request: httpx.Request) -> httpx.Response:
                app = apps.get(request.url.host)
                if app is None:
                    raise httpx.ConnectError("refused")
                return await httpx.ASGITransport(app).handle_async_request(request)

            super().__init__(engine, tls, httpx.MockTransport(pass_on))

    monkeypatch.setattr("proxy.http.http_listener.OwnerRequests", Reaching)
    async with AsyncExitStack() as stack:
        for node_id in range(1, count + 1):
            link = Link(shared)
            own = Member(node_id, f"host:{node_id}", "127.0.0.1", 9000, f"http://member{node_id}")
            pool = SeededPool(asyncio.get_running_loop(), Random(node_id))
            cluster = SharedCluster(link, own, pool, 10.0, lambda: shared.now)
            engine: Any = SimpleNamespace(shared_cluster=cluster, ready=True)
            apps[f"member{node_id}"] = app = FastAPI()
            add_http_api(app, partial(_same, engine), lambda: None)
            await cluster.join()
            stack.push_async_callback(cluster.leave)
            client = httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://pidlease",
                event_hooks=openapi_hooks(),
            )  # fmt: skip
            found.append(Here(link, cluster, await stack.enter_async_context(client)))
        for each in found:
            await each.cluster.refresh()
        yield found


def _same(engine: Any) -> Any:
    return engine


def _refused(response: httpx.Response, problem: Problem) -> str:
    body = response.json()
    assert (body["code"], response.status_code) == (problem.code, problem.status), body
    return str(body["detail"])


async def test_any_server_drains_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Coordinator()
    async with servers(shared, monkeypatch, 2) as (one, two):
        assert shared.slots.count(2) == SLOTS // 2
        answer = await one.client.patch("/v1/servers/2", json=_DRAIN)
        assert answer.json() == {"node_id": 2, "server": "host:2", "draining": True, "slots": 0}
        assert shared.slots.count(1) == SLOTS
        for each in (one, two):
            await each.cluster.refresh()
        assert _refused(await two.client.patch("/v1/servers/1", json=_DRAIN), Problem.LAST_SERVER)
        assert not shared.members[1].draining

        answer = await one.client.patch("/v1/servers/2", json=_UNDRAIN)
        assert not answer.json()["draining"]
        await one.cluster.refresh()
        assert shared.slots.count(2) == SLOTS // 2


async def test_requests_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Coordinator()
    async with servers(shared, monkeypatch, 2) as (one, two):
        patch = one.client.patch
        _refused(await patch("/v1/servers/7", json=_DRAIN), Problem.UNKNOWN_SERVER)
        _refused(await patch("/v1/servers/x", json=_DRAIN), Problem.INVALID_REQUEST)
        _refused(await patch("/v1/servers/2", json={"draining": 1}), Problem.INVALID_REQUEST)
        sent_on = {FORWARDED: "1"}
        _refused(await patch("/v1/servers/2", json=_DRAIN, headers=sent_on), Problem.NOT_OWNER)
        two.link.away = True
        _refused(await patch("/v1/servers/2", json=_DRAIN), Problem.COORDINATOR_UNAVAILABLE)
        _refused(await two.client.post(_REBALANCE), Problem.COORDINATOR_UNAVAILABLE)
        two.link.away = False
        shared.members[9] = shared.members[2]._replace(node_id=9, http_url="http://away")
        await one.cluster.refresh()
        text = _refused(await patch("/v1/servers/9", json=_DRAIN), Problem.SERVER_UNREACHABLE)
        assert "ConnectError" in text


async def test_a_rebalance_goes_by_the_partitions_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = Coordinator()
    async with servers(shared, monkeypatch, 2) as (one, two):
        for each in (one, two):
            await each.cluster.refresh()
        assert (await two.client.post(_REBALANCE)).json() == {"moved": 0}
        names = [
            name for name in map(str, range(200)) if shared.slots.owners[slot_of(name, 0)] == 1
        ]
        topics = dict.fromkeys(names[:10], 1)
        for each in (one, two):
            each.cluster.topics = lambda: topics
        shared.now += 60
        await one.cluster.refresh()
        owners = [shared.slots.owners[slot_of(name, 0)] for name in topics]
        assert owners == [1] * 10, "nothing moves by itself"
        before = shared.slots
        answer = await two.client.post(_REBALANCE)
        # Five with partitions, and as many empty ones back.
        assert answer.json() == {"moved": 10}
        owners = [shared.slots.owners[slot_of(name, 0)] for name in topics]
        assert (owners.count(1), owners.count(2)) == (5, 5)
        assert sum(map(int.__ne__, before.epochs, shared.slots.epochs)) == 10


async def test_a_server_that_shares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    app = FastAPI()
    engine: Any = SimpleNamespace(shared_cluster=None, ready=True)
    add_http_api(app, lambda: engine, lambda: None)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://x", event_hooks=openapi_hooks()
    ) as client:
        _refused(await client.post(_REBALANCE), Problem.NOT_SHARED)
        _refused(await client.patch("/v1/servers/1", json=_DRAIN), Problem.NOT_SHARED)
