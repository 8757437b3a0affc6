"""A data directory with acknowledged records, and one flipped byte among them."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, TopicPartition

from pidlease.kafka.records.identity_header import Identity
from pidlease.kafka.records.record_batch import HEADER_BYTES, read_header
from pidlease.testing.loopback_ports import LOOPBACK
from tests.http_api.appending import JSON
from tests.http_api.lives import append, ask
from tests.kafka_listener.batches import NOW_MS, batch, changed, identified
from tests.kafka_listener.client import WireClient
from tests.servers.pidlease import PidleaseServer

#: Acknowledged records of the partition, in batches of ten.
RECORDS: Final = 300
#: The name of the producer that sends every other batch, and the producer id of an HTTP producer.
NAME: Final = "loader"
PRODUCER_ID: Final = "meter"
#: Committed by group `g`.
COMMITTED: Final = 200
SETTINGS: Final = {"fsync": "never", "default_partitions": "2"}


class Written(NamedTuple):
    """What was acknowledged.

    Attributes:
        data_dir: of the server, which was killed.
        kafka_pid: the PID of policy kafka that sent the even batches,
        named_pid: and that of the name, which sent the odd ones.
    """

    data_dir: Path
    kafka_pid: int
    named_pid: int


def lease(server: PidleaseServer, **body: Any) -> tuple[int, dict[str, Any]]:
    """What is answered to a request for a lease."""
    content = {"topic": "t", "partition": 0, **body}
    return ask(server, "POST", "/v1/leases", json.dumps(content).encode(), JSON)


def write(folder: Path, *, snapshot_at: int = -1, **settings: str) -> Written:
    """Have 300 records acknowledged on t-0, a few on t-1, and kill the server.

    Parameters:
        snapshot_at: stop in order, and start again, before this offset is written; -1: never.
        settings: of the server.
    """
    server = PidleaseServer(folder, settings=SETTINGS | settings)
    with server:
        _make(server)
        status, named = lease(server, name=NAME)
        assert status == 200, named
        kafka_pid = asyncio.run(_send(server, named, 0, 0, snapshot_at))
        if snapshot_at >= 0:
            server.stop()
            server.restart()
            asyncio.run(_send(server, named, kafka_pid, snapshot_at, -1))
        for number in range(3):
            headers = {"producer-id": PRODUCER_ID, "producer-epoch": "0",
                       "producer-seq": str(number)}  # fmt: skip
            assert append(server, b"%d" % number, headers, 1)[0] == 200
        _commit(server)
        server.kill9()
    return Written(server.data_dir, kafka_pid, int(named["pid"]))


def _make(server: PidleaseServer) -> None:
    async def make() -> None:
        async with await WireClient.connect(LOOPBACK, server.kafka_port) as client:
            await client.create("t", 2)

    asyncio.run(make())


async def _send(
    server: PidleaseServer, named: dict[str, Any], pid: int, start: int, end: int
) -> int:
    """Send batches of ten until an offset (-1: all); the PID of the even ones."""
    async with await WireClient.connect(LOOPBACK, server.kafka_port) as client:
        pid = pid or await client.lease()
        for number in range(start // 10, (end if end >= 0 else RECORDS) // 10):
            values = [b"%d" % (number * 10 + each) for each in range(10)]
            first = number // 2 * 10
            if number % 2:
                last = first + 9
                who = Identity(named["pid"], "", named["generation"], first, last)
                data = identified(values, who)
            else:
                data = batch(values, pid, 0, first)
            stamp = NOW_MS + number * 1000
            data = changed(data, base_timestamp=stamp, max_timestamp=stamp + 9)
            answer = await client.produce("t", data)
            assert (answer.code, answer.offset) == (0, number * 10), answer
        return pid


def _commit(server: PidleaseServer) -> None:
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "g"})
    try:
        offsets = [TopicPartition("t", 0, COMMITTED), TopicPartition("t", 1, 2)]
        consumer.commit(offsets=offsets, asynchronous=False)
    finally:
        consumer.close()


def segments(data_dir: Path) -> list[Path]:
    """The .log files of t-0, oldest first."""
    return sorted((data_dir / "logs" / "t-0").glob("*.log"))


def flip(data_dir: Path, offset: int) -> tuple[Path, int]:
    """Flip a bit in the middle of the batch at an offset; its segment, and where it begins."""
    for log in segments(data_dir):
        content = bytearray(log.read_bytes())
        at = 0
        while at + HEADER_BYTES <= len(content):
            header = read_header(bytes(content), at)
            if header.base_offset == offset:
                content[at + header.size // 2] ^= 4
                log.write_bytes(content)
                return log, at
            at += header.size
    raise AssertionError(f"no batch begins at offset {offset}")


def copied(written: Written, folder: Path) -> PidleaseServer:
    """A server that is not started, on a copy of what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copytree(written.data_dir, folder / "data")
    return PidleaseServer(folder, settings=SETTINGS)
