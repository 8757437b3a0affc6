"""Topics that come, go and grow without us."""

import uuid
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from pidlease.engine.append_outcome import Status
from pidlease.engine.engine import Engine
from pidlease.engine.partition import Partition
from pidlease.engine.recovery import catch_up
from pidlease.log.segments.data_directory import DataDirectory
from pidlease.storage.errors import LogStoppedError
from pidlease.storage.topics.topic_store import Topic
from tests.sim.files import SimFiles
from tests.unit.engine.server import APPENDED, DUPLICATE, LEASE_MS, Server

_HOUR_MS = 3_600_000
A, B = Topic("a", "1" * 32, 1, {}), Topic("b", "2" * 32, 2, {})


async def started() -> Server:
    server = Server(SimFiles(1))
    await server.start()
    await server.engine.follow({})
    return server


def names(server: Server) -> dict[str, int]:
    return {name: len(parts) for name, parts in server.engine._table.partitions.items()}


async def test_they_come_grow_and_go() -> None:
    server = await started()
    assert names(server) == {}
    await server.engine.follow({"a": A, "b": B})
    assert names(server) == {"a": 1, "b": 2}
    version = server.engine.topics_version
    await server.engine.follow({"a": A, "b": B})
    assert server.engine.topics_version == version
    before = server.partition(1, "b")
    await server.engine.follow({"b": replace(B, partitions=3)})
    assert names(server) == {"b": 3}
    assert server.partition(1, "b") is before


async def test_another_topic_of_the_name_begins_anew() -> None:
    server = await started()
    await server.engine.follow({"a": A})
    before = server.partition(0, "a")
    await server.engine.follow({"a": replace(A, topic_id="3" * 32)})
    assert server.partition(0, "a") is not before
    assert before.gone


async def test_one_that_cannot_be_opened_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = await started()
    store: Any = server.engine._store
    opened = store.open_partition

    def fails(topic: Topic, *more: Any) -> Any:
        if topic.name == "a":
            raise OSError("no leader")
        return opened(topic, *more)

    monkeypatch.setattr(store, "open_partition", fails)
    with pytest.raises(OSError, match="no leader"):
        await server.engine.follow({"a": A, "b": B})
    assert names(server) == {"b": 2}
    monkeypatch.setattr(store, "open_partition", partial(opened))
    await server.engine.follow({"a": A, "b": B})
    assert names(server) == {"a": 1, "b": 2}


async def test_a_stopped_partition_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile it is not unknown: who sends to it is to come again, and not to give up."""
    server = await started()
    await server.engine.follow({"b": B})
    store: Any = server.engine._store
    opened, seen = store.open_partition, []

    def opens(*of: Any) -> Any:
        seen.append((of[1], names(server), server.partition(1, "b").log.stopped))
        return opened(*of)

    monkeypatch.setattr(store, "open_partition", opens)
    other, before = server.partition(0, "b"), server.partition(1, "b")
    before.log.stop("it could not be read")
    await server.engine.follow({"b": B})
    after = server.partition(1, "b")
    assert seen == [(1, {"b": 2}, "it could not be read")]
    assert after is not before
    assert (after.log.stopped, after.gone, before.gone) == ("", False, True)
    assert server.partition(0, "b") is other


async def half_forgotten() -> tuple[Server, int, int]:
    """A server whose log has lost its beginning; who sent last there, at 2; and who at 39."""
    server = await Server(SimFiles(1)).start(retention_bytes=2000)
    silent, busy = server.lease(), server.lease()
    await server.fill(silent, 0, 3)
    await server.fill(busy, 0, 40)
    for _ in range(2):
        await server.snapshot()
    await server.engine.maintenance.retain()
    assert server.partition().log.start_offset > 3
    return server, silent, busy


async def test_what_is_awaited_at_a_start_keeps_what_is_known_of_its_producers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once a bug: it was read from the log's beginning, and who stood before that was forgotten."""
    server, silent, busy = await half_forgotten()
    topic = server.engine.topics["t"]

    with monkeypatch.context() as away:
        away.setattr(DataDirectory, "topics", lambda _: [])
        away.setattr(DataDirectory, "awaited", lambda _: [topic])
        for _ in range(3):  # also over snapshots that are taken meanwhile, and another start
            server = await server.kill(retention_bytes=2000)
            assert (names(server), set(server.engine.awaited)) == ({}, {"t"})
            await server.snapshot()
    await server.engine.follow({"t": topic})

    assert (await server.send(silent, 2)).status is DUPLICATE
    assert (await server.send(silent, 3)).status is APPENDED
    assert (await server.send(busy, 39)).status is DUPLICATE
    assert len(server.engine._table.held) == 0
    await server.snapshot()
    server = await server.kill(retention_bytes=2000)
    assert (await server.send(silent, 3)).status is DUPLICATE


