"""Idempotency-Key: of the requests with one key one is stored, and the others get its answer."""

import asyncio
import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from pidlease.core.idempotency_keys import digest_of
from pidlease.core.log_config import FsyncPolicy
from pidlease.engine.engine import EngineConfig
from pidlease.engine.pending_batches import Pending
from tests.http_api.appending import RAW, Door, door, path_of, producer, values
from tests.kafka_listener.harness import Wanted

#: Bodies whose digests are below and above that of the first one.
OTHERS = [b"b%d" % number for number in range(8)]
_BY_KEY = "/v1/topics/t/records"


def keyed(key: str | bytes) -> dict[str, str | bytes]:
    return {"idempotency-key": key}


def stored(offset: int, *, duplicate: bool = False) -> tuple[int, dict[str, Any]]:
    return 200, {"offset": offset, "duplicate": duplicate}


async def sent(
    here: Door, content: bytes, headers: Mapping[str, Any], path: str = path_of()
) -> httpx.Response:
    named: Any = {**RAW, **headers}
    return await here.client.post(path, content=content, headers=named)


async def contents(here: Door, partition: int = 0) -> list[bytes | None]:
    return [each.value for each in (await here.records(partition)).records]


async def test_the_same_request_is_stored_once(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        assert await here.raw(b"a", keyed('"k"')) == stored(0)
        for _ in range(7):  # more than a producer's last five batches
            assert await here.raw(b"a", keyed('"k"')) == stored(0, duplicate=True)
            assert (await here.raw(b"plain"))[0] == 200
        assert await here.raw(b"a", keyed("k")) == stored(0, duplicate=True), "the same key"
        assert await here.raw(b"a", keyed('"l"')) == stored(8)
        assert (await contents(here)).count(b"a") == 2


async def test_another_body_is_refused(tmp_path: Path) -> None:
    digests = [digest_of(b"application/octet-stream", each) for each in (b"a", *OTHERS)]
    assert min(digests) < digests[0] < max(digests), "both ways of being another one"
    async with door(tmp_path) as here:
        assert await here.raw(b"a", keyed("k")) == stored(0)
        for each in OTHERS:
            status, answer = await here.raw(each, keyed("k"))
            assert (status, answer["code"]) == (422, "idempotency_key_reused")
            assert answer["field"] == "Idempotency-Key"
        assert await contents(here) == [b"a"]
        assert await here.raw(b"a", keyed("k")) == stored(0, duplicate=True)
        line = b'{"value":"a"}'
        as_line: dict[str, Any] = {"content-type": "application/x-ndjson", **keyed("l")}
        assert await here.raw(line, keyed("l")) == stored(1)
        assert (await here.raw(line, as_line))[0] == 422, "another type of body"


async def test_what_is_not_of_the_body_does_not_count(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        assert await here.raw(b"a", keyed("k")) == stored(0)
        packed = {**keyed("k"), "content-encoding": "gzip"}
        assert await here.raw(gzip.compress(b"a"), packed) == stored(0, duplicate=True)
        body = {"records": [{"value": "x", "timestamp_ms": 1}, {"value": "y"}]}
        assert await here.append(body, keyed("l")) == stored(1)
        assert await here.append(body, keyed("l")) == stored(1, duplicate=True)
        lines: dict[str, Any] = {"content-type": "application/x-ndjson", **keyed("m")}
        for duplicate in (False, True):
            found = await here.raw(b'{"value":"v"}\n{"value":"w"}', lines)
            assert found == stored(3, duplicate=duplicate)


async def test_a_partition_has_keys_of_its_own(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        assert await here.append(values("a"), keyed("k"), partition=0) == stored(0)
        assert await here.append(values("b"), keyed("k"), partition=1) == stored(0)
        assert (await here.append(values("b"), keyed("k"), partition=0))[0] == 422


async def test_a_key_is_no_producer_id(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        assert await here.raw(b"a", producer("k", 0, 0)) == stored(0)
        assert await here.raw(b"a", keyed("k")) == stored(1)
        assert await here.raw(b"b", producer("k", 0, 1)) == stored(2)
        hidden = {**producer(b"\x1fk", 0, 1)}
        assert (await here.raw(b"c", hidden))[1]["code"] == "invalid_producer"


@pytest.mark.parametrize(
    ("one", "other"),
    [('"a b"', None), (r'"a\"b\\"', None), ("a:b/c=", '"a:b/c="'), ("x" * 256, f'"{"x" * 256}"')],
)
async def test_how_a_key_is_written(tmp_path: Path, one: str, other: str | None) -> None:
    async with door(tmp_path) as here:
        assert await here.raw(b"a", keyed(one)) == stored(0)
        assert await here.raw(b"a", keyed(other or one)) == stored(0, duplicate=True)
        assert await here.raw(b"a", keyed("x" * 255)) == stored(1)


@pytest.mark.parametrize(
    "key",
    ["", '""', "x" * 257, f'"{"x" * 257}"', "a b", 'a"', '"a', '"a"b', r'"\a"', "a,b", "a;b=1",
     '"a";b=1', "\\", "ä".encode(), '"ä"'.encode(), b"a\x01"],
)  # fmt: skip
async def test_what_is_no_key(tmp_path: Path, key: str | bytes) -> None:
    async with door(tmp_path) as here:
        status, answer = await here.raw(b"a", keyed(key))
        assert (status, answer["code"]) == (400, "invalid_idempotency_key")
        assert answer["field"] == "Idempotency-Key"
        assert len(here.server.engine.names) == 0
        assert await contents(here) == []


async def test_two_ways_to_be_stored_once_are_refused(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        for each in (producer("p", 0, 0), {"producer-id": "p"}):
            status, answer = await here.raw(b"a", {**keyed("k"), **each})
            assert (status, answer["field"]) == (
                400, "Idempotency-Key" if len(each) == 3 else "Producer-Epoch",
            )  # fmt: skip
        lease = await here.lease()
        status, answer = await here.append(values("a") | lease | {"first_sequence": 0}, keyed("k"))
        assert (status, answer["field"]) == (400, "pid")
        assert "Idempotency-Key" in answer["detail"]
        twice = [("idempotency-key", "k"), ("idempotency-key", "k")]
        assert (await here.raw(b"a", twice))[1]["code"] == "invalid_idempotency_key"
        assert await contents(here) == []


async def test_a_key_in_flight_is_refused_for_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with door(tmp_path) as here:
        appends = here.partition._appends
        held: list[Pending] = []
        arrived = asyncio.Event()

        def hold(pending: Pending) -> None:
            held.append(pending)
            arrived.set()

        monkeypatch.setattr(appends, "push", hold)
        first = asyncio.create_task(sent(here, b"a", keyed("k")))
        await arrived.wait()
        for path in (path_of(), _BY_KEY):
            for content in (b"a", b"b"):
                response = await sent(here, content, keyed("k"), path)
                assert (response.status_code, response.json()["code"]) == (
                    409, "idempotency_key_in_use",
                )  # fmt: skip
                assert int(response.headers["retry-after"]) > 0
        first.cancel()  # its client has gone; the append goes on
        await asyncio.wait([first])
        assert (await sent(here, b"a", keyed("k"))).status_code == 409
        monkeypatch.undo()
        for each in held:
            appends.push(each)
        response = await sent(here, b"a", keyed("k"))
        while response.status_code == 409:
            await asyncio.sleep(0)
            response = await sent(here, b"a", keyed("k"))
        assert response.json() == {"offset": 0, "duplicate": True}
        assert await contents(here) == [b"a"]


async def test_what_failed_is_stored_by_the_next_request(tmp_path: Path) -> None:
    wanted = Wanted(fsync=FsyncPolicy.BATCH, faults="fail before write *.log 1")
    async with door(tmp_path, wanted) as here:
        assert (await here.raw(b"a", keyed("k")))[0] == 503
        assert await here.raw(b"b", keyed("k")) == stored(0), "the first one was not stored"
        assert (await here.raw(b"a", keyed("k")))[0] == 422


async def test_keys_have_a_capacity_of_their_own(tmp_path: Path) -> None:
    config = EngineConfig(ring_capacity=1, keys_max=2)
    async with door(tmp_path, Wanted(engine=config)) as here:
        assert await here.raw(b"a", producer("p", 0, 0)) == stored(0)
        assert await here.raw(b"a", keyed("k")) == stored(1)
        assert await here.raw(b"a", keyed("l")) == stored(2)
        response = await sent(here, b"a", keyed("m"))
        assert (response.status_code, response.json()["code"]) == (503, "idempotency_keys_full")
        assert int(response.headers["retry-after"]) > 0
        assert "--idempotency-keys-max" in response.json()["detail"]
        assert await here.raw(b"a", keyed("k")) == stored(1, duplicate=True), "never evicted"
        assert (await here.raw(b"a", producer("q", 0, 0)))[1]["code"] == "pids_unavailable"
        leases = here.server.engine.leases
        assert leases.refused == {"no block": 0, "ring full": 1, "keys full": 1}
        here.server.let_leases_end()
        assert len(leases.keys) == len(leases.ring) == len(here.server.engine.names) == 0
        assert await here.raw(b"a", keyed("m")) == stored(3)
        assert await here.raw(b"a", keyed("k")) == stored(4), "its lease has ended"


async def test_a_topic_may_not_take_them(tmp_path: Path) -> None:
    async with door(tmp_path, overrides={"pidlease.policies": "kafka,strict"}) as here:
        status, answer = await here.raw(b"a", keyed("k"))
        assert (status, answer["code"]) == (403, "policy_forbidden")
        assert answer["field"] == "Idempotency-Key"
        assert len(here.server.engine.names) == 0


# ---------------------------------------------------------------------- without a partition


async def by_key(here: Door, key: str, record_key: str | None, value: str) -> tuple[int, Any]:
    body = {"records": [{"key": record_key, "value": value}]}
    response = await here.client.post(_BY_KEY, json=body, headers=keyed(key))  # type: ignore[arg-type]
    return response.status_code, response.json()


async def test_without_a_partition_a_key_counts_for_the_topic(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        for number in range(8):
            first = await by_key(here, f"k{number}", f"r{number}", "a")
            assert first[0] == 200
            again = await by_key(here, f"k{number}", f"r{number}", "a")
            assert again == (200, {**first[1], "duplicate": True})
            for other in range(4):  # they would go to both partitions
                assert (await by_key(here, f"k{number}", f"s{other}", "a"))[0] == 422
        assert len(await contents(here, 0)) + len(await contents(here, 1)) == 8


async def test_records_without_a_key_go_where_the_idempotency_key_says(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        found = set()
        for number in range(12):
            first = await by_key(here, f"k{number}", None, "a")
            assert await by_key(here, f"k{number}", None, "a") == (
                200, {**first[1], "duplicate": True},
            )  # fmt: skip
            found.add(first[1]["partition"])
        assert found == {0, 1}


async def test_a_key_is_known_after_partitions_were_added(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        before = [await by_key(here, f"k{number}", f"r{number}", "a") for number in range(8)]
        await here.server.engine.add_partitions("t", 7)
        for number, (_, answer) in enumerate(before):
            again = await by_key(here, f"k{number}", f"r{number}", "a")
            assert again == (200, {**answer, "duplicate": True})
