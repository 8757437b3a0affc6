"""Requests that active servers send to each other: the client's rights count, no client sends one.

The server is known by its certificate alone. What a client may send and what a server may send is
told apart by two headers, so each route is tried with them.
"""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from starlette.responses import Response

from pidlease.coordination.journal.put_request import PUT_PATH
from pidlease.core.topic_partition import TopicPartition
from pidlease.http_api.ping_messages import PING_PATH
from proxy.http import record_routes
from proxy.http.access.request_access import RequestAccess
from proxy.http.access.route_rights import RouteRights
from proxy.http.current_caller import CALLER, HttpCaller
from proxy.http.forwarding_headers import CLIENT, FORWARDED, client_of, sent_on_headers
from proxy.http.http_protocol import PEER_CERTIFICATE
from proxy.http.owner_requests import OwnerRequests
from proxy.security.acls import Operation, ResourceKind
from proxy.security.authorizer import Caller
from proxy.security.quota_rules import PRODUCED_BYTES, Entity, Quota
from proxy.security.security_config import MemberSecurity
from tests.secure.secured import allow
from tests.secure.test_http_access import _ACLS, _LOGIN, NEEDS, Api, _api, _sent

_OP, _T, _X = Operation, ResourceKind.TOPIC, ResourceKind.TRANSACTIONAL_ID
#: Also the name of a user with a password, which makes it no server.
_SERVER: Final = "bob"
_MEMBERS: Final = MemberSecurity(frozenset({_SERVER}), "server")
_CONFIG: Final = replace(_ACLS, members=_MEMBERS, mapping_rules="RULE:^CN=([a-z]+)$/$1/")
_RECORDS: Final = "/v1/topics/t/partitions/0/records"
_PING: Final = f"{PING_PATH}?to=1&version=1"


def _certificate(name: str) -> Any:
    return {"subject": ((("commonName", name),),)}


def _for(user: str, host: str = "10.0.0.7") -> dict[str, str]:
    """The headers of a request that a server sends on for a user."""
    caller = HttpCaller(Caller(f"User:{user}", host), None, lambda _: None, lambda *_: None)
    token = CALLER.set(caller)
    try:
        return sent_on_headers()
    finally:
        CALLER.reset(token)


async def _made(api: Api) -> None:
    async with api.client("root") as root:
        assert (await root.post("/v1/topics", json={"name": "t"})).status_code in (201, 409)


@pytest.mark.parametrize("headers", [
    {FORWARDED: "1"}, _for("root"), {CLIENT: _for("root")[CLIENT]}, {FORWARDED: ""},
])  # fmt: skip
async def test_only_a_server_sends_marked_requests(tmp_path: Path, headers: dict[str, str]) -> None:
    """A password is not enough, not even the super user's, nor is a client's certificate."""
    senders: list[tuple[str, Any]] = [
        ("", None), ("alice", None), ("root", None), (_SERVER, None), ("", _certificate("alice")),
        ("", _certificate("Mallory2")), (_SERVER, _certificate("alice")),
    ]  # fmt: skip
    async with _api(tmp_path, _CONFIG) as api:
        await _made(api)
        engine = api.running.server.engine
        before = engine.topics_version
        for user, certificate in senders:
            async with api.client(user, certificate) as client:
                for sent in [{"method": "GET", "url": _PING}, *map(_sent, NEEDS)]:
                    response = await client.request(**sent, headers=headers)
                    assert response.status_code == 401, (user, certificate, sent)
                    assert response.headers["connection"] == "close"
                    if sent["method"] != "HEAD":
                        assert "only an active server may send this" in response.text
        partition = engine.partition("t", 0)
        assert partition is not None
        assert (engine.topics_version, partition.readable_end) == (before, 0)
        lines = [each for each in api.running.audit() if "no active server" in each["outcome"]]
        assert {each["outcome"] for each in lines} == {
            "no active server: no certificate", "no active server: CN=alice",
            "no active server: CN=Mallory2",
        }  # fmt: skip


