"""No client reaches the coordinator's topic through a server: it has PIDs, users and rights."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions, NewTopic

from pidlease.kafka.api import API_ADD_PARTITIONS_TO_TXN, API_DELETE_RECORDS, API_LIST_OFFSETS
from pidlease.kafka.client.transactions import SERVED_TOPIC
from pidlease.testing.loopback_ports import LOOPBACK
from tests.crash.readback import consume
from tests.http_api.appending import JSON
from tests.http_api.lives import ask
from tests.kafka_backend.test_kafka_coordination import IN_KAFKA
from tests.kafka_listener.client import INIT, WireClient, creation
from tests.kafka_listener.messages import INIT_PRODUCER_ID
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S

pytestmark = [needs_kafka, pytest.mark.kafka, pytest.mark.timeout(600)]
_ROW: Final = json.dumps({"content": "forged"}).encode()
_REFUSED: Final = 29
_UNKNOWN: Final = 3


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[KafkaServer, PidleaseServer]]:
    with (
        KafkaServer(tmp_path / "kafka") as kafka,
        in_front_of(kafka, tmp_path / "server", **IN_KAFKA) as server,
    ):
        server.start()
        yield kafka, server
        assert server.stop() == 0


def test_nothing_is_written_and_nothing_read(pair: tuple[KafkaServer, PidleaseServer]) -> None:
    kafka, server = pair
    errors: list[Any] = []
    for more in ({}, {"enable.idempotence": True}, {"transactional.id": "mallory"}):
        producer = Producer({
            "bootstrap.servers": server.bootstrap, "message.timeout.ms": 3000,
            "transaction.timeout.ms": 3000, **more,
        })  # fmt: skip
        if "transactional.id" in more:
            producer.init_transactions(WAIT_S)
            producer.begin_transaction()
        producer.produce(SERVED_TOPIC, _ROW, key=b"file/users", partition=0,
                         on_delivery=lambda error, _: errors.append(error))  # fmt: skip
        producer.flush(WAIT_S)
    assert len(errors) == 3
    assert all(errors), errors
    asyncio.run(_straight(server))

    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "g"})
    try:
        consumer.assign([TopicPartition(SERVED_TOPIC, 0, 0)])
        found = [each for _ in range(5) if (each := consumer.poll(1)) is not None]
        assert all(each.error() for each in found), found
        with pytest.raises(KafkaException):
            consumer.get_watermark_offsets(TopicPartition(SERVED_TOPIC, 0), timeout=5)
    finally:
        consumer.close()

    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, SERVED_TOPIC, {"retention.ms": "1"})
    for futures in (
        admin.delete_topics([SERVED_TOPIC]),
        admin.create_partitions([NewPartitions(SERVED_TOPIC, 2)]),
        admin.create_topics([NewTopic(SERVED_TOPIC, 1)]),
        admin.alter_configs([resource]), admin.describe_configs([resource]),
    ):  # fmt: skip
        for done in futures.values():
            with pytest.raises(KafkaException) as raised:
                done.result(WAIT_S)
            error = raised.value.args[0]
            assert isinstance(error, KafkaError)
            assert error.code() in (_REFUSED, _UNKNOWN), error
    body = json.dumps({"name": SERVED_TOPIC}).encode()
    assert ask(server, "POST", "/v1/topics", body, JSON)[0] == 403
    records, path = b'{"records": [{"value": "x"}]}', f"/v1/topics/{SERVED_TOPIC}"
    assert ask(server, "DELETE", path)[0] >= 400
    assert ask(server, "POST", f"{path}/partitions/0/records", records, JSON)[0] >= 400
    assert ask(server, "GET", f"{path}/partitions/0/records")[0] >= 400
    stored = consume(kafka.bootstrap, SERVED_TOPIC, 1, markers=True)
    assert stored
    assert _ROW not in {each.value for each in stored}


async def _straight(server: PidleaseServer) -> None:
    """As no library does: without a look at the metadata before."""
    port = int(server.bootstrap.rpartition(":")[2])
    async with await WireClient.connect(LOOPBACK, port) as client:
        values = {**INIT, "transactional_id": "direct"}
        begun = await client.call(INIT_PRODUCER_ID, 4, **values)
        topic = {"name": SERVED_TOPIC, "partitions": (0,)}
        added = await client.call(
            API_ADD_PARTITIONS_TO_TXN, 3, v3_and_below_transactional_id="direct",
            v3_and_below_producer_id=begun.producer_id,
            v3_and_below_producer_epoch=begun.producer_epoch, v3_and_below_topics=[topic],
        )  # fmt: skip
        (row,) = added.results_by_topic_v3_and_below
        assert {each.partition_error_code for each in row.results_by_partition} == {_REFUSED}
        sent = await client.produce(SERVED_TOPIC, b"", transactional_id="direct")
        assert sent.code == _REFUSED
        assert (await client.fetch(SERVED_TOPIC)).code == _UNKNOWN
        part = {"partition_index": 0, "timestamp": -1}
        listed = await client.call(
            API_LIST_OFFSETS, 2, replica_id=-1, isolation_level=0,
            topics=[{"name": SERVED_TOPIC, "partitions": [part]}],
        )  # fmt: skip
        assert listed.topics[0].partitions[0].error_code == _UNKNOWN
        deleted = await client.call(
            API_DELETE_RECORDS, 1, timeout=creation("x")["timeout"],
            topics=[{"name": SERVED_TOPIC, "partitions": [{"partition_index": 0, "offset": -1}]}],
        )  # fmt: skip
        assert deleted.topics[0].partitions[0].error_code == _UNKNOWN
        seen = await client.metadata(SERVED_TOPIC, create=True)
        assert seen.topics[0].error_code
        assert not seen.topics[0].partitions
