"""Consumer groups over the wire: members join, are told what to read, and come and go."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from proxy.kafka import kafka_listener as door
from proxy.kafka.groups.group import State
from proxy.kafka.groups.group_steps import GroupLimits
from tests.kafka_listener.client import WireClient
from tests.kafka_listener.group_requests import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    SUBSCRIPTION,
    committing,
    joining,
)
from tests.kafka_listener.harness import Server, Wanted, serving
from tests.kafka_listener.member import WAIT_S, Member, stable, until
from tests.kafka_listener.messages import METADATA


def state(server: Server, group: str = "g") -> State:
    return server.groups.coordinator.state(group)


# ---------------------------------------------------------------------- every version


@pytest.mark.parametrize("version", range(10))
async def test_a_life_in_every_version(server: Server, version: int) -> None:
    member = await Member.connect(
        server,
        join_version=version,
        sync_version=min(version, 5),
        heartbeat_version=min(version, 4),
    )
    body = await member.join()
    assert (body.error_code, body.generation_id, body.protocol_name) == (0, 1, "range")
    assert (body.leader, [each.member_id for each in body.members]) == (
        member.member_id,
        [member.member_id],
    )
    assert body.members[0].metadata == SUBSCRIPTION
    if version >= 7:
        assert body.protocol_type == "consumer"
    body = await member.sync({member.member_id: b"all of it"})
    assert (body.error_code, body.assignment) == (0, b"all of it")
    if version >= 5:
        assert (body.protocol_type, body.protocol_name) == ("consumer", "range")
    assert await member.heartbeat() == 0
    assert await member.leave(min(version, 5)) == 0
    assert await member.heartbeat() == 25
    assert await member.leave(min(version, 5)) == 25


@pytest.mark.parametrize("version", range(7))
async def test_a_stable_group_is_described(server: Server, version: int) -> None:
    first, second = await stable(server)
    body = await first.client.call(DESCRIBE_GROUPS, version, groups=["g", "unknown"])
    group, unknown = body.groups
    assert (group.error_code, group.group_state, group.protocol_type) == (0, "Stable", "consumer")
    assert group.protocol_data == "range"
    found = {each.member_id: each for each in group.members}
    assert found.keys() == {first.member_id, second.member_id}
    for name, each in found.items():
        assert (each.client_id, each.client_host) == ("wire-test", "127.0.0.1")
        assert (each.member_metadata, each.member_assignment) == (SUBSCRIPTION, name.encode())
    assert (unknown.error_code, unknown.group_state) == (69 if version >= 6 else 0, "Dead")
    if version >= 6:
        assert "unknown" in unknown.error_message


@pytest.mark.parametrize("version", range(6))
async def test_groups_are_listed(server: Server, version: int) -> None:
    await stable(server)
    async with await server.connect() as client:
        await client.create("t")
        await client.call(OFFSET_COMMIT, 9, **committing("simple", "t", {0: 1}))
        body = await client.call(LIST_GROUPS, version)
        found = {each.group_id: each for each in body.groups}
        assert {name: each.protocol_type for name, each in found.items()} == {
            "g": "consumer",
            "simple": "",
        }
        if version < 4:
            return
        assert [found[name].group_state for name in ("g", "simple")] == ["Stable", "Empty"]
        body = await client.call(LIST_GROUPS, version, states_filter=[" sTable", "Dead"])
        assert [each.group_id for each in body.groups] == ["g"]
        if version < 5:
            return
        assert {each.group_type for each in found.values()} == {"classic"}
        for types, count in ((["Classic"], 2), (["consumer"], 0), (["share", "classic"], 2)):
            body = await client.call(LIST_GROUPS, version, types_filter=types)
            assert len(body.groups) == count


@pytest.mark.parametrize("version", range(3))
async def test_groups_are_deleted(server: Server, version: int) -> None:
    (member,) = await stable(server, 1)
    names = ["g", "unknown", "simple", "simple"]
    async with await server.connect() as client:
        await client.create("t")
        await client.call(OFFSET_COMMIT, 9, **committing("simple", "t", {0: 1}))
        body = await client.call(DELETE_GROUPS, version, groups_names=names)
        found = [(each.group_id, each.error_code) for each in body.results]
        assert found == [("g", 68), ("unknown", 69), ("simple", 0)]
        await member.leave()
        body = await client.call(DELETE_GROUPS, version, groups_names=["g"])
        assert body.results[0].error_code == 0
        assert (await client.call(LIST_GROUPS, 4)).groups == ()
    assert not server.offsets.table.groups
    assert server.groups.coordinator.size_bytes == 0


@pytest.mark.parametrize("version", range(7))
async def test_there_are_no_transactions(client: WireClient, version: int) -> None:
    if version == 0:
        return  # it can only ask for groups
    for key_type, code in ((1, 53), (2, 42), (99, 42)):
        body = await client.call(
            FIND_COORDINATOR, version, key="k", coordinator_keys=["k"], key_type=key_type
        )
        found = body.coordinators[0] if version >= 4 else body
        assert (found.error_code, found.node_id, found.host) == (code, -1, "")
        assert found.error_message


# ---------------------------------------------------------------------- rebalances


async def test_a_member_that_comes_makes_the_others_join_again(server: Server) -> None:
    (first,) = await stable(server, 1)
    second = await Member.connect(server)
    await second.begin()
    assert await first.heartbeat() == 27
    body = await first.join()
    assert (body.generation_id, len(body.members)) == (2, 2)
    assert (await second.joined()).generation_id == 2
    second.send_sync()
    await first.sync({second.member_id: b"its part"})
    assert (await second.client.receive()).assignment == b"its part"


async def test_what_is_asked_behind_a_waiting_join_is_answered_behind_it(server: Server) -> None:
    (first,) = await stable(server, 1)
    second = await Member.connect(server)
    await second.begin()
    second.client.send(METADATA, 9, topics=[])
    second.client.send(LIST_GROUPS, 4)
    await until(lambda: any(not each.idle for each in server.door.connections))
    await first.join()
    assert (await second.joined()).error_code == 0
    assert (await second.client.receive()).cluster_id == server.cluster_id
    assert len((await second.client.receive()).groups) == 1


async def test_a_member_without_heartbeats_is_gone(server: Server) -> None:
    first, second = await stable(server, session_ms=300)
    codes = [0]
    while codes[-1] == 0:
        codes.append(await first.heartbeat())
        await asyncio.sleep(0.02)
    assert codes[-1] == 27
    assert (await first.join()).error_code == 0
    assert len(server.groups.coordinator.active["g"].members) == 1
    assert await second.heartbeat() == 25


async def test_a_connection_that_is_lost_while_its_member_waits_holds_nobody_up(
    server: Server,
) -> None:
    """Kafka does not see it go either: it is let go by its session."""
    (first,) = await stable(server, 1, session_ms=400, rebalance_ms=2_000)
    gone = await Member.connect(server, session_ms=400, rebalance_ms=2_000)
    await gone.begin()
    connections = len(server.door.connections)
    gone.client.writer.transport.abort()
    await until(lambda: len(server.door.connections) < connections)
    body = await first.join()
    assert (body.error_code, len(body.members)) == (0, 2)
    await first.sync({first.member_id: b"x", gone.member_id: b"y"})
    codes = [0]
    while codes[-1] == 0:
        codes.append(await first.heartbeat())
        await asyncio.sleep(0.02)
    body = await first.join()
    assert [each.member_id for each in body.members] == [first.member_id]


async def test_who_comes_back_on_another_connection_takes_its_place(server: Server) -> None:
    (first,) = await stable(server, 1)
    second = await Member.connect(server)
    await second.begin()
    again = await Member.connect(server, member_id=second.member_id)
    again.send_join()
    assert (await second.joined()).error_code == 27
    await first.join()
    assert (await again.joined()).generation_id == 2


async def test_who_waits_is_not_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_SWEEP_SECONDS", 0.02)
    async with serving(tmp_path, Wanted(idle_seconds=0.2)) as server:
        (first,) = await stable(server, 1)
        second = await Member.connect(server)
        await second.begin()
        idle = await server.connect()
        closed = asyncio.create_task(idle.is_closed(WAIT_S))
        while not closed.done():
            assert await first.heartbeat() == 27
            await asyncio.sleep(0.02)
        assert await closed
        assert (await first.join()).error_code == 0
        assert (await second.joined()).error_code == 0


async def test_static_members(server: Server) -> None:
    first = await Member.connect(server, instance="one")
    assert (await first.join()).error_code == 0
    assert (await first.sync({first.member_id: b"mine"})).assignment == b"mine"
    again = await Member.connect(server, instance="one")
    body = await again.join()
    assert (body.error_code, body.generation_id, body.skip_assignment) == (0, 1, True)
    assert (await again.sync()).assignment == b"mine"
    await first.client.create("t")
    for code in (await first.heartbeat(), await first.leave(), *await first.commit("t", {0: 1})):
        assert code == ErrorCode.fenced_instance_id
    body = await again.client.call(DESCRIBE_GROUPS, 5, groups=["g"])
    assert [each.group_instance_id for each in body.groups[0].members] == ["one"]
    # A tool removes it by its name.
    identity = {"member_id": "", "group_instance_id": "one"}
    body = await first.client.call(LEAVE_GROUP, 3, group_id="g", members=[identity])
    assert [each.error_code for each in body.members] == [0]
    assert await again.heartbeat() == 25


async def test_a_sync_must_name_its_protocol_from_version_5_on(server: Server) -> None:
    member = await Member.connect(server)
    await member.join()
    for more in ({"protocol_type": None}, {"protocol_name": None}, {"protocol_name": "other"}):
        body = await member.sync({}, **more)
        assert body.error_code == ErrorCode.inconsistent_group_protocol
    member.sync_version = 4
    assert (await member.sync({})).error_code == 0


# ---------------------------------------------------------------------- limits


async def test_what_makes_no_sense_is_refused(client: WireClient) -> None:
    async def code(**values: object) -> int:
        body = await client.call(JOIN_GROUP, 9, **joining("g") | values)
        return int(body.error_code)

    assert await code(group_id="") == ErrorCode.invalid_group_id
    for ms in (0, 49, 1_800_001, -1):
        found = await code(session_timeout=timedelta(milliseconds=ms))
        assert found == ErrorCode.invalid_session_timeout
    assert await code(protocols=[]) == ErrorCode.inconsistent_group_protocol
    assert await code(protocol_type="") == ErrorCode.inconsistent_group_protocol
    assert await code(member_id="never-heard-of") == ErrorCode.unknown_member_id
    body = await client.call(HEARTBEAT, 0, group_id="", generation_id=1, member_id="m")
    assert body.error_code == ErrorCode.invalid_group_id
    body = await client.call(LEAVE_GROUP, 2, group_id="", member_id="m")
    assert body.error_code == ErrorCode.invalid_group_id


async def test_a_group_has_a_size(tmp_path: Path) -> None:
    limits = GroupLimits(session_min_ms=50, initial_rebalance_ms=0, members_max=2)
    async with serving(tmp_path, Wanted(groups=limits)) as server:
        await stable(server)
        third = await Member.connect(server)
        third.send_join()
        assert (await third.joined()).error_code == ErrorCode.group_max_size_reached


async def test_there_is_a_number_of_groups(tmp_path: Path) -> None:
    limits = GroupLimits(session_min_ms=50, initial_rebalance_ms=0, groups_max=2)
    async with serving(tmp_path, Wanted(groups=limits)) as server:
        (member,) = await stable(server, 1)
        client = member.client
        await client.create("t")
        body = await client.call(OFFSET_COMMIT, 9, **committing("simple", "t", {0: 1}))
        assert body.topics[0].partitions[0].error_code == 0
        body = await client.call(OFFSET_COMMIT, 9, **committing("third", "t", {0: 1}))
        assert body.topics[0].partitions[0].error_code == ErrorCode.coordinator_not_available
        body = await client.call(JOIN_GROUP, 9, **joining("third"))
        assert body.error_code == ErrorCode.coordinator_not_available
        await member.leave()
        body = await client.call(DELETE_GROUPS, 2, groups_names=["g"])
        body = await client.call(JOIN_GROUP, 9, **joining("third"))
        assert body.error_code == ErrorCode.member_id_required


async def test_members_of_all_groups_have_so_much_memory(tmp_path: Path) -> None:
    limits = GroupLimits(session_min_ms=50, initial_rebalance_ms=0, memory_bytes_max=20_000)
    async with serving(tmp_path, Wanted(groups=limits)) as server:
        (member,) = await stable(server, 1)
        large = [{"name": "range", "metadata": bytes(18_000)}]
        body = await member.client.call(JOIN_GROUP, 3, **joining("h", protocols=large))
        assert body.error_code == ErrorCode.coordinator_not_available
        body = await member.sync({member.member_id: bytes(19_000)})
        assert body.error_code == ErrorCode.coordinator_not_available
        # Ids that are given out and not used count, too.
        codes = set()
        for _ in range(60):
            body = await member.client.call(JOIN_GROUP, 9, **joining("i"))
            codes.add(int(body.error_code))
        assert codes == {79, ErrorCode.coordinator_not_available}
        assert await member.heartbeat() == 0
        assert server.groups.coordinator.size_bytes <= 20_000


async def test_ids_that_are_not_used_are_forgotten_and_their_group_with_them(
    server: Server,
) -> None:
    async with await server.connect() as client:
        short = {"session_timeout": timedelta(milliseconds=60)}
        for _ in range(5):
            body = await client.call(JOIN_GROUP, 9, **joining("g") | short)
            assert body.error_code == 79
        await until(lambda: not server.groups.coordinator.active)
        assert server.groups.coordinator.size_bytes == 0
        assert (await client.call(LIST_GROUPS, 4)).groups == ()


# ---------------------------------------------------------------------- the end


async def test_a_stop_answers_all_who_wait_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        (first,) = await stable(server, 1)
        second = await Member.connect(server)
        await second.begin()
        await first.client.call(METADATA, 9, topics=[])
        closing = asyncio.create_task(server.door.close())
        assert (await second.joined()).error_code == ErrorCode.not_coordinator
        await closing
        assert await second.client.is_closed()
        body = server.groups.coordinator.heartbeat("g", first.member_id, None, 1)
        assert body == ErrorCode.coordinator_not_available


async def test_after_a_restart_members_are_strangers_and_the_generation_goes_on(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        first, second = await stable(server)
        await first.client.create("t")
        assert await first.commit("t", {0: 5}) == [0]
        old = first.member_id, first.generation
    async with serving(tmp_path) as server:
        assert state(server) is State.EMPTY
        zombie = await Member.connect(server, member_id=old[0], generation=old[1])
        assert await zombie.heartbeat() == 25
        assert await zombie.commit("t", {0: 3}) == [25]
        assert (await zombie.sync({})).error_code == 25
        assert await zombie.leave() == 25
        zombie.send_join()
        assert (await zombie.joined()).error_code == 25
        fresh = await Member.connect(server)
        body = await fresh.join()
        assert body.generation_id == old[1] + 1
        assert await zombie.commit("t", {0: 3}) == [25]
        assert await second.client.is_closed()


async def test_a_group_that_had_members_when_the_server_ended_is_empty_since_the_start(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as server:
        await stable(server, 1)
        server.clock.ahead_ms += 1_000_000
        then = server.clock()
    async with serving(tmp_path) as server:
        await server.offsets.settled()
        stored = server.offsets.table.groups["g"]
        assert stored.empty_ms >= then - 1_000_000
        since = stored.empty_ms
    async with serving(tmp_path) as server:
        assert server.offsets.table.groups["g"].empty_ms == since
