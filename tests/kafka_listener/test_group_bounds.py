"""What consumer groups take of memory and time is bounded, whatever is asked of them."""

import asyncio
import errno
import struct
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pidlease.kafka.codec.primitives import compact_length, write_string
from proxy.kafka.groups.group_steps import GroupLimits, Join
from tests.kafka_listener.group_requests import (
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
    codes_of,
    committing,
    fetched_offsets,
    fetching,
    joining,
)
from tests.kafka_listener.harness import Server, Wanted, serving
from tests.kafka_listener.member import Member, stable, until

DAY_MS = 24 * 3600 * 1000


async def test_a_group_that_is_named_many_times_is_told_of_once(server: Server) -> None:
    await stable(server, 1)
    async with await server.connect() as client:
        await client.create("t", 50)
        await client.call(OFFSET_COMMIT, 9, **committing("g2", "t", dict.fromkeys(range(50), 1)))
        groups = [{"group_id": "g2", "topics": None}] * 1000
        body = await client.call(OFFSET_FETCH, 8, groups=groups, require_stable=True)
        assert [group.group_id for group in body.groups] == ["g2"]
        body = await client.call(DESCRIBE_GROUPS, 5, groups=["g"] * 1000)
        assert [len(group.members) for group in body.groups] == [1]
        body = await client.call(FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["k"] * 9000)
        assert [each.key for each in body.coordinators] == ["k"]


async def test_an_answer_that_is_too_long_is_refused(tmp_path: Path) -> None:
    """One partition with metadata, asked for over and over in a request of some KB."""
    async with serving(tmp_path, Wanted(memory_bytes_max=4 << 20)) as server:
        client = await server.connect()
        await client.create("t")
        await client.call(OFFSET_COMMIT, 9, **committing("g", "t", {0: 1}, "m" * 4096))
        for version in (7, 8):
            body = await client.call(OFFSET_FETCH, version, **fetching("g", {"t": [0] * 2000}))
            assert getattr(body, "groups", (body,))[0].error_code == 42
            assert fetched_offsets(body) == {("t", 0): (0, -1, "")}
        body = await client.call(OFFSET_FETCH, 8, **fetching("g", {"t": [0]}))
        assert fetched_offsets(body) == {("t", 0): (0, 1, "m" * 4096)}
        await until(lambda: server.door.budget.used == 0)


def _padded_join(group: str, size: int) -> bytes:
    """A JoinGroup of a static member, with a tag of so many bytes that nobody knows."""
    head = struct.pack(">hhih", JOIN_GROUP, 7, 1, 1) + b"c\0"
    times = struct.pack(">ii", 1_800_000, 2**31 - 1)
    texts = [write_string(each, flexible=True) for each in (group, "", "i", "consumer", "range")]
    protocols = compact_length(1) + texts[4] + compact_length(1) + b"x\0"
    body = texts[0] + times + b"".join(texts[1:4]) + protocols
    return head + body + b"\1\x63" + compact_length(size - 1) + bytes(size)


async def test_members_that_wait_hold_no_memory_of_requests(tmp_path: Path) -> None:
    limits = GroupLimits(session_min_ms=50, initial_rebalance_ms=3_600_000)
    wanted = Wanted(memory_bytes_max=4 << 20, groups=limits)
    async with serving(tmp_path, wanted) as server:
        joiners = [await server.connect() for _ in range(3)]
        active = server.groups.coordinator.active
        for number, client in enumerate(joiners):
            client.send_frame(_padded_join(f"g{number}", 1_900_000))
            await until(lambda number=number: len(active) == number + 1)  # type: ignore[misc]
        assert server.door.budget.used == 0
        # What is large is not read behind them: it could not be answered.
        joiners[0].send_frame(_padded_join("behind", 1_900_000))
        async with await server.connect() as other:
            for _ in range(3):
                values = {"group_id": "g", "generation_id": 1, "member_id": "m"}
                assert (await other.call(HEARTBEAT, 0, **values)).error_code == 25
        assert server.door.budget.used == 0
        assert len(active) == 3


async def test_followers_that_wait_for_their_leader_hold_none_either(tmp_path: Path) -> None:
    """Whatever they say of assignments: only the leader's count."""
    limits = GroupLimits(session_min_ms=50, initial_rebalance_ms=300)
    async with serving(tmp_path, Wanted(memory_bytes_max=4 << 20, groups=limits)) as server:
        clients = [await server.connect() for _ in range(3)]
        times: dict[str, Any] = {
            "session_timeout": timedelta(minutes=30),
            "rebalance_timeout": timedelta(hours=1),
        }
        for number, client in enumerate(clients):
            client.send(JOIN_GROUP, 7, **joining("g", group_instance_id=f"i{number}", **times))
        for number, client in enumerate(clients):
            joined = await client.receive()
            assert joined.error_code == 0
            if joined.member_id != joined.leader:
                client.send(
                    SYNC_GROUP,
                    5,
                    group_id="g",
                    generation_id=joined.generation_id,
                    member_id=joined.member_id,
                    group_instance_id=f"i{number}",
                    protocol_type="consumer",
                    protocol_name="range",
                    assignments=[{"member_id": "nobody", "assignment": bytes(1_500_000)}],
                )
        group = server.groups.coordinator.active["g"]
        await until(
            lambda: sum(each.sync is not None for each in group.members.by_id.values()) == 2
        )
        assert server.door.budget.used == 0