async def test_what_is_held_of_a_topic_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await Server(SimFiles(1)).start()
    pid = server.lease()
    await server.fill(pid, 0, 3)
    await server.snapshot()
    topic = server.engine.topics["t"]
    with monkeypatch.context() as away:
        away.setattr(DataDirectory, "topics", lambda _: [])
        away.setattr(DataDirectory, "awaited", lambda _: [topic])
        server = await server.kill()
    assert len(server.engine._table.held) == 2
    await server.engine.follow({"t": replace(topic, topic_id="9" * 32)})
    assert len(server.engine._table.held) == 0
    assert server.engine._table.unloaded() == []


async def test_a_topic_that_is_not_seen_for_a_while_keeps_what_is_known_of_its_producers() -> None:
    """Once a bug: one look at a cluster that did not show it, and they were forgotten."""
    server, silent, busy = await half_forgotten()
    topic = server.engine.topics["t"]
    await server.fill(busy, 40, 41)
    for _ in range(2):
        await server.engine.follow({})
        assert names(server) == {}
        await server.snapshot()
        await server.engine.follow({"t": topic})
    assert server.engine.topics["t"].made_again_ms == -1
    assert (await server.send(silent, 2)).status is DUPLICATE
    assert (await server.send(busy, 40)).status is DUPLICATE
    assert (await server.send(silent, 3)).status is APPENDED
    assert len(server.engine._table.held) == 0


async def test_a_start_that_does_not_see_a_topic_keeps_what_the_snapshot_has_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, silent, _ = await half_forgotten()
    topic = server.engine.topics["t"]
    await server.engine.follow({})
    await server.snapshot()
    with monkeypatch.context() as away:
        not_seen(away)
        for _ in range(2):
            server = await server.kill(retention_bytes=2000)
            assert names(server) == {}
            await server.snapshot()
    await server.engine.follow({"t": topic})
    assert (await server.send(silent, 2)).status is DUPLICATE


def not_seen(patch: pytest.MonkeyPatch) -> None:
    """Have starts see no topic, as in front of a Kafka that does not show any."""

    async def make_none(*_: Any) -> None:
        pass

    patch.setattr(DataDirectory, "made_by_others", True)
    patch.setattr(DataDirectory, "topics", lambda _: [])
    patch.setattr(Engine, "create_topic", make_none)


async def test_a_topic_that_is_not_seen_for_an_hour_is_forgotten() -> None:
    server, silent, _ = await half_forgotten()
    topic, before = server.engine.topics["t"], server.partition()
    await server.engine.follow({})
    server.now_ms += _HOUR_MS - 1
    await server.engine.follow({})
    await server.engine.follow({"t": topic})
    assert server.partition() is before
    await server.engine.follow({})
    server.now_ms += _HOUR_MS - 1  # it was seen meanwhile
    await server.engine.follow({})
    assert silent in before.producers
    assert server.engine.waits_for_topics
    server.now_ms += 1
    await server.engine.follow({})
    assert not server.engine.waits_for_topics
    assert (before.producers, before.log.stopped) == ({}, "its topic is gone")
    await server.engine.follow({"t": topic})
    assert silent not in server.partition().producers


@pytest.mark.parametrize("id_", ["9" * 32, uuid.uuid5(uuid.NAMESPACE_DNS, "t").hex])
async def test_another_topic_in_the_place_of_one_that_was_not_seen_begins_anew(id_: str) -> None:
    """Also where Kafka gives no ids (before 2.8): one that is made from the name tells nothing."""
    server = await started()
    first = Topic("a", "8" * 32 if id_ == "9" * 32 else id_, 1, {})
    await server.engine.follow({"a": first})
    pid = server.lease()
    assert (await server.send(pid, 0, topic="a")).status is APPENDED
    before = server.partition(0, "a")
    await server.engine.follow({})
    await server.engine.follow({"a": replace(first, topic_id=id_)})
    assert server.engine.topics["a"].made_again_ms == server.now_ms
    assert "a" not in server.engine._table.unseen
    assert server.partition(0, "a") is not before
    assert (before.producers, before.log.stopped) == ({}, "its topic is gone")


async def test_leases_do_not_end_sooner_where_a_topic_is_not_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once a bug: who had written a moment before was taken for one that never had."""
    server = await Server(SimFiles(1)).start()
    pid, topic = server.lease(), server.engine.topics["t"]
    await server.fill(pid, 0, 3)
    server.now_ms += LEASE_MS - 10
    await server.fill(pid, 3, 4)
    await server.engine.follow({})
    server.now_ms += 20
    server.engine.leases.expire()
    assert pid in server.engine.leases
    await server.snapshot()
    with monkeypatch.context() as away:
        not_seen(away)
        server = await server.kill()
        server.engine.leases.expire()
        assert pid in server.engine.leases
    await server.engine.follow({"t": topic})
    assert (await server.send(pid, 3)).status is DUPLICATE
    assert (await server.send(pid, 4)).status is APPENDED
    server.now_ms += LEASE_MS + 1
    server.engine.leases.expire()
    assert len(server.engine.leases) == 0


async def test_leases_end_where_a_topic_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await Server(SimFiles(1)).start()
    pid = server.lease()
    await server.fill(pid, 0, 3)
    await server.snapshot()
    with monkeypatch.context() as away:
        not_seen(away)
        server = await server.kill()
    assert [len(each.producers) for each in server.engine._table.unloaded()] == [1, 0]
    server.now_ms += 2 * LEASE_MS + 1
    server.engine.leases.expire()
    assert [len(each.producers) for each in server.engine._table.unloaded()] == [0, 0]


async def test_a_snapshot_that_is_under_way_when_a_topic_is_not_seen_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once a bug: it had nobody on the partitions that were still to come."""
    server = await Server(SimFiles(1)).start()
    pid, topic = server.lease(), server.engine.topics["t"]
    await server.fill(pid, 0, 3, partition=1)
    log = server.partition().log
    flush = log.flush

    async def flush_and_vanish() -> None:
        await flush()
        await server.engine.follow({})

    monkeypatch.setattr(log, "flush", flush_and_vanish)
    await server.snapshot()
    assert names(server) == {}
    monkeypatch.undo()
    server = await server.kill()
    await server.engine.follow({"t": topic})
    assert (await server.send(pid, 2, partition=1)).status is DUPLICATE
    assert (await server.send(pid, 3, partition=1)).status is APPENDED


