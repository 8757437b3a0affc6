"""Logins and rights on the HTTP listener: the matrix of all routes, and what depends on bodies."""

import base64
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from pidlease.http_api.ping_messages import PING_PATH
from proxy.http.access.http_access import HttpAccess
from proxy.http.access.route_rights import RouteRights
from proxy.http.direct_appends import wrap
from proxy.http.forwarding_headers import FORWARDED
from proxy.http.http_listener import add_http_api
from proxy.http.http_protocol import PEER_CERTIFICATE
from proxy.ops.ops_api import ops_app
from proxy.security.acls import Acl, Operation, Permission, ResourceKind
from proxy.security.security_config import ListenerSecurity, SecurityConfig
from tests.secure.secured import PASSWORDS, Secured, allow, secured
from tests.secure.test_tokens import _CONFIG, _Keys
from tests.secure.tokens import Issuer

_OP, _T, _X, _C = Operation, ResourceKind.TOPIC, ResourceKind.TRANSACTIONAL_ID, ResourceKind.CLUSTER
_CLUSTER = "kafka-cluster"
_LOGIN = SecurityConfig(http=ListenerSecurity(tls=True, login=True))
_ACLS = replace(_LOGIN, acls=True)


class Api(NamedTuple):
    """The application, with its clients."""

    running: Secured
    app: FastAPI

    def client(self, user: str = "", certificate: Any = None) -> httpx.AsyncClient:
        app: Any = self.app
        if certificate is not None:
            inner = self.app

            async def app(scope: Any, receive: Any, send: Any) -> None:
                scope["state"] = {PEER_CERTIFICATE: certificate}
                await inner(scope, receive, send)

        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="https://pidlease",
            auth=(user, PASSWORDS[user]) if user else None,
        )  # fmt: skip


