"""Logins on the Kafka listener: before one nothing is served, and nothing passes it."""

import asyncio
import hashlib
import struct
import threading
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from scramp import ScramClient

from pidlease.kafka.api import API_METADATA
from proxy.kafka.access import secure_listener
from proxy.kafka.access.secure_connection import SecureConnection
from proxy.kafka.served_versions import SERVED_VERSIONS
from proxy.security import password_check
from proxy.security.password_check import PasswordCheck, TooManyLoginsError
from proxy.security.scram_credentials import (
    SHA_256,
    SHA_512,
    Credential,
    StandIns,
    credential_for,
)
from proxy.security.security_config import SecurityConfig
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient, produced
from tests.kafka_listener.messages import API_VERSIONS, METADATA, PRODUCE, encode_request
from tests.secure.secured import (
    LOGIN,
    PASSWORDS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Secured,
    authenticate,
    handshake,
    plain,
    scram,
    secured,
)

_LOGINS = SecurityConfig(kafka=LOGIN)
_FAILED = 58
_UNSUPPORTED = 33


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_user_logs_in_and_produces(tmp_path: Path, mechanism: str) -> None:
    async with secured(tmp_path, _LOGINS) as running:
        async with await running.login("alice", mechanism) as client:
            await client.create("t")
            assert (await client.produce("t", batch([b"a"]))).offset == 0
            assert (await client.fetch("t")).code == 0
        (line, *_) = [each for each in running.audit() if each["event"] == "login"]
    assert (line["principal"], line["outcome"], line["operation"]) == (
        "User:alice", "success", mechanism,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "wrong"), ("nobody", "wrong"), ("bob", "x")]
)
async def test_a_wrong_login_gets_the_same_answer_for_all(
    tmp_path: Path, user: str, password: str
) -> None:
    async with secured(tmp_path, _LOGINS) as running, await running.connect() as client:
        await handshake(client, "SCRAM-SHA-256")
        login = ScramClient(["SCRAM-SHA-256"], user, password)
        first = await authenticate(client, login.get_client_first().encode())
        assert first.error_code == 0
        login.set_server_first(bytes(first.auth_bytes).decode())
        body = await authenticate(client, login.get_client_final().encode())
        assert (body.error_code, body.error_message) == (_FAILED, "Authentication failed")
        assert bytes(body.auth_bytes) == b""
        assert await client.is_closed()


async def test_an_unknown_user_has_the_same_salt_each_time(tmp_path: Path) -> None:
    async with secured(tmp_path, _LOGINS) as running:
        salts = set()
        for _ in range(2):
            async with await running.connect() as client:
                await handshake(client, "SCRAM-SHA-512")
                login = ScramClient(["SCRAM-SHA-512"], "nobody", "x")
                body = await authenticate(client, login.get_client_first().encode())
                login.set_server_first(bytes(body.auth_bytes).decode())
                salts.add(str(login.salt))
    assert len(salts) == 1


def test_a_stand_in_looks_like_a_credential() -> None:
    real = credential_for("alice", SHA_256, "x")
    fake = StandIns().of("nobody", SHA_256)
    assert (fake.iterations, len(fake.salt), len(fake.stored_key)) == (
        real.iterations, len(real.salt), len(real.stored_key),
    )  # fmt: skip


