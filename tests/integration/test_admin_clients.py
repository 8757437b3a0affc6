"""librdkafka's and aiokafka's admin clients, unmodified; the server is killed in between."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka import TopicPartition as AioPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioResource
from aiokafka.admin.config_resource import ConfigResourceType as AioType
from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka import admin as kafka_admin

from tests.kafka_listener.admin_requests import DESCRIBE_PRODUCERS, producer_question
from tests.kafka_listener.client import WireClient
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

_TIMEOUT_S: Final = WAIT_S
_library: Any = kafka_admin


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PidleaseServer]:
    # Nothing is removed that the last snapshot may need.
    settings = {"retention_check_seconds": "0.2", "snapshot_seconds": "0.2"}
    with PidleaseServer(tmp_path, settings=settings) as running:
        yield running
    assert "Traceback" not in running.log_text()


class Librdkafka:
    """An admin client, and what it was told."""

    def __init__(self, server: PidleaseServer) -> None:
        self._server = server
        self.client: Any = None
        self.connect()

    def connect(self) -> None:
        """With a new client: listing topics is not tried again by one that lost its connection."""
        settings = {"bootstrap.servers": self._server.bootstrap, "log_level": 0}
        self.client = _library.AdminClient(settings)

    def crash(self) -> None:
        """Kill the server, and start it again."""
        self._server.kill9()
        self._server.restart()
        self.connect()

    def done(self, futures: dict[Any, Any]) -> list[Any]:
        """What became of each."""
        return [future.result(_TIMEOUT_S) for future in futures.values()]

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        self.done(
            self.client.create_topics([_library.NewTopic(topic, partitions, 1, config=named)])
        )

    def configs(self, name: str, kind: str = "TOPIC") -> dict[str, Any]:
        resource = _library.ConfigResource(_library.ConfigResource.Type[kind], name)
        (found,) = self.done(self.client.describe_configs([resource]))
        return dict(found)

    def alter(self, topic: str, **values: str | None) -> None:
        """Set settings; None: no longer of the topic's own."""
        operation = _library.AlterConfigOpType
        entries = [
            _library.ConfigEntry(
                name.replace("_", "."), value,
                incremental_operation=operation.DELETE if value is None else operation.SET,
            )
            for name, value in values.items()
        ]  # fmt: skip
        resource = _library.ConfigResource(
            _library.ConfigResource.Type.TOPIC, topic, incremental_configs=entries
        )
        self.done(self.client.incremental_alter_configs([resource]))

    def partitions(self) -> dict[str, int]:
        """How many partitions each topic has."""
        topics = self.client.list_topics(timeout=_TIMEOUT_S).topics
        return {name: len(topic.partitions) for name, topic in topics.items()}

    def watermarks(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """The first offset and the next one."""
        consumer: Any = Consumer(
            {"bootstrap.servers": self._server.bootstrap, "group.id": "-", "log_level": 0}
        )
        try:
            low, high = consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=_TIMEOUT_S
            )
        finally:
            consumer.close()
        return int(low), int(high)

    def produce(self, topic: str, count: int, partition: int = 0, size: int = 10) -> None:
        """Send records, each as a batch of its own."""
        producer: Any = Producer(
            {"bootstrap.servers": self._server.bootstrap, "enable.idempotence": True,
             "batch.num.messages": 1, "log_level": 0}
        )  # fmt: skip
        failed: list[object] = []
        for _ in range(count):
            producer.produce(
                topic, bytes(size), partition=partition,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )  # fmt: skip
        assert producer.flush(_TIMEOUT_S) == 0
        assert not failed


@pytest.fixture
def admin(server: PidleaseServer) -> Librdkafka:
    return Librdkafka(server)


def _wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# ---------------------------------------------------------------------- librdkafka


def test_settings_have_an_effect_at_once_and_outlive_a_crash(
    server: PidleaseServer, admin: Librdkafka
) -> None:
    admin.create("t", segment_bytes="2048", cleanup_policy="delete")
    admin.produce("t", 30, size=400)
    time.sleep(0.5)  # two looks at what is past its time: nothing is
    assert admin.watermarks("t") == (0, 30)

    admin.alter("t", retention_ms="1", retention_bytes="-1")
    _wait_for(lambda: admin.watermarks("t")[0] > 20)
    assert admin.configs("t")["retention.ms"].value == "1"

    admin.crash()
    found = admin.configs("t")
    assert (found["retention.ms"].value, found["retention.ms"].is_default) == ("1", False)
    assert found["segment.bytes"].value == "2048"
    low, high = admin.watermarks("t")
    assert (low > 20, high) == (True, 30)

    def removed_more() -> bool:
        admin.produce("t", 10, size=400)  # so that there are new snapshots, too
        return admin.watermarks("t")[0] > 30

    _wait_for(removed_more)

    admin.alter("t", retention_ms=None)
    admin.crash()
    found = admin.configs("t")
    assert found["retention.ms"].value == str(7 * 24 * 3600 * 1000)
    assert found["retention.ms"].source == _library.ConfigSource.DEFAULT_CONFIG.value


def test_what_cannot_be_altered_is_told_with_a_reason(admin: Librdkafka) -> None:
    admin.create("t")
    for values, reason in (
        ({"no_such": "1"}, "retention.ms"),
        ({"cleanup_policy": "compact"}, "cleanup.policy is delete"),
        ({"retention_ms": "soon"}, "soon"),
    ):
        with pytest.raises(KafkaException, match=reason):
            admin.alter("t", **values)
    with pytest.raises(KafkaException, match="no topic"):
        admin.alter("absent", retention_ms="1")


