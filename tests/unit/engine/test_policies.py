"""Policies of topics in the engine: given to all partitions, durable, at once; also by judging."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pidlease.core.topic_policy import TopicPolicy
from pidlease.engine.append_outcome import Status
from pidlease.engine.engine import UnknownTopicError
from pidlease.engine.partition import Partition
from pidlease.engine.topics.topic_policies import TopicPolicies
from pidlease.log.ports import LogStore
from pidlease.storage.errors import DataFolderError
from pidlease.storage.topics.topic_settings import (
    SettingError,
    SettingsChange,
    change_of_own,
    change_of_shared,
    policy_in_force,
)
from pidlease.storage.topics.topic_store import Topic, TopicStore
from tests.sim.files import SimFiles
from tests.sim.gate import SimulatedCrash
from tests.sim.pool import SeededPool
from tests.unit.engine.server import APPENDED, DATA, DUPLICATE, GAP, Server

OFF = {"pidlease.deduplication": "off"}


def policies(server: Server, topic: str = "t") -> list[TopicPolicy]:
    return [partition.policy for partition in server.engine.partitions_of(topic)]


async def set_all(server: Server, **settings: str | None) -> None:
    named = {f"pidlease.{name}": value for name, value in settings.items()}
    await server.engine.change_all_topics(change_of_shared(named))


async def set_one(server: Server, topic: str = "t", **settings: str | None) -> None:
    named = {f"pidlease.{name}": value for name, value in settings.items()}
    await server.engine.change_topic(topic, change_of_own(named))


async def test_each_partition_has_what_is_in_force() -> None:
    server = await Server(SimFiles()).start()
    assert policies(server) == [TopicPolicy()] * 2
    version = server.engine.topics_version
    await set_all(server, deduplication="off", initial="zero")
    assert server.engine.topics_version > version
    assert policies(server) == [TopicPolicy(deduplication=False, starts_at_zero=True)] * 2
    await set_one(server, deduplication="on")
    assert policies(server) == [TopicPolicy(starts_at_zero=True)] * 2
    await server.engine.create_topic(Topic.new("u", 1, {"pidlease.initial": "policy"}))
    assert policies(server, "u") == [TopicPolicy(deduplication=False)]
    await server.engine.add_partitions("t", 4)
    assert policies(server) == [TopicPolicy(starts_at_zero=True)] * 4

    for again in (await server.kill(), await server.kill(power=1)):
        assert policies(again) == [TopicPolicy(starts_at_zero=True)] * 4
        assert policies(again, "u") == [TopicPolicy(deduplication=False)]
        assert again.engine.all_topics_settings == {**OFF, "pidlease.initial": "zero"}

    await set_all(again, deduplication=None, initial=None)
    await set_one(again, deduplication=None)
    assert policies(again) == [TopicPolicy()] * 4
    assert again.engine.all_topics_settings == {}
    assert policies(await again.kill(power=2)) == [TopicPolicy()] * 4


async def test_a_change_that_makes_no_sense_changes_nothing() -> None:
    server = await Server(SimFiles()).start()
    await set_all(server, deduplication="off")
    before = server.files.list(DATA / "topics")
    for change in (set_all(server, initial="one"), set_one(server, initial="one")):
        with pytest.raises(SettingError, match=r"pidlease\.initial"):
            await change
    with pytest.raises(SettingError, match=r"pidlease\.policies"):
        await server.engine.alter_topic("t", {"pidlease.policies": "some"})
    with pytest.raises(SettingError, match=r"pidlease\.policies"):
        await server.engine.create_topic(Topic.new("u", 1, {"pidlease.policies": "some"}))
    with pytest.raises(UnknownTopicError):
        await set_one(server, "absent", initial="zero")
    assert server.files.list(DATA / "topics") == before
    assert policies(server) == [TopicPolicy(deduplication=False)] * 2
    assert server.engine.topics["t"].overrides == {}
    again = await server.kill()
    assert policies(again) == [TopicPolicy(deduplication=False)] * 2, "nor on the disk"
    assert set(again.engine.topics) == {"t"}


async def test_changes_of_one_topic_do_not_undo_one_another() -> None:
    server = await Server(SimFiles()).start()
    await asyncio.gather(
        set_one(server, initial="zero"), set_one(server, deduplication="off"),
        set_all(server, initial="policy"), set_all(server, policies="kafka"),
    )  # fmt: skip
    assert server.engine.topics["t"].overrides == {**OFF, "pidlease.initial": "zero"}
    assert len(server.engine.all_topics_settings) == 2
    own, shared = server.engine.topics["t"].overrides, {"pidlease.policies": "kafka"}
    assert policies(server) == [policy_in_force(own, shared)] * 2


@pytest.mark.parametrize("operation", ["open", "write", "fsync", "rename"])
async def test_a_change_that_cannot_be_stored_has_no_effect(operation: str) -> None:
    server = await Server(SimFiles()).start()
    for change in (set_all(server, deduplication="off"), set_one(server, deduplication="off")):
        server.files.fail_next(operation, "*topics*")
        with pytest.raises(OSError, match="error"):
            await change
    assert policies(server) == [TopicPolicy()] * 2
    assert (server.engine.all_topics_settings, server.engine.topics["t"].overrides) == ({}, {})
    assert policies(await server.kill()) == [TopicPolicy()] * 2


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("change", [set_all, set_one])
async def test_it_is_changed_or_not_at_every_crash(
    change: Callable[..., Any], *, power: bool
) -> None:
    seen = set()
    for step in _steps():
        server = await Server(SimFiles(step)).start()
        await change(server, deduplication="off")
        server.files.crash_at(step)
        answered = False
        try:
            await change(server, deduplication="on", initial="zero")
            answered = True
        except SimulatedCrash:
            assert server.files.crashed
        again = await server.kill(power=step if power else None)
        found = policies(again)
        new = [TopicPolicy(starts_at_zero=True)] * 2
        assert found == new if answered else found in ([TopicPolicy(deduplication=False)] * 2, new)
        # What a start told holds on.
        assert policies(await again.kill(power=step)) == found
        seen.add(found == new)
        if answered:
            break
    assert seen == {False, True}


def _steps() -> Iterator[int]:
    yield from range(1, 40)
    raise AssertionError("it never comes to an end")


async def test_a_start_with_a_damaged_file_says_so() -> None:
    server = await Server(SimFiles()).start()
    await set_all(server, deduplication="off")
    files = server.files.process_death()
    files.flip(DATA / "topics" / "defaults", 12, 1)
    with pytest.raises(DataFolderError, match="topics/defaults is damaged"):
        await Server(files).start()


async def test_a_start_with_a_topic_of_a_newer_version_says_so() -> None:
    server = await Server(SimFiles()).start()
    topic = server.engine.topics["t"]
    files = server.files.process_death()
    odd = Topic(topic.name, topic.topic_id, topic.partitions, {"pidlease.policies": "quantum"})
    TopicStore(files, DATA / "topics").save(odd)
    with pytest.raises(DataFolderError, match=r"topic t: pidlease\.policies .* 'quantum'"):
        await Server(files).start()


# ---------------------------------------------------------------------- judging


async def test_without_deduplication_all_is_appended_and_known_when_it_is_on_again() -> None:
    server = await Server(SimFiles()).start()
    pid = server.lease()
    await server.fill(pid, 0, 3)
    assert (await server.send(pid, 1)).status is DUPLICATE
    await set_all(server, deduplication="off")
    assert (await server.send(pid, 1)).status is APPENDED
    assert (await server.send(pid, 9)).status is APPENDED
    await set_one(server, deduplication="on")
    assert (await server.send(pid, 9)).status is DUPLICATE
    assert (await server.send(pid, 11)).status is GAP
    assert (await server.send(pid, 10)).status is APPENDED
    assert server.partition().readable_end == 6
    again = await server.kill()
    assert (await again.send(pid, 10)).status is DUPLICATE


async def test_a_policy_that_is_not_allowed_is_refused_and_nothing_else() -> None:
    server = await Server(SimFiles()).start()
    await server.engine.create_topic(Topic.new("u", 1))
    pid = server.lease()
    await set_one(server, policies="none,strict")
    refused = await server.send(pid, 0)
    assert refused.status is Status.FORBIDDEN
    assert "pidlease.policies" in refused.reason
    assert (await server.send(-1, -1, epoch=-1)).status is APPENDED
    assert (await server.send(pid, 0, topic="u")).status is APPENDED
    await set_one(server, policies=None)
    assert (await server.send(pid, 0)).status is APPENDED


# ---------------------------------------------------------------------- many partitions


class FakeStore:
    """Takes what is to be durable."""

    def change_topic_defaults(self, change: SettingsChange) -> dict[str, str]:
        """See `LogStore`."""
        return change({})


async def test_the_loop_turns_while_many_partitions_are_told() -> None:
    """Between two of its turns at most so many are told."""
    topics = {f"t{n}": Topic.new(f"t{n}", 100) for n in range(100)}
    parts = {name: [SimpleNamespace(policy=None) for _ in range(100)] for name in topics}
    all_parts = [part for found in parts.values() for part in found]
    pool = SeededPool(asyncio.get_running_loop(), Random(0))
    found = TopicPolicies(cast("LogStore", FakeStore()), pool)
    told: list[int] = []

    async def watch() -> None:
        while len(told) < 2 or told[-1] < len(all_parts):
            told.append(sum(part.policy is not None for part in all_parts))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    partitions = cast("dict[str, list[Partition]]", parts)
    await found.change_shared(change_of_shared({"pidlease.initial": "zero"}), topics, partitions)
    await watching
    assert {id(part.policy) for part in all_parts} == {id(all_parts[0].policy)}, "one for all"
    assert all_parts[0].policy.starts_at_zero
    assert max(later - earlier for earlier, later in itertools.pairwise(told)) <= 500
