"""Quotas on the running Kafka listener, and what a client may try to get past them."""

import asyncio
import struct
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from pidlease.storage.files import RealFiles
from proxy.kafka.access import metered_connection
from proxy.kafka.access.secure_connection import SecureConnection
from proxy.security.acls import Operation, ResourceKind
from proxy.security.entry_file import EntryFile
from proxy.security.quota_rules import (
    FETCHED_BYTES,
    PRODUCED_BYTES,
    QUOTA_FILE,
    REQUESTS,
    Entity,
    Quota,
)
from proxy.security.security_config import SecurityConfig
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient, fetched, fetched_of, produced
from tests.kafka_listener.messages import FETCH, METADATA, PRODUCE, encode_request
from tests.secure.secured import LOGIN, PASSWORDS, Secured, allow, scram, secured

#: A full bucket has the use of 0.1 s, so that no test waits for long.
_CONFIG: Final = SecurityConfig(kafka=LOGIN, quota_window_num=2, quota_window_seconds=0.1)
_ALICE, _BOB, _EVERYONE = Entity("alice"), Entity("bob"), Entity(None)
#: 100 KB/s: 10 KB at once.
_RATE: Final = 100_000.0
_USERS: Final = tuple(PASSWORDS)


async def _set(running: Secured, **rules: dict[Entity, float]) -> None:
    found: dict[Entity, dict[str, float]] = {}
    for key, limits in rules.items():
        for entity, limit in limits.items():
            found.setdefault(entity, {})[key] = limit
    quotas = [Quota(entity, tuple(sorted(limits.items()))) for entity, limits in found.items()]
    await running.security.change_quotas(lambda _: quotas)


async def _topic(running: Secured) -> None:
    async with await running.login("root") as root:
        await root.create("t")


def _sized(size: int) -> bytes:
    """A batch of this number of bytes and a few more."""
    return batch([b"x" * size])


async def _produce(client: WireClient, size: int) -> float:
    """Produce; for how long the response throttles the client, in s."""
    client.send_produce("t", _sized(size))
    return await _throttled(client)


async def _throttled(client: WireClient) -> float:
    body = await client.receive()
    for topic in getattr(body, "responses", ()):
        for part in getattr(topic, "partition_responses", ()):
            assert part.error_code == 0
    return float(body.throttle_time.total_seconds())


async def test_the_response_says_how_long_and_then_nothing_is_read(tmp_path: Path) -> None:
    """KIP-219: the response is sent at once, and the next request is handled after the time."""
    async with secured(tmp_path, _CONFIG) as running:
        await _topic(running)
        await _set(running, producer_byte_rate={_ALICE: _RATE})
        async with await running.login("alice") as alice, await running.login("bob") as bob:
            assert await _produce(alice, 5000) == 0
            began = time.monotonic()
            seconds = await _produce(alice, 60_000)
            assert 0.3 < seconds < 0.7
            alice.send(METADATA, 9, topics=[], allow_auto_topic_creation=False)
            assert await _produce(bob, 60_000) == 0  # another client goes on
            await alice.receive()
            assert time.monotonic() - began >= seconds * 0.95
        quotas = running.security.quotas
        assert quotas.throttles == {(PRODUCED_BYTES, "kafka"): 1}
        assert quotas.throttled[PRODUCED_BYTES, "kafka"] == pytest.approx(seconds, abs=0.01)


async def test_a_repeated_produce_is_counted_as_well(tmp_path: Path) -> None:
    """The connection's template of its last request passes by no quota; also with acks=0."""
    async with secured(tmp_path, _CONFIG) as running:
        await _topic(running)
        await _set(running, producer_byte_rate={_ALICE: _RATE})
        async with await running.login("alice") as alice:
            began = time.monotonic()
            throttled = [await _produce(alice, 12_000) for _ in range(8)]
            assert _connection(running, "alice").repeated is not None
            assert any(throttled[3:])
            assert time.monotonic() - began >= (8 * 12_000 - 2 * 10_000 - 12_000) / _RATE
            alice.send_produce("t", _sized(50_000), acks=0)
            alice.forget_last()
            began = time.monotonic()
            await alice.call(METADATA, 9, topics=[], allow_auto_topic_creation=False)
            assert time.monotonic() - began > 0.3


