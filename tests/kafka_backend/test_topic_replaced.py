"""A topic is deleted in Kafka, and created again: nothing of the former one is acknowledged."""

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.crash.readback import consume
from tests.crash.seeds import SOAK, new_random
from tests.http_api.lives import ask
from tests.kafka_backend.repeatable import (
    append_until_taken,
    repeatable,
    resume_at,
    send_named,
)
from tests.kafka_backend.several import PARTITIONS, Several, several
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

pytestmark = [needs_kafka, pytest.mark.kafka, pytest.mark.timeout(7200 if SOAK else 900)]

_SENT: Final = 8
_ROUNDS: Final = 20 if SOAK else 2
#: The metadata is not refreshed by itself: whatever shows the new topic, it is not that.
_NEVER: Final = "3600"


def _delete(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(WAIT_S)


def _create(bootstrap: str, topic: str, partitions: int) -> None:
    """Create a topic; Kafka may not have removed the former one yet."""
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def is_made() -> bool:
        made = admin.create_topics([NewTopic(topic, partitions)])[topic]
        return made.exception(WAIT_S) is None

    until(is_made, "the topic to be made again")


def _read(bootstrap: str, topic: str, partitions: int) -> list[bytes]:
    return [each.value for each in consume(bootstrap, topic, partitions, markers=True)]


@pytest.mark.parametrize("number", range(_ROUNDS))
def test_by_kafkas_own_tools(kafka: KafkaServer, tmp_path: Path, number: int) -> None:
    random = new_random(f"replaced-{number}")
    topic = f"r{uuid.uuid4().hex[:8]}"
    with in_front_of(kafka, tmp_path, upstream_metadata_seconds=_NEVER) as server:
        server.start()
        _create(server.bootstrap, topic, 1)
        requests = list(repeatable("p", _SENT))
        for content, headers in requests:
            assert not append_until_taken(server, topic, 0, content, headers)["duplicate"]
        asyncio.run(send_named(server, topic, "n", 0, _SENT))
        content, headers = requests[0]
        assert append_until_taken(server, topic, 0, content, headers)["duplicate"]
        _delete(kafka.bootstrap, topic)
        _create(kafka.bootstrap, topic, 1)
        first: list[Callable[[], None]] = [
            partial(_check_stored, server, topic, requests),
            partial(_check_resumes, server, topic),
        ]
        random.shuffle(first)
        for each in first:
            each()
        found = _read(kafka.bootstrap, topic, 1)
        assert sorted(found) == sorted(content for content, _ in requests)
        assert "is another topic now" in server.log_text()
        assert server.stop() == 0


def _check_stored(
    server: PidleaseServer, topic: str, requests: list[tuple[bytes, dict[str, Any]]]
) -> None:
    for content, headers in requests:
        assert not append_until_taken(server, topic, 0, content, headers)["duplicate"], content


def _check_resumes(server: PidleaseServer, topic: str) -> None:
    assert asyncio.run(resume_at(server, topic, "n", 0)) == 0


@pytest.mark.parametrize("number", range(_ROUNDS))
def test_a_producer_of_kafkas_own_goes_on(kafka: KafkaServer, tmp_path: Path, number: int) -> None:
    """As against Kafka itself: it does not notice; what it sends is in the new topic."""
    random = new_random(f"goes-on-{number}")
    topic = f"g{uuid.uuid4().hex[:8]}"
    failed: list[Any] = []
    with in_front_of(kafka, tmp_path, upstream_metadata_seconds=_NEVER) as server:
        server.start()
        _create(server.bootstrap, topic, 1)
        client = Producer(
            {"bootstrap.servers": server.bootstrap, "enable.idempotence": True, "linger.ms": 0}
        )

        def send(first: int, end: int) -> None:
            for at in range(first, end):
                client.produce(topic, b"%d" % at, partition=0,
                               on_delivery=lambda error, _: failed.append(error))  # fmt: skip
                if random.random() < 0.3:
                    assert client.flush(WAIT_S) == 0
            assert client.flush(WAIT_S) == 0

        send(0, 20)
        _delete(kafka.bootstrap, topic)
        _create(kafka.bootstrap, topic, 1)
        send(20, 40)
        assert failed == [None] * 40
        assert _read(kafka.bootstrap, topic, 1) == [b"%d" % at for at in range(20, 40)]
        assert server.stop() == 0


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    random = new_random("replaced")
    folder = tmp_path_factory.mktemp("replaced")
    with several(folder, random, coordination="kafka", upstream_metadata_seconds=_NEVER) as running:
        yield running
        assert [each.server.stop() for each in running.members] == [0, 0, 0]


@pytest.mark.parametrize("number", range(_ROUNDS))
def test_through_another_server(some: Several, number: int) -> None:
    """Deleted and made by one server, for the partitions of others; none may know it yet."""
    random = new_random(f"elsewhere-{number}")
    topic = f"e{uuid.uuid4().hex[:8]}"
    via = some.members[random.randrange(3)].server
    _create(via.bootstrap, topic, PARTITIONS)
    until(lambda: sum(some.served(topic)) == PARTITIONS, "all partitions to be served")
    owners = {each: some.members[some.owner(topic, each)].server for each in range(PARTITIONS)}
    others = [each for each, owner in owners.items() if owner is not via]
    assert others, "this server owns all of it"
    requests = {each: list(repeatable(f"p{each}", _SENT)) for each in range(PARTITIONS)}
    for partition, some_requests in requests.items():
        for content, headers in some_requests:
            server = owners[partition]
            answer = append_until_taken(server, topic, partition, content, headers)
            assert not answer["duplicate"]
    _delete(via.bootstrap, topic)
    time.sleep(random.random() * 0.2)
    _create(via.bootstrap, topic, PARTITIONS)
    partitions = list(requests)
    random.shuffle(partitions)
    for partition in partitions:
        for content, headers in requests[partition]:
            answer = append_until_taken(owners[partition], topic, partition, content, headers)
            assert not answer["duplicate"], (partition, content)
    found = _read(some.kafka.bootstrap, topic, PARTITIONS)
    assert sorted(found) == sorted(content for each in requests.values() for content, _ in each)
    some.drop(topic)


def test_others_learn_of_a_deletion_at_once(some: Several) -> None:
    topic = f"d{uuid.uuid4().hex[:8]}"
    _create(some.members[0].server.bootstrap, topic, PARTITIONS)
    until(lambda: sum(some.served(topic)) == PARTITIONS, "all partitions to be served")
    began = time.monotonic()
    _delete(some.members[0].server.bootstrap, topic)
    until(lambda: not any(_lists(each.server, topic) for each in some.members), "it to be gone")
    assert time.monotonic() - began < WAIT_S / 2, "long before the metadata are refreshed"


def _lists(server: PidleaseServer, topic: str) -> bool:
    return ask(server, "GET", f"/v1/topics/{topic}")[0] == 200