def _app(engine: Any, topics: Any) -> FastAPI:
    async def scrape() -> bytes:
        return b"up 1\n"

    app = ops_app(lambda: engine, time.time_ns() // 1_000_000, scrape, str)
    add_http_api(app, lambda: engine, lambda: topics, origins=["https://web.test"])
    return app


@asynccontextmanager
async def _api(folder: Path, config: SecurityConfig, *acls: Acl) -> AsyncIterator[Api]:
    async with secured(folder, config, acls) as running:
        server = running.server
        server.engine.ready = True
        app = _app(server.engine, server.topics)
        access = partial(HttpAccess, security=running.security, rights=RouteRights("/v1/stream"),
                         login=config.http.login)  # fmt: skip
        wrap(app, access)
        yield Api(running, app)


_FILLED = {"topic": "t", "partition": "0", "path": "t", "pid": "1", "node_id": "1"}
_PUBLIC = ("/healthz", "/readyz")
#: What each route needs; None: it is for every client, or it filters.
NEEDS: dict[str, list[tuple[Operation, ResourceKind, str]] | None] = {
    "GET /metrics": [(_OP.DESCRIBE, _C, _CLUSTER)],
    "GET /v1/status": [(_OP.DESCRIBE, _C, _CLUSTER)],
    "GET /v1/servers": [(_OP.DESCRIBE, _C, _CLUSTER)],
    "PATCH /v1/servers/{node_id}": [(_OP.ALTER, _C, _CLUSTER)],
    "POST /v1/servers/rebalance": [(_OP.ALTER, _C, _CLUSTER)],
    "POST /v1/servers/rows": [(_OP.CLUSTER_ACTION, _C, _CLUSTER)],
    "POST /v1/servers/states": [(_OP.CLUSTER_ACTION, _C, _CLUSTER)],
    "POST /v1/servers/states/offsets": [(_OP.CLUSTER_ACTION, _C, _CLUSTER)],
    "GET /v1/history": [(_OP.DESCRIBE, _C, _CLUSTER)],
    "GET /v1/outcomes": [(_OP.DESCRIBE, _C, _CLUSTER)],
    "GET /v1/partitions": [(_OP.DESCRIBE, _C, _CLUSTER)],
    "GET /v1/producers/{pid}": [(_OP.DESCRIBE, _C, _CLUSTER)],
    "GET /v1/producers/{pid}/events": [(_OP.DESCRIBE, _C, _CLUSTER)],
    "GET /v1/leases": [(_OP.DESCRIBE, _C, _CLUSTER)],
    "GET /v1/refusals": [(_OP.DESCRIBE, _C, _CLUSTER)],
    "GET /v1/jobs": [(_OP.DESCRIBE, _C, _CLUSTER)],
    "POST /v1/jobs": [(_OP.IDEMPOTENT_WRITE, _C, _CLUSTER)],
    "GET /v1/topics/{topic}/partitions/{partition}/offset": [(_OP.READ, _T, "t")],
    "GET /docs": None,
    "GET /openapi.json": None,
    "HEAD /openapi.json": None,
    "POST /v1/leases": [(_OP.DESCRIBE, _T, "t"), (_OP.WRITE, _X, "n")],
    "POST /v1/leases/batch": None,  # each lease is decided by itself, see below
    "GET /v1/producers": [(_OP.DESCRIBE, _C, _CLUSTER)],
    "DELETE /v1/producers": [(_OP.WRITE, _X, "n")],
    "GET /v1/topics": None,
    "POST /v1/topics": [(_OP.CREATE, _T, "new")],
    "GET /v1/topics/{topic}": [(_OP.DESCRIBE, _T, "t")],
    "DELETE /v1/topics/{topic}": [(_OP.DELETE, _T, "t")],
    "PATCH /v1/topics/{topic}/settings": [(_OP.ALTER_CONFIGS, _T, "t")],
    "GET /v1/topics/{topic}/partitions": [(_OP.DESCRIBE, _T, "t")],
    "GET /v1/topics/{topic}/partitions/{partition}/records": [(_OP.READ, _T, "t")],
    "POST /v1/topics/{topic}/partitions/{partition}/records": [(_OP.WRITE, _T, "t")],
    "POST /v1/topics/{topic}/records": [(_OP.WRITE, _T, "t")],
    "GET /v1/topic-defaults": [(_OP.DESCRIBE_CONFIGS, _C, _CLUSTER)],
    "PATCH /v1/topic-defaults": [(_OP.ALTER_CONFIGS, _C, _CLUSTER)],
    "PUT /v1/stream/{path:path}": [(_OP.CREATE, _T, "t"), (_OP.WRITE, _T, "t")],
    "POST /v1/stream/{path:path}": [(_OP.WRITE, _T, "t")],
    "GET /v1/stream/{path:path}": [(_OP.READ, _T, "t")],
    "HEAD /v1/stream/{path:path}": [(_OP.DESCRIBE, _T, "t")],
    "DELETE /v1/stream/{path:path}": [(_OP.DELETE, _T, "t")],
}
_BODIES: dict[str, Any] = {
    "POST /v1/leases": {"topic": "t", "partition": 0, "name": "n", "policy": "strict"},
    "POST /v1/leases/batch": {"leases": [{"topic": "t", "partition": 0}]},
    "POST /v1/jobs": {"kind": "copy", "job": "j", "process": "p", "started_ms": 1, "records": 0},
    "POST /v1/topics": {"name": "new"},
    "PATCH /v1/topics/{topic}/settings": {"retention.ms": "1000"},
    "PATCH /v1/topic-defaults": {"retention.ms": "1000"},
    "PATCH /v1/servers/{node_id}": {"draining": True},
    "POST /v1/servers/states": {"feed": "0" * 32, "number": 0, "noted": -1},
    "POST /v1/servers/states/offsets": {"partitions": [["t", 0]]},
    "POST /v1/topics/{topic}/records": {"records": [{"value": "a"}]},
    "POST /v1/topics/{topic}/partitions/{partition}/records": {"records": [{"value": "a"}]},
}


def _routes() -> set[str]:
    return set(_routes_of(_app(None, None).routes))


def _routes_of(routes: Iterable[Any]) -> Iterator[str]:
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:  # newer versions of FastAPI keep routers apart
            yield from _routes_of(included.routes)
        else:
            assert route.methods, route
            yield from (f"{method} {route.path}" for method in route.methods)


def _sent(route: str) -> dict[str, Any]:
    method, _, path = route.partition(" ")
    path = path.replace("{path:path}", "{path}").format(**_FILLED)
    if route == "DELETE /v1/producers":
        path += "?name=n"
    found: dict[str, Any] = {"method": method, "url": path}
    if route in _BODIES:
        found["json"] = _BODIES[route]
    return found


def test_every_route_has_a_row() -> None:
    """A new route without a row fails here, and is refused to all."""
    routes = {each for each in _routes() if not each.endswith(_PUBLIC)}
    assert routes == NEEDS.keys()
    rights = RouteRights("/v1/stream")
    for route in routes:
        sent = _sent(route)
        scope = {"method": sent["method"], "path": sent["url"].partition("?")[0]}
        assert rights.find(scope) is not None, route


async def test_without_a_login_every_route_is_refused(tmp_path: Path) -> None:
    async with _api(tmp_path, _LOGIN) as api, api.client() as client:
        for route in _routes():
            response = await client.request(**_sent(route))
            if route.endswith(_PUBLIC):
                assert response.status_code == 200
                continue
            assert response.status_code == 401, route
            assert response.headers["www-authenticate"].startswith("Basic ")
        assert not api.running.server.engine.topics
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        assert (await client.get("/healthz")).json() == {"status": "alive"}
        # A ping of another active server, at one that shares no cluster.
        pinged = await client.get(f"{PING_PATH}?to=1&version=1", headers={FORWARDED: "1"})
        assert pinged.json()["code"] == "not_ready"


async def test_without_any_right_every_route_is_refused(tmp_path: Path) -> None:
    async with _api(tmp_path, _ACLS) as api, api.client("alice") as client:
        async with api.client("root") as root:
            assert (await root.post("/v1/topics", json={"name": "t"})).status_code == 201
        before = api.running.server.engine.topics_version
        for route, needs in NEEDS.items():
            response = await client.request(**_sent(route))
            expected = 403 if needs is not None else 200
            assert response.status_code == expected, route
        assert (await client.get("/v1/topics")).json()["topics"] == []
        assert api.running.server.engine.topics_version == before
        partition = api.running.server.engine.partition("t", 0)
        assert partition is not None
        assert partition.readable_end == 0


async def test_each_right_is_needed(tmp_path: Path) -> None:
    async with (
        _api(tmp_path, _ACLS) as api, api.client("alice") as client, api.client("root") as root,
    ):  # fmt: skip
        for route, needs in NEEDS.items():
            await root.post("/v1/topics", json={"name": "t"})
            acls = [allow("alice", *each) for each in needs or ()]
            for missing in acls:
                await api.running.set_acls(*(each for each in acls if each is not missing))
                assert (await client.request(**_sent(route))).status_code == 403, (route, missing)
                denied = missing._replace(permission=Permission.DENY)
                await api.running.set_acls(*acls, denied)
                assert (await client.request(**_sent(route))).status_code == 403, (route, missing)
            await api.running.set_acls(*acls)
            status = (await client.request(**_sent(route))).status_code
            assert status not in (401, 403), route


async def test_until_kafka_s_acls_are_read_a_client_may_try_again(tmp_path: Path) -> None:
    """The HTTP listener is open while Kafka is awaited. 403 would be final for most clients."""
    config = replace(_ACLS, acls_of_kafka=True)
    async with (
        _api(tmp_path, config) as api, api.client("alice") as alice, api.client("root") as root,
    ):  # fmt: skip
        assert (await root.post("/v1/topics", json={"name": "t"})).status_code == 201
        for route in NEEDS:
            response = await alice.request(**_sent(route))
            assert response.status_code == 503, route
            assert "not_ready" in response.text or route.startswith("HEAD"), route
        authorizer = api.running.security.authorizer
        assert authorizer is not None
        authorizer.replace([allow("alice", _OP.DESCRIBE, _T, "t")])
        assert (await alice.get("/v1/topics/t")).status_code == 200
        assert (await alice.get("/v1/status")).status_code == 403


async def test_a_route_without_a_row_is_refused_even_to_who_may_do_all(tmp_path: Path) -> None:
    async with _api(tmp_path, _ACLS) as api:

        async def secret() -> str:
            return "secret"

        api.app.router.routes.append(APIRoute("/v1/new", secret, methods=["GET"]))
        async with api.client("root") as root:
            for path in ("/v1/new", "/v1/topics/", "//v1/topics", "/v1/nothing"):
                assert (await root.get(path)).status_code == 403, path
            assert (await root.request("TRACE", "/v1/topics")).status_code == 403


@pytest.mark.parametrize("header", [
    "", "Basic", "Basic !!", "Basic " + base64.b64encode(b"alice").decode(),
    "Basic " + base64.b64encode(b"alice:wrong").decode(),
    "Basic " + base64.b64encode(b"nobody:alice-secret").decode(),
    "Basic " + base64.b64encode(b"\xff:\xff").decode(), "Bearer x", "Digest x", "x" * 50_000,
])  # fmt: skip
async def test_wrong_logins(tmp_path: Path, header: str) -> None:
    async with _api(tmp_path, _LOGIN) as api, api.client() as client:
        response = await client.get("/v1/topics", headers={"Authorization": header})
        assert response.status_code == 401
        body = response.json()
        assert (body["code"], body["detail"]) == (
            "login_required", "the request needs a valid login",
        )  # fmt: skip
        right = base64.b64encode(b"alice:alice-secret").decode()
        two = [("Authorization", f"Basic {right}")] * 2
        assert (await client.get("/v1/topics", headers=two)).status_code == 401
        assert (await client.get("/v1/topics", headers=two[:1])).status_code == 200


async def test_a_header_injects_no_principal(tmp_path: Path) -> None:
    """Attack 8: no header but Authorization says who a client is."""
    forged = {
        "X-Forwarded-For": "10.0.0.1",
        "X-Forwarded-User": "root",
        "Forwarded": "for=1",
        "X-Remote-User": "root",
        "Remote-User": "root",
        "X-SSL-Client-CN": "root",
    }
    only_from = allow("alice", _OP.READ, _T, "t", host="10.0.0.1")
    async with _api(tmp_path, _ACLS, only_from) as api:
        async with api.client() as client:
            assert (await client.get("/v1/status", headers=forged)).status_code == 401
        async with api.client("alice") as client:
            assert (await client.get("/v1/status", headers=forged)).status_code == 403
            assert (await client.get("/v1/topics/t", headers=forged)).status_code == 403


async def test_bearer_and_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = Issuer()
    config = replace(_ACLS, tokens=_CONFIG, mapping_rules="RULE:^CN=([a-z]+)$/$1/")
    see = allow("alice", _OP.DESCRIBE, _C, _CLUSTER)
    async with _api(tmp_path, config, see) as api:
        assert api.running.security.tokens is not None
        monkeypatch.setattr(api.running.security.tokens, "_fetch", _Keys(issuer).fetch)
        async with api.client() as client:
            for token, status in (
                (issuer.token(), 200), (issuer.token(sub="bob"), 403), (issuer.token(aud="x"), 401),
            ):  # fmt: skip
                headers = {"Authorization": f"Bearer {token}"}
                assert (await client.get("/v1/status", headers=headers)).status_code == status
        for name, status in (("alice", 200), ("bob", 403), ("Alice2", 401)):
            certificate = {"subject": ((("commonName", name),),)}
            async with api.client(certificate=certificate) as client:
                assert (await client.get("/v1/status")).status_code == status


async def test_names_in_another_spelling(tmp_path: Path) -> None:
    """Attack 9: percent-encoded names, prefixes, and stream paths lead to the same topics."""
    mine = allow("alice", _OP.ALL, _T, "mine")
    async with _api(tmp_path, _ACLS, mine) as api, api.client("alice") as client:
        async with api.client("root") as root:
            for name in ("mine", "mine2", "other", "a__b"):
                assert (await root.post("/v1/topics", json={"name": name})).status_code == 201
        for path, status in (
            ("/v1/topics/mine", 200), ("/v1/topics/%6dine", 200), ("/v1/topics/mine2", 403),
            ("/v1/topics/%6fther", 403), ("/v1/topics/mine/../other", 403),
            ("/v1/topics/mine%2f..%2fother", 403), ("/v1/topics/other%00", 403),
            ("/v1/topics/mine%2F..%2Fother/partitions/0/records", 403),
            ("/v1/topics/%6fther/partitions/0/records", 403),
            ("/v1/topics/mine/partitions/0/records", 200),
            ("/v1/stream/%6fther", 403), ("/v1/stream/a/b", 403), ("/v1/stream/a%2fb", 403),
            ("/v1/stream/a__b", 403), ("/v1/stream//other", 403),
        ):  # fmt: skip
            response = await client.get(path)
            assert response.status_code == status, path
        listed = (await client.get("/v1/topics")).json()["topics"]
        assert [each["name"] for each in listed] == ["mine"]


async def test_a_fork_needs_the_right_to_read_its_source(tmp_path: Path) -> None:
    new = [allow("alice", each, _T, "fork") for each in (_OP.CREATE, _OP.WRITE)]
    async with _api(tmp_path, _ACLS, *new) as api, api.client("alice") as client:
        async with api.client("root") as root:
            text = {"Content-Type": "text/plain"}
            made = await root.put("/v1/stream/source", headers=text, content=b"secret")
            assert made.status_code == 201
        headers = {"Stream-Forked-From": "/v1/stream/source"}
        assert (await client.put("/v1/stream/fork", headers=headers)).status_code == 403
        await api.running.set_acls(*new, allow("alice", _OP.READ, _T, "source"))
        assert (await client.put("/v1/stream/fork", headers=headers)).status_code == 201


async def test_no_setting_makes_a_fork(tmp_path: Path) -> None:
    """Once a client read any stream so: as the fork that its own topic seemed to be."""
    own = [allow("alice", each, _T, "mine") for each in (_OP.CREATE, _OP.READ, _OP.ALTER_CONFIGS)]
    async with _api(tmp_path, _ACLS, *own) as api, api.client("alice") as client:
        async with api.client("root") as root:
            text = {"Content-Type": "text/plain"}
            made = await root.put("/v1/stream/source", headers=text, content=b"secret")
            assert made.status_code == 201
        plain = {"pidlease.stream.type": "text/plain"}
        fork = {"pidlease.stream.source": "source", "pidlease.stream.fork": "1 - 0"}
        new = {"name": "mine", "partitions": 1, "settings": plain | fork}
        for settings, status in ((plain | fork, 400), (plain, 201)):
            made = await client.post("/v1/topics", json={**new, "settings": settings})
            assert made.status_code == status
        for change in (fork, {"pidlease.stream.deleted": "1"}):
            changed = await client.patch("/v1/topics/mine/settings", json=change)
            assert (changed.status_code, changed.json()["code"]) == (400, "invalid_setting")
        assert (await client.get("/v1/stream/mine?offset=-1")).content == b""
        for change in ({"pidlease.stream.ttl": "1000"}, {"pidlease.stream.initial": "1"}):
            # The server deletes the topic then.
            path = "/v1/topics/mine/settings"
            assert (await client.patch(path, json=change)).status_code == 403
            await api.running.set_acls(*own, allow("alice", _OP.DELETE, _T, "mine"))
            assert (await client.patch(path, json=change)).status_code == 200
            unset = dict.fromkeys(change)
            await api.running.set_acls(*own)
            assert (await client.patch(path, json=unset)).status_code == 200


async def test_a_put_makes_a_stream_of_a_topic_only_with_the_rights_to_change_it(
    tmp_path: Path,
) -> None:
    """A stream that expires is deleted, with all that was appended to it since."""
    put = [allow("alice", each, _T, "orders") for each in (_OP.CREATE, _OP.WRITE)]
    alter, delete = (allow("alice", each, _T, "orders") for each in (_OP.ALTER_CONFIGS, _OP.DELETE))
    text = {"Content-Type": "text/plain"}
    ends: list[dict[str, str]] = [
        {"Stream-TTL": "1000"}, {"Stream-Expires-At": "2100-01-01T00:00:00Z"},
        {"Stream-Closed": "true"},
        {"Stream-Forked-From": "/v1/stream/source"},
    ]  # fmt: skip
    async with (
        _api(tmp_path, _ACLS) as api, api.client("alice") as alice, api.client("root") as root,
    ):  # fmt: skip
        assert (await root.put("/v1/stream/source", headers=text | ends[0])).status_code == 201
        topics = api.running.server.engine.topics

        async def status(headers: dict[str, str], *acls: Acl) -> int:
            await root.post("/v1/topics", json={"name": "orders", "partitions": 1})
            await api.running.set_acls(*put, allow("alice", _OP.READ, _T, "source"), *acls)
            before = topics["orders"]
            found = (await alice.put("/v1/stream/orders", headers=text | headers)).status_code
            if found == 201:
                assert (await root.delete("/v1/stream/orders")).status_code == 204
            else:
                assert topics["orders"] == before
            return found

        assert await status({}) == 403
        assert await status({}, delete) == 403
        assert await status({}, alter) == 201
        for each in ends:
            assert await status(each, alter) == 403, each
            assert await status(each, delete) == 403, each
            assert await status(each, alter, delete) == 201, each
        await api.running.set_acls(*put)  # for a stream of its own it needs neither
        for code in (201, 200):
            made = await alice.put("/v1/stream/orders", headers=text | ends[0])
            assert made.status_code == code


async def test_leases(tmp_path: Path) -> None:
    see = allow("alice", _OP.DESCRIBE, _T, "t")
    name = allow("alice", _OP.WRITE, _X, "mine")
    async with _api(tmp_path, _ACLS, see, name) as api, api.client("alice") as client:
        async with api.client("root") as root:
            assert (await root.post("/v1/topics", json={"name": "t"})).status_code == 201
            own = {"topic": "t", "partition": 0, "name": "pidlease/x", "policy": "strict"}
            assert (await root.post("/v1/leases", json=own)).status_code == 403
        mine = {"topic": "t", "partition": 0, "name": "mine", "policy": "strict"}
        leases = [mine, {**mine, "name": "theirs"}, {"topic": "t", "partition": 0}]
        assert [(await client.post("/v1/leases", json=each)).status_code for each in leases] == [
            200, 403, 403,
        ]  # fmt: skip
        batch = (await client.post("/v1/leases/batch", json={"leases": leases})).json()
        assert [each.get("code") or "" for each in batch["leases"]] == [
            "", "not_authorized", "not_authorized",
        ]  # fmt: skip
        for each, status in (("theirs", 403), ("mine", 204)):
            released = await client.delete("/v1/producers", params={"name": each})
            assert released.status_code == status


async def test_an_append_creates_a_topic_only_with_the_right(tmp_path: Path) -> None:
    write = allow("alice", _OP.WRITE, _T, "new")
    records = {"records": [{"value": "a"}]}
    async with _api(tmp_path, _ACLS, write) as api, api.client("alice") as client:
        for path in ("/v1/topics/new/records", "/v1/topics/new/partitions/0/records"):
            assert (await client.post(path, json=records)).status_code == 403
        assert "new" not in api.running.server.engine.topics
        await api.running.set_acls(write, allow("alice", _OP.CREATE, _T, "new"))
        assert (await client.post("/v1/topics/new/records", json=records)).status_code == 200


async def test_a_removed_user_is_refused_at_once(tmp_path: Path) -> None:
    """Attack 7: also a password that was right a moment ago."""
    async with _api(tmp_path, _LOGIN) as api, api.client("alice") as client:
        assert (await client.get("/v1/topics")).status_code == 200
        keys = [("alice", "SCRAM-SHA-256"), ("alice", "SCRAM-SHA-512")]
        await api.running.security.change_users((), keys)
        assert (await client.get("/v1/topics")).status_code == 401


async def test_browsers_may_ask_what_they_may_send(tmp_path: Path) -> None:
    async with _api(tmp_path, _ACLS) as api, api.client() as client:
        headers = {"Origin": "https://web.test", "Access-Control-Request-Method": "POST"}
        response = await client.options("/v1/topics", headers=headers)
        assert response.status_code == 200
        assert (await client.options("/v1/topics")).status_code == 405


async def test_a_name_is_shown_to_those_who_may_use_it(tmp_path: Path) -> None:
    """Every consumer sees its PID in the log."""
    acls = [
        *(allow(each, _OP.READ, _T, "t") for each in ("alice", "bob")),
        allow("alice", _OP.WRITE, _T, "t"), allow("alice", _OP.WRITE, _X, "loader"),
        allow("bob", _OP.WRITE, _T, "other"),
    ]  # fmt: skip
    async with _api(tmp_path, _ACLS, *acls) as api:
        await api.running.server.topics.create("t", 1, {})
        named = {"topic": "t", "partition": 0, "name": "loader"}
        async with api.client("alice") as alice:
            lease = (await alice.post("/v1/leases", json=named)).json()
            written = {"pid": lease["pid"], "generation": lease["generation"], "first_sequence": 0,
                       "records": [{"value": "x"}]}  # fmt: skip
            done = await alice.post("/v1/topics/t/partitions/0/records", json=written)
            assert done.status_code == 200, done.text
        for user, name in (("alice", "loader"), ("root", "loader"), ("bob", "")):
            async with api.client(user) as client:
                by_pid = {"topic": "t", "partition": 0, "pid": lease["pid"]}
                for headers in ({}, {FORWARDED: "1"}):  # nothing proves that it is a server's
                    answer = await client.post("/v1/leases", json=by_pid, headers=headers)
                    assert (answer.status_code, answer.json()["name"]) == (200, name), user
                found = (await client.get("/v1/producers?topic=t")).json()["producers"]
                assert [(each["pid"], each["name"]) for each in found] == [(lease["pid"], name)]
                found = (await client.get("/v1/producers?topic=t&name=loader")).json()["producers"]
                assert bool(found) == bool(name), user


async def test_no_cache_serves_one_client_with_what_another_one_read(tmp_path: Path) -> None:
    acls = [allow("alice", each, _T, "s") for each in (_OP.CREATE, _OP.WRITE, _OP.READ)]
    async with _api(tmp_path, _ACLS, *acls) as api, api.client("alice") as alice:
        text = {"Content-Type": "text/plain"}
        assert (await alice.put("/v1/stream/s", headers=text)).status_code == 201
        for _ in range(3):
            assert (
                await alice.post("/v1/stream/s", content=b"x" * 900_000, headers=text)
            ).is_success
        page = await alice.get("/v1/stream/s?offset=-1")
        assert page.headers["Cache-Control"].startswith("private, max-age=")
