"""Servers follow the producers' states of each other: a takeover and a new server read little."""

import http.client
import json
import re
import shutil
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

import pytest
from confluent_kafka import Producer

from tests.crash.seeds import new_random
from tests.kafka_backend.several import PARTITIONS, Member, Several, several
from tests.servers.pidlease import PidleaseServer
from tests.servers.test_kafka_server import needs_kafka
from tests.servers.waiting import WAIT_S, until

pytestmark = [needs_kafka, pytest.mark.kafka]

#: Records of each partition: more than what makes a takeover ask, and a server read again.
_RECORDS: Final = 15_000
_READ: Final = "pidlease_takeover_offsets_total"
_FETCHED: Final = "pidlease_partitions_fetched_total"


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    random = new_random("followed")
    # Snapshots at a stop only, so that all states come from the owners.
    folder = tmp_path_factory.mktemp("followed")
    with several(
        folder, random, coordination="kafka", snapshot_seconds="3600", snapshot_batches="1000000000"
    ) as running:
        yield running
        for each in running.members:
            if each.server.alive:
                assert each.server.stop() == 0


def _offsets(server: PidleaseServer, topic: str) -> list[int]:
    """Return up to which offset a server knows the producers of each partition."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=WAIT_S)
    body = json.dumps({"partitions": [[topic, number] for number in range(PARTITIONS)]})
    connection.request("POST", "/v1/servers/states/offsets", body,
                       {"content-type": "application/json"})  # fmt: skip
    response = connection.getresponse()
    found = json.loads(response.read())
    connection.close()
    assert response.status == 200, found
    return list(found["offsets"])


def _fill(some: Several, topic: str, count: int) -> None:
    """Append records to each partition; then one of another producer, for which the log is read."""
    for records in (count, 1):
        producer = Producer({
            "bootstrap.servers": some.bootstrap, "enable.idempotence": True, "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
        })  # fmt: skip
        for number in range(records):
            for partition in range(PARTITIONS):
                producer.produce(topic, b"%d" % number, partition=partition)
        assert producer.flush(WAIT_S) == 0


def _wait_until_followed(some: Several, topic: str, least: int) -> None:
    """Wait until a server that does not own it knows each partition that far."""

    def followed() -> bool:
        known = [_offsets(each.server, topic) for each in some.members if each.server.alive]
        return all(sorted(each)[-2] >= least for each in zip(*known, strict=True))

    until(followed, "the servers to follow each other")


def _owns(member: Member, topic: str | None = None) -> int:
    """Return how many partitions a server owns, of a topic or of all."""
    status, body = member.server.get("/v1/status")
    assert status == 200
    found = [each for each in json.loads(body)["partitions"] if topic in {None, each["topic"]}]
    return sum("elsewhere" not in each for each in found)


def _all_own_some(some: Several) -> bool:
    return all(map(_owns, some.members))


def test_a_takeover_reads_only_what_is_new(some: Several) -> None:
    topic = some.topic("followed")
    _fill(some, topic, _RECORDS)
    _wait_until_followed(some, topic, _RECORDS)
    read = sum(each.server.metric(_READ) for each in some.members[1:])
    lost = _owns(some.members[0], topic)
    assert lost
    some.members[0].server.kill()
    until(partial(_all_are_served, some, topic, 0), "the others to own all")
    read = sum(each.server.metric(_READ) for each in some.members[1:]) - read
    print(f"{lost} partitions with {_RECORDS} records each taken over: {read:.0f} offsets read")
    assert read < lost * _RECORDS / 100
    until(lambda: _is_shown(some.members[1].server), "the followed partitions to be shown")
    some.members[0].server.start()


def _is_shown(server: PidleaseServer) -> bool:
    """Return whether a server shows that it follows others."""
    shown = json.loads(server.get("/v1/servers")[1])["servers"]
    followed = [each for each in shown if each["followed"]]
    return bool(followed) and all(each["follower_lag_seconds"] is not None for each in followed)


def _all_are_served(some: Several, topic: str, but: int) -> bool:
    return sum(some.served(topic, but=but)) == PARTITIONS


def test_a_drained_server_hands_its_states_over(some: Several) -> None:
    """In a rolling restart no server reads much, although it takes less than two minutes."""
    topic = some.topic("drained")
    _fill(some, topic, _RECORDS)
    _wait_until_followed(some, topic, _RECORDS)
    for number, each in enumerate(some.members):
        others = [other for other in some.members if other is not each]
        read = sum(other.server.metric(_READ) for other in others)
        assert each.server.stop() == 0
        until(partial(_all_are_served, some, topic, number), "the others to own all")
        read = sum(other.server.metric(_READ) for other in others) - read
        assert read < PARTITIONS * _RECORDS / 100, f"server {number}"
        each.server.start()
        until(partial(_all_own_some, some), "each to own some again")
        _fill(some, topic, 1)


def test_a_server_without_its_directory_fetches_the_states(some: Several) -> None:
    """It would have to read all records that were appended since the cluster was served first."""
    topic = some.topic("fetched")
    _fill(some, topic, _RECORDS)
    _wait_until_followed(some, topic, _RECORDS)
    again = some.members[0].server
    again.kill()
    shutil.rmtree(again.data_dir)
    began = time.monotonic()
    again.start()
    until(partial(_all_own_some, some), "each to own some again")
    print(f"serving after {time.monotonic() - began:.1f} s")
    assert again.metric(_FETCHED) >= PARTITIONS
    read = re.findall(r"offsets_read=(\d+)", again.log_text())
    assert int(read[-1]) < PARTITIONS * _RECORDS / 100
    assert again.metric(_READ) < PARTITIONS * _RECORDS / 100
