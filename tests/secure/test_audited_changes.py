"""Changes of topics, settings and names are in the audit log, by either listener."""

from pathlib import Path
from typing import Any

import pytest

from pidlease.kafka.api import (
    API_CREATE_TOPICS,
    API_DELETE_GROUPS,
    API_DELETE_RECORDS,
    API_DELETE_TOPICS,
    API_INCREMENTAL_ALTER_CONFIGS,
)
from proxy.security.acls import Operation, ResourceKind
from proxy.security.quota_rules import REQUESTS, Entity, Quota
from proxy.security.security_config import SecurityConfig
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient, creation
from tests.secure.secured import LOGIN, Secured, allow, secured
from tests.secure.test_http_access import _ACLS as _HTTP
from tests.secure.test_http_access import _api


def _changes(running: Secured) -> list[tuple[str, str, str]]:
    return [(each["principal"], each["operation"], each["resource"]) for each in running.audit()
            if each["event"] == "change"]  # fmt: skip


async def test_over_http(tmp_path: Path) -> None:
    acls = [allow("alice", Operation.CREATE, ResourceKind.TOPIC, "t"),
            allow("alice", Operation.WRITE, ResourceKind.TOPIC, "t")]  # fmt: skip
    async with (
        _api(tmp_path, _HTTP, *acls) as api,
        api.client("root") as root, api.client("alice") as alice,
    ):  # fmt: skip

        async def made(client: Any, method: str, path: str, status: int, **body: Any) -> None:
            response = await client.request(method, path, **body)
            assert response.status_code == status, response.text

        await made(root, "POST", "/v1/topics", 201, json={"name": "u"})
        await made(root, "POST", "/v1/topics", 409, json={"name": "u"})
        records = {"records": [{"value": "x"}]}
        await made(alice, "POST", "/v1/topics/t/partitions/0/records", 200, json=records)
        await made(alice, "POST", "/v1/topics/u/partitions/0/records", 403, json=records)
        settings = {"retention.ms": "1000"}
        await made(root, "PATCH", "/v1/topics/u/settings", 200, json=settings)
        defaults = {"pidlease.initial": "zero"}
        await made(root, "PATCH", "/v1/topic-defaults", 200, json=defaults)
        lease = {"topic": "u", "partition": 0, "name": "loader", "policy": "strict"}
        await made(root, "POST", "/v1/leases", 200, json=lease)
        await made(root, "POST", "/v1/leases", 200, json={"topic": "u", "partition": 0})
        await made(root, "POST", "/v1/leases/batch", 200, json={"leases": [lease]})
        await made(root, "DELETE", "/v1/producers", 204, params={"name": "loader"})
        stream = {"content": b"x", "headers": {"Content-Type": "text/plain"}}
        await made(root, "PUT", "/v1/stream/s", 201, **stream)
        await made(root, "DELETE", "/v1/stream/s", 204)
        await made(root, "DELETE", "/v1/topics/u", 204)
        found = _changes(api.running)
    assert found == [
        ("User:root", "CREATE_TOPIC", "TOPIC:u"), ("User:alice", "CREATE_TOPIC", "TOPIC:t"),
        ("User:root", "ALTER_CONFIGS", "TOPIC:u"),
        ("User:root", "ALTER_CONFIGS", "CLUSTER:kafka-cluster"),
        ("User:root", "LEASE_NAME", "TRANSACTIONAL_ID:loader"),
        ("User:root", "LEASE_NAME", "TRANSACTIONAL_ID:loader"),
        ("User:root", "RELEASE_NAME", "TRANSACTIONAL_ID:loader"),
        ("User:root", "CREATE_TOPIC", "TOPIC:s"), ("User:root", "DELETE_TOPIC", "TOPIC:s"),
        ("User:root", "DELETE_TOPIC", "TOPIC:u"),
    ]  # fmt: skip


@pytest.mark.parametrize("acls", [True, False])
async def test_by_kafka_s_requests(tmp_path: Path, acls: bool) -> None:
    config = SecurityConfig(kafka=LOGIN, acls=acls)
    async with secured(tmp_path, config) as running:
        async with await running.login("root") as root:
            await root.create("t")
            validated = creation("v") | {"validate_only": True}
            await root.call(API_CREATE_TOPICS, 5, **validated)
            assert (await root.call(API_CREATE_TOPICS, 5, **creation("t"))).topics[0].error_code
            await root.produce("t", batch([b"x"]))
            await _alter(root, "t", validate_only=True)
            await _alter(root, "t", validate_only=False)
            records = {"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}
            await root.call(API_DELETE_RECORDS, 1, topics=[records], timeout=_timeout())
            absent = (await root.call(API_DELETE_GROUPS, 1, groups_names=["absent"])).results
            assert absent[0].error_code
            await root.call(API_DELETE_TOPICS, 3, topic_names=["t", "absent"], timeout=_timeout())
        if acls:
            async with await running.login("bob") as bob:
                assert (await bob.call(API_CREATE_TOPICS, 5, **creation("b"))).topics[0].error_code
        found = _changes(running)
    expected = ["CREATE_TOPIC", "ALTER_CONFIGS", "DELETE_RECORDS", "DELETE_TOPIC"]
    assert found == [("User:root", each, "TOPIC:t") for each in expected]


async def _alter(client: WireClient, topic: str, *, validate_only: bool) -> None:
    config = {"name": "retention.ms", "config_operation": 0, "value": "1000"}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
    found = await client.call(
        API_INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=validate_only
    )
    assert found.responses[0].error_code == 0


def _timeout() -> Any:
    return creation("t")["timeout"]


async def test_by_files(tmp_path: Path) -> None:
    """By `pidlease users`, by an editor, or at another server."""
    async with secured(tmp_path, SecurityConfig(kafka=LOGIN, acls=True)) as running:
        security = running.security
        await security.reload()  # nothing is new
        security._acls.change(
            lambda known: {*known, allow("bob", Operation.READ, ResourceKind.TOPIC, "t")}
        )
        users = security._users
        users.change(lambda known: [each for each in known if each.user != "alice"])
        rule = Quota(Entity("bob", None), ((REQUESTS, 5.0),))
        security._quotas.change(lambda known: {*known, rule})
        await security.reload()
        await security.reload()
        found = _changes(running)
    names = ("acls", "quotas", "users")
    assert sorted(found) == [("", "READ_FILE", f"FILE:{name}") for name in names]
