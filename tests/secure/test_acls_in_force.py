"""ACLs on the running Kafka listener: what is refused, filtered, and revoked."""

import asyncio
import errno
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from pidlease.storage.files import RealFiles
from proxy.kafka.access.secure_connection import SecureConnection
from proxy.kafka.client_connection import Slot
from proxy.kafka.produce_api import _RepeatedProduce
from proxy.security.acls import Operation, Pattern, Permission, ResourceKind
from proxy.security.authorizer import Authorizer, Caller, Right
from proxy.security.security import Security
from proxy.security.security_config import SecurityConfig
from tests.client.harness import until
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import INIT, WireClient, creation, fetched, fetched_of
from tests.kafka_listener.messages import (
    CREATE_TOPICS,
    FETCH,
    INIT_PRODUCER_ID,
    METADATA,
    decode_response,
    encode_request,
)
from tests.secure.secured import LOGIN, Secured, allow, secured, write_acls

_ACLS = SecurityConfig(kafka=LOGIN, acls=True)
_OP, _T, _G, _C = Operation, ResourceKind.TOPIC, ResourceKind.GROUP, ResourceKind.CLUSTER
_REFUSED = 29
_NOTHING = "nothing was changed; the server's log says why"
_UNREAD = "the ACLs were not reloaded; the previous ones stay in force"
_WRITE = allow("alice", _OP.WRITE, _T, "t")
_READ = allow("alice", _OP.READ, _T, "t")


async def _topics(running: Secured, *names: str) -> None:
    async with await running.login("root") as root:
        for name in names:
            await root.create(name)


def _of(running: Secured, user: str) -> SecureConnection:
    """The connection of a user: those of others may not have ended yet."""
    found = [each for each in running.server.door.connections
             if isinstance(each, SecureConnection) and each.caller is not None
             and each.caller.principal == f"User:{user}"]  # fmt: skip
    (connection,) = found
    return connection


async def test_only_who_may_write_produces(tmp_path: Path) -> None:
    async with secured(tmp_path, _ACLS, [_WRITE]) as running:
        await _topics(running, "t", "u")
        async with await running.login("alice") as alice, await running.login("bob") as bob:
            assert (await alice.produce("t", batch([b"a"]))).offset == 0
            assert (await alice.produce("u", batch([b"a"]))).code == _REFUSED
            assert (await bob.produce("t", batch([b"b"]))).code == _REFUSED
            # Whether a topic exists is not told.
            assert (await bob.produce("absent", batch([b"b"]))).code == _REFUSED
            assert (await alice.fetch("t")).code == _REFUSED
        refused = [each for each in running.audit() if each["event"] == "refused"]
    assert {(each["principal"], each["operation"], each["resource"]) for each in refused} == {
        ("User:alice", "WRITE", "TOPIC:u"), ("User:bob", "WRITE", "TOPIC:t"),
        ("User:bob", "WRITE", "TOPIC:absent"), ("User:alice", "READ", "TOPIC:t"),
    }  # fmt: skip


async def test_the_template_of_the_last_produce_obeys_a_revocation(tmp_path: Path) -> None:
    """Attack 7, on the hot path: the connection is open, and its requests repeat."""
    async with secured(tmp_path, _ACLS, [_WRITE]) as running:
        await _topics(running, "t")
        async with await running.login("alice") as alice:
            for offset in range(4):
                assert (await alice.produce("t", batch([b"a"]))).offset == offset
            connection = _of(running, "alice")
            template = connection.repeated
            assert isinstance(template, _RepeatedProduce)
            assert template.guard is not None
            assert (await alice.produce("t", batch([b"a"]))).offset == 4
            assert connection.repeated is template
            await running.set_acls(_READ)
            assert (await alice.produce("t", batch([b"a"]))).code == _REFUSED
            assert (await alice.produce("t", batch([b"a"]))).code == _REFUSED
            assert (await alice.fetch("t")).end == 5
            await running.set_acls(_WRITE)
            assert (await alice.produce("t", batch([b"a"]))).offset == 5


