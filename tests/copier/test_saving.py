"""Commits that overtake one another, or are not heard of; the group answers when it is told."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

import pytest

from pidlease.copier import checkpoint_commits as saving
from pidlease.copier.checkpoint_commits import CheckpointCommits
from pidlease.copier.copy_checkpoint import CopyCheckpoint, read_checkpoint
from pidlease.copier.copy_metrics import CopyMetrics
from pidlease.copier.group_membership import Saved, UnavailableError
from pidlease.copier.resume_position import generation_of
from pidlease.core.lease import Lease
from pidlease.core.topic_partition import TopicPartition

PLACE = TopicPartition("t", 0)


def checkpoint(pid: int, offset: int) -> CopyCheckpoint:
    return CopyCheckpoint(offset, pid, 5, offset - 1, 0, 0, "t.copy", "cluster", "me")


@dataclass(eq=False)
class Copy:
    """A partition's."""

    place: TopicPartition
    done: CopyCheckpoint | None
    kept: CopyCheckpoint | None = None


class Group:
    """What it is told is there at once; answers are given when they may pass, or never."""

    def __init__(self) -> None:
        self.stored: list[tuple[int, int]] = []
        self.passing = asyncio.Event()
        self.failing = 0
        self.sizes: list[int] = []
        #: Partitions that the coordinator does not know, for so many commits.
        self.unknown: Counter[TopicPartition] = Counter()

    async def commit(self, saved: Mapping[TopicPartition, Saved]) -> Set[TopicPartition]:
        self.sizes.append(len(saved))
        unknown = {each for each in saved if self.unknown[each] > 0}
        self.unknown -= Counter(unknown)
        for place, (offset, metadata) in saved.items():
            if place in unknown:
                continue
            self.stored.append((read_checkpoint(offset, metadata).pid, offset))
        await self.passing.wait()
        if self.failing:
            self.failing -= 1
            raise UnavailableError("nobody answers")
        return unknown

    async def saved(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, Saved]:
        raise NotImplementedError(places)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_replaced_pid_is_not_saved_after_the_next() -> None:
    group = Group()
    under_test = CheckpointCommits(group, CopyMetrics())
    copy = Copy(PLACE, checkpoint(1, 40))
    first = asyncio.create_task(under_test.save_all([copy]))
    await turns()
    # The lease ends. Its next PID is saved, as `partition` does it, and meanwhile it is time again.
    copy.done = None
    new = asyncio.create_task(under_test.save(PLACE, checkpoint(2, 50)))
    again = asyncio.create_task(under_test.save_all([copy]))
    await turns()
    assert group.stored == [(1, 40)], "one at a time"
    group.passing.set()
    await asyncio.gather(first, new, again)
    assert group.stored == [(1, 40), (2, 50)]
    assert copy.kept is None


async def test_what_waits_is_saved_as_it_is_then() -> None:
    group = Group()
    under_test = CheckpointCommits(group, CopyMetrics())
    copy = Copy(PLACE, checkpoint(1, 40))
    tasks = [asyncio.create_task(under_test.save_all([copy]))]
    await turns()
    copy.done = checkpoint(1, 60)
    tasks.append(asyncio.create_task(under_test.save_all([copy])))
    await turns()
    copy.done = checkpoint(1, 70)
    group.passing.set()
    await asyncio.gather(*tasks)
    assert group.stored == [(1, 40), (1, 70)]
    assert copy.kept == checkpoint(1, 70)


async def test_one_that_was_not_heard_of_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker may still work on it: the next one comes a moment later."""
    monkeypatch.setattr(saving, "RETRY_S", 0.01)
    metrics = CopyMetrics()
    group = Group()
    group.passing.set()
    group.failing = 2
    under_test = CheckpointCommits(group, metrics)
    copy = Copy(PLACE, checkpoint(1, 40))
    with pytest.raises(UnavailableError):
        await under_test.save_all([copy])
    assert copy.kept is None
    await under_test.save(PLACE, checkpoint(2, 50))
    assert group.stored == [(1, 40), (2, 50), (2, 50)]
    assert (metrics.commits, metrics.commit_failures) == (1, 1)


async def test_a_partition_that_the_group_does_not_know_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once it counted as saved: after a crash, what went under the next PID was copied again."""
    monkeypatch.setattr(saving, "RETRY_S", 0.01)
    group = Group()
    group.passing.set()
    group.unknown[PLACE] = 3
    under_test = CheckpointCommits(group, CopyMetrics())
    copy = Copy(PLACE, checkpoint(1, 40))
    await under_test.save_all([copy])
    assert copy.kept is None
    await under_test.save(PLACE, checkpoint(2, 50))
    assert group.sizes == [1] * 4
    assert group.stored == [(2, 50)]


async def test_a_partition_that_is_gone_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is tried again all the same: the coordinator may not know it yet."""
    group = Group()
    group.passing.set()
    group.unknown[PLACE] = 3
    under_test = CheckpointCommits(group, CopyMetrics())
    copy = Copy(PLACE, checkpoint(1, 40))
    for _ in range(4):
        await under_test.save_all([copy])
    assert group.sizes == [1] * 4
    assert copy.kept == checkpoint(1, 40)
    assert len(caplog.records) == 1
    group.unknown[PLACE] = 1
    copy.done = checkpoint(1, 50)
    await under_test.save_all([copy])
    assert len(caplog.records) == 2, "it was there meanwhile"


async def test_a_pid_that_cannot_be_saved_is_not_sent_under(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once it was, after a minute: a crash then, and all of it was copied again."""
    monkeypatch.setattr(saving, "_GONE_S", 0.0)
    monkeypatch.setattr(saving, "_GONE_REST_S", 0.001)
    group = Group()
    group.passing.set()
    group.unknown[PLACE] = 10
    await CheckpointCommits(group, CopyMetrics()).save(PLACE, checkpoint(2, 50))
    assert (len(group.sizes), group.stored) == (11, [(2, 50)])
    assert caplog.text.count("of the source is gone: it is not copied") == 1


async def test_many_partitions_take_several_commits() -> None:
    group = Group()
    group.passing.set()
    copies = [Copy(TopicPartition("t", n), checkpoint(n, n)) for n in range(1, 1301)]
    under_test = CheckpointCommits(group, CopyMetrics())
    await under_test.save_all(copies)
    assert group.sizes == [500, 500, 300]
    assert all(each.kept == each.done for each in copies)
    await under_test.save_all(copies)
    assert len(group.sizes) == 3, "nothing is new"


def test_a_successor_is_not_fenced_by_earlier_batches() -> None:
    """Where nothing is accepted yet, each lease has a generation of its own."""
    before = checkpoint(1, 0)
    nothing = Lease("t.copy", 0, 1, 777, 0, 0, -1, float("inf"))
    assert generation_of(before, nothing) == before.generation + 1
    accepted = Lease("t.copy", 0, 1, before.generation + 1, 40, 40, -1, float("inf"))
    assert generation_of(before, accepted) == before.generation + 1
