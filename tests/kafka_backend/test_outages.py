"""While Kafka is away, a batch waits only as long as its request: afterwards it is not stored."""

import asyncio
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from pidlease.testing.loopback_ports import LOOPBACK
from tests.crash.readback import consume
from tests.crash.seeds import SOAK
from tests.kafka_backend.outages import (
    JavaOutage,
    LibrdkafkaOutage,
    OutageClient,
    create_topics,
    measure,
)
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient, produced
from tests.kafka_listener.messages import PRODUCE
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

pytestmark = [needs_kafka, pytest.mark.kafka, pytest.mark.timeout(7200 if SOAK else 600)]

_TIMED_OUT = 7
_FENCED = 47
#: Seconds after which a record fails, by client, in one half of the producers of an outage.
_SHORT_MS = 20_000
_AFTER_S = 20.0
_RETRY_S = 0.05
#: Each line is written, also those that repeat.
_SETTINGS = {"log_level": "info", "log_repeat_seconds": "0"}


async def _connect(server: PidleaseServer) -> WireClient:
    client = await WireClient.connect(LOOPBACK, server.kafka_port)
    client.timeout_s = WAIT_S
    return client


async def _append(client: WireClient, topic: str, data: bytes) -> None:
    """Append a batch to a topic that may just have been created."""
    for _ in range(int(WAIT_S / _RETRY_S)):
        if not (await client.produce(topic, data)).code:
            return
        await asyncio.sleep(_RETRY_S)
    raise AssertionError(f"{topic} takes no batch")


async def _wait_for_line(server: PidleaseServer, line: str, word: str) -> None:
    def written() -> bool:
        return any(line in each and word in each for each in server.log_text().splitlines())

    await asyncio.to_thread(until, written, f"{line}: {word}")


async def _end_requests(kafka: KafkaServer, server: PidleaseServer) -> None:
    """Three producers whose requests end while Kafka is away, each in another way."""
    closing, raising, waiting = [await _connect(server) for _ in range(3)]
    pids = {topic: await closing.lease() for topic in ("closed", "raised", "late")}
    for topic, client in (("closed", closing), ("raised", raising), ("late", waiting)):
        await client.create(topic)
        await _append(client, topic, batch([b"first"], pids[topic], 0, 0))
    another = await closing.lease()
    kafka.process.kill9()
    # What a client sends again later, under epoch 1, because the first request has failed for it.
    for topic, client in (("closed", closing), ("raised", raising)):
        client.send_produce(topic, batch([b"lost", b"kept"], pids[topic], 0, 1))
        await _wait_for_line(server, "the log could not be read again", f"{topic}-0")
    late = batch([b"late"], pids["late"], 0, 1)
    values = produced([("late", 0, late)]) | {"timeout": timedelta(seconds=1)}
    waiting.send(PRODUCE, 9, **values)
    assert (await waiting.receive_produce()).code == _TIMED_OUT
    closing.writer.transport.abort()
    again = await _connect(server)
    again.send_produce("raised", batch([b"kept"], pids["raised"], 1, 0))
    kafka.start()
    assert (await again.receive_produce()).code == 0
    assert (await raising.receive_produce()).code in {_TIMED_OUT, _FENCED}
    # Another producer's first batch is stored after a read, and so after all that waited for one.
    assert (await again.produce("closed", batch([b"other"], another, 0, 0))).code == 0
    assert (await again.produce("closed", batch([b"kept"], pids["closed"], 1, 0))).code == 0
    # The batch whose time was up is sent again, as the client is told.
    assert (await waiting.produce("late", late)).code == 0
    for client in (raising, waiting, again):
        client.writer.transport.abort()


def test_a_batch_is_not_stored_after_its_request_has_ended(tmp_path: Path) -> None:
    with (
        KafkaServer(tmp_path / "kafka") as kafka,
        in_front_of(kafka, tmp_path / "server", **_SETTINGS) as server,
    ):
        server.start()
        asyncio.run(_end_requests(kafka, server))
        stored = {
            topic: [each.value for each in consume(kafka.bootstrap, topic, 1)]
            for topic in ("closed", "raised", "late")
        }
        assert stored == {
            "closed": [b"first", b"other", b"kept"],
            "raised": [b"first", b"kept"],
            "late": [b"first", b"late"],
        }
        assert server.metric("pidlease_raised_epochs_total") == 2
        assert "has raised its producer epoch" in server.log_text()
        assert "Traceback" not in server.log_text()


def test_a_batch_waits_for_kafka_as_long_as_its_request(tmp_path: Path) -> None:
    """The client gets no error of which it would have to do something."""

    async def append(kafka: KafkaServer, server: PidleaseServer) -> None:
        client = await _connect(server)
        pid = await client.lease()
        await client.create("t")
        await _append(client, "t", batch([b"0"], pid, 0, 0))
        kafka.process.kill9()
        for number in range(1, 6):
            client.send_produce("t", batch([b"%d" % number], pid, 0, number))
        await _wait_for_line(server, "the log could not be read again", "t-0")
        kafka.start()
        answers = [await client.receive_produce() for _ in range(5)]
        assert [(each.code, each.offset) for each in answers] == [(0, n) for n in range(1, 6)]
        client.writer.transport.abort()

    with (
        KafkaServer(tmp_path / "kafka") as kafka,
        in_front_of(kafka, tmp_path / "server", **_SETTINGS) as server,
    ):
        server.start()
        asyncio.run(append(kafka, server))
        assert [each.value for each in consume(kafka.bootstrap, "t", 1)] == [
            b"%d" % number for number in range(6)
        ]


@pytest.mark.skipif(not SOAK, reason="outages of up to six minutes (make soak)")
@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("seconds", [10, 61, 360])
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "suspended"])
def test_no_more_records_are_stored_twice_than_straight_to_kafka(
    tmp_path: Path, *, servers: int, seconds: int, killed: bool
) -> None:
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaServer(tmp_path / "kafka"))
        shared = {"shared": "true", "coordination": "kafka"} if servers > 1 else {}
        started = []
        for number in range(servers):
            server = stack.enter_context(in_front_of(kafka, tmp_path / f"s{number}", **shared))
            server.start()
            started.append(server)
        behind = ",".join(each.bootstrap for each in started)
        clients: list[OutageClient] = []
        for timeout_ms in (_SHORT_MS, 0):
            for way, bootstrap in (("straight", kafka.bootstrap), ("behind", behind)):
                name = f"{way}-{timeout_ms}"
                clients.append(LibrdkafkaOutage(f"{name}-librdkafka", bootstrap, timeout_ms))
                clients.append(JavaOutage(f"{name}-java", bootstrap, timeout_ms, tmp_path))
        create_topics(kafka.bootstrap, clients)
        seen = measure(kafka, clients, seconds, killed=killed, after_s=_AFTER_S)
    how = "killed" if killed else "suspended"
    for name, each in seen.items():
        print(f"{how} {seconds} s, {servers} servers, {name}: {each}")
    for name, each in seen.items():
        assert not each.lost, (name, each)
        if name.startswith("behind"):
            straight = seen[name.replace("behind", "straight")]
            assert each.twice <= straight.twice, (name, each, straight)
            assert each.out_of_order <= straight.out_of_order, (name, each, straight)
            assert each.first_s >= 0, (name, each)