async def test_without_acls_the_template_is_the_usual_one(tmp_path: Path) -> None:
    config = SecurityConfig(kafka=LOGIN)
    async with secured(tmp_path, config) as running, await running.login("alice") as alice:
        await alice.create("t")
        for _ in range(3):
            await alice.produce("t", batch([b"a"]))
        repeated = _of(running, "alice").repeated
        assert isinstance(repeated, _RepeatedProduce)
        assert repeated.guard is None


async def test_a_fetch_that_waits_ends_with_a_revocation(tmp_path: Path) -> None:
    async with secured(tmp_path, _ACLS, [_READ]) as running:
        await _topics(running, "t")
        async with await running.login("alice") as alice:
            alice.timeout_s = 60
            alice.send(FETCH, 11, **fetched([("t", 0, 0)], wait_ms=50_000))
            door = running.server.door
            while all(each._poll is None for each in door.connections):  # noqa: ASYNC110 - the test has a timeout
                await asyncio.sleep(0.01)
            await running.set_acls()
            assert fetched_of(await alice.receive())[0].data == b""
            assert (await alice.fetch("t")).code == _REFUSED


async def test_fetches_that_wait_for_their_turn_obey_a_revocation(tmp_path: Path) -> None:
    """Also one that is for a topic, too, to which the client keeps its right."""
    kept = allow("alice", _OP.READ, _T, "u")
    async with secured(tmp_path, _ACLS, [_READ, kept]) as running:
        await _topics(running, "t", "u")
        async with await running.login("alice") as alice, await running.login("root") as root:
            alice.timeout_s = 60
            for _ in range(3):
                alice.send(FETCH, 11, **fetched([("t", 0, 0)], wait_ms=50_000))
            both = [("u", 0, 0), ("t", 0, 0)]
            alice.send(FETCH, 11, **fetched(both, wait_ms=100))
            others = [*both, ("absent", 0, 0)]
            alice.send(FETCH, 11, **fetched(others, wait_ms=100))
            connection = _of(running, "alice")
            while connection._poll is None or len(connection._slots) < 5:  # noqa: ASYNC110 - the test has a timeout
                await asyncio.sleep(0.01)
            await running.set_acls(kept)
            assert (await root.produce("t", batch([b"secret"]))).code == 0
            for _ in range(3):
                (found,) = fetched_of(await alice.receive())
                assert (found.code, found.data) == (_REFUSED, b"")
            for refused in (1, 2):
                body = await alice.receive()
                codes = [each.code for each in fetched_of(body)]
                assert sorted(codes) == [0, *[_REFUSED] * refused]
                assert not any(each.data for each in fetched_of(body))


