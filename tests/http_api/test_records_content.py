"""A duplicate with other content is noticed, and a retry that only has another time is none."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pidlease.engine.append_outcome import Outcome, Status
from pidlease.engine.append_service import AppendService
from pidlease.kafka.records.identity_header import Identity
from pidlease.storage.files import RealFiles
from pidlease.verify.verification import verify
from proxy.http.request_batch import BatchMaker
from tests.crash.seeds import new_random
from tests.http_api.appending import Door, door, producer, values
from tests.unit.engine.fakes import settle
from tests.unit.engine.kafka_sim import World

MIXED: dict[str, Any] = {"records": [{"value": "a", "timestamp_ms": 1}, {"value": "b"}]}


async def tick() -> None:
    """The clock goes on: what the server stamps is another time."""
    await asyncio.sleep(0.003)


async def stop_unclean(here: Door) -> None:
    for task in here.server.engine.maintenance._tasks:
        task.cancel()


@pytest.mark.parametrize("how", ["replay", "snapshot"])
async def test_a_retry_over_a_restart(tmp_path: Path, how: str) -> None:
    async with door(tmp_path) as here:
        lease = await here.lease()
        assert (await here.append(values("a", "b"), producer("p", 0, 0)))[0] == 200
        assert (await here.append(values("a"), {}))[0] == 200
        assert (await here.append({**values("a"), **lease, "first_sequence": 0}))[0] == 200
        assert (await here.append(MIXED, producer("m", 0, 0)))[0] == 200
        if how == "snapshot":
            await here.server.engine.maintenance.snapshot()
        await stop_unclean(here)
    await tick()
    if how == "replay":
        for path in sorted((tmp_path / "snapshots").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
    async with door(tmp_path) as here:
        counts = here.server.engine.counts
        for body, headers in (
            (values("a", "b"), producer("p", 0, 0)),
            ({**values("a"), **lease, "first_sequence": 0}, {}),
            (MIXED, producer("m", 0, 0)),
        ):
            status, answer = await here.append(body, headers)
            assert (status, answer["duplicate"]) == (200, True)
            assert counts.differing == 0, body
        for number, (body, headers) in enumerate(
            (
                (values("a", "c"), producer("p", 0, 0)),
                ({**values("b"), **lease, "first_sequence": 0}, {}),
            )
        ):
            status, answer = await here.append(body, headers)
            assert (status, answer["duplicate"]) == (200, True)
            assert counts.differing == number + 1, body


async def test_other_content_without_times_is_noticed(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        counts = here.server.engine.counts
        record: dict[str, Any] = {"key": "k", "value": "a", "headers": [{"key": "h", "value": "v"}]}
        assert (await here.append({"records": [record]}, producer("p", 0, 0)))[0] == 200
        await tick()
        assert (await here.append({"records": [record]}, producer("p", 0, 0)))[0] == 200
        assert counts.differing == 0
        others: list[dict[str, Any]] = [{"key": "l"}, {"value": "b"}, {"headers": []}]
        for number, other in enumerate(others):
            assert (await here.append({"records": [record | other]}, producer("p", 0, 0)))[0] == 200
            assert counts.differing == number + 1
        assert (await here.raw(b"x", producer("r", 0, 0)))[0] == 200
        await tick()
        assert (await here.raw(b"x", producer("r", 0, 0)))[0] == 200
        assert counts.differing == len(others)
        assert (await here.raw(b"y", producer("r", 0, 0)))[0] == 200
        assert counts.differing == len(others) + 1


async def test_times_that_the_client_gave_count(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        counts = here.server.engine.counts

        def timed(*times: int) -> dict[str, Any]:
            return {"records": [{"value": "a", "timestamp_ms": each} for each in times]}

        assert (await here.append(timed(1, 5), producer("p", 0, 0)))[0] == 200
        assert (await here.append(timed(1, 5), producer("p", 0, 0)))[0] == 200
        assert counts.differing == 0
        assert (await here.append(timed(1, 6), producer("p", 0, 0)))[0] == 200
        assert (await here.append(timed(2, 6), producer("p", 0, 0)))[0] == 200
        assert counts.differing == 2


async def test_verify_agrees_with_a_snapshot_of_all_of_them(tmp_path: Path) -> None:
    async with door(tmp_path) as here:
        for seq in range(3):
            assert (await here.append(values("a", "b"), producer("p", 0, seq)))[0] == 200
            assert (await here.append(MIXED, producer("m", 0, seq)))[0] == 200
        await here.server.engine.maintenance.snapshot()
        await stop_unclean(here)
    report = verify(RealFiles(), tmp_path, lambda _: None, lambda _: None)
    assert [str(finding) for finding in report.findings] == []


# ---------------------------------------------------------------------- in front of Kafka


class _Names:
    """Stands for an engine that has no names."""

    names = None
    leases = None


async def _append(world: World, value: bytes, *, answered: bool = True) -> Outcome:
    """A client's request over HTTP, of which the answer of Kafka may be lost."""
    service = AppendService(_Names())  # type: ignore[arg-type]
    pid = world.clients[0].pid
    identity = Identity(pid, "", 0, 0, 0)
    made = BatchMaker(1 << 20)._of_raw(bytearray(value), identity)
    task = asyncio.create_task(
        service.append(world.partition, made.data, identity, repeatable=made.repeatable)
    )
    for _ in range(2000):
        if task.done():
            return await task
        world._read()
        if world.markers:
            world._mark()
        if answered:
            world._arrive()
        elif any(world.log.out.values()):
            world._time_out()
        world._answer()
        await settle()
    raise AssertionError("no outcome")


@pytest.mark.parametrize("other", [b"a", b"b"])
async def test_a_late_write_is_compared_by_what_was_sent(other: bytes) -> None:
    """Kafka stored it, and its answer was lost: the retry is held against what the log says."""
    world = World(new_random("content"), producers=0, batches=1, strict=1)
    world.faults = False
    first = await _append(world, b"a", answered=False)
    assert (first.status, world.happened) == (Status.FAILED, {"timed out": 1})
    await tick()
    again = await _append(world, other)
    assert again.status is Status.DUPLICATE
    assert world.partition.totals.differing == (other != b"a")
