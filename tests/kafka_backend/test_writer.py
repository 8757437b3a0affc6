"""Batches of the other policies: into Kafka under a partition's writer, and known after a crash."""

import asyncio
import os
import signal
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from pidlease.client import LeasedProducer, ProducerError
from pidlease.core.pid import policy_of
from pidlease.kafka.records.record_batch import BatchHeader, read_header
from pidlease.testing.loopback_ports import LOOPBACK
from tests.crash.readback import consume
from tests.http_api.appending import RAW, path_of, producer
from tests.http_api.lives import ask
from tests.kafka_backend.new_topics import create_topic
from tests.kafka_backend.test_clients import new_topic
from tests.kafka_listener.client import INIT, WireClient, produced
from tests.kafka_listener.messages import INIT_PRODUCER_ID, PRODUCE
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S
from tests.sim.batches import make_batch

pytestmark = [needs_kafka, pytest.mark.kafka]

_SECONDS = WAIT_S
_UNKNOWN_ID, _NOT_ALLOWED = 59, 53


def post(server: PidleaseServer, topic: str, value: bytes, name: str, seq: int,
         epoch: int = 0) -> tuple[int, dict[str, Any]]:  # fmt: skip
    """One append over HTTP, under policy epoch."""
    return ask(server, "POST", path_of(topic), value, {**RAW, **producer(name, epoch, seq)})


