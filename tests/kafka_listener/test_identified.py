"""Batches of leased PIDs: who sent them stands in the first record, in any compression."""

import asyncio
import gzip
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from pidlease.core.log_config import FsyncPolicy
from pidlease.core.pid import Policy, make_pid
from pidlease.engine.engine import EngineConfig
from pidlease.kafka.records.first_record import find_identity
from pidlease.kafka.records.identity_header import Identity, encode_identity
from pidlease.kafka.records.writer_batch import WRITER_PID
from proxy.kafka import identified_batches as module
from tests.kafka_listener.batches import NOW_MS, batch, batches_of, changed, identified, records_of
from tests.kafka_listener.client import WireClient
from tests.kafka_listener.harness import Server, Wanted, serving

CODECS: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
MALFORMED, ENDED = 87, 13


def monotonic(server: Server) -> int:
    pid = server.engine.leases.lease(Policy.MONOTONIC)
    server.engine.leases.fences[pid] = -1  # a name is bound to it
    return pid


def strict(server: Server) -> int:
    return server.engine.leases.lease(Policy.STRICT)


def one(pid: int, sequence: int, generation: int = 7) -> Identity:
    return Identity(pid, "", generation, sequence, sequence)


def with_headers(pid: int, headers: list[tuple[str, bytes | None]], codec: int = 0) -> bytes:
    builder: Any = DefaultRecordBatchBuilder(2, codec, 0, pid, 0, 0, 1 << 30)
    assert builder.append(0, NOW_MS, None, b"x", headers)
    return bytes(builder.build())


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
async def test_what_is_stored(server: Server, client: WireClient, codec: int) -> None:
    """Under the writer; as consumers see it, what was sent, header and all."""
    await client.create("t")
    pid = strict(server)
    assert (
        await client.produce("t", identified([b"a", b"b"], Identity(pid, "", 7, 0, 1), codec=codec))
    ).code == 0
    (stored,) = batches_of((await client.fetch("t")).data)
    assert int.from_bytes(stored[43:51], "big") == WRITER_PID
    first, second = records_of(stored)
    assert (first.value, second.value) == (b"a", b"b")
    assert first.headers == (("pidlease", encode_identity(Identity(pid, "", 7, 0, 1))),)
    assert second.headers == ()


async def test_answers_say_what_a_client_needs(server: Server, client: WireClient) -> None:
    await client.create("t")
    pid = strict(server)

    async def send(first: int, last: int, generation: int = 7) -> Any:
        values = [b"%d" % each for each in range(first, last + 1)]
        return await client.produce(
            "t", identified(values, Identity(pid, "", generation, first, last))
        )

    assert ((await send(0, 4)).code, (await send(5, 5)).code) == (0, 0)
    again = await send(0, 4)
    assert (again.code, again.offset, again.message) == (0, 0, "duplicate")
    overlap = await send(3, 7)
    assert overlap.code == 45
    assert overlap.message.endswith("expected sequence 6")
    gap = await send(2**40, 2**40)
    assert gap.message.endswith("expected sequence 6")
    fenced = await send(6, 6, generation=6)
    assert (fenced.code, "the generation here is 7" in fenced.message) == (47, True)
    inside = await send(1, 2)
    assert (inside.code, inside.offset) == (46, -1)
    assert server.engine.counts.differing == 0
    other = identified([b"other bytes"], one(pid, 5))
    assert (await client.produce("t", other)).message == "duplicate"
    assert server.engine.counts.differing == 1


@pytest.mark.parametrize("codec", [0, 4], ids=["none", "zstd"])
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("other", b"x")],
        [("pidlease", None)],
        [("pidlease", b"")],
        [("pidlease", b"\x02" + encode_identity(one(1 << 48 | 1, 0))[1:])],
        [("pidlease", encode_identity(one(1 << 48 | 1, 0)) + b"x")],
        [("pidlease", encode_identity(one(1 << 48 | 999_999, 0)))],
        [("pidlease", encode_identity(Identity(-1, "web", 0, 0, 0)))],
        [("pidlease", encode_identity(one(-5, 0)))],
        [*[("h", b"")] * 100, ("pidlease", encode_identity(one(1 << 48 | 1, 0)))],
    ],
    ids=["none", "other", "null", "empty", "version", "long", "another's", "named", "negative",
         "behind a hundred"],
)  # fmt: skip
async def test_headers_that_say_nothing(
    server: Server, client: WireClient, headers: list[tuple[str, bytes | None]], codec: int
) -> None:
    await client.create("t")
    pid = strict(server)
    answer = await client.produce("t", with_headers(pid, headers, codec))
    assert answer.code == MALFORMED
    assert "pidlease" in (answer.message or "")
    assert (await client.produce("t", identified([b"x"], one(pid, 0)))).code == 0, "it lives on"
    told = (await client.fetch("t")).data
    assert len(batches_of(told)) == 1