def _connection(running: Secured, user: str) -> SecureConnection:
    (found,) = (each for each in running.server.door.connections
                if isinstance(each, SecureConnection) and each.caller is not None
                and each.caller.principal == f"User:{user}")  # fmt: skip
    return found


async def _flood(running: Secured, clients: Iterable[WireClient], times: int, size: int) -> float:
    """Produce by several clients at once; how long it took, in s."""
    began = time.monotonic()

    async def one(client: WireClient) -> None:
        for _ in range(times):
            await _produce(client, size)

    async with asyncio.TaskGroup() as group:
        for each in clients:
            group.create_task(one(each))
    return time.monotonic() - began


async def test_several_connections_share_a_quota(tmp_path: Path) -> None:
    async with secured(tmp_path, _CONFIG) as running:
        await _topic(running)
        await _set(running, producer_byte_rate={_ALICE: _RATE})
        clients = [await running.login("alice") for _ in range(8)]
        for number, each in enumerate(clients):
            each.client_id = f"another-{number}"
        took = await _flood(running, clients, 2, 10_000)
        # 160 KB, of which two windows and one request may be there before their time.
        assert took >= (160_000 - 3 * 10_500) / _RATE
        for each in clients:
            await each.__aexit__()


@pytest.mark.parametrize("size", [9000, 70_000])
async def test_a_new_connection_has_no_request_free(tmp_path: Path, size: int) -> None:
    """As it has in Kafka: here a client that comes again waits before its request is handled.

    A request of 70 KB has a buffer of its own, and waits before the buffer is there.
    """
    async with secured(tmp_path, _CONFIG) as running:
        await _topic(running)
        await _set(running, producer_byte_rate={_ALICE: _RATE})
        began = time.monotonic()
        times = max(100_000 // size, 3)
        for _ in range(times):
            async with await running.login("alice") as alice:
                await _produce(alice, size)
        took = time.monotonic() - began
        assert took >= (times * size - 2 * 10_000 - size) / _RATE


async def test_requests_that_wait_do_so_in_order_and_only_so_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metered_connection, "WAITING_MAX", 3)
    async with secured(tmp_path, _CONFIG) as running:
        await _topic(running)
        await _set(running, producer_byte_rate={_ALICE: _RATE})
        async with await running.login("alice") as first:
            assert await _produce(first, 500_000) > 3
            waiting = [await running.login("alice") for _ in range(4)]
            for number, each in enumerate(waiting):
                each.send_produce("t", batch([b"%d" % number]))
                if number < 3:
                    await _until_waiting(running, number + 1)
            assert await waiting[3].is_closed(60)
            for each in waiting[:3]:
                await _throttled(each)
            partition = running.server.engine.partition("t", 0)
            assert partition is not None
            stored = bytes((await partition.log.read(1, 1 << 20)).data)
            assert [stored.count(b"\x02%d\x00" % number) for number in range(3)] == [1, 1, 1]
            assert (
                stored.index(b"\x020\x00") < stored.index(b"\x021\x00") < stored.index(b"\x022\x00")
            )


def _waiting(running: Secured) -> int:
    found = running.security.quotas.buckets("alice", "")
    assert found is not None
    assert found.produced is not None
    return len(found.produced.waiting)


async def _until_waiting(running: Secured, count: int) -> None:
    async with asyncio.timeout(60):
        while _waiting(running) != count:  # noqa: ASYNC110 - the server sets no event
            await asyncio.sleep(0.005)