async def test_who_is_a_member_goes_on_when_the_memory_is_full(tmp_path: Path) -> None:
    limits = GroupLimits(session_min_ms=50, initial_rebalance_ms=0, memory_bytes_max=12_000)
    async with serving(tmp_path, Wanted(groups=limits)) as server:
        (member,) = await stable(server, 1)
        codes = {79}
        for number in range(40):
            body = await member.client.call(JOIN_GROUP, 5, **joining(f"junk{number}"))
            codes.add(int(body.error_code))
        assert codes == {79, 15}
        assert (await member.join()).error_code == 0
        assert (await member.sync({member.member_id: member.member_id.encode()})).error_code == 0


async def test_first_commits_on_their_way_count_as_groups(tmp_path: Path) -> None:
    limits = GroupLimits(session_min_ms=50, initial_rebalance_ms=0, groups_max=5)
    async with serving(tmp_path, Wanted(groups=limits)) as server:
        client = await server.connect()
        await client.create("t")
        for number in range(100):
            client.send(OFFSET_COMMIT, 8, **committing(f"r{number}", "t", {0: 1}))
        codes = [codes_of(await client.receive())[0] for _ in range(100)]
        assert codes == [0] * 5 + [15] * 95
        assert len(server.offsets.table.groups) == 5
        assert not server.groups.coordinator.known.unstored


async def test_metadata_is_counted_as_java_does(server: Server) -> None:
    async with await server.connect() as client:
        await client.create("t")
        for text, code in (("😀" * 2048, 0), ("😀" * 2049, 12), ("ü" * 4096, 0)):
            body = await client.call(OFFSET_COMMIT, 9, **committing("g", "t", {0: 1}, text))
            assert codes_of(body) == [code]


async def test_offsets_stay_while_a_deletion_is_under_way_that_fails(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await server.connect() as client:
        await client.create("t")
        await client.call(OFFSET_COMMIT, 9, **committing("g", "t", {0: 42}))
        topic = server.engine.topics["t"]
        hidden = {name: each for name, each in server.engine.topics.items() if name != "t"}
        with monkeypatch.context() as patch:
            patch.setattr(server.engine, "topics", hidden)
            await server.groups.expiry.check()
            body = await client.call(OFFSET_FETCH, 8, **fetching("g", {"t": [0]}))
            assert fetched_offsets(body) == {("t", 0): (0, 42, "")}
        assert server.engine.topics["t"] is topic
        assert server.offsets.table.entries == 1


async def test_offsets_do_not_expire_before_it_is_stored_that_their_group_is_empty(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_records: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    (member,) = await stable(server, 1)
    await member.client.create("known", 2)
    await member.commit("known", {0: 42})
    server.clock.ahead_ms += 8 * DAY_MS  # an idle partition, and a consumer all the time
    await member.commit("known", {1: 7})
    with monkeypatch.context() as patch:
        patch.setattr(server.offsets._journal, "append", broken)
        await member.leave()
        await server.offsets.settled()
        await asyncio.sleep(0)
    assert server.groups.coordinator.active["g"].unsaved
    await server.groups.expiry.check()
    assert server.offsets.table.entries == 2


async def test_an_answer_behind_one_that_waits_holds_no_request(server: Server) -> None:
    (first,) = await stable(server, 1)
    second = await Member.connect(server)
    await second.begin()
    values = {"group_id": "g" * 10_000, "generation_id": 1, "member_id": "m"}
    for _ in range(20):
        second.client.send(HEARTBEAT, 0, **values)
    await until(lambda: sum(sum(each.counts) for each in server.door.counts.seconds.values()) > 20)
    await until(lambda: server.door.budget.used < 5_000)
    await first.join()
    assert (await second.joined()).error_code == 0
    for _ in range(20):
        assert (await second.client.receive()).error_code == 25


@pytest.mark.parametrize("version", [3, 5])
async def test_many_members_leave_in_pieces(tmp_path: Path, version: int) -> None:
    """Other tasks run in between, and each member gets its code."""
    limits = GroupLimits(members_max=10_000, memory_bytes_max=1 << 30)
    async with serving(tmp_path, Wanted(groups=limits)) as server:
        coordinator = server.groups.coordinator
        join = Join("", None, "c", "h", "consumer", (("range", b""),), 60_000, 60_000, False)
        for _ in range(3000):
            coordinator.join("g", join)
        members = coordinator.active["g"].members
        identities: list[dict[str, Any]] = [
            {"member_id": each, "group_instance_id": None} for each in members.by_id
        ]
        for each in identities[::10]:
            each |= {"member_id": f"not {each['member_id']}", "group_instance_id": "i"}
        sizes: list[int] = []

        async def look() -> None:
            while True:
                sizes.append(len(members))
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        async with await server.connect() as client:
            body = await client.call(LEAVE_GROUP, version, group_id="g", members=identities)
        looking.cancel()
    assert body.error_code == 0
    found = [(each.member_id, each.group_instance_id) for each in body.members]
    assert found == [tuple(each.values()) for each in identities]
    assert [each.error_code for each in body.members] == ([25] + [0] * 9) * 300
    assert max(before - after for before, after in pairwise(sizes)) <= 200
    assert sizes[-1] == 300


async def test_a_long_request_to_leave_an_invalid_group(server: Server) -> None:
    identities = [{"member_id": f"m{number}", "group_instance_id": None} for number in range(1000)]
    async with await server.connect() as client:
        body = await client.call(LEAVE_GROUP, 5, group_id="", members=identities)
        assert (body.error_code, body.members) == (24, ())
        body = await client.call(LEAVE_GROUP, 5, group_id="none", members=identities)
        assert (body.error_code, {each.error_code for each in body.members}) == (0, {25})
        leave = {"group_id": "none", "member_id": "m" * 10_000}
        assert (await client.call(LEAVE_GROUP, 2, **leave)).error_code == 25
