"""A cut that is killed at every step, or loses power there: the damage, or the cut, and no more."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pidlease.kafka.records.record_batch import read_header
from pidlease.log.segments.segment import base_offset_of
from pidlease.repair.cut import REPAIR_NAME, REPORT_NAME, cut
from pidlease.repair.survey import survey
from pidlease.storage.files import read_file
from pidlease.storage.snapshots import TopicPartition
from pidlease.verify.verification import verify
from tests.sim.batches import TIME_MS
from tests.sim.files import SimFiles, SimulatedCrash
from tests.unit.engine.server import APPENDED, DATA, DUPLICATE, GAP, Server, known

FOLDER = DATA / "logs" / "t-0"
NAME = TopicPartition("t", 0)
#: One record each; the snapshots are taken before these.
SENT, SNAPSHOTS = 30, (8, 20)
POWER_SEEDS = range(1)
#: Of the many writes that a table of a snapshot is made of, every so manieth is looked at.
TABLE_WRITES = 17


def logs(files: SimFiles, folder: Path = FOLDER) -> dict[str, bytes]:
    names = (name for name in files.list(folder) if base_offset_of(name) is not None)
    return {name: read_file(files, folder / name) for name in names}


def flip(files: SimFiles, offset: int) -> None:
    """Damage the batch at an offset."""
    for name, content in logs(files).items():
        at = 0
        while at < len(content):
            header = read_header(content, at)
            if header.base_offset == offset:
                files.flip(FOLDER / name, at + header.size - 5, 3)
                return
            at += header.size
    raise AssertionError(offset)


async def spoiled(offset: int) -> tuple[SimFiles, int]:
    """A data directory whose log is damaged at an offset, and the PID that wrote it."""
    server = await Server(SimFiles()).start()
    pid = server.lease()
    await server.fill(pid, 0, 3, partition=1)
    for number in range(SENT):
        if number in SNAPSHOTS:
            await server.snapshot()
        await server.fill(pid, number, number + 1)
    for task in server.engine.maintenance._tasks:
        task.cancel()
    files = server.files.process_death()
    assert len(logs(files)) > 3
    flip(files, offset)
    return files, pid


def cut_it(files: SimFiles) -> None:
    found = survey(files, DATA, TIME_MS, [NAME])
    for each in found.damaged:
        cut(files, found, each, TIME_MS)


def views(files: SimFiles) -> Iterator[tuple[str, SimFiles]]:
    yield "kill", files.process_death()
    for seed in POWER_SEEDS:
        yield f"power loss with seed {seed}", files.power_loss(seed)


def kept_logs(files: SimFiles) -> list[dict[str, bytes]]:
    """The logs in each folder with what was cut; each is whole, or not there."""
    found = []
    for name in files.list(DATA / REPAIR_NAME):
        if name.startswith("cut-"):
            folder = DATA / REPAIR_NAME / name
            report = json.loads(read_file(files, folder / REPORT_NAME))
            assert (report["topic"], report["partition"]) == NAME
            found.append(logs(files, folder))
    return found


async def check_state(files: SimFiles, pid: int, offset: int, *, must_be_cut: bool) -> bool:
    """What a server makes of it; whether it is cut."""
    server = await Server(files).start()
    partition = server.partition()
    assert known(server)[1][pid].high == 2
    # Damage before the snapshots does not stop a server: then all is there still.
    whole = not partition.log.stopped and partition.log.end_offset == SENT
    cut_done = not partition.log.stopped and not whole
    if must_be_cut:
        assert cut_done, partition.log.stopped
    if cut_done:
        assert (partition.log.end_offset, partition.incomplete) == (offset, "")
        assert (await server.send(pid, SENT)).status is GAP
        if offset:
            assert (await server.send(pid, offset - 1)).status is DUPLICATE
        assert (await server.send(pid, offset)).status is APPENDED
        assert partition.log.end_offset == offset + 1
    elif not whole:
        assert partition.incomplete
        assert partition.readable_end <= offset
    for task in server.engine.maintenance._tasks:
        task.cancel()
    return cut_done


@pytest.mark.parametrize(("offset", "torn"), [(0, False), (12, True), (29, False)])
async def test_a_crash_at_every_step(offset: int, *, torn: bool) -> None:
    files, pid = await spoiled(offset)
    damaged = logs(files)
    seen: set[bool] = set()
    for step in range(1, 400):
        attempt = files.process_death()
        attempt.crash_at(step, torn=torn)
        try:
            cut_it(attempt)
        except SimulatedCrash:
            pass
        else:
            assert step > 40
            assert seen == {False, True}
            break
        last = attempt.trace[-1].path if attempt.trace else ""
        if last.endswith(".parquet") and step % TABLE_WRITES:
            continue
        for what, after in views(attempt):
            where = f"{what} at step {step}"
            left, kept = logs(after), kept_logs(after)
            gone = {name for name, data in damaged.items() if left.get(name) != data}
            assert kept or not gone, where
            for content in kept[:1]:
                assert all(damaged[name] == data for name, data in content.items()), where
                assert gone <= set(content), where
            again = after.process_death()
            done = await check_state(after.process_death(), pid, offset, must_be_cut=False)
            assert kept or not done, where
            seen.add(done)
            cut_it(again)
            report = verify(again, DATA, lambda _: None, lambda _: None)
            assert report.findings == [], where
            assert await check_state(again, pid, offset, must_be_cut=True)
    else:
        pytest.fail("it never came to its end")


async def test_a_cut_keeps_what_snapshots_know_of_other_partitions() -> None:
    """Its old segments are gone: only snapshots know that producer, and all lie beyond the cut."""
    server = await Server(SimFiles()).start(retention_bytes=1)
    pid, other = server.lease(), server.lease()
    await server.fill(other, 0, 3, partition=1)
    await server.fill(pid, 0, 30)
    for number in range(3, 40):
        await server.fill(pid, number - 3, number - 2, partition=1)
    await server.snapshot()
    await server.snapshot()
    server.partition().log.config = server.partition(1).log.config.__class__(1200, -1, -1)  # type: ignore[attr-defined]
    await server.engine.maintenance.retain()
    assert server.partition(1).log.start_offset > 3
    assert server.partition().log.start_offset == 0
    for task in server.engine.maintenance._tasks:
        task.cancel()
    files = server.files.process_death()
    flip(files, 25)
    cut_it(files)
    again = await Server(files).start()
    assert known(again)[1][other].high == 2
    assert (await again.send(other, 2, partition=1)).status is DUPLICATE
    assert (await again.send(pid, 25)).status is APPENDED


@pytest.mark.parametrize("folder", [False, True])
async def test_a_partition_without_segments_can_be_cut(*, folder: bool) -> None:
    """Nothing of it is left. Then it begins anew, and other partitions keep what they know."""
    files, pid = await spoiled(12)
    for name in files.list(FOLDER):
        if folder or name.endswith(".log"):
            files.remove(FOLDER / name)
    if folder:
        files.remove(FOLDER)
    (found,) = survey(files, DATA, TIME_MS).damaged
    assert found.losses is not None
    assert (found.damage.offset, found.damage.reason) == (
        0, f"it ends at offset 0, and was durable up to {SNAPSHOTS[1] if folder else SENT}"
    )  # fmt: skip
    for step in range(1, 400):
        attempt = files.process_death()
        attempt.crash_at(step)
        try:
            cut_it(attempt)
        except SimulatedCrash:
            last = attempt.trace[-1].path if attempt.trace else ""
            if last.endswith(".parquet") and step % TABLE_WRITES:
                continue
            attempt = attempt.process_death()
            cut_it(attempt)
            assert await check_state(attempt.process_death(), pid, 0, must_be_cut=True), step
        else:
            assert step > 40
            return
    pytest.fail("it never came to its end")


async def test_a_full_disk_changes_nothing() -> None:
    files, pid = await spoiled(12)
    before = logs(files)
    files.fail_next("write", "*/repair/*", 28)
    with pytest.raises(OSError, match="No space"):
        cut_it(files)
    assert logs(files) == before
    assert kept_logs(files) == []
    cut_it(files)
    assert await check_state(files, pid, 12, must_be_cut=True)