async def test_a_connection_that_ends_waits_no_more(tmp_path: Path) -> None:
    async with secured(tmp_path, _CONFIG) as running:
        await _topic(running)
        await _set(running, producer_byte_rate={_ALICE: _RATE})
        async with await running.login("alice") as first:
            await _produce(first, 1_000_000)
            async with await running.login("alice") as second:
                second.send_produce("t", batch([b"late"]))
                await _until_waiting(running, 1)
                for each in list(running.server.door.connections):
                    each.abort()
                await _until_waiting(running, 0)
        partition = running.server.engine.partition("t", 0)
        assert partition is not None
        assert partition.readable_end == 1


async def test_a_large_request_that_arrives_in_drops(tmp_path: Path) -> None:
    """Its length alone, or half of its header, gets it no buffer before its time."""
    async with secured(tmp_path, _CONFIG) as running:
        await _topic(running)
        await _set(running, producer_byte_rate={_ALICE: _RATE})
        async with await running.login("alice") as first:
            assert await _produce(first, 1_000_000) > 5
            frame = encode_request(PRODUCE, 9, produced([("t", 0, _sized(70_000))]))
            for there in (0, 1, 7, 9, 10, 14, 19, 30):
                async with await running.login("alice") as second:
                    second.send_bytes(struct.pack(">i", len(frame)) + frame[:there])
                    await asyncio.sleep(0.02)
                    found = [each for each in running.server.door.connections if each._frame]
                    assert found == [], there
            async with await running.login("alice") as second:
                second.send_bytes(struct.pack(">i", len(frame)) + frame[:9])
                await asyncio.sleep(0.02)
                second.send_bytes(frame[9:])
                await _until_waiting(running, 1)
                await _set(running, producer_byte_rate={_ALICE: 1e9})
                await second.receive_frame()


async def test_many_large_requests_cannot_begin_at_once(tmp_path: Path) -> None:
    """The first counts when it begins: the others get no buffer before its bytes are paid."""
    async with secured(tmp_path, _CONFIG) as running:
        await _topic(running)
        await _set(running, producer_byte_rate={_ALICE: 1000.0})
        frame = encode_request(PRODUCE, 9, produced([("t", 0, _sized(200_000))]))
        clients = [await running.login("alice") for _ in range(6)]
        for each in clients:
            each.send_bytes(struct.pack(">i", len(frame)) + frame[:100_000])
        await _until_waiting(running, 5)
        begun = [each for each in running.server.door.connections if each._frame is not None]
        assert len(begun) == 1
        await _set(running, producer_byte_rate={_ALICE: 1e9})
        for each in clients:
            each.send_bytes(frame[100_000:])
        for each in clients:
            await each.receive_frame()
            await each.__aexit__()


async def test_an_anonymous_connection_has_the_quota_of_the_default(tmp_path: Path) -> None:
    """Also of the user ANONYMOUS, as in Kafka."""
    config = replace(_CONFIG, kafka=type(LOGIN)(), acls=True, allow_if_none=True)
    for entity in (_EVERYONE, Entity("ANONYMOUS"), Entity(client_id=None)):
        folder = tmp_path / f"{hash(entity)}"
        folder.mkdir()
        async with secured(folder, config) as running, await running.connect() as client:
            await client.create("t")
            await _set(running, producer_byte_rate={entity: _RATE})
            began = time.monotonic()
            assert await _produce(client, 60_000) > 0.3
            async with await running.connect() as second:
                await _produce(second, 100)
                assert time.monotonic() - began >= (60_000 - 2 * 10_000) / _RATE


async def test_a_renewed_login_forgets_no_debt(tmp_path: Path) -> None:
    """KIP-368: on the same connection, which is not read while it is throttled."""
    async with secured(tmp_path, _CONFIG) as running:
        await _topic(running)
        await _set(running, producer_byte_rate={_ALICE: _RATE})
        async with await running.login("alice") as alice:
            began = time.monotonic()
            seconds = await _produce(alice, 60_000)
            assert await scram(alice, "alice", PASSWORDS["alice"]) == 0
            assert time.monotonic() - began >= seconds * 0.95
            await _produce(alice, 60_000)
            bucket = running.security.quotas.buckets("alice", "")
            assert bucket is not None
            assert bucket.produced is not None
            assert bucket.produced.debt_seconds(time.monotonic()) > 0.2


