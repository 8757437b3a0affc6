"""Clients see the server as their cluster, and Kafka has what they wrote."""

import json
import re
import socket
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.kafka_backend.new_topics import create_topic
from tests.kafka_listener.client import INIT, WireClient, fetched
from tests.kafka_listener.messages import (
    API_VERSIONS,
    FETCH,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
)
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S

#: One Kafka for all of them, so one worker.
pytestmark = [needs_kafka, pytest.mark.kafka]

_SECONDS = WAIT_S


def new_topic(server: PidleaseServer, partitions: int = 3) -> str:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    create_topic(server.bootstrap, NewTopic(topic, partitions))
    return topic


def write(server: PidleaseServer, topic: str, count: int, **settings: Any) -> None:
    told: list[Any] = []
    producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True,
                         **settings})  # fmt: skip
    for number in range(count):
        producer.produce(topic, b"%d" % number, key=b"%d" % number, headers=[("n", b"%d" % number)],
                         on_delivery=lambda error, _: told.append(error))  # fmt: skip
        producer.poll(0)
    assert producer.flush(_SECONDS) == 0
    assert told == [None] * count


def read(bootstrap: str, topic: str, count: int, **settings: Any) -> list[Any]:
    """So many records, by a consumer group, which commits and leaves."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": f"g-{uuid.uuid4().hex[:8]}",
        "auto.offset.reset": "earliest", "enable.auto.commit": False, **settings,
    })  # fmt: skip
    consumer.subscribe([topic])
    found: list[Any] = []
    while len(found) < count:
        messages = consumer.consume(count, _SECONDS)
        assert messages, f"only {len(found)} of {count}"
        assert all(each.error() is None for each in messages)
        found += messages
    assert consumer.poll(0.3) is None
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_written_can_be_read_on_both_sides(
    kafka: KafkaServer, server: PidleaseServer, codec: str
) -> None:
    topic = new_topic(server)
    write(server, topic, 2000, **{"compression.type": codec})
    for bootstrap in (server.bootstrap, kafka.bootstrap):
        found = read(bootstrap, topic, 2000)
        assert sorted(int(each.value()) for each in found) == list(range(2000))
        assert all(each.headers() == [("n", each.value())] for each in found)


def test_groups_committed_offsets_and_their_admin(
    kafka: KafkaServer, server: PidleaseServer
) -> None:
    topic = new_topic(server)
    write(server, topic, 100)
    read(server.bootstrap, topic, 100, **{"group.id": "readers"})
    direct = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "readers"})
    committed = direct.committed([TopicPartition(topic, number) for number in range(3)], _SECONDS)
    assert sum(each.offset for each in committed) == 100
    direct.close()
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    listed = admin.list_consumer_groups().result(_SECONDS).valid
    assert "readers" in {each.group_id for each in listed}
    described = admin.describe_consumer_groups(["readers"])["readers"].result(_SECONDS)
    assert (described.coordinator.port, described.members) == (server.kafka_port, [])
    admin.delete_consumer_groups(["readers"])["readers"].result(_SECONDS)


def test_topics_are_made_extended_altered_and_deleted(
    kafka: KafkaServer, server: PidleaseServer
) -> None:
    topic = new_topic(server, 1)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(_SECONDS)
    assert len(admin.list_topics(topic, _SECONDS).topics[topic].partitions) == 4
    producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
    producer.produce(topic, b"x", partition=3)
    assert producer.flush(_SECONDS) == 0
    resource = ConfigResource(
        ConfigResource.Type.TOPIC, topic,
        incremental_configs=[ConfigEntry("retention.ms", "77777777",
                                         incremental_operation=AlterConfigOpType.SET)],
    )  # fmt: skip
    admin.incremental_alter_configs([resource])[resource].result(_SECONDS)
    seen = AdminClient({"bootstrap.servers": kafka.bootstrap})
    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
    settings = seen.describe_configs([asked])[asked].result(_SECONDS)
    assert settings["retention.ms"].value == "77777777"
    latest: Any = OffsetSpec
    ends = admin.list_offsets({TopicPartition(topic, n): latest.latest() for n in range(4)})
    assert [each.result(_SECONDS).offset for _, each in sorted(ends.items())] == [0, 0, 0, 1]
    deleted = admin.delete_records([TopicPartition(topic, 3, 1)])
    assert [each.result(_SECONDS).low_watermark for each in deleted.values()] == [1]
    admin.delete_topics([topic])[topic].result(_SECONDS)
    assert topic not in admin.list_topics(timeout=_SECONDS).topics


def test_topics_that_others_make_are_found(kafka: KafkaServer, server: PidleaseServer) -> None:
    topic = f"o-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 2)])[topic].result(_SECONDS)
    past = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    past.produce(topic, b"past the server", partition=0)
    assert past.flush(_SECONDS) == 0
    producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
    producer.produce(topic, b"through it", partition=0)
    assert producer.flush(_SECONDS) == 0
    values = [each.value() for each in read(server.bootstrap, topic, 2)]
    assert values == [b"past the server", b"through it"]


def test_a_topic_makes_itself(server: PidleaseServer) -> None:
    topic = f"auto-{uuid.uuid4().hex[:8]}"
    write(server, topic, 10)
    assert len(read(server.bootstrap, topic, 10)) == 10


def test_transactions_go_to_kafka_s_own_coordinator(
    kafka: KafkaServer, server: PidleaseServer
) -> None:
    """Read, process, write: what was aborted is not seen, and is done again."""
    source, target = new_topic(server, 1), new_topic(server)
    write(server, source, 50)
    consumer = Consumer({
        "bootstrap.servers": server.bootstrap, "group.id": f"tx-{source}",
        "auto.offset.reset": "earliest", "enable.auto.commit": False,
    })  # fmt: skip
    consumer.subscribe([source])
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": f"tx-{source}"})
    producer.init_transactions(_SECONDS)
    done = 0
    for number in range(6):
        messages = consumer.consume(10, _SECONDS)
        assert len(messages) == 10
        producer.begin_transaction()
        for each in messages:
            producer.produce(target, each.value())
        places = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), _SECONDS)
        if number == 2:
            producer.abort_transaction(_SECONDS)
            for place in consumer.committed(consumer.assignment(), _SECONDS):
                consumer.seek(place)
            continue
        producer.commit_transaction(_SECONDS)
        done += 10
    consumer.close()
    assert done == 50
    for bootstrap in (server.bootstrap, kafka.bootstrap):
        found = read(bootstrap, target, 50, **{"isolation.level": "read_committed"})
        assert sorted(int(each.value()) for each in found) == list(range(50))


# ---------------------------------------------------------------------- what clients are told


async def test_no_answer_names_a_broker(kafka: KafkaServer, server: PidleaseServer) -> None:
    topic = new_topic(server)
    write(server, topic, 10)
    port = int(kafka.bootstrap.split(":")[1])
    told = re.compile(re.escape(port.to_bytes(4, "big")) + b"|" + str(port).encode())
    client = await WireClient.connect("127.0.0.1", server.kafka_port)
    async with client:
        served = {
            each.api_key: (each.min_version, each.max_version)
            for each in (await client.call(API_VERSIONS, 3, client_software_name="test",
                                           client_software_version="1")).api_keys
        }  # fmt: skip
        asked: list[tuple[int, int, dict[str, Any]]] = [
            (METADATA, version, {"topics": [{"name": topic}]})
            for version in range(served[METADATA][1] + 1)
        ]
        for version in range(served[FIND_COORDINATOR][1] + 1):
            for kind in (0, 1):
                keys = {"key": "g", "key_type": kind, "coordinator_keys": ["g", "h"]}
                asked.append((FIND_COORDINATOR, version, keys))
        asked += [(60, version, {"endpoint_type": 1}) for version in range(served[60][1] + 1)]
        asked += [(FETCH, version, fetched([(topic, 0, 0)])) for version in range(4, 12)]
        asked += [(INIT_PRODUCER_ID, 4, {**INIT, "transactional_id": "tx-a"})]
        for key, version, values in asked:
            client.send(key, version, **values)
            client.forget_last()
            frame = await client.receive_frame()
            assert not told.search(frame), f"API {key} version {version}"
        assert 0 in served
        assert served[0][1] <= 9, "from 10 on it names the leader"


# ---------------------------------------------------------------------- starting


def test_a_directory_of_another_cluster_is_refused(kafka: KafkaServer, tmp_path: Path) -> None:
    with in_front_of(kafka, tmp_path) as server:
        server.start()
        server.stop()
        mark = server.data_dir / "upstream"
        mark.write_text("another-cluster")
        server.launch()
        assert server.wait_exit() == 2
        assert "belongs to cluster another-cluster" in server.log_text()
        mark.unlink()
        (server.data_dir / "logs").mkdir()
        server.launch()
        assert server.wait_exit() == 2
        assert "holds a log of its own" in server.log_text()


def test_a_cluster_that_is_away_is_waited_for(tmp_path: Path) -> None:
    later = KafkaServer(tmp_path / "kafka")
    with in_front_of(later, tmp_path / "server") as server:
        server.launch()
        server.process.wait_until(lambda: "Kafka does not answer" in server.log_text(), _SECONDS)
        for path in ("/readyz", "/v1/status"):
            status, body = server.get(path)
            assert (status, "Kafka unreachable since 2" in json.loads(body)["reason"]) == (
                503,
                True,
            )
        told = server.metrics()
        assert (told["pidlease_ready"], told["pidlease_standing_by"]) == (0, 0)
        with later:
            server.wait_ready(90)
            write(server, new_topic(server), 10)
            assert server.stop() == 0


def test_what_listens_there_is_no_kafka(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        other = PidleaseServer(tmp_path, settings={"log": "kafka", "upstream": f"127.0.0.1:{port}"})
        other.launch()
        try:
            connection, _ = listener.accept()
            connection.recv(100)
            connection.close()
            assert other.wait_exit() == 2
            assert "does it want TLS, or SASL" in other.log_text()
        finally:
            other.kill9()


@pytest.mark.parametrize(
    "settings", [{"log": "kafka"}, {"upstream": "127.0.0.1:9092"},
                 {"log": "kafka", "upstream": "nowhere"}]
)  # fmt: skip
def test_settings_that_do_not_fit(tmp_path: Path, settings: dict[str, str]) -> None:
    server = PidleaseServer(tmp_path, settings=settings)
    server.launch()
    assert server.wait_exit() != 0
    assert "upstream" in server.log_text()


def test_the_admin_is_told_by_kafka_what_is_wrong(server: PidleaseServer) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    made = admin.create_topics([NewTopic("spread", 1, replication_factor=3)])["spread"]
    with pytest.raises(KafkaException, match=r"[Rr]eplication factor"):
        made.result(_SECONDS)


async def test_what_clients_are_told_of_topics(server: PidleaseServer) -> None:
    """No leader epochs, which would not fit those of Kafka's other answers; and what is its own."""
    topic = new_topic(server)
    write(server, topic, 1)
    read(server.bootstrap, topic, 1)  # by a group: now Kafka has a topic for offsets,
    new_topic(server)  # and it is looked at again
    async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
        body = await client.call(METADATA, 9, topics=None)
    told = {each.name: each for each in body.topics}
    assert {part.leader_epoch for part in told[topic].partitions} == {-1}
    assert (told[topic].is_internal, told["__consumer_offsets"].is_internal) == (False, True)


def test_settings_of_brokers_are_not_asked_for_here(server: PidleaseServer) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    with pytest.raises(KafkaException, match="asked of Kafka itself"):
        admin.describe_configs([resource])[resource].result(_SECONDS)
