"""Topics that others have just made: nobody is told that there are none before Kafka was asked."""

import asyncio
import json
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from pidlease.testing.loopback_ports import LOOPBACK
from tests.crash.readback import consume
from tests.http_api.appending import JSON, path_of
from tests.http_api.lives import ask
from tests.kafka_backend.test_standby import settings, zookeeper
from tests.kafka_backend.test_writer import post
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient, fetched, fetched_of, produced
from tests.kafka_listener.messages import FETCH, LIST_OFFSETS, METADATA
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until
from tests.servers.zookeeper import ZooKeeperServer

__all__ = ["zookeeper"]

pytestmark = [
    needs_kafka, pytest.mark.kafka,
    pytest.mark.timeout(900),
]  # fmt: skip

#: It does not look by itself what topics there are, as long as the tests take.
_SELDOM: Final = {"upstream_metadata_seconds": "3600", "log_level": "info"}
_NO_TOPIC, _NO_LEADER, _NOT_LEADER, _NO_ID = 3, 5, 6, 100


@pytest.fixture(scope="module")
def seldom(
    kafka: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PidleaseServer]:
    with in_front_of(kafka, tmp_path_factory.mktemp("seldom"), **_SELDOM) as running:
        running.start()
        yield running
        assert running.stop() == 0


def made_in_kafka(kafka: KafkaServer, partitions: int = 1) -> str:
    """A topic that was not made by way of the server, and that Kafka's broker has heard of."""
    topic = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(WAIT_S)
    _until_shown(admin, topic, partitions)
    return topic


def _until_shown(admin: AdminClient, topic: str, partitions: int) -> None:
    """Kafka answers when the change is certain; its broker learns of it a moment later."""

    def shown() -> bool:
        found = admin.list_topics(timeout=WAIT_S).topics.get(topic)
        return found is not None and found.error is None and len(found.partitions) == partitions

    until(shown, f"{topic} to be shown")


# ---------------------------------------------------------------------- HTTP


def test_an_append_to_a_topic_that_was_just_made_is_not_refused_for_good(
    kafka: KafkaServer, seldom: PidleaseServer
) -> None:
    topic = made_in_kafka(kafka)
    told: list[int] = []

    def stored() -> bool:
        told.append(post(seldom, topic, b"x", "p", 0)[0])
        return told[-1] == 200

    until(stored, "the append")
    assert set(told) <= {503, 200}, told
    assert post(seldom, topic, b"x", "p", 0)[1]["duplicate"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/topics/{}", b""),
        ("PATCH", "/v1/topics/{}/settings", b'{"pidlease.deduplication": "off"}'),
        ("GET", "/v1/topics/{}/partitions/0/records", b""),
        ("GET", "/v1/producers?topic={}", b""),
        ("GET", "/v1/producers?topic={}&partition=0", b""),
        ("POST", "/v1/leases", b'{"topic": "{}", "partition": 0, "pid": -1}'),
    ],
)
def test_whoever_asks_for_a_topic_that_was_just_made_finds_it(
    kafka: KafkaServer, seldom: PidleaseServer, method: str, path: str, body: bytes
) -> None:
    topic = made_in_kafka(kafka)
    told: list[int] = []

    def found(name: str) -> bool:
        content = body.replace(b"{}", name.encode())
        told.append(ask(seldom, method, path.format(name), content, JSON)[0])
        return told[-1] == 200

    until(lambda: found(topic), "the topic")
    assert set(told) <= {503, 200}, told
    assert not found("no-such-topic")
    assert told[-1] == 404


def test_leases_of_one_request_are_asked_for_together(
    kafka: KafkaServer, seldom: PidleaseServer
) -> None:
    topics = [made_in_kafka(kafka) for _ in range(3)]
    wanted = [*topics, "no-such-topic"]
    rows = [{"topic": topic, "partition": 0, "pid": -1} for topic in wanted]
    body = json.dumps({"leases": rows}).encode()
    told: list[list[int]] = []

    def granted() -> bool:
        status, answer = ask(seldom, "POST", "/v1/leases/batch", body, JSON)
        assert status == 200
        told.append([each["status"] for each in answer["leases"]])
        return told[-1] == [200, 200, 200, 404]

    until(granted, "leases")
    assert all(each[-1] == 404 and set(each[:-1]) <= {503, 200} for each in told), told


def test_partitions_that_were_just_added(kafka: KafkaServer, seldom: PidleaseServer) -> None:
    topic = made_in_kafka(kafka)
    until(lambda: post(seldom, topic, b"x", "p", 0)[0] == 200, "the topic")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(WAIT_S)
    _until_shown(admin, topic, 2)
    told: list[int] = []

    def read(number: int) -> bool:
        told.append(ask(seldom, "GET", path_of(topic, number))[0])
        return told[-1] == 200

    until(lambda: read(1), "the partition")
    assert set(told) <= {503, 200}, told
    assert not read(2)
    assert told[-1] == 404


# ---------------------------------------------------------------------- Kafka's protocol


async def _metadata(client: WireClient, topic: str) -> int:
    (row,) = (await client.metadata(topic)).topics
    codes = [row.error_code, *(each.error_code for each in row.partitions)]
    return next((int(code) for code in codes if code), 0)


