"""What Kafka says of single records, and of the time of an append, reaches clients (KIP-467)."""

import asyncio
import uuid
from collections.abc import Callable
from typing import Any, Final

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, Message, Producer
from confluent_kafka.cimpl import NewTopic

from pidlease.kafka.records.identity_header import Identity
from pidlease.testing.loopback_ports import LOOPBACK
from tests.http_api.lives import ask
from tests.kafka_backend.new_topics import create_topic
from tests.kafka_backend.test_clients import read
from tests.kafka_listener.batches import batch, identified
from tests.kafka_listener.client import WireClient, produced
from tests.kafka_listener.messages import PRODUCE
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

pytestmark = [needs_kafka, pytest.mark.kafka]

_INVALID: Final = KafkaError.INVALID_RECORD
_ANOTHER_IS_INVALID: Final = KafkaError._INVALID_DIFFERENT_RECORD
_KEYS: Final = (b"a", None, b"b", b"c", None, b"d")
_CODES: Final = [_ANOTHER_IS_INVALID if key else _INVALID for key in _KEYS]
_BESIDE: Final[dict[str, dict[str, Any]]] = {
    "idempotent": {"enable.idempotence": True},
    "transactional": {"transactional.id": "record-errors"},
    "neither": {"enable.idempotence": False},
}


def _make(kafka: KafkaServer, **config: str) -> str:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    settings = {name.replace("_", "."): value for name, value in config.items()}
    create_topic(kafka.bootstrap, NewTopic(topic, 1, config=settings))
    return topic


def _send(
    bootstrap: str, topic: str, on_delivery: Callable[[KafkaError | None, Message], None],
    **settings: Any,
) -> None:  # fmt: skip
    """Send records with and without keys in one batch."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 200, **settings})
    if "transactional.id" in settings:
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
    for number, key in enumerate(_KEYS):
        producer.produce(topic, b"%d" % number, key, 0, on_delivery)
    assert producer.flush(WAIT_S) == 0


@pytest.mark.parametrize("kind", _BESIDE)
def test_valid_records_of_a_refused_batch_are_not_reported_as_invalid(
    kafka: KafkaServer, server: PidleaseServer, kind: str
) -> None:
    topic = _make(kafka, cleanup_policy="compact")
    for bootstrap in (kafka.bootstrap, server.bootstrap):
        codes: list[int] = []

        def told(error: KafkaError | None, _: Message, codes: list[int] = codes) -> None:
            codes.append(0 if error is None else error.code())

        _send(bootstrap, topic, told, **_BESIDE[kind])
        assert codes == _CODES, bootstrap


def _lease(server: PidleaseServer, topic: str) -> dict[str, Any]:
    """Lease a PID as soon as the server knows the topic."""
    body = f'{{"topic": "{topic}", "partition": 0}}'.encode()
    headers = {"content-type": "application/json"}
    answers: list[tuple[int, dict[str, Any]]] = []

    def leased() -> bool:
        answers.append(ask(server, "POST", "/v1/leases", body, headers))
        return answers[-1][0] == 200

    until(leased, f"a lease for {topic}")
    return answers[-1][1]


@pytest.mark.parametrize("version", [7, 8, 9])
async def test_record_errors_are_by_index(
    kafka: KafkaServer, server: PidleaseServer, version: int
) -> None:
    """Of a client's own batch, and of one that goes to Kafka under the partition's writer."""
    # The batches' records are years old.
    topic = _make(kafka, message_timestamp_before_max_ms="3600000")
    lease = await asyncio.to_thread(_lease, server, topic)
    async with await WireClient.connect(LOOPBACK, server.kafka_port) as client:
        pid = await client.lease()
        identity = Identity(lease["pid"], "", lease["generation"], 0, 1)
        for data in (
            batch([b"one", b"two"], pid, 0, 0),
            identified([b"one", b"two"], identity),
        ):
            answer = await client.call(PRODUCE, version, **produced([(topic, 0, data)]))
            part = answer.responses[0].partition_responses[0]
            assert part.error_code.value == KafkaError.INVALID_TIMESTAMP
            if version >= 8:
                assert [each.batch_index for each in part.record_errors] == [0, 1]
                assert all(
                    "imestamp" in each.batch_index_error_message for each in part.record_errors
                )
                assert "One or more records have been rejected" in part.error_message


def test_the_time_of_an_append_is_that_of_the_log(
    kafka: KafkaServer, server: PidleaseServer
) -> None:
    topic = _make(kafka, message_timestamp_type="LogAppendTime")
    reported: list[tuple[int, int]] = []

    def told(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        reported.append(message.timestamp())

    for settings in _BESIDE.values():
        if "transactional.id" not in settings:
            _send(server.bootstrap, topic, told, **settings)
    stored = [each.timestamp() for each in read(server.bootstrap, topic, len(reported))]
    assert reported == stored
    assert {kind for kind, _ in stored} == {TIMESTAMP_LOG_APPEND_TIME}