async def test_a_request_before_the_login_counts_for_nobody(tmp_path: Path) -> None:
    """It is refused as always, and takes nothing from the user that it names."""
    async with secured(tmp_path, _CONFIG) as running:
        await _topic(running)
        await _set(running, producer_byte_rate={_ALICE: _RATE}, request_rate={_EVERYONE: 1.0})
        async with await running.connect() as nobody:
            nobody.send_produce("t", _sized(60_000))
            assert await nobody.is_closed(60)
        for _ in range(30):
            async with await running.connect() as nobody:
                assert (await nobody.call(18, 3)).error_code == 0
                assert await scram(nobody, "alice", "wrong") != 0
        buckets = running.security.quotas.buckets("alice", "")
        assert buckets is not None
        assert buckets.produced is not None
        assert buckets.requests is not None
        assert buckets.produced.is_full(time.monotonic())
        assert buckets.requests.is_full(time.monotonic())
        assert not running.security.quotas.throttles


async def test_requests_a_second(tmp_path: Path) -> None:
    """Of all APIs; a throttle is bounded as Kafka's, and the debt counts all the same."""
    async with secured(tmp_path, _CONFIG) as running:
        await _topic(running)
        await _set(running, request_rate={_ALICE: 20.0})
        async with await running.login("alice") as alice, await running.login("bob") as bob:
            began = time.monotonic()
            times = []
            for _ in range(10):
                body = await alice.call(METADATA, 9, topics=[], allow_auto_topic_creation=False)
                times.append(body.throttle_time.total_seconds())
            took = time.monotonic() - began
            assert took >= (10 - 3) / 20
            assert times[0] == 0
            assert any(times)
            assert max(times) <= 0.1
            body = await bob.call(METADATA, 9, topics=[], allow_auto_topic_creation=False)
            assert body.throttle_time.total_seconds() == 0
        assert set(running.security.quotas.throttles) == {(REQUESTS, "kafka")}


async def test_pipelined_requests_are_read_one_by_one(tmp_path: Path) -> None:
    """A client that does not wait for its throttle time gets its responses late."""
    async with secured(tmp_path, _CONFIG) as running:
        await _topic(running)
        await _set(running, request_rate={_ALICE: 20.0})
        async with await running.login("alice") as alice:
            began = time.monotonic()
            for _ in range(12):
                alice.send(METADATA, 9, topics=[], allow_auto_topic_creation=False)
            for _ in range(12):
                await alice.receive()
            assert time.monotonic() - began >= (12 - 4) / 20


async def test_a_fetch_beyond_the_quota_is_empty(tmp_path: Path) -> None:
    """As in Kafka: no partition in the response, the throttle time, and no more than a window."""
    async with secured(tmp_path, _CONFIG) as running:
        await _topic(running)
        async with await running.login("bob") as bob:
            for _ in range(10):
                await _produce(bob, 4000)
        await _set(running, consumer_byte_rate={_ALICE: _RATE})
        async with await running.login("alice") as first, await running.login("alice") as second:
            body = await first.call(FETCH, 11, **fetched([("t", 0, 0)]))
            (found,) = fetched_of(body)
            assert 4000 < len(found.data) < 12_500
            began = time.monotonic()
            buckets = running.security.quotas.buckets("alice", "")
            assert buckets is not None
            assert buckets.fetched is not None
            buckets.fetched.take(100_000, began)
            empty = 0
            offset = 0
            while offset < 10:
                body = await second.call(FETCH, 11, **fetched([("t", 0, offset)]))
                if body.responses:
                    (found,) = fetched_of(body)
                    assert 4000 < len(found.data) < 12_500
                    offset += len(found.data) // 4000
                else:
                    empty += 1
                    assert (body.error_code, body.session_id) == (0, 0)
                    assert body.throttle_time.total_seconds() > 0
            assert empty
            assert time.monotonic() - began >= (140_000 - 2 * 10_000) / _RATE
        quotas = running.security.quotas
        assert quotas.throttles[FETCHED_BYTES, "kafka"] > 0