async def test_a_partition_that_cannot_be_read_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once a bug: its whole topic was awaited, and with each look its leases grew longer."""
    server = await started()
    damaged: list[str] = []

    def damages(partition: Partition, now_ms: int) -> None:
        if partition.name.partition == 1:
            damaged.append("once more")
            partition.log.stop("damaged")
        else:
            catch_up(partition, now_ms)

    with monkeypatch.context() as away:
        away.setattr("pidlease.engine.topics.topic_sync.catch_up", damages)
        for _ in range(5):
            with pytest.raises(OSError, match="b-1: damaged"):
                await server.engine.follow({"b": B})
            stopped, other = server.partition(1, "b"), server.partition(0, "b")
            assert (stopped.log.stopped, other.log.stopped) == ("damaged", "")
    assert len(damaged) == 5
    pid = server.lease()
    assert (await server.send(pid, 0, topic="b")).status is APPENDED
    assert (await server.send(pid, 0, topic="b", partition=1)).status is Status.STOPPED
    await server.engine.follow({"b": B})
    assert server.partition(0, "b") is other
    assert (await server.send(pid, 0, topic="b", partition=1)).status is APPENDED
    assert len(server.engine.leases._table.partitions(pid)) == 2


async def test_a_partition_that_cannot_be_opened_does_not_hold_up_the_others_of_its_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a topic that is known already; and it is still one that was made again."""
    server = await started()
    await server.engine.follow({"b": replace(B, topic_id="7" * 32)})
    await server.engine.follow({"b": B})
    made_again_ms = server.engine.topics["b"].made_again_ms
    assert made_again_ms == server.now_ms
    store: Any = server.engine._store
    opened = store.open_partition

    def fails(topic: Topic, number: int, *more: Any) -> Any:
        if number in (1, 4):
            raise OSError(f"{number} has no leader")
        return opened(topic, number, *more)

    server.now_ms += 1000
    for number in (0, 1):
        server.partition(number, "b").log.stop("it could not be read")
    with monkeypatch.context() as away:
        away.setattr(store, "open_partition", fails)
        for _ in range(2):
            with pytest.raises(OSError, match="has no leader"):
                await server.engine.follow({"b": replace(B, partitions=6)})
    assert names(server) == {"b": 4}
    assert server.engine.topics["b"].partitions == 4
    assert [bool(server.partition(n, "b").log.stopped) for n in range(4)] == [0, 1, 0, 0]
    await server.engine.follow({"b": replace(B, partitions=6)})
    assert names(server) == {"b": 6}
    assert {server.partition(n, "b").hole_ms for n in range(6)} == {made_again_ms}


async def test_snapshots_go_on_without_what_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In front of Kafka: there retention is not ours, and what an older one has is held."""
    server, silent, busy = await half_forgotten()
    stopped = server.partition(1)

    async def flush() -> None:
        raise LogStoppedError(stopped.log.stopped)  # as the log in Kafka does

    monkeypatch.setattr(stopped.log, "flush", flush)
    stopped.log.stop("it could not be read")
    with pytest.raises(LogStoppedError):
        await server.snapshot()
    monkeypatch.setattr(DataDirectory, "made_by_others", True)
    pid = server.lease()
    await server.fill(pid, 0, 3)
    await server.snapshot()
    await server.engine.follow({})  # nor does it hold them up when its topic is deleted
    await server.snapshot()
    server = await server.kill(retention_bytes=2000)
    for known, last in ((silent, 2), (busy, 39), (pid, 2)):
        assert (await server.send(known, last)).status is DUPLICATE


async def test_topics_that_are_not_seen_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await started()
    table = server.engine._table
    monkeypatch.setattr(table, "_partitions_max", 3)
    await server.engine.follow({"a": A})
    first = table.unseen["t"].partitions
    await server.engine.follow({"b": B})
    assert set(table.unseen) == {"t", "a"}
    await server.engine.follow({})
    assert set(table.unseen) == {"a", "b"}
    assert {each.log.stopped for each in first} == {"its topic is gone"}