async def test_a_password_takes_the_same_work_for_all_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a credential of either mechanism, of both, and of none."""
    users = {
        (user, each): credential_for(user, each, "x", iterations)
        for user, mechanisms, iterations in (
            ("a", [SHA_256], 4096), ("b", [SHA_512], 8192), ("c", [SHA_256, SHA_512], 16_384),
        )
        for each in mechanisms
    }  # fmt: skip
    hashing, work = hashlib.pbkdf2_hmac, Counter[str]()

    def counted(kind: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        work[kind] += iterations
        return hashing(kind, password, salt, iterations)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)
    check = PasswordCheck(lambda: users, StandIns())
    for user in ("a", "b", "c", "unknown"):
        work.clear()
        assert not await check.is_right(user, "y", "")
        assert work == {"sha256": 16_384, "sha512": 16_384}, user
    check.close()


#: Each API, and one between those that exist.
_KEYS = sorted({*SERVED_VERSIONS, 4, 24, 29, 30, 31, 50, 51, 75, 999})


@pytest.mark.parametrize("step", ["first", "after handshake", "after client first"])
async def test_nothing_else_is_served_before_the_login(tmp_path: Path, step: str) -> None:
    """Attack 1: every API key and version, before and between the steps of a login."""
    async with secured(tmp_path, _LOGINS) as running:
        seen: list[int] = []
        apis = running.server.door._apis

        def spy_on(name: str) -> None:
            handle = getattr(apis, name)

            def spy(slot: Any, header: Any, frame: bytearray) -> Any:
                seen.append(header.api_key)
                return handle(slot, header, frame)

            setattr(apis, name, spy)

        spy_on("answer")
        spy_on("produce")
        for key in _KEYS:
            low, high = SERVED_VERSIONS.get(key, (0, 1))
            for version in range(low, high + 1):
                allowed = {"first": (API_VERSIONS, SASL_HANDSHAKE)}.get(step, (SASL_AUTHENTICATE,))
                if key in allowed:
                    continue
                await _is_refused(running, step, key, version)
        assert seen == []


async def _is_refused(running: Secured, step: str, key: int, version: int) -> None:
    async with await running.connect() as client:
        if step != "first":
            await handshake(client, "SCRAM-SHA-256")
        if step == "after client first":
            login = ScramClient(["SCRAM-SHA-256"], "alice", PASSWORDS["alice"])
            await authenticate(client, login.get_client_first().encode())
        client.send_frame(struct.pack(">hhih", key, version, 7, -1) + bytes(40))
        assert await client.is_closed(), (step, key, version)


async def test_requests_after_a_refused_one_are_not_handled(tmp_path: Path) -> None:
    """A Produce that is sent together with a login, or with what precedes one, does nothing."""
    async with secured(tmp_path, _LOGINS) as running:
        async with await running.login("root") as root:
            await root.create("t")
        data = encode_request(PRODUCE, 9, produced([("t", 0, batch([b"stolen"]))]))
        async with await running.connect() as client:
            await handshake(client, "SCRAM-SHA-256")
            login = ScramClient(["SCRAM-SHA-256"], "alice", "wrong")
            body = await authenticate(client, login.get_client_first().encode())
            login.set_server_first(bytes(body.auth_bytes).decode())
            client.send(SASL_AUTHENTICATE, 2, auth_bytes=login.get_client_final().encode())
            client.send_frame(data)
            assert (await client.receive()).error_code == _FAILED
            assert await client.is_closed()
        async with await running.login("root") as root:
            assert (await root.fetch("t")).data == b""


async def test_pipelined_steps_are_answered_in_order(tmp_path: Path) -> None:
    """PLAIN takes a thread; the requests after it wait, and are then served as of the user."""
    config = SecurityConfig(kafka=LOGIN, mechanisms=("PLAIN",))
    async with secured(tmp_path, config) as running, await running.connect() as client:
        client.send(API_VERSIONS, 3)
        client.send(SASL_HANDSHAKE, 1, mechanism="PLAIN")
        client.send(SASL_AUTHENTICATE, 2, auth_bytes=b"\0alice\0alice-secret")
        client.send(METADATA, 9, topics=None)
        client.send(API_VERSIONS, 3)
        assert (await client.receive()).error_code == 0
        assert (await client.receive()).error_code == 0
        assert (await client.receive()).error_code == 0
        assert (await client.receive()).brokers
        assert (await client.receive()).error_code == 0


async def test_a_connection_that_ends_during_a_step_leaves_nothing(tmp_path: Path) -> None:
    config = SecurityConfig(kafka=LOGIN, mechanisms=("PLAIN",))
    async with secured(tmp_path, config) as running:
        for _ in range(5):
            client = await running.connect()
            client.send(SASL_HANDSHAKE, 1, mechanism="PLAIN")
            client.send(SASL_AUTHENTICATE, 2, auth_bytes=b"\0alice\0wrong")
            client.writer.transport.abort()
        door = running.server.door
        while door.connections or door.budget.used:  # noqa: ASYNC110 - the test has a timeout
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("message", [
    b"", b"alice\0alice-secret", b"bob\0alice\0alice-secret", b"\0alice\0",
    b"\0alice\0alice-secret\0", b"\xff\0a\0b", b"\0nobody\0alice-secret",
    b"\0alice\0bob-secret",
])  # fmt: skip
async def test_plain_refuses(tmp_path: Path, message: bytes) -> None:
    config = SecurityConfig(kafka=LOGIN, mechanisms=("PLAIN",))
    async with secured(tmp_path, config) as running, await running.connect() as client:
        await handshake(client, "PLAIN")
        assert (await authenticate(client, message)).error_code == _FAILED
        assert await client.is_closed()


async def test_too_many_logins_at_once_are_no_wrong_passwords(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection ends without a response, so clients try again."""
    config = SecurityConfig(kafka=LOGIN, mechanisms=("PLAIN",))
    async with secured(tmp_path, config) as running:
        with monkeypatch.context() as full:
            full.setattr(password_check, "_WAITING_MAX", 0)
            async with await running.connect() as client:
                await handshake(client, "PLAIN")
                client.send(SASL_AUTHENTICATE, 2, auth_bytes=b"\0alice\0alice-secret")
                assert await client.is_closed()
        async with await running.connect() as client:
            assert await plain(client, "alice", PASSWORDS["alice"]) == 0