async def test_each_right_of_the_client_is_needed(tmp_path: Path) -> None:
    """As if it had sent the request itself; no right of the server, or of another client, is."""
    async with _api(tmp_path, _CONFIG) as api:
        await _made(api)
        async with api.client(certificate=_certificate(_SERVER)) as server:
            for route, needs in NEEDS.items():
                acls = [allow("alice", *each) for each in needs or ()]
                for missing in acls:
                    await api.running.set_acls(*(each for each in acls if each is not missing))
                    refused = await server.request(**_sent(route), headers=_for("alice"))
                    assert refused.status_code == 403, (route, missing)
                await api.running.set_acls(*acls)
                response = await server.request(**_sent(route), headers=_for("alice"))
                assert response.status_code not in (401, 403), route
                await _made(api)


async def test_the_address_of_the_client_counts(tmp_path: Path) -> None:
    there = allow("alice", _OP.DESCRIBE, _T, "t", host="10.0.0.7")
    async with _api(tmp_path, _CONFIG, there) as api:
        await _made(api)
        async with api.client(certificate=_certificate(_SERVER)) as server:
            for host, status in (("10.0.0.7", 200), ("10.0.0.8", 403), ("", 403)):
                headers = _for("alice", host)
                assert (await server.get("/v1/topics/t", headers=headers)).status_code == status
        refused = [each for each in api.running.audit() if each["outcome"] == "denied"]
        assert {(each["principal"], each["address"]) for each in refused} == {
            ("User:alice", "10.0.0.8"), ("User:alice", ""),
        }  # fmt: skip


#: The routes that servers use themselves: here the leases alone have what they need.
_FOR_SERVERS: Final = {
    "POST /v1/leases": 200,
    "POST /v1/servers/rows": 400,
    "POST /v1/servers/states": 409,
    "POST /v1/servers/states/offsets": 409,
}


async def test_what_a_server_asks_for_itself(tmp_path: Path) -> None:
    """A ping, and where a producer continues; it has no other right."""
    async with _api(tmp_path, _CONFIG) as api:
        await _made(api)
        async with api.client(certificate=_certificate(_SERVER)) as server:
            marked = {FORWARDED: "1"}
            pinged = await server.get(_PING, headers=marked)
            assert (pinged.status_code, pinged.json()["code"]) == (503, "not_ready")
            for route in NEEDS:
                response = await server.request(**_sent(route), headers=marked)
                assert response.status_code == _FOR_SERVERS.get(route, 403), route
            # Without the mark it is a client as any other.
            assert (await server.get("/v1/topics/t")).status_code == 403
            await api.running.set_acls(allow(_SERVER, _OP.DESCRIBE, _T, "t"))
            assert (await server.get("/v1/topics/t")).status_code == 200


async def test_only_servers_put_the_coordinators_rows(tmp_path: Path) -> None:
    """A super user may do everything else."""
    rows = {"run": "0" * 32, "session": "s", "rows": [["map", "", {}]]}
    async with _api(tmp_path, _CONFIG) as api:
        async with api.client("root") as root:
            assert (await root.post(PUT_PATH, json=rows)).status_code == 401
        async with api.client(certificate=_certificate("eve")) as other:
            assert (await other.post(PUT_PATH, json=rows)).status_code == 401
        async with api.client(certificate=_certificate(_SERVER)) as server:
            found = await server.post(PUT_PATH, json=rows, headers={FORWARDED: "1"})
            assert (found.status_code, found.text) == (421, "this server keeps no rows")
            # The longest common file, before and after a change.
            both = [["file", "acls", {"text": each * 900_000}] for each in "ab"]
            long = rows | {"rows": both[1:], "expected": both[:1]}
            found = await server.post(PUT_PATH, json=long, headers={FORWARDED: "1"})
            assert (found.status_code, found.text) == (421, "this server keeps no rows")


@pytest.mark.parametrize("named", [
    ["root"], [""], ["principal=User%3Aroot"], ["principal=root&host=h"], ["host=h&principal="],
    ["principal=User%3Aroot&host=h&more=x"], ["principal=%ff&host=h"], [b"\xff"],
    [_for("root")[CLIENT], _for("root")[CLIENT]],
])  # fmt: skip
async def test_a_header_that_names_no_client(tmp_path: Path, named: list[Any]) -> None:
    headers = [(FORWARDED, "1"), *((CLIENT, each) for each in named)]
    async with (
        _api(tmp_path, _CONFIG) as api, api.client(certificate=_certificate(_SERVER)) as server,
    ):  # fmt: skip
        assert (await server.get("/v1/topics", headers=headers)).status_code == 401