@pytest.mark.parametrize("version", range(4, 12))
async def test_each_version_of_fetch_is_bounded(tmp_path: Path, version: int) -> None:
    async with secured(tmp_path, _CONFIG) as running:
        await _topic(running)
        async with await running.login("bob") as bob:
            await _produce(bob, 500_000)
        await _set(running, consumer_byte_rate={_ALICE: _RATE})
        async with await running.login("alice") as first, await running.login("alice") as second:
            body = await first.call(FETCH, version, **fetched([("t", 0, 0)]))
            # The first batch is whole, as in Kafka.
            assert len(fetched_of(body)[0].data) > 500_000
            assert body.throttle_time.total_seconds() > 3
            body = await second.call(FETCH, version, **fetched([("t", 0, 0)]))
            assert body.responses == ()
            assert body.throttle_time.total_seconds() > 0


async def test_fetches_that_wait_together_share_the_quota(tmp_path: Path) -> None:
    """Each long poll began without a debt; only one gets the records."""
    async with secured(tmp_path, _CONFIG) as running:
        await _topic(running)
        await _set(running, consumer_byte_rate={_ALICE: _RATE})
        clients = [await running.login("alice") for _ in range(5)]
        for each in clients:
            each.send(FETCH, 11, **fetched([("t", 0, 0)], wait_ms=20_000))
            await asyncio.sleep(0.01)
        async with await running.login("bob") as bob:
            await _produce(bob, 500_000)
        bodies = [await each.receive() for each in clients]
        assert sum(bool(body.responses) for body in bodies) == 1
        assert all(body.throttle_time.total_seconds() > 0 for body in bodies)
        for each in clients:
            await each.__aexit__()


async def test_a_short_fetch_is_malformed_as_before(tmp_path: Path) -> None:
    async with secured(tmp_path, _CONFIG) as running:
        await _topic(running)
        await _set(running, consumer_byte_rate={_ALICE: _RATE})
        async with await running.login("alice") as alice:
            frame = encode_request(FETCH, 11, fetched([("t", 0, 0)]))
            alice.send_frame(frame[:30])
            assert await alice.is_closed(60)


async def test_quotas_of_clients(tmp_path: Path) -> None:
    """A quota of a user and a client id counts for both together; another client id has its own."""
    async with secured(tmp_path, _CONFIG) as running:
        await _topic(running)
        await _set(
            running,
            producer_byte_rate={Entity("alice", "app"): _RATE, Entity(client_id="tool"): _RATE},
        )
        async with await running.login("alice") as alice, await running.login("bob") as bob:
            assert await _produce(alice, 60_000) == 0
            alice.client_id = bob.client_id = "tool"
            began = time.monotonic()
            assert await _produce(alice, 60_000) > 0.3
            await _produce(bob, 100)  # one quota for all users of the client id
            assert time.monotonic() - began >= (60_000 - 2 * 10_000) / _RATE
            alice.client_id = "app"
            assert await _produce(alice, 60_000) > 0.3
            bob.client_id = None
            assert await _produce(bob, 60_000) == 0


async def test_a_change_frees_those_that_are_throttled(tmp_path: Path) -> None:
    """By a request, by the file, and by a broken file, which changes nothing."""
    async with secured(tmp_path, _CONFIG) as running:
        await _topic(running)
        await _set(running, producer_byte_rate={_ALICE: 100.0})
        async with await running.login("alice") as first, await running.login("alice") as second:
            assert await _produce(first, 100_000) > 500  # about a quarter of an hour
            second.send_produce("t", batch([b"waits"]))
            await _until_waiting(running, 1)
            path = running.folder / "security" / "quotas"
            path.write_text('{"user": "alice", "producer_byte_rate": 0}\n')
            await running.security.reload()
            assert _waiting(running) == 1
            path.write_text('{"user": "alice", "producer_byte_rate": 1000000000}\n')
            await running.security.reload()
            assert await _throttled(second) < 0.01  # what is owed is paid soon
            assert await _produce(first, 1000) < 0.01
            await _set(running)
            assert not running.security.quotas.active
            assert await _produce(first, 200_000) == 0