def topic_with(server: PidleaseServer, **config: str) -> str:
    """A topic of one partition, with settings."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    settings = {name.replace("_", "."): value for name, value in config.items()}
    create_topic(server.bootstrap, NewTopic(topic, 1, config=settings))
    return topic


async def headers_of(kafka: KafkaServer, topic: str) -> list[BatchHeader]:
    """The headers of all batches of partition 0, as Kafka has them."""
    found = []
    async with await WireClient.connect(LOOPBACK, int(kafka.bootstrap.split(":")[1])) as client:
        records = bytes((await client.fetch(topic, partition_max_bytes=1 << 24)).data)
    at = 0
    while at < len(records):
        header = read_header(records, at)
        found.append(header)
        at += header.size
    return found


@pytest.mark.parametrize("options", [
    {}, {"name": "named"}, {"name": "mono", "policy": "monotonic"}, {"compression_type": "zstd"},
])  # fmt: skip
async def test_our_producer(
    kafka: KafkaServer, server: PidleaseServer, options: dict[str, str]
) -> None:
    topic = await asyncio.to_thread(new_topic, server, 2)
    if "name" in options:
        options = {**options, "name": f"{options['name']}-{topic}"}
    where = {"bootstrap_servers": server.bootstrap, "leases": server.http_url}
    given: list[list[bytes]] = [[], []]
    for life in range(2 if "name" in options else 1):
        async with LeasedProducer(**where, **options, max_batch_size=2000) as sender:  # type: ignore[arg-type]
            futures = []
            for number in range(500):
                value = b"%d/%d" % (life, number)
                given[number % 2].append(value)
                futures.append(await sender.send(topic, value, partition=number % 2))
            await sender.flush()
            sent = [each.result() for each in futures]
            assert [each.sequence for each in sent if not each.partition] == list(
                range(life * 250, (life + 1) * 250)
            )
    found = await asyncio.to_thread(consume, kafka.bootstrap, topic, 2, markers=True)
    for partition in range(2):
        assert [each.value for each in found if each.partition == partition] == given[partition]
    headers = await headers_of(kafka, topic)
    assert headers[0].is_control, "the writer's marker comes first"
    assert {each.producer_id for each in headers} == {headers[0].producer_id}
    assert policy_of(headers[0].producer_id) is None, "one of Kafka's own"


async def test_small_sends_share_batches_and_are_known_after_a_crash(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    """Of nothing but the log: the directory keeps no snapshot."""
    names = [f"p{number}" for number in range(40)]
    with in_front_of(kafka, tmp_path, log_level="info") as server:
        server.start()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(len(names)))
        topic = await asyncio.to_thread(new_topic, server, 1)
        told: dict[tuple[str, int], int] = {}
        for seq in range(10):
            if seq % 3 == 2:  # they gather while it takes nothing
                os.kill(kafka.process.pid, signal.SIGSTOP)
                loop.call_later(0.5, os.kill, kafka.process.pid, signal.SIGCONT)
            answers = await asyncio.gather(
                *(asyncio.to_thread(post, server, topic, f"{name}/{seq}".encode(), name, seq)
                  for name in names)
            )  # fmt: skip
            for name, (status, answer) in zip(names, answers, strict=True):
                assert (status, answer.get("duplicate")) == (200, False), answer
                told[name, seq] = answer["offset"]
        headers = await headers_of(kafka, topic)
        sends = sum(each.records for each in headers if not each.is_control)
        assert sends == len(told)
        assert any(each.records > 1 for each in headers), "none was joined with another"
        server.kill9()
        assert not [*(server.data_dir / "snapshots").glob("*/manifest.json")]
        server.start()
        for (name, seq), offset in told.items():
            if seq < 5:  # only the last five are known by their offsets
                continue
            status, answer = await asyncio.to_thread(
                post, server, topic, f"{name}/{seq}".encode(), name, seq
            )
            assert (status, answer) == (200, {"offset": offset, "duplicate": True})
        status, answer = await asyncio.to_thread(post, server, topic, b"", "p0", 12)
        assert (status, answer["expected_seq"]) == (409, 10)
        status, answer = await asyncio.to_thread(post, server, topic, b"p0/10", "p0", 10)
        assert (status, answer["duplicate"]) == (200, False)
        found = await asyncio.to_thread(consume, kafka.bootstrap, topic, 1, markers=True)
        assert len(found) == len(told) + 1
        assert {each.value.decode(): each.offset for each in found[:-1]} == {
            f"{name}/{seq}": offset for (name, seq), offset in told.items()
        }
        assert "has other bytes" not in server.log_text()


async def test_what_kafka_refuses_leaves_the_others_whole(
    kafka: KafkaServer, server: PidleaseServer
) -> None:
    """Joined, they would be too large; one is by itself."""
    topic = await asyncio.to_thread(topic_with, server, max_message_bytes="3000")
    assert (await asyncio.to_thread(post, server, topic, b"x", "first", 0))[0] == 200
    sizes = [2500, 100, 5000, 2500, 10, 2000, 4000, 300] * 8
    answers = await asyncio.gather(
        *(asyncio.to_thread(post, server, topic, b"." * size, f"p{number}", 0)
          for number, size in enumerate(sizes))
    )  # fmt: skip
    assert [status for status, _ in answers] == [413 if size > 2900 else 200 for size in sizes]
    found = await asyncio.to_thread(consume, kafka.bootstrap, topic, 1, markers=True)
    fitting = [size for size in sizes if size <= 2900]
    assert sorted(len(each.value) for each in found[1:]) == sorted(fitting)


async def test_a_compacted_topic_takes_kafka_s_own_numbering_only(
    server: PidleaseServer,
) -> None:
    topic = await asyncio.to_thread(topic_with, server, cleanup_policy="compact")
    status, answer = await asyncio.to_thread(post, server, topic, b"x", "p", 0)
    assert status == 403
    assert "cleanup.policy is compact" in answer["error"]
    where = {"bootstrap_servers": server.bootstrap, "leases": server.http_url}
    async with LeasedProducer(**where) as sender:  # type: ignore[arg-type]
        with pytest.raises(ProducerError, match="compact"):
            await sender.send_and_wait(topic, b"x", partition=0, key=b"k")
    plain = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
    told: list[Any] = []
    plain.produce(topic, b"x", key=b"k", on_delivery=lambda error, _: told.append(error))
    assert plain.flush(_SECONDS) == 0
    assert told == [None]


async def test_nobody_else_sends_as_the_writer(kafka: KafkaServer, server: PidleaseServer) -> None:
    topic = await asyncio.to_thread(new_topic, server, 1)
    assert (await asyncio.to_thread(post, server, topic, b"x", "p", 0))[0] == 200
    writer = (await headers_of(kafka, topic))[0]
    cluster = (await asyncio.to_thread(AdminClient({"bootstrap.servers": kafka.bootstrap})
                                       .list_topics, timeout=_SECONDS)).cluster_id  # fmt: skip
    async with await WireClient.connect(LOOPBACK, server.kafka_port) as client:
        values = {**INIT, "transactional_id": f"pidlease/{cluster}/{topic}/0"}
        answer = await client.call(INIT_PRODUCER_ID, 4, **values)
        assert answer.error_code.value == _NOT_ALLOWED
        forged = make_batch([b"forged"], pid=writer.producer_id, epoch=writer.producer_epoch,
                            first=1)  # fmt: skip
        answer = await client.call(PRODUCE, 8, **produced([(topic, 0, bytes(forged))]))
        code = answer.responses[0].partition_responses[0].error_code.value
        assert code == (0 if writer.producer_id == 0 else _UNKNOWN_ID)
        nobody = make_batch([b"nobody"], pid=0, epoch=writer.producer_epoch, first=1)
        answer = await client.call(PRODUCE, 8, **produced([(topic, 0, bytes(nobody))]))
        assert not answer.responses[0].partition_responses[0].error_code.value
    assert (await asyncio.to_thread(post, server, topic, b"y", "p", 1))[0] == 200
    stored = await headers_of(kafka, topic)
    assert [each.producer_id for each in stored if each.records and not each.is_control][-2:] == [
        -1, writer.producer_id,
    ]  # fmt: skip
    other = Producer({"bootstrap.servers": server.bootstrap,
                      "transactional.id": f"pidlease/{cluster}/{topic}/0"})  # fmt: skip
    with pytest.raises(KafkaException):
        other.init_transactions(_SECONDS)
