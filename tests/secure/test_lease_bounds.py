"""How many PIDs a user leases at once, by either listener."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from kio.schema.errors import ErrorCode

from proxy.security.quota_rules import LEASES, Entity, Quota
from proxy.security.security_config import ListenerSecurity
from tests.kafka_listener.client import INIT, WireClient
from tests.kafka_listener.messages import INIT_PRODUCER_ID
from tests.secure.secured import LOGIN
from tests.secure.test_http_access import _LOGIN, Api, _api

_CONFIG: Final = replace(_LOGIN, kafka=LOGIN)
_LEASE: Final = {"topic": "t", "partition": 0, "policy": "strict"}
_TRY_AGAIN: Final = ErrorCode.coordinator_load_in_progress


async def _bound(api: Api, most: int | None, user: str | None = "alice") -> None:
    quotas = [] if most is None else [Quota(Entity(user), ((LEASES, float(most)),))]
    await api.running.security.change_quotas(lambda _: quotas)


async def _topic(api: Api) -> None:
    async with api.client("root") as root:
        assert (await root.post("/v1/topics", json={"name": "t"})).status_code == 201


async def _init(client: WireClient, api: Api) -> int:
    """The error code of a lease, once there is a block of PIDs."""
    async with asyncio.timeout(60):
        while not api.running.server.engine.leases.blocks.left:
            await client.lease()
    return int((await client.call(INIT_PRODUCER_ID, 4, **INIT)).error_code)


async def _refused(response: Any) -> None:
    assert response.status_code == 429, response.text
    assert response.json()["code"] == "quota_exceeded"
    assert response.headers["retry-after"] == "1"
    assert "at most 3 at once" in response.json()["detail"]


async def test_leases_of_a_user_are_bounded(tmp_path: Path) -> None:
    """By both listeners and all connections together; names as well."""
    async with (
        _api(tmp_path, _CONFIG) as api, api.client("alice") as alice, api.client("bob") as bob,
        await api.running.login("alice") as first,
    ):  # fmt: skip
        await _topic(api)
        await _bound(api, 3)
        await first.lease()
        assert (await alice.post("/v1/leases", json=_LEASE)).status_code == 200
        named = {**_LEASE, "name": "one"}
        assert (await alice.post("/v1/leases", json=named)).status_code == 200
        await _refused(await alice.post("/v1/leases", json=_LEASE))
        await _refused(await alice.post("/v1/leases", json={**_LEASE, "name": "two"}))
        assert (await alice.post("/v1/leases", json=named)).status_code == 200  # it has its PID
        both = {"leases": [named, {**_LEASE, "name": "three"}]}
        rows = (await alice.post("/v1/leases/batch", json=both)).json()["leases"]
        assert [each.get("code", "") for each in rows] == ["", "quota_exceeded"]
        async with await api.running.login("alice") as second:
            second.client_id = "another"
            assert await _init(second, api) == _TRY_AGAIN
        assert (await bob.post("/v1/leases", json=_LEASE)).status_code == 200
        refused = api.running.server.engine.leases.refused
        assert refused["user's bound"] >= 4
        api.running.server.let_leases_end()
        await first.lease()
        await _bound(api, 1)
        assert await _init(first, api) == _TRY_AGAIN
        await _bound(api, None)
        assert await _init(first, api) == 0


async def test_producers_that_name_themselves_are_bounded(tmp_path: Path) -> None:
    """Those of Producer-Id take a lease with their first append; known ones go on."""
    async with _api(tmp_path, _CONFIG) as api, api.client("alice") as alice:
        await _topic(api)
        await _bound(api, 2)
        statuses = []
        for sequence, name in ((0, "a"), (0, "b"), (0, "c"), (1, "a")):
            headers = {"Producer-Id": name, "Producer-Epoch": "0", "Producer-Seq": str(sequence)}
            response = await alice.post(
                "/v1/topics/t/partitions/0/records", json={"records": [{"value": "x"}]},
                headers=headers,
            )  # fmt: skip
            statuses.append(response.status_code)
            if response.status_code != 200:
                assert "at most 2 at once" in response.json()["detail"]
        assert statuses == [200, 200, 503, 200]


async def test_anonymous_clients_are_bounded_together(tmp_path: Path) -> None:
    config = replace(_CONFIG, http=ListenerSecurity(), kafka=ListenerSecurity(), acls=True,
                     allow_if_none=True)  # fmt: skip
    async with _api(tmp_path, config) as api, api.client() as client:
        assert (await client.post("/v1/topics", json={"name": "t"})).status_code == 201
        await _bound(api, 2, None)
        for expected in (200, 200, 429):
            assert (await client.post("/v1/leases", json=_LEASE)).status_code == expected
        async with await api.running.connect() as kafka:
            assert await _init(kafka, api) == _TRY_AGAIN


async def test_what_is_counted_is_forgotten_with_the_lease(tmp_path: Path) -> None:
    async with _api(tmp_path, _CONFIG) as api, await api.running.login("alice") as alice:
        await _bound(api, 50)
        for _ in range(20):
            await alice.lease()
        owners = api.running.server.engine.leases.owners
        assert owners is not None
        assert owners._counts == {"alice": 20}
        api.running.server.let_leases_end()
        assert not owners._counts
        assert not owners._users