async def test_one_address_does_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor clients at the same address: they may share that of a load balancer."""
    known, checked = credential_for("alice", SHA_256, "secret"), list[str]()
    may_check = threading.Event()

    def verifies(credential: Credential, password: str) -> bool:
        may_check.wait(30)
        checked.append(password)
        return credential is known

    monkeypatch.setattr(password_check, "verifies", verifies)
    check = PasswordCheck(lambda: {("alice", SHA_256): known}, StandIns())
    async with asyncio.TaskGroup() as group:
        guesses = [group.create_task(_guess(check, number)) for number in range(20)]
        await asyncio.sleep(0)
        others = [
            group.create_task(check.is_right("alice", password, address))
            for password, address in (("b", "10.0.0.2"), ("c", "10.0.0.3"), ("a", "10.0.0.1"))
        ]
        await asyncio.sleep(0.01)
        may_check.set()
    assert [each.result() for each in guesses] == [False] * 20
    assert [each.result() for each in others] == [True] * 3
    assert checked == ["guess 0", "b", "c", *(f"guess {each}" for each in range(1, 20)), "a"]
    assert not check._waiting
    assert not check._turns
    check.close()


async def test_addresses_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One takes half of it, and the next one half of the rest."""
    monkeypatch.setattr(password_check, "_WAITING_MAX", 30)
    monkeypatch.setattr(password_check, "verifies", lambda *_: False)
    check = PasswordCheck(dict, StandIns())
    async with asyncio.TaskGroup() as group:
        floods = [
            [group.create_task(_guess(check, first + each, address)) for each in range(40)]
            for first, address in ((0, "10.0.0.1"), (40, "10.0.0.2"))
        ]
        await asyncio.sleep(0)
        assert check._waiting == {"10.0.0.1": 15, "10.0.0.2": 8}
        assert await _guess(check, 80, "10.0.0.3") is False
    for flood, let_in in zip(floods, (15, 8), strict=True):
        assert [each.result() for each in flood] == [False] * let_in + [None] * (40 - let_in)
    check.close()


async def test_a_stop_ends_all_checks() -> None:
    check = PasswordCheck(dict, StandIns())
    tasks = [asyncio.create_task(_guess(check, number)) for number in range(5)]
    await asyncio.sleep(0)
    check.close()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in found] == [asyncio.CancelledError] * 5


async def test_one_password_on_many_connections_is_checked_once() -> None:
    """Also if the first of them is closed meanwhile."""
    known = credential_for("alice", SHA_256, "secret")
    check = PasswordCheck(lambda: {("alice", SHA_256): known}, StandIns())
    tasks = [asyncio.create_task(check.is_right("alice", "secret", "10.0.0.1")) for _ in range(50)]
    await asyncio.sleep(0)
    assert check._waiting.total() == 1
    tasks[0].cancel()
    assert await asyncio.gather(*tasks[1:]) == [True] * 49
    assert not check._running
    check.close()


async def _guess(check: PasswordCheck, number: int, address: str = "10.0.0.1") -> bool | None:
    """Whether a guess is right; None: it must wait for later."""
    try:
        return await check.is_right(f"user {number}", f"guess {number}", address)
    except TooManyLoginsError:
        return None


async def test_a_mechanism_that_is_not_enabled_is_refused(tmp_path: Path) -> None:
    config = SecurityConfig(kafka=LOGIN, mechanisms=("SCRAM-SHA-512",))
    async with secured(tmp_path, config) as running:
        for mechanism in ("SCRAM-SHA-256", "PLAIN", "GSSAPI", "", "scram-sha-512"):
            async with await running.connect() as client:
                body = await handshake(client, mechanism)
                assert body.error_code == _UNSUPPORTED
                assert list(body.mechanisms) == ["SCRAM-SHA-512"]
                assert await client.is_closed()


async def test_a_replayed_login_is_refused(tmp_path: Path) -> None:
    """Attack 4: the nonce of the server differs in each login."""
    async with secured(tmp_path, _LOGINS) as running:
        login = ScramClient(["SCRAM-SHA-256"], "alice", PASSWORDS["alice"], c_nonce="same")
        async with await running.connect() as client:
            await handshake(client, "SCRAM-SHA-256")
            first = login.get_client_first().encode()
            body = await authenticate(client, first)
            login.set_server_first(bytes(body.auth_bytes).decode())
            final = login.get_client_final().encode()
            assert (await authenticate(client, final)).error_code == 0
        async with await running.connect() as client:
            await handshake(client, "SCRAM-SHA-256")
            assert (await authenticate(client, first)).error_code == 0
            assert (await authenticate(client, final)).error_code == _FAILED