async def test_a_topic_that_was_just_made_is_found_by_its_id(
    kafka: KafkaServer, seldom: PidleaseServer
) -> None:
    """Once a bug: members are assigned ids (KIP-848), and one waited half a minute for a name."""
    topic = await asyncio.to_thread(made_in_kafka, kafka)
    host, port = kafka.bootstrap.split(":")
    async with await WireClient.connect(host, int(port)) as client:
        (row,) = (await client.metadata(topic, version=12)).topics
    async with await WireClient.connect(LOOPBACK, seldom.kafka_port) as client:
        by_id = {"topic_id": row.topic_id, "name": None}
        (found,) = (await client.call(METADATA, 12, topics=[by_id])).topics
        assert (found.name, found.topic_id) == (topic, row.topic_id)
        by_id["topic_id"] = uuid.uuid4()
        (found,) = (await client.call(METADATA, 12, topics=[by_id])).topics
        assert found.error_code == _NO_ID


async def _produce(client: WireClient, topic: str) -> int:
    return (await client.produce(topic, batch([b"x"]))).code


async def _list_offsets(client: WireClient, topic: str) -> int:
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    body = await client.call(
        LIST_OFFSETS, 4, replica_id=-1, isolation_level=0,
        topics=[{"name": topic, "partitions": [part]}],
    )  # fmt: skip
    return int(body.topics[0].partitions[0].error_code)


async def _fetch(client: WireClient, topic: str) -> int:
    return (await client.fetch(topic)).code


@pytest.mark.parametrize(
    ("call", "not_yet"),
    [
        (_metadata, {_NO_LEADER}),
        (_produce, {_NOT_LEADER}),
        (_list_offsets, {_NO_LEADER}),
        (_fetch, {_NOT_LEADER}),
    ],
    ids=["Metadata", "Produce", "ListOffsets", "Fetch"],
)
async def test_kafka_is_asked_before_a_client_is_told_that_there_is_no_topic(
    kafka: KafkaServer,
    seldom: PidleaseServer,
    call: Callable[[WireClient, str], Coroutine[Any, Any, int]],
    not_yet: set[int],
) -> None:
    topic = await asyncio.to_thread(made_in_kafka, kafka)
    async with await WireClient.connect(LOOPBACK, seldom.kafka_port) as client:
        told = [await call(client, topic)]
        async with asyncio.timeout(WAIT_S):
            while told[-1]:
                await asyncio.sleep(0.02)
                told.append(await call(client, topic))
        assert set(told) <= {0, *not_yet}, told
        assert await call(client, "no-such-topic") == _NO_TOPIC


async def test_partitions_of_one_request_that_are_there_and_are_not(
    kafka: KafkaServer, seldom: PidleaseServer
) -> None:
    topic = await asyncio.to_thread(made_in_kafka, kafka)
    async with await WireClient.connect(LOOPBACK, seldom.kafka_port) as client:
        async with asyncio.timeout(WAIT_S):
            while await _produce(client, topic):  # noqa: ASYNC110 - as clients do
                await asyncio.sleep(0.02)
        places = [(topic, 0), ("no-such-topic", 0), (topic, 1)]
        body = await client.call(
            FETCH, 11, **fetched([(name, number, 0) for name, number in places], wait_ms=100)
        )
        codes = {(each.code, bool(each.data)) for each in fetched_of(body)}
        assert codes == {(0, True), (_NO_TOPIC, False)}
        version_9 = produced([(name, number, bytes(batch([b"y"]))) for name, number in places])
        answer = await client.call(0, 9, **version_9)
        found = {
            (row.name, part.index): part.error_code
            for row in answer.responses
            for part in row.partition_responses
        }
        assert found == {(topic, 0): 0, ("no-such-topic", 0): _NO_TOPIC, (topic, 1): _NO_TOPIC}


# ---------------------------------------------------------------------- two servers


def test_a_topic_that_the_server_before_had_made(
    kafka: KafkaServer, zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """Once a bug: for half a minute after the takeover it did not exist, by every answer."""
    same = {**settings(zookeeper), **_SELDOM}
    with (
        in_front_of(kafka, tmp_path / "a", **same) as first,
        in_front_of(kafka, tmp_path / "b", **same) as second,
    ):
        first.start()
        second.launch()
        until(lambda: "standing by" in second.log_text(), "the second one stands by")
        topic = made_in_kafka(kafka)
        until(lambda: post(first, topic, b"one", "p", 0)[0] == 200, "the first append")
        first.kill9()
        told: list[int] = []

        def stored() -> bool:
            told.append(post(second, topic, b"two", "p", 1)[0])
            return told[-1] == 200

        def ready() -> bool:
            serves = second.get("/readyz")[0] == 200
            stored()
            return serves

        until(ready, "the second one serves")
        assert told[-1] == 200, "it serves only when it has read the topic"
        assert set(told) <= {503, 200}, told
        assert post(second, topic, b"one", "p", 0)[1]["duplicate"]
        found = consume(kafka.bootstrap, topic, 1, markers=True)
        assert [each.value for each in found] == [b"one", b"two"]
        assert second.stop() == 0