@pytest.mark.parametrize("policy", [Policy.EPOCH, Policy.WRITER])
async def test_policies_that_do_not_come_here(
    server: Server, client: WireClient, policy: Policy
) -> None:
    await client.create("t")
    pid = make_pid(policy, 1)
    answer = await client.produce("t", identified([b"x"], one(pid, 0)))
    assert (answer.code, policy.name.lower() in (answer.message or "")) == (MALFORMED, True)


async def test_records_that_are_no_records(server: Server, client: WireClient) -> None:
    await client.create("t")
    pid = strict(server)
    good = identified([b"x"], one(pid, 0))
    for codec in CODECS.values():
        for junk in (b"", b"\xff" * 30, b"\x82SNAPPY\0" + bytes(8) + b"\x7f\xff\xff\xff"):
            data = changed(good[:61] + junk, attributes=codec, batch_length=61 + len(junk) - 12)
            assert (await client.produce("t", data)).code == MALFORMED
    assert (await client.produce("t", good)).code == 0


async def test_a_user_s_own_header_under_policy_kafka_means_nothing(
    server: Server, client: WireClient, tmp_path: Path
) -> None:
    await client.create("t")
    pid, other = await client.lease(), strict(server)
    builder: Any = DefaultRecordBatchBuilder(2, 0, 0, pid, 0, 0, 1 << 20)
    assert builder.append(0, NOW_MS, None, b"x", [("pidlease", encode_identity(one(other, 41)))])
    assert (await client.produce("t", bytes(builder.build()))).code == 0
    assert (await client.produce("t", identified([b"y"], one(other, 0)))).code == 0
    await server.engine.maintenance.snapshot()


# ---------------------------------------------------------------------- long ones, in a thread


def large(pid: int, sequence: int, codec: int, size: int) -> bytes:
    return identified([b"v" * size], one(pid, sequence), codec=codec, key=b"k" * size)


