"""Which topics a producer requests metadata of, and which of them the server may create."""

import pytest

from pidlease.client import leader_connections
from tests.client.fake_broker import Fault
from tests.client.harness import World, until, world


async def _refreshed(all_: World, *topics: str) -> None:
    """Wait until metadata was requested again, of these topics."""
    all_.broker.described.clear()
    await until(lambda: all_.broker.described.issuperset(topics))


async def test_a_deleted_topic_is_created_again_only_for_a_record() -> None:
    async with world() as all_, all_.producer(metadata_max_age_ms=5) as producer:
        all_.broker.auto_create = True
        await producer.send_and_wait("day-1", b"a")
        del all_.broker.topics["day-1"]
        for _ in range(3):
            await _refreshed(all_, "day-1")
        await producer.send_and_wait("day-2", b"b")
        assert all_.broker.topics.keys() == {"t", "day-2"}
        await producer.send_and_wait("day-1", b"c")
        assert all_.broker.topics.keys() == {"t", "day-2", "day-1"}


async def test_metadata_of_an_idle_topic_is_not_requested_until_its_next_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_connections, "_IDLE_S", 0.02)
    async with world(idle=1, busy=1) as all_, all_.producer(metadata_max_age_ms=5) as producer:
        await producer.send_and_wait("idle", b"a", partition=0)
        all_.broker.fault = {2: Fault("late", seconds=-1)}.get
        waiting = await producer.send("busy", b"b")
        for _ in range(100):
            await _refreshed(all_, "busy")
            if all_.broker.described == {"busy"}:
                break
        assert all_.broker.described == {"busy"}, "its record has no response yet"
        all_.broker.release.set()
        await waiting
        assert (await producer.send_and_wait("idle", b"c", partition=0)).offset == 1


async def test_a_record_after_a_pause_does_not_wait_for_a_backoff(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_connections, "_IDLE_S", 0.02)
    times = {"retry_backoff_ms": 60_000, "retry_backoff_max_ms": 60_000}
    async with world() as all_, all_.producer(**times) as producer:
        await producer.send_and_wait("t", b"a", partition=0)
        cluster = producer._pipeline._connections.cluster
        await until(lambda: not cluster.topics)
        await cluster.load()
        assert not cluster.view.topics
        assert (await producer.send_and_wait("t", b"b", partition=0)).offset == 1