def test_the_server_describes_itself(server: PidleaseServer, admin: Librdkafka) -> None:
    found = admin.configs("1", "BROKER")
    assert found["log.segment.bytes"].value == str(1 << 30)
    assert all(each.is_read_only for each in found.values())
    cluster = admin.client.describe_cluster(request_timeout=_TIMEOUT_S).result(_TIMEOUT_S)
    assert [node.id for node in cluster.nodes] == [1]
    assert cluster.controller.port == server.kafka_port
    admin.create("t", 3)
    (topic,) = admin.done(admin.client.describe_topics(TopicCollection(["t"])))
    assert len(topic.partitions) == 3


def test_deleted_records_stay_deleted(server: PidleaseServer, admin: Librdkafka) -> None:
    admin.create("t", 2)
    for partition in range(2):
        admin.produce("t", 10, partition)
    asked = [TopicPartition("t", 0, 4), TopicPartition("t", 1, -1)]
    deleted = admin.done(admin.client.delete_records(asked))
    assert [each.low_watermark for each in deleted] == [4, 10]
    for _ in range(2):
        assert [admin.watermarks("t", n) for n in range(2)] == [(4, 10), (10, 10)]
        admin.crash()
    admin.produce("t", 1, 1)
    assert admin.watermarks("t", 1) == (10, 11)
    with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
        admin.done(admin.client.delete_records([TopicPartition("t", 0, 11)]))


async def _known_producers(server: PidleaseServer, topic: str) -> int:
    async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
        body = await client.call(DESCRIBE_PRODUCERS, 0, **producer_question({topic: [0]}))
    (part,) = body.topics[0].partitions
    assert part.error_code == 0
    return len(part.active_producers)


@pytest.mark.parametrize("crash", [False, True], ids=["at once", "after a crash"])
def test_a_topic_of_the_same_name_begins_anew(
    server: PidleaseServer, admin: Librdkafka, *, crash: bool
) -> None:
    admin.create("t", 2, retention_ms="77000")
    admin.produce("t", 5)
    assert asyncio.run(_known_producers(server, "t")) == 1
    admin.done(admin.client.delete_topics(["t"], operation_timeout=_TIMEOUT_S))
    if crash:
        admin.crash()
    assert admin.partitions() == {}

    admin.create("t")
    if crash:
        admin.crash()
    assert admin.partitions() == {"t": 1}
    assert admin.watermarks("t") == (0, 0)
    assert admin.configs("t")["retention.ms"].is_default
    assert asyncio.run(_known_producers(server, "t")) == 0
    admin.produce("t", 3)
    assert admin.watermarks("t") == (0, 3)
    assert asyncio.run(_known_producers(server, "t")) == 1
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        admin.done(admin.client.delete_topics(["absent"], operation_timeout=_TIMEOUT_S))


def test_new_partitions_take_records_also_after_a_crash(
    server: PidleaseServer, admin: Librdkafka
) -> None:
    admin.create("t")
    admin.produce("t", 2)
    admin.done(admin.client.create_partitions([_library.NewPartitions("t", 4)]))
    admin.produce("t", 3, 3)
    for _ in range(2):
        assert admin.partitions() == {"t": 4}
        assert [admin.watermarks("t", n)[1] for n in range(4)] == [2, 0, 0, 3]
        admin.crash()
    admin.produce("t", 1, 2)
    assert admin.watermarks("t", 2) == (0, 1)
    with pytest.raises(KafkaException, match="4 partitions"):
        admin.done(admin.client.create_partitions([_library.NewPartitions("t", 3)]))


# ---------------------------------------------------------------------- aiokafka


async def test_aiokafka_does_all_of_it(server: PidleaseServer, admin: Librdkafka) -> None:
    aio: Any = AIOKafkaAdminClient(bootstrap_servers=server.bootstrap)
    await aio.start()
    try:
        configs = {"retention.ms": "5000", "cleanup.policy": "delete"}
        await aio.create_topics([AioNewTopic("t", 2, 1, topic_configs=configs)])
        assert set(await aio.list_topics()) == {"t"}
        assert await _aio_config(aio, "t", "retention.ms") == "5000"

        # AlterConfigs: all of a topic's own settings at once.
        await aio.alter_configs([AioResource(AioType.TOPIC, "t", {"segment.bytes": "4096"})])
        assert await _aio_config(aio, "t", "segment.bytes") == "4096"
        assert await _aio_config(aio, "t", "retention.ms") == str(7 * 24 * 3600 * 1000)

        await aio.create_partitions({"t": AioNewPartitions(3)})
        (described,) = await aio.describe_topics(["t"])
        assert len(described["partitions"]) == 3

        await asyncio.to_thread(admin.produce, "t", 6, 2)
        partition = AioPartition("t", 2)
        deleted = await aio.delete_records({partition: RecordsToDelete(before_offset=4)})
        assert deleted == {partition: 4}
        assert await asyncio.to_thread(admin.watermarks, "t", 2) == (4, 6)

        cluster = await aio.describe_cluster()
        assert [broker["node_id"] for broker in cluster["brokers"]] == [1]
        await aio.delete_topics(["t"])
        assert await asyncio.to_thread(admin.partitions) == {}
    finally:
        await aio.close()


async def _aio_config(aio: Any, topic: str, name: str) -> str:
    asked = [AioResource(AioType.TOPIC, topic, {name: None})]
    (answer,) = await aio.describe_configs(asked)
    ((code, message, _, _, entries),) = answer.resources
    assert code == 0, message
    (value,) = [entry[1] for entry in entries if entry[0] == name]
    return str(value)
