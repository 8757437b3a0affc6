"""A partition with damaged records, in this process: no answer is made of what is left of it."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.http_api.appending import path_of
from tests.http_api.serving import Http, http
from tests.integration.damaged_log import flip
from tests.kafka_listener.batches import NOW_MS, batch, changed, records_of
from tests.kafka_listener.client import WireClient
from tests.kafka_listener.harness import Wanted
from tests.kafka_listener.messages import LIST_OFFSETS

STORAGE = 56
CUT, END = 40, 100


class Damaged(NamedTuple):
    """A server whose partition t-0 is damaged at offset 40 of 100."""

    http: Http
    client: WireClient

    async def listed(self, timestamp: int) -> tuple[int, int]:
        asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        topics = [{"name": "t", "partitions": [asked]}]
        body = await self.client.call(LIST_OFFSETS, 5, replica_id=-1, topics=topics)
        row = body.topics[0].partitions[0]
        return int(row.error_code), row.offset


@pytest.fixture(params=[1 << 30, 1024], ids=["last segment", "older segment"])
async def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Damaged]:
    wanted = Wanted(segment_bytes=request.param)
    async with http(tmp_path, wanted) as before, await before.server.connect() as client:
        await client.create("t")
        for offset in range(0, END, 10):
            data = batch([b"%d" % (offset + each) for each in range(10)])
            stamp = NOW_MS + offset
            data = changed(data, base_timestamp=stamp, max_timestamp=stamp + 9)
            assert (await client.produce("t", data)).offset == offset
        assert (await before.lease(name="loader"))["sequence_number"] == 0
    # Or the state would be that of the snapshot, which has all of it.
    shutil.rmtree(tmp_path / "snapshots")
    flip(tmp_path, CUT)
    async with http(tmp_path, wanted) as after, await after.server.connect() as client:
        partition = after.server.engine.partition("t", 0)
        assert partition is not None
        assert partition.incomplete
        yield Damaged(after, client)


async def test_the_offsets_of_its_topic(damaged: Damaged) -> None:
    status, answer = await damaged.http.get("/v1/topics/t/partitions")
    (row,) = answer["partitions"]
    assert (status, row["log_start"], row["log_end"]) == (200, 0, None)
    assert "damaged" in row["reason"]


async def test_the_end(damaged: Damaged) -> None:
    assert (await damaged.listed(-1))[0] == STORAGE
    assert await damaged.listed(-2) == (0, 0)


async def test_times(damaged: Damaged) -> None:
    assert await damaged.listed(NOW_MS) == (0, 0)
    assert (await damaged.listed(NOW_MS + END))[0] == STORAGE


async def test_fetches(damaged: Damaged) -> None:
    read = 0
    while read < CUT:
        found = await damaged.client.fetch("t", read)
        assert (found.code, found.end > CUT) == (0, True)
        read += len(records_of(found.data))
    assert read == CUT
    for offset in (CUT, CUT + 1, END):
        assert (await damaged.client.fetch("t", offset)).code == STORAGE


async def test_http(damaged: Damaged) -> None:
    for offset in (CUT, CUT + 1, END):
        status, answer = await damaged.http.get(path_of("t", 0), offset=offset)
        assert (status, "t-0 is stopped" in answer["error"]) == (503, True)
    for body in ({"name": "loader"}, {"pid": 1 << 48 | 1}):
        status, answer = await damaged.http.post(
            "/v1/leases", {"topic": "t", "partition": 0, **body}
        )
        assert (status, answer["field"]) == (503, "partition")
    status, answer = await damaged.http.get("/v1/producers", topic="t", partition=0)
    assert (status, answer["field"]) == (503, "partition")
