"""Retries and failures while batches are on their way, and leases that are not to be had."""

import asyncio
from dataclasses import replace
from pathlib import Path

from pidlease.core.log_config import FsyncPolicy
from pidlease.engine.engine import EngineConfig
from tests.kafka_listener.batches import batch, records_of
from tests.kafka_listener.client import INIT, WireClient
from tests.kafka_listener.harness import Wanted, serving
from tests.kafka_listener.messages import INIT_PRODUCER_ID

_SLOW = Wanted(fsync=FsyncPolicy.BATCH, faults="slow=0.05 before fsync *.log 1")


async def _values(client: WireClient, topic: str = "t") -> list[bytes | None]:
    found = await client.fetch(topic, 0, partition_max_bytes=8 << 20)
    return [record.value for record in records_of(found.data)]


async def test_a_retry_joins_its_original_in_flight(tmp_path: Path) -> None:
    async with serving(tmp_path, _SLOW) as server, await server.connect() as first:
        await first.create("t")
        pid = await first.lease()
        others = [await server.connect() for _ in range(3)]
        for client in (first, *others):
            for number in range(3):
                client.send_produce("t", batch([b"%d" % number], pid, 0, number))
        for client in (first, *others):
            answers = [await client.receive_produce() for _ in range(3)]
            assert [(answer.code, answer.offset) for answer in answers] == [(0, 0), (0, 1), (0, 2)]
        assert await _values(first) == [b"0", b"1", b"2"]
        assert server.engine.counts.joined > 0
        for client in others:
            await client.__aexit__()


async def test_what_straddles_a_batch_in_flight_is_told_when_that_is_stored(tmp_path: Path) -> None:
    async with serving(tmp_path, _SLOW) as server, await server.connect() as client:
        await client.create("t")
        pid = await client.lease()
        client.send_produce("t", batch([b"0", b"1", b"2"], pid, 0, 0))
        client.send_produce("t", batch([b"1", b"2", b"3"], pid, 0, 1))
        client.send_produce("t", batch([b"5"], pid, 0, 5))
        stored, straddles, gap = [await client.receive_produce() for _ in range(3)]
        assert (stored.code, stored.offset) == (0, 0)
        for answer in (straddles, gap):
            assert (answer.code, answer.offset) == (45, -1)
            assert "expected sequence 3" in (answer.message or "")
        assert await _values(client) == [b"0", b"1", b"2"]


async def test_all_behind_a_failed_append_fail_alike_and_never_as_a_gap(tmp_path: Path) -> None:
    wanted = replace(_SLOW, faults=_SLOW.faults + "; fail before write *.log 2")
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t")
        pid = await client.lease()
        data = [batch([b"%d" % number], pid, 0, number) for number in range(5)]
        for each in data:
            client.send_produce("t", each)
            await client.writer.drain()
            await asyncio.sleep(0.01)
        codes = [(await client.receive_produce()).code for _ in range(5)]
        assert codes == [0, 19, 19, 19, 19]
        # What was on the wire already comes once more before the failed one: not a gap.
        assert [(await client.produce("t", each)).code for each in data[2:]] == [19, 19, 19]
        answers = [await client.produce("t", each) for each in data]
        assert [(answer.code, answer.offset) for answer in answers] == [(0, n) for n in range(5)]
        assert await _values(client) == [b"%d" % number for number in range(5)]


async def test_a_failed_append_is_no_matter_of_other_partitions(tmp_path: Path) -> None:
    wanted = Wanted(faults="fail before write *t-0/*.log 1")
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t", 2)
        pid = await client.lease()
        data = batch([b"v"], pid, 0, 0)
        assert (await client.produce("t", data, partition=0)).code == 19
        assert (await client.produce("t", data, partition=1)).code == 0
        assert (await client.produce("t", data, partition=0)).code == 0


async def test_a_connection_lost_with_five_in_flight(tmp_path: Path) -> None:
    async with serving(tmp_path, _SLOW) as server:
        async with await server.connect() as client:
            await client.create("t")
            pid = await client.lease()
            data = [batch([b"%d" % number], pid, 0, number) for number in range(5)]
            for each in data:
                client.send_produce("t", each)
            await client.writer.drain()
            await asyncio.sleep(0.01)
        async with await server.connect() as client:
            for each in data:
                client.send_produce("t", each)
            answers = [await client.receive_produce() for _ in range(5)]
            assert [(answer.code, answer.offset) for answer in answers] == [
                (0, number) for number in range(5)
            ]
            assert await _values(client) == [b"%d" % number for number in range(5)]
            # But for the frame of this very request's like, nothing is held any more.
            assert server.door.budget.used < 1000


async def test_a_full_ring_is_told_with_14_and_nobody_is_evicted(tmp_path: Path) -> None:
    wanted = Wanted(engine=EngineConfig(ring_capacity=2))
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t")
        pids = [await client.lease() for _ in range(2)]
        for _ in range(3):
            body = await client.call(INIT_PRODUCER_ID, 4, **INIT)
            assert (body.error_code, body.producer_id, body.producer_epoch) == (14, -1, -1)
        for pid in pids:
            assert (await client.produce("t", batch([b"v"], pid, 0, 0))).code == 0
        server.let_leases_end()
        server.let_leases_end()
        assert await client.lease() not in pids


async def test_no_block_to_be_had_is_told_with_14(tmp_path: Path) -> None:
    wanted = Wanted(faults="fail-from before write */sequence/blocks 2")
    async with serving(tmp_path, wanted) as server, await server.connect() as client:
        await client.create("t")
        pids = [await client.lease() for _ in range(100)]
        body = await client.call(INIT_PRODUCER_ID, 4, **INIT)
        assert (body.error_code, body.producer_id) == (14, -1)
        # Producing goes on.
        assert (await client.produce("t", batch([b"v"], pids[-1], 0, 0))).code == 0
    async with serving(tmp_path) as server, await server.connect() as client:
        assert await client.lease() not in pids
