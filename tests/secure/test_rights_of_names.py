"""Attack 6: batches under the PID of another client's name, with the generation read from the log.

Every consumer sees PIDs and generations in the header of the first record of a batch.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from pidlease.core.lease import Lease, LeaseWanted
from pidlease.engine.lease_service import LeaseService
from pidlease.kafka.records.identity_header import Identity
from proxy.kafka.access.secured_apis import Guard
from proxy.security.acls import Operation, Pattern, Permission, ResourceKind
from proxy.security.security_config import SecurityConfig
from tests.http_api.appending import path_of
from tests.http_api.test_immediate_appends import Connection
from tests.kafka_listener.batches import identified, records_of
from tests.secure.secured import LOGIN, Secured, allow, secured
from tests.secure.test_acls_in_force import _of, _topics
from tests.secure.test_immediate_access import _basic, _response, _way

_ACLS = SecurityConfig(kafka=LOGIN, acls=True)
_WRITE = [allow(each, Operation.WRITE, ResourceKind.TOPIC, "t") for each in ("alice", "bob")]
_NAME = allow("alice", Operation.WRITE, ResourceKind.TRANSACTIONAL_ID, "loader")
_REFUSED = 53


async def _leased(running: Secured, name: str | None = "loader", policy: str = "strict") -> Lease:
    wanted = LeaseWanted("t", 0, name=name, policy=policy)
    return await LeaseService(running.server.engine, [wanted]).lease(wanted)


def _batch(lease: Lease, number: int, text: str = "own") -> bytes:
    identity = Identity(lease.pid, "", lease.generation, number, number)
    return identified([f"{text} {number}".encode()], identity)


@pytest.mark.parametrize("policy", ["strict", "monotonic"])
async def test_a_batch_under_the_pid_of_a_name(tmp_path: Path, policy: str) -> None:
    async with secured(tmp_path, _ACLS, [*_WRITE, _NAME]) as running:
        await _topics(running, "t")
        lease = await _leased(running, policy=policy)
        async with await running.login("alice") as alice, await running.login("bob") as bob:
            assert (await alice.produce("t", _batch(lease, 0))).offset == 0
            seen = records_of((await _reader(running)).data)[0].headers
            assert seen, "a consumer sees PID and generation"
            forged = await bob.produce("t", _batch(lease, 1, "forged"))
            assert (forged.code, forged.offset) == (_REFUSED, -1)
            assert "name" in (forged.message or "")
            assert "loader" not in (forged.message or ""), "it may be a secret"
            # A PID without a name: as in Kafka, the right to the topic is enough.
            free = await _leased(running, None)
            assert (await bob.produce("t", _batch(free, 0, "free"))).code == 0
            assert (await alice.produce("t", _batch(lease, 1))).code == 0
            assert (await _reader(running)).end == 3
        refused = [each for each in running.audit() if each["event"] == "refused"]
    (line,) = [each for each in refused if each["principal"] == "User:bob"]
    assert (line["operation"], line["resource"]) == ("WRITE", "TRANSACTIONAL_ID:loader")


async def _reader(running: Secured) -> Any:
    async with await running.login("root") as root:
        return await root.fetch("t")


async def test_a_connection_that_repeats_its_requests(tmp_path: Path) -> None:
    """On the hot path only the batch differs from the last request: its PID may be another one."""
    async with secured(tmp_path, _ACLS, [*_WRITE, _NAME]) as running:
        await _topics(running, "t")
        lease, free = await _leased(running), await _leased(running, None)
        async with await running.login("bob") as bob, await running.login("alice") as alice:
            for number in range(4):
                assert (await bob.produce("t", _batch(free, number))).code == 0
                assert (await alice.produce("t", _batch(lease, number))).code == 0
            template = _of(running, "bob").repeated
            assert template is not None
            assert (await bob.produce("t", _batch(free, 4))).code == 0
            assert _of(running, "bob").repeated is template, "it repeats"
            assert (await bob.produce("t", _batch(lease, 4, "forged"))).code == _REFUSED
            assert (await bob.produce("t", _batch(free, 5))).code == 0
            assert (await alice.produce("t", _batch(lease, 4))).code == 0
            # Revoked: the next batch is refused, on a connection that is open and repeats.
            await running.set_acls(*_WRITE)
            for number in (5, 5, 5):
                assert (await alice.produce("t", _batch(lease, number))).code == _REFUSED
            await running.set_acls(*_WRITE, _NAME)
            assert (await alice.produce("t", _batch(lease, 5))).code == 0


async def test_what_a_connection_has_noted_ends_with_a_change(tmp_path: Path) -> None:
    acls = [*_WRITE, _NAME]
    async with secured(tmp_path, _ACLS, acls) as running, await running.login("alice"):
        assert running.security.authorizer is not None
        guard, connection = Guard(running.security.authorizer), _of(running, "alice")
        assert guard.may_use(connection, "loader")
        assert guard.may_use(connection, "loader")
        assert not guard.may_use(connection, "other")
        await running.set_acls(*_WRITE)
        assert not guard.may_use(connection, "loader")


async def test_rights_by_prefix_and_denials(tmp_path: Path) -> None:
    prefix = allow("bob", Operation.WRITE, ResourceKind.TRANSACTIONAL_ID, "load",
                   pattern=Pattern.PREFIXED)  # fmt: skip
    denied = allow("bob", Operation.WRITE, ResourceKind.TRANSACTIONAL_ID, "loader",
                   permission=Permission.DENY)  # fmt: skip
    async with secured(tmp_path, _ACLS, [*_WRITE, prefix]) as running:
        await _topics(running, "t")
        lease = await _leased(running)
        async with await running.login("bob") as bob:
            assert (await bob.produce("t", _batch(lease, 0))).code == 0
            await running.set_acls(*_WRITE, prefix, denied)
            assert (await bob.produce("t", _batch(lease, 1))).code == _REFUSED


@pytest.mark.parametrize("immediate", [True, False])
async def test_an_append_over_http(tmp_path: Path, immediate: bool) -> None:
    async with _way(tmp_path, immediate=immediate) as way:
        await way.running.set_acls(*_WRITE, _NAME)
        lease = await _leased(way.running)
        client = await Connection.open(way.port)

        async def send(user: str, number: int, pid: int = lease.pid) -> bytes:
            body = json.dumps({
                "pid": pid, "generation": lease.generation, "first_sequence": number,
                "records": [{"value": f"{user} {number}"}],
            })  # fmt: skip
            lines = [f"POST {path_of()} HTTP/1.1", "host: x", "content-type: application/json",
                     f"content-length: {len(body)}", _basic(user)]  # fmt: skip
            client.writer.write("\r\n".join((*lines, "", body)).encode())
            return await _response(client)

        for number in range(3):  # from the second on, the password need not be hashed
            assert b"200 OK" in await send("alice", number)
            refused = await send("bob", number + 1)
            assert b" 403 " in refused
            assert b"not_authorized" in refused
            assert b"loader" not in refused, "it may be a secret"
        assert way.submitted == ([False, False, True, False, True, False] if immediate else [])
        free = await _leased(way.running, None)
        assert b"200 OK" in await send("bob", 0, free.pid)
        partition = way.running.server.engine.partition("t", 0)
        assert partition is not None
        assert partition.next_offset == 4
        refusals = {each["resource"] for each in way.running.audit()
                    if each["event"] == "refused" and each["principal"] == "User:bob"}  # fmt: skip
        assert refusals == {"TRANSACTIONAL_ID:loader"}
