"""A real server under clients that are hostile, greedy or on a bad disk; unmodified ones go on."""

import asyncio
import struct
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any, Final, Self

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from pidlease.testing.loopback_ports import LOOPBACK
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient, fetched
from tests.kafka_listener.messages import FETCH
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

_MIB: Final = 1 << 20


class Calm(threading.Thread):
    """An unmodified idempotent producer that sends as long as it is let."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self.failed: list[str] = []
        self._enough = threading.Event()
        self._address = bootstrap
        self._producer: Any = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2,
             "log_level": 0, "retry.backoff.max.ms": 200, "reconnect.backoff.max.ms": 200}
        )  # fmt: skip

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self.join(30)

    def run(self) -> None:
        while not self._enough.is_set():
            self._producer.produce("calm", b"%d" % self.sent, on_delivery=self._delivered)
            self.sent += 1
            self._producer.poll(0.001)
        self._producer.flush(WAIT_S)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.failed.append(str(error))

    def check(self) -> None:
        """Stop, and hold what is in the log against what was sent."""
        self.__exit__()
        assert not self.failed
        assert self.sent > 10
        assert read_all(self._address, "calm") == [b"%d" % number for number in range(self.sent)]


def read_all(bootstrap: str, topic: str) -> list[bytes | None]:
    """All values of partition 0, in order."""
    consumer: Any = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "-", "enable.auto.commit": False,
         "enable.partition.eof": True}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for message in consumer.consume(10_000, 0.2):
            if message.error() is not None:
                consumer.close()
                return values
            values.append(message.value())
    raise AssertionError(f"no end of {topic} after {len(values)} records")


#: Bodies that announce far more than they hold: key, version, body.
_BOASTS: Final = {
    "metadata": (3, 12, "00 ffffffff0f"),
    "metadata, 35 bits": (3, 9, "00 ffffffff7f"),
    "find coordinator": (10, 4, "00 00 ffffffff0f"),
    "create topics": (19, 7, "00 ffffffff0f"),
    "list offsets": (2, 6, "00 00000000 00 ffffffff0f"),
    "produce": (0, 9, "00 00 ffff 00000000 ffffffff0f"),
    "fetch": (1, 11, "00" * 17 + "7fffffff"),
    "tags": (22, 2, "ffffffff0f"),
}


@pytest.mark.parametrize("name", _BOASTS)
def test_a_request_that_boasts_does_not_kill_the_server(boasted: PidleaseServer, name: str) -> None:
    key, version, body = _BOASTS[name]

    async def boast() -> None:
        async with await WireClient.connect(LOOPBACK, boasted.kafka_port) as client:
            client.send_frame(struct.pack(">hhih", key, version, 1, -1) + bytes.fromhex(body))
            assert await client.is_closed(10)

    before = boasted.pid
    asyncio.run(boast())
    time.sleep(0.05)
    died = not boasted.alive
    if died:
        boasted.restart()
    assert not died, "the server died"
    assert boasted.pid == before


@pytest.fixture(scope="module")
def boasted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with PidleaseServer(tmp_path_factory.mktemp("boasts")) as server:
        yield server
    assert "Traceback" not in server.log_text()


async def _write_greedily(port: int) -> None:
    async with await WireClient.connect(LOOPBACK, port) as client:
        pid = await client.lease()
        for sequence in range(5):
            client.send_produce("big", batch([bytes(1_000_000)], pid, 0, sequence))
        for _ in range(5):
            assert (await client.receive_produce()).code == 0


async def _read_late(port: int) -> None:
    """Ask for much, and take it much later."""
    async with await WireClient.connect(LOOPBACK, port) as client:
        for _ in range(3):
            wanted = fetched([("big", 0, 0)], wait_ms=50, partition_max_bytes=4 * _MIB)
            client.send(FETCH, 11, **wanted)
        await asyncio.sleep(0.5)
        for _ in range(3):
            await client.receive()


async def _highest_rss_of_a_crowd(server: PidleaseServer) -> int:
    highest = 0

    async def watch() -> None:
        nonlocal highest
        while True:
            highest = max(highest, server.process.resident_bytes())
            await asyncio.sleep(0.02)

    port = server.kafka_port
    async with await WireClient.connect(LOOPBACK, port) as client:
        await client.create("big")
    watching = asyncio.create_task(watch())
    writers, readers = (
        (_write_greedily(port) for _ in range(40)),
        (_read_late(port) for _ in range(10)),
    )
    async with asyncio.timeout(40):
        await asyncio.gather(*writers, *readers)
    watching.cancel()
    return highest


def test_little_memory_and_many_greedy_clients(tmp_path: Path) -> None:
    """40 clients with 5 batches of 1 MB each in flight, and 10 late readers, in 8 MiB."""
    settings = {"memory_bytes_max": str(8 * _MIB), "default_partitions": "1", "fsync": "never"}
    with PidleaseServer(tmp_path, settings=settings) as server, Calm(server.bootstrap) as calm:
        time.sleep(0.2)
        base = server.process.resident_bytes()
        grown = (asyncio.run(_highest_rss_of_a_crowd(server)) - base) >> 20
        print("grown by MiB", grown)
        assert grown < 90  # 200 MB were on their way at once
        calm.check()


def test_a_slow_disk_slows_down_and_fails_nobody(tmp_path: Path) -> None:
    slow_s = 0.1
    settings = {"faults": f"slow={slow_s} before fsync *.log 1"}
    with PidleaseServer(tmp_path, settings=settings) as server, Calm(server.bootstrap) as calm:
        time.sleep(1)

        async def ask() -> list[float]:
            async with await WireClient.connect(LOOPBACK, server.kafka_port) as client:
                took = []
                for _ in range(21):
                    started = time.monotonic()
                    await client.metadata("calm")
                    took.append(time.monotonic() - started)
                    await asyncio.sleep(0.02)
                return took

        assert median(asyncio.run(ask())) < slow_s, "who asks for something else waits for the disk"
        calm.check()


def test_a_full_disk_is_waited_for_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    settings = {"faults": "fail-from before write *calm-0/*.log 20"}
    with PidleaseServer(tmp_path, settings=settings) as server, Calm(server.bootstrap) as calm:
        deadline = time.monotonic() + 20
        while "append failed" not in server.log_text():
            assert time.monotonic() < deadline, "the fault did not fire"
            time.sleep(0.05)
        time.sleep(0.3)  # retries reach the full disk
        assert server.alive
        assert server.get("/healthz")[0] == 200
        assert server.log_text().count("fault: fail-from") > 1
        server.restart(settings={})
        time.sleep(0.3)
        calm.check()