@pytest.mark.parametrize("codec", [1, 2, 3, 4], ids=list(CODECS)[1:])
async def test_what_comes_behind_a_long_one_waits(
    server: Server, client: WireClient, codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order on their connection, while others go on."""
    await client.create("t")
    pid, quick = strict(server), strict(server)
    release = asyncio.Event()
    loop, pool = asyncio.get_running_loop(), server.engine.pool
    submit, threads = pool.submit, []

    def late(work: Any, done: Any) -> None:
        if getattr(work, "func", None) is find_identity:
            threads.append(work)
            loop.create_task(_later(release, lambda: submit(work, done)))
        else:
            submit(work, done)

    monkeypatch.setattr(pool, "submit", late)
    for sequence in range(4):
        size = 400_000 if sequence in (0, 2) else 10
        client.send_produce("t", large(pid, sequence, codec, size))
    async with await server.connect() as other:
        assert (await other.produce("t", identified([b"q"], one(quick, 0)))).offset == 0
    assert len(threads) == 1
    release.set()
    offsets = [(await client.receive_produce()).offset for _ in range(4)]
    assert offsets == [1, 2, 3, 4]
    assert len(threads) == 2


async def _later(release: asyncio.Event, work: Any) -> None:
    await release.wait()
    work()


@pytest.mark.parametrize("codec", [1, 3, 4], ids=["gzip", "lz4", "zstd"])
async def test_a_first_record_beyond_the_limit(
    server: Server, client: WireClient, codec: int
) -> None:
    """A megabyte that unpacks to hundreds is not unpacked."""
    await client.create("t")
    pid = strict(server)
    data = large(pid, 0, codec, 9 << 20)
    assert len(data) < 1 << 20
    answer = await client.produce("t", data)
    assert (answer.code, "16777216" in (answer.message or "")) == (MALFORMED, True)
    assert (await client.produce("t", identified([b"x"], one(pid, 0)))).code == 0


# ---------------------------------------------------------------------- monotonic


async def test_an_error_ends_the_session_there_only(server: Server, client: WireClient) -> None:
    await client.create("t", 2)
    pid, other = monotonic(server), monotonic(server)

    async def send(on: WireClient, who: int, sequence: int, part: int = 0) -> int:
        data = identified([b"%d" % sequence], one(who, sequence))
        return int((await on.produce("t", data, partition=part)).code)

    assert await send(client, pid, 10) == 0
    overlap = identified([b"a", b"b"], Identity(pid, "", 7, 10, 11))
    assert (await client.produce("t", overlap)).code == 45
    assert await send(client, pid, 20) == ENDED
    assert await send(client, pid, 20, part=1) == 0, "the other partition has nothing to do with it"
    assert await send(client, other, 1) == 0, "nor has another producer"
    async with await server.connect() as again:
        assert await send(again, pid, 20) == 0
    assert await send(client, pid, 30) == ENDED, "for good"


async def test_a_connection_on_which_too_many_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ENDED_MAX", 3)
    async with serving(tmp_path) as server, await server.connect() as client:
        await client.create("t")
        for _ in range(3):
            pid = monotonic(server)
            assert (await client.produce("t", with_headers(pid, []))).code == MALFORMED
        client.send_produce("t", batch([b"x"]))
        pid = monotonic(server)
        client.send_produce("t", identified([b"x"], one(pid, 0)))
        assert await client.is_closed()


# ---------------------------------------------------------------------- monotonic: nothing passes


async def test_what_the_door_refuses_by_itself_ends_the_session(
    server: Server, client: WireClient
) -> None:
    """Once a bug: 2 was let in behind a corrupt 1, and the retry of 1 passed for a duplicate."""
    await client.create("t")
    pid = monotonic(server)
    corrupt = changed(identified([b"1"], one(pid, 1)), fix_crc=False, max_timestamp=5)
    assert (await client.produce("t", corrupt)).code == 2
    assert (await client.produce("t", identified([b"2"], one(pid, 2)))).code == ENDED
    async with await server.connect() as again:
        for sequence in (1, 2):
            data = identified([b"x"], one(pid, sequence))
            assert (await again.produce("t", data)).code == 0


async def test_a_topic_that_is_not_there_ends_it_too(server: Server, client: WireClient) -> None:
    pid = monotonic(server)
    assert (await client.produce("t", identified([b"1"], one(pid, 1)))).code == 3
    await client.create("t")
    assert (await client.produce("t", identified([b"2"], one(pid, 2)))).code == ENDED


async def test_an_ended_session_stays_so_over_a_topic_made_again(
    server: Server, client: WireClient
) -> None:
    await client.create("t")
    pid = monotonic(server)
    partition = server.engine.partition("t", 0)
    assert partition is not None
    partition.log.stop("a test")
    assert (await client.produce("t", identified([b"1"], one(pid, 1)))).code == 56
    await server.engine.delete_topic("t")
    await client.create("t")
    assert (await client.produce("t", identified([b"2"], one(pid, 2)))).code == ENDED


async def test_an_overlap_does_not_wait_where_what_is_behind_could_pass(
    server: Server, client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a bug: 1..3 waited for 1..2, 4..5 came in behind it, and 3 was called a duplicate."""
    await client.create("t")
    pid = monotonic(server)

    def span(first: int, last: int) -> bytes:
        values = [b"%d" % each for each in range(first, last + 1)]
        return identified(values, Identity(pid, "", 7, first, last))

    partition = server.engine.partition("t", 0)
    assert partition is not None
    append, held = partition.log.append, list[Any]()

    def hold(*given: object) -> None:
        held.append(given)

    monkeypatch.setattr(partition.log, "append", hold)
    async with await server.connect() as other:
        client.send_produce("t", span(1, 2))
        while not held:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        other.send_produce("t", span(1, 3))
        other.send_produce("t", span(4, 5))
        assert (await other.receive_produce()).code == 19
        assert (await other.receive_produce()).code == ENDED
        monkeypatch.setattr(partition.log, "append", append)
        append(*held[0])
        assert (await client.receive_produce()).code == 0
    async with await server.connect() as again:
        answer = await again.produce("t", span(1, 3))
        assert (answer.code, (answer.message or "")[-19:]) == (45, "expected sequence 3")


# ---------------------------------------------------------------------- what holds the loop up


@pytest.mark.parametrize("codec", [1, 2], ids=["gzip", "snappy"])
async def test_parts_of_nothing_are_counted(
    server: Server, client: WireClient, codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a bug: a megabyte of them held the loop for a third of a second."""
    await client.create("t")
    pid = strict(server)
    if codec == 2:
        part, front = b"\0\0\0\1\0", b"\x82SNAPPY\0" + bytes(8)
    else:
        part, front = gzip.compress(b""), b""
    content = front + part * (1_000_000 // len(part))
    base = identified([b"x"], one(pid, 0))
    data = changed(base[:61] + content, batch_length=61 + len(content) - 12, attributes=codec)
    threads: list[object] = []
    submit = server.engine.pool.submit

    def count(work: Any, done: Any) -> None:
        threads.append(work)
        submit(work, done)

    monkeypatch.setattr(server.engine.pool, "submit", count)
    answer = await client.produce("t", data)
    assert answer.code == MALFORMED
    assert threads, "not on the loop"
    assert (await client.produce("t", base)).code == 0


async def test_an_error_names_the_pid_that_the_client_sent(tmp_path: Path) -> None:
    """Also where batches are not validated: the engine counts this one as one without a PID."""
    wanted = Wanted(
        engine=EngineConfig(judging=False), fsync=FsyncPolicy.BATCH,
        faults="fail before write *t-0/*.log 2",
    )  # fmt: skip
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t")
        pid = strict(server)
        assert (await client.produce("t", identified([b"a"], one(pid, 0)))).code == 0
        failed = await client.produce("t", identified([b"b"], one(pid, 1)))
        assert failed.code == 19
        assert (failed.message or "").startswith(f"PID {pid}: ")