async def test_a_right_that_is_revoked_during_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long Fetch is decided in steps."""
    permits = Authorizer.permits

    def revoke(self: Authorizer, caller: Caller, *rights: Right) -> bool:
        allowed = permits(self, caller, *rights)
        if allowed:
            self.replace(())
        return allowed

    async with secured(tmp_path, _ACLS, [_READ]) as running:
        await _topics(running, "t")
        async with await running.login("alice") as alice, await running.login("root") as root:
            assert (await root.produce("t", batch([b"secret"]))).code == 0
            monkeypatch.setattr(Authorizer, "permits", revoke)
            others = [(f"absent-{number}", 0, 0) for number in range(300)]
            found = fetched_of(await alice.call(FETCH, 11, **fetched([("t", 0, 0), *others])))
            assert [each.code for each in found] == [_REFUSED] * 301
            assert not any(each.data for each in found)


async def test_metadata_shows_only_what_a_client_may_see(tmp_path: Path) -> None:
    acls = [allow("alice", _OP.READ, _T, "pub", pattern=Pattern.PREFIXED), allow(
        "alice", _OP.ALL, _T, "public-but-one", permission=Permission.DENY)]  # fmt: skip
    async with secured(tmp_path, _ACLS, acls) as running:
        await _topics(running, "public", "public-but-one", "private", "pu")
        async with await running.login("alice") as alice, await running.login("root") as root:
            for version in (1, 4, 9, 13):
                body = await alice.call(METADATA, version, topics=None)
                assert [each.name for each in body.topics] == ["public"]
            everything = await root.call(METADATA, 13, topics=None)
            ids = {each.name: each.topic_id for each in everything.topics}
            assert len(ids) == 4
            # By name and by id (attack 9): an error, and neither partitions nor the name.
            body = await alice.metadata("private", "public", "absent")
            codes = {each.name: (each.error_code, len(each.partitions)) for each in body.topics}
            assert codes == {"public": (0, 1), "private": (_REFUSED, 0), "absent": (_REFUSED, 0)}
            named = [{"topic_id": ids["private"], "name": None}]
            body = await alice.call(METADATA, 12, topics=named)
            ((code, name, shown),) = [(each.error_code, each.name, each.partitions)
                                      for each in body.topics]  # fmt: skip
            assert (code, name, shown) == (_REFUSED, None, ())


async def test_librdkafka_s_request_for_all_topics_is_answered(tmp_path: Path) -> None:
    """librdkafka #5049: from version 9 on it writes the null array as four bytes."""
    async with secured(tmp_path, _ACLS, [allow("alice", _OP.READ, _T, "public")]) as running:
        await _topics(running, "public", "private")
        async with await running.login("alice") as alice:
            for version in (9, 10, 12, 13):
                frame = encode_request(METADATA, version, {"topics": None}, version, "x")
                rest = 4 if version <= 10 else 3  # after the array
                alice.send_frame(frame[:-rest] + bytes(3) + frame[-rest:])
                _, body = decode_response(METADATA, version, await alice.receive_frame())
                assert [each.name for each in body.topics] == ["public"]


async def test_metadata_creates_nothing_without_the_right(tmp_path: Path) -> None:
    see_all = allow("alice", _OP.DESCRIBE, _T, "*")
    create = allow("alice", _OP.CREATE, _C, "kafka-cluster")
    running_with = secured(tmp_path, _ACLS, [see_all])
    async with running_with as running, await running.login("alice") as alice:
        body = await alice.metadata("new", create=True)
        assert body.topics[0].error_code == _REFUSED
        assert "new" not in running.server.engine.topics
        await running.set_acls(see_all, create)
        body = await alice.metadata("new", create=True)
        assert body.topics[0].error_code == 0
        assert "new" in running.server.engine.topics


@pytest.mark.parametrize("version", [1, 3, 4, 9])
async def test_a_topic_that_is_deleted_meanwhile_is_not_created_without_the_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """It existed when the request arrived; another one of the request may be created."""
    acls = [allow("alice", _OP.DESCRIBE, _T, "*"), allow("alice", _OP.CREATE, _T, "mine")]
    turn, arrived, go_on = Slot.turn, asyncio.Event(), asyncio.Event()
    async with secured(tmp_path, _ACLS, acls) as running:
        await _topics(running, "t")
        async with await running.login("alice") as alice, await running.login("root") as root:
            connection = _of(running, "alice")

            async def waited(self: Slot) -> None:
                if self.connection is connection:
                    arrived.set()
                    await go_on.wait()
                await turn(self)

            monkeypatch.setattr(Slot, "turn", waited)
            named = [{"name": name} for name in ("t", "mine")]
            alice.send(METADATA, version, topics=named, allow_auto_topic_creation=True)
            await arrived.wait()
            await root.call(20, 5, topic_names=["t"])
            go_on.set()
            body = await alice.receive()
            assert {each.name: int(each.error_code) for each in body.topics} == {"t": 3, "mine": 0}
            assert set(running.server.engine.topics) == {"mine"}


async def test_topics_are_deleted_by_id_only_with_the_right(tmp_path: Path) -> None:
    async with secured(tmp_path, _ACLS, [allow("alice", _OP.DELETE, _T, "mine")]) as running:
        await _topics(running, "mine", "other")
        async with await running.login("alice") as alice, await running.login("root") as root:
            body = await root.call(METADATA, 13, topics=None)
            states = [{"topic_id": each.topic_id, "name": None} for each in body.topics]
            body = await alice.call(20, 6, topics=states)
            codes = sorted((each.error_code, each.name) for each in body.responses)
            assert codes == [(0, "mine"), (_REFUSED, None)]
        assert set(running.server.engine.topics) == {"other"}


