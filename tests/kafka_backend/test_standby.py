"""Two servers in front of one Kafka: one serves, one stands by; who comes too late is fenced."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pidlease.client import LeasedProducer, ProducerError
from tests.crash.readback import consume
from tests.kafka_backend.served_topic import delete_served_topic
from tests.kafka_backend.test_clients import new_topic
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import until
from tests.servers.zookeeper import ZooKeeperServer

pytestmark = [needs_kafka, pytest.mark.kafka]

_SESSION_SECONDS = 2.0
_WAIT_SECONDS = 300.0


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path / "zookeeper") as running:
        yield running


def settings(zookeeper: ZooKeeperServer) -> dict[str, str]:
    return {"zookeeper": f"{zookeeper.hosts}/p", "log_level": "info",
            "zookeeper_session_seconds": str(_SESSION_SECONDS)}  # fmt: skip


@pytest.fixture(params=["zookeeper", "kafka"])
def same(request: pytest.FixtureRequest, kafka: KafkaServer) -> Iterator[dict[str, str]]:
    """The settings of both servers, with either coordinator."""
    if request.param == "zookeeper":
        yield settings(request.getfixturevalue("zookeeper"))
        return
    yield {"coordination": "kafka", "log_level": "info"}
    # Servers with another coordinator are refused while it has rows.
    delete_served_topic(kafka)


def to(server: PidleaseServer, name: str) -> LeasedProducer:
    return LeasedProducer(
        bootstrap_servers=server.bootstrap, leases=server.http_url, name=name,
        request_timeout_ms=60_000,
    )  # fmt: skip


async def test_a_server_that_was_stopped_stores_nothing_behind_its_successor(
    kafka: KafkaServer, same: dict[str, str], tmp_path: Path
) -> None:
    with (
        in_front_of(kafka, tmp_path / "a", **same) as first,
        in_front_of(kafka, tmp_path / "b", **same) as second,
    ):
        first.start()
        second.launch()
        await asyncio.to_thread(
            until, lambda: "standing by" in second.log_text(), "the second one stands by"
        )
        assert [_told(each) for each in (first, second)] == [(1, 0), (0, 1)]
        reason = json.loads((await asyncio.to_thread(second.get, "/readyz"))[1])["reason"]
        assert reason.startswith("standing by: ")
        assert reason.endswith(" serves this cluster")
        topic = await asyncio.to_thread(new_topic, first, 1)
        due = [b"one/%d" % number for number in range(50)]
        stale = to(first, "one")
        await stale.start()
        for value in due:
            await stale.send(topic, value, partition=0)
        await stale.flush()

        snapshots = sorted((tmp_path / "a").rglob("manifest.json"))
        os.kill(first.pid, signal.SIGSTOP)
        late = await stale.send(topic, b"late", partition=0)
        await asyncio.to_thread(second.wait_ready, _WAIT_SECONDS)
        async with to(second, "two") as producer:
            for number in range(20):
                due.append(b"two/%d" % number)
                await producer.send_and_wait(topic, due[-1], partition=0)
        assert not late.done()
        os.kill(first.pid, signal.SIGCONT)
        assert await asyncio.to_thread(first.wait_exit, _WAIT_SECONDS) == 2
        log = first.log_text()
        assert "fenced=True" in log, "it tried to store nothing"
        assert "stepped down" in log
        # Of what its successor stored it knew nothing: its next start is to read that.
        assert "no snapshot at the stop" in log
        assert sorted((tmp_path / "a").rglob("manifest.json")) == snapshots
        closing = asyncio.create_task(stale.stop())
        async with to(second, "one") as producer:
            assert producer.last_sequence_id(topic, 0) in (None, -1, 49)
            due.append(b"late")
            sent = await producer.send_and_wait(topic, b"late", partition=0)
            assert (sent.sequence, sent.duplicate) == (50, False)
        closing.cancel()
        with suppress(asyncio.CancelledError, ProducerError):
            await closing
        found = await asyncio.to_thread(consume, kafka.bootstrap, topic, 1, markers=True)
        assert [each.value for each in found] == due
        assert _told(second) == (1, 0)
        assert second.stop() == 0


def _told(server: PidleaseServer) -> tuple[float, float]:
    """Whether it serves, and whether it stands by, by its metrics."""
    told = server.metrics()
    return told["pidlease_ready"], told["pidlease_standing_by"]


def test_a_server_goes_on_at_once_with_its_own_directory(
    kafka: KafkaServer, zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """Its session has not ended yet, but nobody else can have its directory."""
    same = {**settings(zookeeper), "zookeeper_session_seconds": "4"}
    with in_front_of(kafka, tmp_path / "a", **same) as server:
        server.start()
        server.kill9()
        began = time.monotonic()
        server.start()
        assert "standing by" not in server.log_text()
        print(f"started again in {time.monotonic() - began:.1f} s")
        zookeeper.kill9()
        time.sleep(0.5)
        zookeeper.start()
        until(lambda: server.log_text().count("connected") > 2, "the session comes back")
        time.sleep(2)
        assert server.alive
        assert server.stop() == 0


def test_a_session_that_ended_and_nobody_came(
    kafka: KafkaServer, zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    with in_front_of(kafka, tmp_path / "a", **settings(zookeeper)) as server:
        server.start()
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(_SESSION_SECONDS * 2)
        os.kill(server.pid, signal.SIGCONT)
        until(lambda: "state=lost" in server.log_text(), "its session ends")
        time.sleep(3)
        assert server.alive, "nobody has taken its place"
        topic = new_topic(server, 1)
        asyncio.run(_append(server, topic))
        assert server.stop() == 0


async def _append(server: PidleaseServer, topic: str) -> None:
    async with to(server, "one") as producer:
        await producer.send_and_wait(topic, b"x", partition=0)
