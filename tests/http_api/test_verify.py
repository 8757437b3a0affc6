"""`pidlease verify` on what producers of every policy have left."""

from pathlib import Path
from random import Random

import pytest

from pidlease.core.state import ProducerState
from pidlease.engine.append_outcome import Status
from pidlease.engine.append_service import AppendService
from pidlease.kafka.records.identity_header import Identity
from pidlease.kafka.records.writer_batch import WRITER_PID
from pidlease.storage.files import RealFiles
from pidlease.storage.topics.topic_store import Topic
from pidlease.verify.verification import verify
from pidlease.verify.verify_report import Report
from tests.http_api.serving import Http, http
from tests.kafka_listener.batches import batch, changed, identified
from tests.kafka_listener.client import WireClient


def look(path: Path) -> Report:
    return verify(RealFiles(), path, lambda _: None, lambda _: None)


class Writers:
    """One producer of each policy, on one partition."""

    def __init__(self, door: Http, client: WireClient) -> None:
        self.door = door
        self.client = client
        self.next = dict.fromkeys(("strict", "monotonic", "kafka", "epoch"), 0)

    async def begin(self) -> None:
        await self.door.server.engine.create_topic(Topic.new("t", 1))
        self.strict = await self.door.lease(name="s")
        self.monotonic = await self.door.lease(name="m", policy="monotonic")
        self.kafka = await self.client.lease()

    async def write(self, random: Random) -> None:
        policy = random.choice(list(self.next))
        count, first = random.randint(1, 4), self.next[policy]
        values: list[bytes | None] = [
            b"%s %d" % (policy.encode(), first + each) for each in range(count)
        ]
        codec = random.choice([0, 1, 2, 3, 4])
        if policy == "epoch":
            await self._append(values, Identity(-1, "web/1", 3, first, first))
            self.next[policy] += 1
            return
        last = first + count - 1
        if policy == "kafka":
            data = batch(values, self.kafka, 0, first, codec=codec)
        else:
            lease = self.strict if policy == "strict" else self.monotonic
            first += random.randint(0, 3) if policy == "monotonic" else 0
            last = first + count - 1 + random.randint(0, 2)
            data = identified(
                values, Identity(lease["pid"], "", lease["generation"], first, last), codec=codec
            )
        assert (await self.client.produce("t", data)).code == 0
        self.next[policy] = last + 1

    async def _append(self, values: list[bytes | None], identity: Identity) -> None:
        partition = self.door.server.engine.partition("t", 0)
        assert partition is not None
        data = bytearray(changed(identified(values, identity), producer_id=-1))
        found = await AppendService(self.door.server.engine).append(partition, data, identity)
        assert found.status is Status.APPENDED


def known(door: Http) -> dict[str, ProducerState]:
    """What is known on the partition, by what lasts over a restart."""
    partition = door.server.engine.partition("t", 0)
    assert partition is not None
    return {
        partition.names.name(pid) or str(pid): state._replace(arrival_ms=0)
        for pid, state in partition.table.described_producers()
    }


@pytest.mark.parametrize("seed", range(6))
async def test_all_policies_side_by_side(tmp_path: Path, seed: int) -> None:
    """Replayed, with a snapshot in the middle or without, it is what was known; verify agrees."""
    print(f"seed {seed}")
    random = Random(seed)
    async with http(tmp_path) as door, await door.server.connect() as client:
        writers = Writers(door, client)
        await writers.begin()
        for _ in range(40):
            await writers.write(random)
        if seed % 2:
            await door.server.engine.maintenance.snapshot()
        for _ in range(20):
            await writers.write(random)
        before = known(door)
        assert set(before) >= {"web/1"}
        assert len(before) == 4
        expected = writers.next
        for task in door.server.engine.maintenance._tasks:
            task.cancel()
    if not seed % 3:
        for path in sorted((tmp_path / "snapshots").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
    async with http(tmp_path) as door:
        assert known(door) == before
        assert known(door)["web/1"].high == expected["epoch"] - 1
    report = look(tmp_path)
    assert [str(finding) for finding in report.findings] == []
    assert report.totals.producers >= 4


async def test_what_was_never_let_in_is_found(tmp_path: Path) -> None:
    """A batch of the writer that does not say whose it is, and a PID where none may stand."""
    async with http(tmp_path) as door, await door.server.connect() as client:
        writers = Writers(door, client)
        await writers.begin()
        await writers.write(Random(1))
        size = (tmp_path / "logs" / "t-0" / f"{0:020d}.log").stat().st_size
        assert (await client.produce("t", batch([b"x"]))).code == 0
        end = door.server.engine.partition("t", 0)
        assert end is not None
        offset = end.next_offset - 1
    log = tmp_path / "logs" / "t-0" / f"{0:020d}.log"
    for pid, text in ((WRITER_PID, "no header pidlease"), (1 << 48 | 5, "not in its first record")):
        content = log.read_bytes()[:size]
        log.write_bytes(
            content + changed(batch([b"x"]), producer_id=pid, producer_epoch=0, base_sequence=0,
                              base_offset=offset, leader_epoch=0)
        )  # fmt: skip
        found = [str(each) for each in look(tmp_path).findings]
        assert any(text in each for each in found), found