async def test_several_items_are_decided_one_by_one(tmp_path: Path) -> None:
    acls = [_READ, allow("alice", _OP.CREATE, _T, "n", pattern=Pattern.PREFIXED)]
    async with secured(tmp_path, _ACLS, acls) as running:
        await _topics(running, "t", "u")
        async with await running.login("alice") as alice:
            parts = [("u", 0, 0), ("t", 0, 0), ("absent", 0, 0)]
            found = fetched_of(await alice.call(FETCH, 11, **fetched(parts)))
            assert sorted(each.code for each in found) == [0, _REFUSED, _REFUSED]
            wanted = [creation("new")["topics"][0], creation("other")["topics"][0]]  # type: ignore[index]
            body = await alice.call(CREATE_TOPICS, 5, **{**creation("x"), "topics": wanted})
            assert {each.name: int(each.error_code) for each in body.topics} == {
                "new": 0, "other": _REFUSED,
            }  # fmt: skip


async def test_leases_need_a_right(tmp_path: Path) -> None:
    async with secured(tmp_path, _ACLS) as running, await running.login("alice") as alice:
        assert (await alice.call(INIT_PRODUCER_ID, 4, **INIT)).error_code == 31
        await running.set_acls(allow("alice", _OP.WRITE, _T, "any", pattern=Pattern.PREFIXED))
        assert await alice.lease() > 0
        await running.set_acls(allow("alice", _OP.IDEMPOTENT_WRITE, _C, "kafka-cluster"))
        assert await alice.lease() > 0


async def test_a_large_request_is_decided_in_order(tmp_path: Path) -> None:
    """It is decoded while other tasks run; the requests after it wait."""
    async with secured(tmp_path, _ACLS, [_READ]) as running:
        await _topics(running, "t")
        async with await running.login("alice") as alice:
            names = ["t", *(f"topic-{number:05}" for number in range(3000))]
            alice.send(METADATA, 9, topics=[{"name": name} for name in names])
            alice.send(METADATA, 9, topics=[{"name": "t"}])
            body = await alice.receive()
            codes = {each.name: int(each.error_code) for each in body.topics}
            assert codes.pop("t") == 0
            assert set(codes.values()) == {_REFUSED}
            assert len(codes) == 3000
            assert len((await alice.receive()).topics) == 1


async def _sees(client: WireClient, *expected: str) -> None:
    while True:
        body = await client.call(METADATA, 9, topics=None)
        if {each.name for each in body.topics} == set(expected):
            return
        await asyncio.sleep(0.05)


async def test_a_changed_file_counts_soon_and_a_broken_one_never(tmp_path: Path) -> None:
    async with secured(tmp_path, _ACLS) as running:
        await _topics(running, "t", "u")
        async with await running.login("alice") as alice:
            await _sees(alice)
            write_acls(running.folder, _READ)
            await _sees(alice, "t")
            path = running.folder / "security" / "acls"
            path.write_text(path.read_text() + "{broken\n")
            await running.security.reload()
            await _sees(alice, "t")
            assert running.security.authorizer is not None
            assert running.security.authorizer.acls == {_READ}
            write_acls_text = path.read_text().replace("{broken\n", "")
            path.write_text(write_acls_text.replace('"t"', '"u"'))
            await _sees(alice, "u")


