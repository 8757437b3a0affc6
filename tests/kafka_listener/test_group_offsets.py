"""Committed offsets over the wire: who commits what, who is told what, and what leaves."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from pidlease.core.log_config import FsyncPolicy
from pidlease.storage.topics.topic_store import Topic
from proxy.kafka.groups.group_steps import GroupLimits
from tests.kafka_listener.client import WireClient
from tests.kafka_listener.group_requests import (
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    codes_of,
    committing,
    fetched_offsets,
    fetching,
    joining,
)
from tests.kafka_listener.harness import Server, Wanted, serving
from tests.kafka_listener.member import Member, stable, until

DAY_MS = 24 * 3600 * 1000
COMMITS = range(2, 10)
FETCHES = range(1, 10)


async def offset_of(client: WireClient, group: str = "g", partition: int = 0) -> int:
    body = await client.call(OFFSET_FETCH, 9, **fetching(group, {"t": [partition]}))
    ((code, offset, _),) = fetched_offsets(body).values()
    assert code == 0
    return offset


async def commit(client: WireClient, offset: int, group: str = "g") -> list[int]:
    body = await client.call(OFFSET_COMMIT, 9, **committing(group, "t", {0: offset}))
    return codes_of(body)


# ---------------------------------------------------------------------- every version


@pytest.mark.parametrize("version", COMMITS)
async def test_what_any_version_commits_any_version_reads(client: WireClient, version: int) -> None:
    await client.create("t", 3)
    values = committing("g", "t", {0: 5, 2: 2**63 - 1}, "meta ü")
    for part in values["topics"][0]["partitions"]:  # type: ignore[index]
        part["committed_leader_epoch"] = 7
    assert codes_of(await client.call(OFFSET_COMMIT, version, **values)) == [0, 0]
    for fetch in FETCHES:
        body = await client.call(OFFSET_FETCH, fetch, **fetching("g", {"t": [0, 1, 2]}))
        assert fetched_offsets(body) == {
            ("t", 0): (0, 5, "meta ü"),
            ("t", 1): (0, -1, ""),
            ("t", 2): (0, 2**63 - 1, "meta ü"),
        }
        if fetch >= 5:
            topics = body.groups[0].topics if fetch >= 8 else body.topics
            epochs = [part.committed_leader_epoch for part in topics[0].partitions]
            assert epochs == ([7, -1, 7] if version >= 6 else [-1, -1, -1])


@pytest.mark.parametrize("version", FETCHES)
async def test_all_offsets_of_a_group_in_every_version(client: WireClient, version: int) -> None:
    await client.create("t", 3)
    await client.create("u")
    await client.call(OFFSET_COMMIT, 9, **committing("g", "t", {0: 1, 2: 3}))
    await client.call(OFFSET_COMMIT, 9, **committing("g", "u", {0: 9}, None))
    await client.call(OFFSET_COMMIT, 9, **committing("other", "u", {0: 10}))
    if version < 2:
        body = await client.call(OFFSET_FETCH, version, **fetching("g", {}))
        assert body.topics == ()
        return
    body = await client.call(OFFSET_FETCH, version, **fetching("g", None))
    assert fetched_offsets(body) == {
        ("t", 0): (0, 1, ""),
        ("t", 2): (0, 3, ""),
        ("u", 0): (0, 9, ""),
    }
    body = await client.call(OFFSET_FETCH, version, **fetching("unknown", None))
    assert fetched_offsets(body) == {}
    assert getattr(body, "groups", (body,))[0].error_code == 0


@pytest.mark.parametrize("version", [8, 9])
async def test_several_groups_at_once(client: WireClient, version: int) -> None:
    await client.create("t")
    for number in range(3):
        await commit(client, number, f"g{number}")
    asked = [{"name": "t", "partition_indexes": [0]}]
    groups: list[dict[str, object]] = [{"group_id": f"g{n}", "topics": asked} for n in (2, 0, 7, 1)]
    groups.append({"group_id": "g1", "topics": None})
    body = await client.call(OFFSET_FETCH, version, groups=groups, require_stable=True)
    found = [
        (group.group_id, [part.committed_offset for part in group.topics[0].partitions])
        for group in body.groups
    ]
    assert found == [("g2", [2]), ("g0", [0]), ("g7", [-1]), ("g1", [1]), ("g1", [1])]


@pytest.mark.parametrize("version", COMMITS)
async def test_errors_of_a_commit_in_every_version(server: Server, version: int) -> None:
    members = await stable(server)
    async with await server.connect() as client:
        await client.create("t", 2)
        values = committing("g", "t", {0: 1, 5: 1, 1: 1}) | {"member_id": "stranger"}
        values["generation_id_or_member_epoch"] = 1
        assert codes_of(await client.call(OFFSET_COMMIT, version, **values)) == [25, 3, 25]
        values["member_id"] = members[0].member_id
        values["generation_id_or_member_epoch"] = 0
        assert codes_of(await client.call(OFFSET_COMMIT, version, **values)) == [22, 3, 22]
        values = committing("g", "t", {0: 1})
        assert codes_of(await client.call(OFFSET_COMMIT, version, **values)) == [25]
        values = committing("unknown", "t", {0: 1}) | {"generation_id_or_member_epoch": 1}
        wanted = 69 if version >= 9 else 22
        assert codes_of(await client.call(OFFSET_COMMIT, version, **values)) == [wanted]
        assert await members[1].commit("t", {0: 1}, version) == [0]
        assert await offset_of(client) == 1


# ---------------------------------------------------------------------- commits


async def test_commits_of_partitions_that_are_not_there_and_of_too_much_metadata(
    client: WireClient,
) -> None:
    await client.create("t", 2)
    parts = [
        {"partition_index": 0, "committed_offset": 1, "committed_metadata": "m" * 4096},
        {"partition_index": 1, "committed_offset": 1, "committed_metadata": "m" * 4097},
        {"partition_index": 2, "committed_offset": 1, "committed_metadata": ""},
        {"partition_index": -1, "committed_offset": 1, "committed_metadata": ""},
    ]
    topics = [
        {"name": "t", "partitions": parts},
        {"name": "unknown", "partitions": parts[:1]},
        {"name": "", "partitions": parts[:1]},
        {"name": "t", "partitions": []},
    ]
    body = await client.call(
        OFFSET_COMMIT, 9, group_id="g", generation_id_or_member_epoch=-1, topics=topics
    )
    assert codes_of(body) == [0, 12, 3, 3, 3, 3]
    assert [len(each.partitions) for each in body.topics] == [4, 1, 1, 0]
    body = await client.call(OFFSET_FETCH, 9, **fetching("g", None))
    assert fetched_offsets(body) == {("t", 0): (0, 1, "m" * 4096)}


async def test_a_commit_of_nothing_makes_no_group(client: WireClient) -> None:
    await client.create("t")
    assert codes_of(await client.call(OFFSET_COMMIT, 9, **committing("g", "x", {0: 1}))) == [3]
    body = await client.call(OFFSET_COMMIT, 9, group_id="g", topics=[])
    assert body.topics == ()
    assert (await client.call(LIST_GROUPS, 5)).groups == ()


async def test_any_group_name_and_offsets_that_go_back(client: WireClient) -> None:
    await client.create("t")
    for group in ("", "ü" * 100, "a/b\n\x00", "x" * 30_000):
        for offset in (7, 3, 0, -1, 2**63 - 1):
            assert await commit(client, offset, group) == [0]
            assert await offset_of(client, group) == offset


async def test_an_offset_of_nobody_when_the_group_has_members(server: Server) -> None:
    (member,) = await stable(server, 1)
    await member.client.create("t")
    async with await server.connect() as client:
        assert await commit(client, 5) == [ErrorCode.unknown_member_id]
        await member.leave()
        assert await commit(client, 5) == [0]


async def test_a_commit_and_a_leave_behind_it_both_count(server: Server) -> None:
    """A broker works on one request of a connection at a time: the order is what clients know."""
    (member,) = await stable(server, 1)
    client = member.client
    await client.create("t")
    for offset in range(20):
        values = committing("g", "t", {0: offset}) | {
            "member_id": member.member_id,
            "generation_id_or_member_epoch": member.generation,
        }
        client.send(OFFSET_COMMIT, 9, **values)
    identity = {"member_id": member.member_id}
    client.send(LEAVE_GROUP, 5, group_id="g", members=[identity])
    client.send(OFFSET_FETCH, 9, **fetching("g", {"t": [0]}))
    for _ in range(20):
        assert codes_of(await client.receive()) == [0]
    assert (await client.receive()).members[0].error_code == 0
    assert fetched_offsets(await client.receive()) == {("t", 0): (0, 19, "")}


async def test_a_commit_of_an_older_generation_does_not_count(server: Server) -> None:
    first, second = await stable(server)
    await first.client.create("t")
    assert await second.commit("t", {0: 4}) == [0]
    third = await Member.connect(server)
    await third.begin()
    assert await second.commit("t", {0: 5}) == [0], "in a rebalance what was read is committed"
    first.send_join()
    generation = second.generation
    second.send_join()
    for each in (first, second, third):
        assert (await each.joined()).error_code == 0
    assert await third.commit("t", {0: 6}) == [ErrorCode.rebalance_in_progress]
    second.generation = generation
    assert await second.commit("t", {0: 3}) == [ErrorCode.illegal_generation]
    assert await offset_of(first.client) == 5


# ---------------------------------------------------------------------- the disk


async def test_committed_offsets_survive_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, await server.connect() as client:
        await client.create("t", 3)
        assert await commit(client, 7) == [0]
        await client.call(OFFSET_COMMIT, 9, **committing("g", "t", {2: 9}, "m"))
    async with serving(tmp_path) as server, await server.connect() as client:
        body = await client.call(OFFSET_FETCH, 9, **fetching("g", None))
        assert fetched_offsets(body) == {("t", 0): (0, 7, ""), ("t", 2): (0, 9, "m")}


async def test_a_commit_that_cannot_be_stored_can_be_tried_again(tmp_path: Path) -> None:
    faults = "fail before write *groups/offsets 2"
    async with serving(tmp_path, Wanted(faults=faults)) as server, await server.connect() as client:
        await client.create("t")
        assert await commit(client, 1) == [0]
        assert await commit(client, 2) == [ErrorCode.coordinator_not_available]
        assert await offset_of(client) == 1
        assert await commit(client, 3) == [0]
        assert await offset_of(client) == 3


async def test_an_assignment_that_cannot_be_stored_is_made_again(tmp_path: Path) -> None:
    faults = "fail before write *groups/offsets 1"
    async with serving(tmp_path, Wanted(faults=faults)) as server:
        member = await Member.connect(server)
        await member.join()
        body = await member.sync({member.member_id: b"all"})
        assert body.error_code == ErrorCode.coordinator_not_available
        assert (await member.join()).generation_id == 2
        assert (await member.sync({member.member_id: b"all"})).assignment == b"all"


async def test_a_group_that_could_not_be_stored_as_empty_is_stored_later(tmp_path: Path) -> None:
    faults = "fail before write *groups/offsets 2"
    async with serving(tmp_path, Wanted(faults=faults)) as server:
        (member,) = await stable(server, 1)
        await member.leave()
        await server.offsets.settled()
        assert server.offsets.table.groups["g"].empty_ms == -1
        while server.groups.coordinator.active:
            server.groups.coordinator.store_again()
            await server.offsets.settled()
            await asyncio.sleep(0)
        assert server.offsets.table.groups["g"].empty_ms > 0


async def test_who_fetches_sees_all_commits_that_came_before(tmp_path: Path) -> None:
    wanted = Wanted(faults="slow=0.2 before fsync *groups/offsets 1", fsync=FsyncPolicy.BATCH)
    async with (
        serving(tmp_path, wanted) as server,
        await server.connect() as one,
        await server.connect() as other,
    ):
        await one.create("t")
        for offset in (5, 6):
            one.send(OFFSET_COMMIT, 9, **committing("g", "t", {0: offset}))
        await until(lambda: server.offsets.is_busy("g"))
        assert await offset_of(other) in (5, 6)  # the second one may come behind this
        assert [codes_of(await one.receive()) for _ in range(2)] == [[0], [0]]
        assert await offset_of(other) == 6


async def test_there_is_a_number_of_offsets(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, await server.connect() as client:
        server.offsets.room.entries_max = 2
        await client.create("t", 5)
        values = committing("g", "t", {0: 1, 1: 1, 2: 1})
        assert codes_of(await client.call(OFFSET_COMMIT, 9, **values)) == [28, 28, 28]
        values = committing("g", "t", {0: 1, 9: 1, 2: 1})
        assert codes_of(await client.call(OFFSET_COMMIT, 9, **values)) == [0, 3, 0]
        assert await commit(client, 2) == [0]
        assert await commit(client, 2, "other") == [28]


# ---------------------------------------------------------------------- what leaves


async def test_offsets_are_deleted(server: Server) -> None:
    async with await server.connect() as client:
        await client.create("known", 3)
        await client.create("t", 3)
        for topic in ("known", "t"):
            await client.call(OFFSET_COMMIT, 9, **committing("g", topic, {0: 1, 1: 2}))

        async def delete(group: str, topic: str, *partitions: int) -> tuple[int, list[int]]:
            parts = [{"partition_index": number} for number in partitions]
            topics = [{"name": topic, "partitions": parts}]
            body = await client.call(OFFSET_DELETE, 0, group_id=group, topics=topics)
            return int(body.error_code), codes_of(body)

        assert await delete("g", "t", 0, 2, 9) == (0, [0, 0, 3])
        assert await delete("g", "unknown", 0) == (0, [3])
        assert await delete("unknown", "t", 0) == (69, [])
        assert (await offset_of(client), await offset_of(client, partition=1)) == (-1, 2)
        # Of a group with members only what they do not read.
        (member,) = await stable(server, 1)
        assert await delete("g", "known", 0) == (0, [86])
        assert await delete("g", "t", 1) == (0, [0])
        await member.leave()
        assert await delete("g", "known", 0) == (0, [0])
        other = await Member.connect(server, "connect")
        await other.join(protocol_type="connect")
        assert await delete("connect", "t", 0) == (ErrorCode.non_empty_group, [])


async def test_a_deletion_that_cannot_be_stored_deletes_nothing(tmp_path: Path) -> None:
    faults = "fail before write *groups/offsets 2"
    async with serving(tmp_path, Wanted(faults=faults)) as server, await server.connect() as client:
        await client.create("t")
        await commit(client, 1)
        topics = [{"name": "t", "partitions": [{"partition_index": 0}]}]
        body = await client.call(OFFSET_DELETE, 0, group_id="g", topics=topics)
        assert body.error_code == ErrorCode.coordinator_not_available
        assert await offset_of(client) == 1


async def test_offsets_of_a_deleted_topic_leave(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, await server.connect() as client:
        await client.create("t", 2)
        await client.create("u")
        await client.call(OFFSET_COMMIT, 9, **committing("g", "t", {0: 5, 1: 6}))
        await client.call(OFFSET_COMMIT, 9, **committing("g", "u", {0: 7}))
        await server.engine.delete_topic("t")
        assert server.offsets.table.entries == 1
        await server.engine.create_topic(Topic.new("t", 2))
        assert await offset_of(client) == -1
        assert await commit(client, 1) == [0]
    async with serving(tmp_path) as server, await server.connect() as client:
        body = await client.call(OFFSET_FETCH, 9, **fetching("g", None))
        assert fetched_offsets(body) == {("t", 0): (0, 1, ""), ("u", 0): (0, 7, "")}


async def test_offsets_expire_when_their_group_has_been_empty_for_long(server: Server) -> None:
    (member,) = await stable(server, 1)
    client = member.client
    await client.create("t")
    await client.create("known")
    await member.commit("t", {0: 4})
    await member.commit("known", {0: 5})
    server.clock.ahead_ms += 8 * DAY_MS
    await server.groups.expiry.check()
    body = await client.call(OFFSET_FETCH, 9, **fetching("g", None))
    assert fetched_offsets(body).keys() == {("known", 0)}, "what it does not read has expired"
    await member.leave()
    await server.offsets.settled()
    server.clock.ahead_ms += 6 * DAY_MS
    await server.groups.expiry.check()
    assert fetched_offsets(await client.call(OFFSET_FETCH, 9, **fetching("g", None)))
    server.clock.ahead_ms += DAY_MS
    await server.groups.expiry.check()
    assert not fetched_offsets(await client.call(OFFSET_FETCH, 9, **fetching("g", None)))
    assert (await client.call(LIST_GROUPS, 4)).groups == ()


async def test_offsets_of_a_group_without_members_expire_by_their_own_time(server: Server) -> None:
    async with await server.connect() as client:
        await client.create("t", 2)
        await commit(client, 1)
        server.clock.ahead_ms += 4 * DAY_MS
        await client.call(OFFSET_COMMIT, 9, **committing("g", "t", {1: 2}))
        server.clock.ahead_ms += 4 * DAY_MS
        await server.groups.expiry.check()
        body = await client.call(OFFSET_FETCH, 9, **fetching("g", None))
        assert fetched_offsets(body) == {("t", 1): (0, 2, "")}


async def test_nothing_expires_while_somebody_is_about_to_join(server: Server) -> None:
    async with await server.connect() as client:
        await client.create("t")
        await commit(client, 1)
        server.clock.ahead_ms += 8 * DAY_MS
        assert (await client.call(11, 9, **joining("g"))).error_code == 79
        await server.groups.expiry.check()
        assert await offset_of(client) == 1


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_old_clients_say_how_long_their_offsets_are_kept(
    server: Server, version: int
) -> None:
    async with await server.connect() as client:
        await client.create("t", 3)
        times = {0: timedelta(days=1), 1: timedelta(days=30), 2: timedelta(milliseconds=-1)}
        for partition, time in times.items():
            values = committing("g", "t", {partition: 1}) | {"retention_time": time}
            assert codes_of(await client.call(OFFSET_COMMIT, version, **values)) == [0]
        left = []
        for days in (0.9, 0.2, 6, 10, 20):
            server.clock.ahead_ms += int(days * DAY_MS)
            await server.groups.expiry.check()
            body = await client.call(OFFSET_FETCH, 9, **fetching("g", None))
            left.append(sorted(partition for _, partition in fetched_offsets(body)))
        assert left == [[0, 1, 2], [1, 2], [1], [1], []]


async def test_retention_is_a_setting(tmp_path: Path) -> None:
    limits = GroupLimits(session_min_ms=50, initial_rebalance_ms=0, offsets_retention_ms=1000)
    async with serving(tmp_path, Wanted(groups=limits)) as server, await server.connect() as client:
        await client.create("t")
        await commit(client, 1)
        server.clock.ahead_ms += 900
        await server.groups.expiry.check()
        assert await offset_of(client) == 1
        server.clock.ahead_ms += 200
        await server.groups.expiry.check()
        assert await offset_of(client) == -1