def _part(kind: str, name: str | None) -> dict[str, Any]:
    return {"entity_type": kind, "entity_name": name}


def _change(key: str, value: float | None, *parts: dict[str, Any]) -> dict[str, Any]:
    op = {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
    return {"entity": list(parts), "ops": [op]}


async def _alter(client: WireClient, *entries: dict[str, Any], validate_only: bool = False) -> Any:
    body = await client.call(49, 1, entries=entries, validate_only=validate_only)
    return [int(each.error_code) for each in body.entries], body.entries


async def _described(client: WireClient, *components: dict[str, Any], strict: bool = False) -> Any:
    body = await client.call(48, 1, components=components, strict=strict)
    assert body.error_code == 0, body.error_message
    return {
        tuple((part.entity_type, part.entity_name) for part in each.entity): {
            value.key: value.value for value in each.values
        }
        for each in body.entries
    }


async def test_quotas_are_managed_by_requests(tmp_path: Path) -> None:
    """KIP-546, as kafka-configs.sh sends it; durable, and in the audit log."""
    user, client = _part("user", "alice"), _part("client-id", "app")
    anyone = _part("user", None)
    async with secured(tmp_path, _CONFIG) as running, await running.login("root") as root:
        codes, _ = await _alter(
            root,
            _change(PRODUCED_BYTES, 1000.0, user), _change(REQUESTS, 0.5, user, client),
            _change(FETCHED_BYTES, 7.0, anyone), _change(FETCHED_BYTES, 8.0, client),
        )  # fmt: skip
        assert codes == [0, 0, 0, 0]
        everything = {
            (("user", "alice"),): {PRODUCED_BYTES: 1000.0},
            (("user", "alice"), ("client-id", "app")): {REQUESTS: 0.5},
            (("user", None),): {FETCHED_BYTES: 7.0},
            (("client-id", "app"),): {FETCHED_BYTES: 8.0},
        }
        assert await _described(root) == everything
        exact = {"entity_type": "user", "match_type": 0, "match": "alice"}
        assert set(await _described(root, exact)) == set(list(everything)[:2])
        assert set(await _described(root, exact, strict=True)) == {(("user", "alice"),)}
        default = {"entity_type": "user", "match_type": 1, "match": None}
        assert set(await _described(root, default)) == {(("user", None),)}
        any_user = {"entity_type": "user", "match_type": 2, "match": None}
        assert set(await _described(root, any_user)) == set(list(everything)[:3])
        any_client = {"entity_type": "client-id", "match_type": 2, "match": None}
        assert set(await _described(root, any_user, any_client)) == {list(everything)[1]}
        assert await _described(root, {**exact, "entity_type": "ip"}) == {}
        for bad in (
            {**exact, "entity_type": "group"}, {**exact, "match": None},
            {**default, "match": "x"}, {**exact, "match_type": 7},
        ):  # fmt: skip
            body = await root.call(48, 1, components=[bad], strict=False)
            assert body.error_code == 42, bad
        body = await root.call(48, 1, components=[exact, default], strict=False)
        assert body.error_code == 42

        codes, entries = await _alter(
            root,
            _change("request_percentage", 50.0, user), _change(PRODUCED_BYTES, -1.0, user),
            _change(PRODUCED_BYTES, float("nan"), user), _change(PRODUCED_BYTES, 1.0),
            _change(PRODUCED_BYTES, 1.0, _part("ip", "10.0.0.1")),
            _change(PRODUCED_BYTES, 1.0, user, user),
            _change(PRODUCED_BYTES, 1.0, _part("user", "")),
            _change(PRODUCED_BYTES, 2000.0, user), _change(PRODUCED_BYTES, 3000.0, user),
        )  # fmt: skip
        assert codes == [42, 42, 42, 42, 42, 42, 42, 0, 42]
        assert "set request_rate" in entries[0].error_message
        codes, _ = await _alter(root, _change(REQUESTS, 9.0, user), validate_only=True)
        assert codes == [0]
        codes, _ = await _alter(
            root, _change(REQUESTS, None, user, client), _change(REQUESTS, None, _part("user", "z"))
        )
        assert codes == [0, 0]
        after = {
            (("user", "alice"),): {PRODUCED_BYTES: 2000.0},
            (("user", None),): {FETCHED_BYTES: 7.0},
            (("client-id", "app"),): {FETCHED_BYTES: 8.0},
        }
        assert await _described(root) == after
        changes = [each for each in running.audit() if each["event"] == "change"]
    assert [(each["operation"], each["resource"]) for each in changes] == [
        ("SET_QUOTA", "user=alice producer_byte_rate=1000"),
        ("SET_QUOTA", "user=alice,client-id=app request_rate=0.5"),
        ("SET_QUOTA", "user=<default> consumer_byte_rate=7"),
        ("SET_QUOTA", "client-id=app consumer_byte_rate=8"),
        ("SET_QUOTA", "user=alice producer_byte_rate=2000"),
        ("REMOVE_QUOTA", "user=alice,client-id=app request_rate"),
        ("REMOVE_QUOTA", "user=z request_rate"),
    ]
    assert {(each["principal"], each["outcome"]) for each in changes} == {("User:root", "success")}
    again = tmp_path / "again"
    again.mkdir()
    (tmp_path / "data").rename(again / "data")
    async with secured(again, _CONFIG) as running, await running.login("root") as root:
        assert await _described(root) == after


async def test_who_may_change_quotas(tmp_path: Path) -> None:
    """AlterConfigs and DescribeConfigs on the cluster; without ACLs, super users."""
    change = _change(PRODUCED_BYTES, 5.0, _part("user", "alice"))
    async with secured(tmp_path, _CONFIG) as running, await running.login("alice") as alice:
        codes, _ = await _alter(alice, change)
        assert codes == [31]
        assert (await alice.call(48, 1, components=[], strict=False)).error_code == 31
    alter = allow("alice", Operation.ALTER_CONFIGS, ResourceKind.CLUSTER, "kafka-cluster")
    other = tmp_path / "acls"
    other.mkdir()
    config = replace(_CONFIG, acls=True)
    async with (
        secured(other, config, [alter]) as running,
        await running.login("alice") as alice, await running.login("bob") as bob,
    ):  # fmt: skip
        codes, _ = await _alter(bob, change)
        assert codes == [31]
        codes, _ = await _alter(alice, change)
        assert codes == [0]  # it has DescribeConfigs as well, as in Kafka
        assert await _described(alice) == {(("user", "alice"),): {PRODUCED_BYTES: 5.0}}


async def test_a_file_with_an_error_ends_the_start(tmp_path: Path) -> None:
    from proxy.security.security_config import SecurityError

    folder = tmp_path / "data" / "security"
    folder.mkdir(parents=True)
    (folder / "quotas").write_text('{"user": "alice", "producer_byte_rat": 5}\n')
    with pytest.raises(SecurityError, match="line 1: quota producer_byte_rat is not served"):
        async with secured(tmp_path, _CONFIG):
            raise AssertionError("it started")


async def test_a_change_that_cannot_be_stored_is_an_error(tmp_path: Path) -> None:
    async with secured(tmp_path, _CONFIG) as running, await running.login("root") as root:
        file = EntryFile(RealFiles(), running.folder / "security", QUOTA_FILE)
        file.path.write_text("broken\n")
        codes, entries = await _alter(root, _change(PRODUCED_BYTES, 5.0, _part("user", "alice")))
        assert codes == [-1]
        assert "log" in entries[0].error_message
        assert not running.security.quotas.active
        assert file.path.read_text() == "broken\n"