class _Failing:
    """Fails each time that it is called."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *arguments: Any) -> Any:
        self.calls.append(arguments)
        raise self._error


@pytest.mark.parametrize("failing", ["_users", "_acls", "_quotas"])
async def test_files_are_read_again_after_an_unexpected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    monkeypatch.setattr("proxy.security.security._WATCH_SECONDS", 0.02)
    fail = _Failing(OverflowError("a bug"))
    async with secured(tmp_path, _ACLS) as running:
        await _topics(running, "t")
        path = running.folder / "security" / failing[1:]
        with monkeypatch.context() as broken:
            broken.setattr(getattr(running.security, failing), "read", fail)
            path.write_text(f"# changed\n{path.read_text() if path.exists() else ''}")
            await until(lambda: len(fail.calls) > 1)
        write_acls(running.folder, _READ)
        async with await running.login("alice") as alice:
            await _sees(alice, "t")


async def test_a_change_is_not_lost_when_its_file_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.security.security._WATCH_SECONDS", 0.02)
    fail = _Failing(OSError(errno.EMFILE, "too many open files"))
    async with secured(tmp_path, _ACLS, [_READ]) as running:
        await _topics(running, "t")
        async with await running.login("alice") as alice:
            await _sees(alice, "t")
            path = running.folder / "security" / "acls"
            with monkeypatch.context() as full, capture_logs() as lines:
                full.setattr("proxy.security.entry_file.read_file", fail)
                path.write_text("# no right any more\n")
                await until(lambda: len(fail.calls) > 2)
            assert {each for _, each in fail.calls} == {path}
            assert [each["event"] for each in lines] == [_UNREAD]
            await _sees(alice)


@pytest.mark.parametrize("failing", ["_users", "certificates"])
async def test_a_file_that_cannot_be_read_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    monkeypatch.setattr("proxy.security.security._WATCH_SECONDS", 0.02)
    fail = _Failing(OverflowError("a bug"))
    file = tmp_path / "changed"
    async with secured(tmp_path, _ACLS, [_READ]) as running:
        security, authorizer = running.security, running.security.authorizer
        assert authorizer is not None
        if failing == "_users":
            file = security._users.path
            monkeypatch.setattr(security._users, "read", fail)
        else:
            security.certificates = cast(Any, SimpleNamespace(paths=[file], reload=fail))
        with file.open("a") as changed:
            changed.write("# changed\n")
        write_acls(running.folder)
        await until(lambda: not authorizer.acls)
        version = authorizer.version
        await until(lambda: len(fail.calls) > 2)
        assert authorizer.version is version, "the ACLs have not changed again"


async def test_the_audit_log_is_complete_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(_ACLS, audit_log=tmp_path / "audit")
    security = Security(config, RealFiles(), tmp_path)
    await security.start()
    security.audit.write("change", "", "", "READ_FILE", "FILE:x", "success")

    def fail() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(security.passwords, "close", fail)
    with pytest.raises(RuntimeError):
        await security.close()
    assert security.audit._thread is None
    assert "FILE:x" in (tmp_path / "audit").read_text()


def _acl(acl_name: str, **changes: object) -> dict[str, object]:
    return {
        "resource_type": 2, "resource_name": acl_name, "resource_pattern_type": 3,
        "principal": "User:alice", "host": "*", "operation": 4, "permission_type": 3, **changes,
    }  # fmt: skip


_ALL = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
    "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip


async def test_acls_are_managed_by_requests(tmp_path: Path) -> None:
    async with secured(tmp_path, _ACLS) as running:
        await _topics(running, "t")
        async with await running.login("root") as root, await running.login("alice") as alice:
            creations = [_acl("t"), _acl("t", operation=1), _acl("p", resource_pattern_type=4),
                         _acl("t", principal="alice")]  # fmt: skip
            body = await root.call(30, 3, creations=creations)
            assert [int(each.error_code) for each in body.results] == [0, 42, 0, 42]
            assert (await alice.produce("t", batch([b"a"]))).code == 0
            body = await root.call(29, 3, **_ALL)
            assert {(each.resource_name, each.pattern_type, len(each.acls))
                    for each in body.resources} == {("t", 3, 1), ("p", 4, 1)}  # fmt: skip
            matching = {**_ALL, "pattern_type_filter": 2, "resource_name_filter": "pq"}
            body = await root.call(29, 3, **matching)
            assert [each.resource_name for each in body.resources] == ["p"]
            literal = {**_ALL, "pattern_type_filter": 3, "resource_name_filter": "t"}
            body = await root.call(31, 3, filters=[literal])
            assert len(body.filter_results[0].matching_acls) == 1
            assert (await alice.produce("t", batch([b"a"]))).code == _REFUSED
        changes = [each["operation"] for each in running.audit() if each["event"] == "change"]
    assert changes == ["CREATE_TOPIC", "CREATE_ACL", "CREATE_ACL", "DELETE_ACL"]


async def test_a_change_that_was_not_made_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.security.entry_file._LOCK_SECONDS", 0.1)
    async with secured(tmp_path, _ACLS) as running, await running.login("root") as root:
        path = running.folder / "security" / "acls"
        path.write_text("nonsense\n")
        (broken,) = (await root.call(30, 3, creations=[_acl("t")])).results
        assert (broken.error_code, broken.error_message) == (-1, _NOTHING)
        path.write_text("")
        lock = running.security._acls.lock()
        (locked,) = (await root.call(30, 3, creations=[_acl("t")])).results
        assert (locked.error_code, locked.error_message) == (-1, _NOTHING)
        lock.release()
        (made,) = (await root.call(30, 3, creations=[_acl("t")])).results
        assert made.error_code == 0


async def test_users_are_managed_by_requests(tmp_path: Path) -> None:
    """KIP-554, as kafka-configs.sh sends it: salted on the client's side."""
    from proxy.security.scram_credentials import salted_password
    from tests.secure.secured import scram

    salt = b"0123456789abcdef"
    salted = salted_password("SCRAM-SHA-256", "carol-secret", salt, 4096)
    good = {"name": "carol", "mechanism": 1, "iterations": 4096, "salt": salt,
            "salted_password": salted}  # fmt: skip
    async with secured(tmp_path, _ACLS) as running, await running.login("root") as root:
        bad = [{**good, "name": "d", "iterations": 1}, {**good, "name": "e", "mechanism": 7},
               {**good, "name": "f", "iterations": 2**31 - 1},
               {**good, "name": "g", "salted_password": b"short"}]  # fmt: skip
        body = await root.call(51, 0, deletions=[], upsertions=[good, *bad])
        codes = {each.user: int(each.error_code) for each in body.results}
        assert codes == {"carol": 0, "d": 93, "e": 33, "f": 93, "g": 93}
        async with await running.connect() as carol:
            assert await scram(carol, "carol", "carol-secret") == 0
            assert not await carol.is_closed(0.01)
            deletions = [{"name": "carol", "mechanism": 1}, {"name": "zoe", "mechanism": 1}]
            body = await root.call(51, 0, deletions=deletions, upsertions=[])
            assert {each.user: int(each.error_code) for each in body.results} == {
                "carol": 0, "zoe": 91,
            }  # fmt: skip
            assert await carol.is_closed(60)
        body = await root.call(50, 0, users=None)
        assert {each.user for each in body.results} == {"alice", "bob", "root"}
        assert (await root.call(48, 1)).entries in (None, ())
    assert b"carol-secret" not in (running.folder / "security" / "users").read_bytes()


async def test_a_group_is_refused_as_a_whole(tmp_path: Path) -> None:
    async with secured(tmp_path, _ACLS, [_READ]) as running:
        await _topics(running, "t")
        async with await running.login("alice") as alice:
            commit = {"group_id": "g", "generation_id_or_member_epoch": -1, "topics": [
                {"name": name, "partitions": [{"partition_index": 0, "committed_offset": 3}]}
                for name in ("t", "u")]}  # fmt: skip
            body = await alice.call(8, 9, **commit)
            assert [int(part.error_code) for each in body.topics for part in each.partitions] == [
                30, 30,
            ]  # fmt: skip
            await running.set_acls(_READ, allow("alice", _OP.READ, _G, "g"))
            body = await alice.call(8, 9, **commit)
            assert {each.name: int(each.partitions[0].error_code) for each in body.topics} == {
                "t": 0, "u": _REFUSED,
            }  # fmt: skip
            async with await running.login("root") as root:
                commit["group_id"] = "hidden"
                commit["topics"] = commit["topics"][:1]  # type: ignore[index]
                await root.call(8, 9, **commit)
            listed = await alice.call(16, 4)
            assert [each.group_id for each in listed.groups] == ["g"]