async def test_a_large_request_before_the_login_closes(tmp_path: Path) -> None:
    async with secured(tmp_path, _LOGINS) as running:
        for size in (65_537, 1 << 20, (100 << 20) - 1, 2**31 - 1):
            async with await running.connect() as client:
                client.send_bytes(struct.pack(">i", size) + bytes(64))
                assert await client.is_closed()
        assert running.server.door.budget.used == 0


async def test_a_login_that_takes_too_long_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.kafka.kafka_listener._SWEEP_SECONDS", 0.05)
    config = SecurityConfig(kafka=LOGIN, login_seconds=0.1)
    async with secured(tmp_path, config) as running, await running.connect() as client:
        await handshake(client, "SCRAM-SHA-256")
        assert await client.is_closed(60)


async def test_a_flood_without_logins_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack 10: the oldest connections without a login give way; others are served."""
    monkeypatch.setattr(secure_listener, "LOGINS_MAX", 20)
    async with secured(tmp_path, _LOGINS) as running:
        flood: list[WireClient] = []
        async with await running.login("alice") as alice:
            flood += [await running.connect() for _ in range(60)]
            await alice.create("t")
            async with await running.login("bob") as bob:
                assert (await bob.metadata("t")).topics
            assert len(running.server.door.connections) <= 22
            assert (await alice.produce("t", batch([b"a"]))).code == 0
        for each in flood:
            each.writer.transport.abort()


async def test_a_removed_user_loses_the_connection(tmp_path: Path) -> None:
    async with secured(tmp_path, _LOGINS) as running:
        async with await running.login("alice") as alice, await running.login("bob") as bob:
            keys = [("alice", "SCRAM-SHA-256"), ("alice", "SCRAM-SHA-512")]
            await running.security.change_users((), keys)
            assert await alice.is_closed()
            assert (await bob.metadata()).brokers
        async with await running.connect() as client:
            assert await scram(client, "alice", PASSWORDS["alice"]) == _FAILED


async def test_a_session_ends_and_may_be_renewed(tmp_path: Path) -> None:
    """KIP-368: the client learns the lifetime, logs in again in time, and else is closed."""
    config = SecurityConfig(kafka=LOGIN, reauth_seconds=3600)
    async with secured(tmp_path, config) as running, await running.login("alice") as client:
        connection = cast(SecureConnection, next(iter(running.server.door.connections)))
        assert 0 < connection._expires < float("inf")
        before = connection._expires
        assert await scram(client, "alice", PASSWORDS["alice"]) == 0
        assert connection._expires > before
        assert (await client.metadata()).brokers
        connection._expires = 0.0
        client.send(API_METADATA, 9, topics=None)
        assert await client.is_closed()


@pytest.mark.parametrize(
    ("user", "mechanism"), [("bob", "SCRAM-SHA-256"), ("alice", "SCRAM-SHA-512")]
)
async def test_a_renewal_changes_neither_user_nor_mechanism(
    tmp_path: Path, user: str, mechanism: str
) -> None:
    async with secured(tmp_path, _LOGINS) as running, await running.login("alice") as client:
        assert await scram(client, user, PASSWORDS[user], mechanism) != 0
        assert await client.is_closed()


async def test_a_produce_between_the_steps_of_a_renewal_closes(tmp_path: Path) -> None:
    """The template of the last Produce must not let a batch pass, either."""
    async with secured(tmp_path, _LOGINS) as running, await running.login("alice") as client:
        await client.create("t")
        for _ in range(3):
            assert (await client.produce("t", batch([b"a"]))).code == 0
        await handshake(client, "SCRAM-SHA-256")
        client.send_produce("t", batch([b"b"]))
        assert await client.is_closed()


async def test_sasl_is_not_served_without_logins(tmp_path: Path) -> None:
    config = SecurityConfig(acls=True, allow_if_none=True)
    async with secured(tmp_path, config) as running, await running.connect() as client:
        versions = await client.call(API_VERSIONS, 3)
        assert SASL_HANDSHAKE not in {each.api_key for each in versions.api_keys}
        client.send(SASL_HANDSHAKE, 1, mechanism="PLAIN")
        assert await client.is_closed()


async def test_without_acls_only_super_users_change_users(tmp_path: Path) -> None:
    async with secured(tmp_path, _LOGINS) as running:
        deletions = [{"name": "bob", "mechanism": 1}]
        async with await running.login("alice") as alice:
            body = await alice.call(51, 0, deletions=deletions, upsertions=[])
            assert [int(each.error_code) for each in body.results] == [31]
        assert ("bob", "SCRAM-SHA-256") in running.security.credentials
        async with await running.login("root") as root:
            body = await root.call(51, 0, deletions=deletions, upsertions=[])
            assert [int(each.error_code) for each in body.results] == [0]
        assert ("bob", "SCRAM-SHA-256") not in running.security.credentials