@pytest.mark.parametrize("user", ["alice", "CN=Zoë,O=a;b\\, c", "a b&host=10.0.0.1", "\ud800"])
def test_the_header_has_any_user(user: str) -> None:
    value = _for(user, "::1")[CLIENT]
    assert value.isascii()
    assert client_of(value.encode()) == (f"User:{user}", "::1")


async def test_without_servers_that_know_one_another_the_headers_count_for_nothing(
    tmp_path: Path,
) -> None:
    async with _api(tmp_path, _LOGIN) as api:
        await _made(api)
        async with api.client() as client:
            assert (await client.get("/v1/topics/t", headers=_for("root"))).status_code == 401
        async with api.client("alice") as alice:
            assert (await alice.get("/v1/topics/t", headers=_for("root"))).status_code == 200


async def test_an_append_that_is_sent_on_is_not_admitted_in_the_protocol(tmp_path: Path) -> None:
    """There the client's quota would count it again."""
    write = allow(_SERVER, _OP.WRITE, _T, "t")
    async with _api(tmp_path, _CONFIG, write) as api:
        access = RequestAccess(api.running.security, RouteRights("/v1/stream"), login=True)
        scope: dict[str, Any] = {
            "type": "http", "method": "POST", "path": _RECORDS, "query_string": b"", "headers": [],
            "client": None, "state": {PEER_CERTIFICATE: _certificate(_SERVER)},
        }  # fmt: skip
        assert access.admit_now(scope) is not None
        scope["headers"] = [(name.encode(), value.encode()) for name, value in _for("bob").items()]
        assert access.admit_now(scope) is None


async def test_quotas_count_the_client_once(tmp_path: Path) -> None:
    """What the first server has counted is not counted again by the owner; the rest is."""
    rights = [allow("alice", each, _T, "t") for each in (_OP.READ, _OP.WRITE)]
    config = replace(_CONFIG, quota_window_num=2, quota_window_seconds=10.0)
    quota = Quota(Entity("alice"), (
        ("consumer_byte_rate", 1000.0), (PRODUCED_BYTES, 1000.0), ("request_rate", 1.0),
    ))  # fmt: skip
    compressed = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    content = gzip.compress(json.dumps({"records": [{"value": "x" * 18_000}]}).encode())
    async with _api(tmp_path, config, *rights) as api:
        await _made(api)
        await api.running.security.change_quotas(lambda _: [quota])
        async with api.client(certificate=_certificate(_SERVER)) as server:
            for _ in range(15):
                body = {"records": [{"value": "x" * 5_000}]}
                sent = await server.post(_RECORDS, json=body, headers=_for("alice"))
                assert sent.status_code == 200, sent.text
                read = await server.get(f"{_RECORDS}?offset=0", headers=_for("alice"))
                assert read.status_code == 200
            headers = {**compressed, **_for("alice")}
            statuses = [
                (await server.post(_RECORDS, content=content, headers=headers)).status_code
                for _ in range(3)
            ]
            assert statuses == [200, 429, 429]


async def test_a_batch_that_the_owner_makes_is_counted_there_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first server makes one, too, if it chooses the partition by the records' key."""

    def elsewhere(*_: object) -> int:
        raise record_routes._ElsewhereError(TopicPartition("t", 0), b"body")

    async def sent_on(*_: object) -> Response:
        return Response("{}")

    monkeypatch.setattr(record_routes.RecordRoutes, "_chosen", elsewhere)
    monkeypatch.setattr(OwnerRequests, "send_on", sent_on)
    config = replace(_LOGIN, quota_window_num=2, quota_window_seconds=10.0)
    content = gzip.compress(json.dumps({"records": [{"value": "x" * 500_000}]}).encode())
    compressed = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    async with _api(tmp_path, config) as api, api.client("alice") as alice:
        await _made(api)
        quota = Quota(Entity("alice"), ((PRODUCED_BYTES, 1000.0),))
        await api.running.security.change_quotas(lambda _: [quota])
        for _ in range(3):
            sent = await alice.post("/v1/topics/t/records", content=content, headers=compressed)
            assert sent.status_code == 200
