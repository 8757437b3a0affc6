"""Idempotency keys in front of Kafka: what Kafka's log says of them is all that a start needs."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.crash.readback import consume
from tests.http_api.appending import RAW, path_of
from tests.http_api.lives import ask
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka

pytestmark = [needs_kafka, pytest.mark.kafka]

_KEYS = 12


def test_keys_outlive_kills(kafka: KafkaServer, tmp_path: Path) -> None:
    topic = f"i{uuid.uuid4().hex[:8]}"
    offsets: dict[int, int] = {}

    def send(server: PidleaseServer, number: int, content: bytes) -> tuple[int, dict[str, object]]:
        headers = {**RAW, "Idempotency-Key": f'"{number}"'}
        return ask(server, "POST", path_of(topic), content, headers, timeout_s=60)

    with in_front_of(kafka, tmp_path) as server:
        server.start()
        for number in range(_KEYS):
            status, answer = send(server, number, b"%d" % number)
            assert (status, answer["duplicate"]) == (200, False), answer
            offsets[number] = int(str(answer["offset"]))
            if number % 4 == 3:
                server.kill9()
                server.restart()
            for each, offset in offsets.items():
                assert send(server, each, b"%d" % each) == (
                    200, {"offset": offset, "duplicate": True},
                )  # fmt: skip
                for other in (b"x", b"y"):
                    assert send(server, each, other)[0] == 422
        assert server.stop() == 0
    stored = consume(kafka.bootstrap, topic, 1, markers=True)
    assert [each.value for each in stored] == [b"%d" % number for number in range(_KEYS)]
