"""Clients that are too old, or ask for what is not there: told so, and nobody else notices."""

import struct
from pathlib import Path
from random import Random

import pytest

from tests.kafka_backend.spoiling import Answer, Spoiler, Wire, framed
from tests.kafka_backend.test_clients import new_topic, read, write
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import WireClient
from tests.kafka_listener.messages import API_VERSIONS, FETCH, METADATA, PRODUCE, decode_response
from tests.servers.kafka import KafkaServer
from tests.servers.pidlease import PidleaseServer, in_front_of
from tests.servers.test_kafka_server import needs_kafka

pytestmark = [needs_kafka, pytest.mark.kafka]

_UNSUPPORTED_VERSION = 35
#: Not passed on: LeaderAndIsr, DescribeAcls, telemetry, DescribeTopicPartitions.
_NOT_PASSED_ON = (4, 29, 71, 75)
_NO_REQUESTS = (
    b"GET / HTTP/1.1\r\n\r\n",
    struct.pack(">i", -1) * 8,
    struct.pack(">i", 2**31 - 1) * 8,
    struct.pack(">ihhih", 13, PRODUCE, 3, 7, 3) + b"old",
)
_UNKNOWN = (999, -1, 32767)


async def served(client: WireClient) -> dict[int, tuple[int, int]]:
    body = await client.call(API_VERSIONS, 0)
    return {each.api_key: (each.min_version, each.max_version) for each in body.api_keys}


def request(key: int, version: int, client_id: bytes = b"old") -> bytes:
    """A request without a body."""
    return struct.pack(">hhih", key, version, 7, len(client_id)) + client_id


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
async def test_api_versions_that_are_not_known_are_answered_in_version_0(
    server: PidleaseServer, version: int
) -> None:
    """The one answer that every client understands (KIP-511); and the connection goes on."""
    async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
        client.send_frame(request(API_VERSIONS, version))
        correlation_id, body = decode_response(API_VERSIONS, 0, await client.receive_frame())
        assert (correlation_id, int(body.error_code)) == (7, _UNSUPPORTED_VERSION)
        (own,) = body.api_keys
        assert (own.api_key, own.min_version, own.max_version) == (API_VERSIONS, 0, 4)
        assert METADATA in await served(client)


async def test_versions_below_and_above_what_is_served(server: PidleaseServer) -> None:
    """No answer fits a version that is not known; so as Kafka does: the end, and why in the log."""
    async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
        ranges = await served(client)
    assert ranges.pop(API_VERSIONS) == (0, 4)
    asked = [
        (key, version) for key, (low, high) in ranges.items() for version in (low - 1, high + 1)
    ]
    asked += [(PRODUCE, version) for version in range(3)]  # advertised for librdkafka's sake
    for key, version in asked:
        before = len(server.log_text())
        async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
            client.send_frame(request(key, version))
            assert await client.is_closed(), (key, version)
        told = server.log_text()[before:]
        assert "connection closed" in told
        assert f"API {key} version {version} from client 'old'" in told
        assert "see ApiVersions" in told


async def test_apis_that_are_not_passed_on(kafka: KafkaServer, server: PidleaseServer) -> None:
    port = int(kafka.bootstrap.rpartition(":")[2])
    async with await WireClient.connect("127.0.0.1", port) as direct:
        of_kafka = await served(direct)
    async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
        ours = await served(client)
    missing = sorted(of_kafka.keys() - ours.keys())
    assert {29, 75} <= set(missing)
    for key in {*missing, *_NOT_PASSED_ON, *_UNKNOWN}:
        assert key not in ours
        before = len(server.log_text())
        async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
            client.send_frame(request(key, 0))
            assert await client.is_closed(), key
        assert (
            f"API {key} version 0 from client 'old'; this API is not served here"
            in (server.log_text()[before:])
        )


async def test_versions_that_only_one_side_knows(
    kafka: KafkaServer, server: PidleaseServer
) -> None:
    """What goes through as it came is served in versions that Kafka knows, too."""
    port = int(kafka.bootstrap.rpartition(":")[2])
    async with await WireClient.connect("127.0.0.1", port) as direct:
        of_kafka = await served(direct)
    async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
        ours = await served(client)
    for key in ours.keys() - {METADATA, 10, API_VERSIONS, 60, PRODUCE}:
        (low, high), (lowest, highest) = ours[key], of_kafka[key]
        assert lowest <= low <= high <= highest, key
    assert (ours[PRODUCE][1], ours[FETCH][1]) == (9, 11)


_DESCRIBE_PRODUCERS, _CONSUMER_GROUPS = 61, 68
_OLDER = {FETCH: (4, 8), 2: (1, 3)}


def _older(answer: Answer, _: Random) -> Wire:
    """What an older Kafka says of itself: it lacks some APIs, and some versions of others."""
    body = decode_response(API_VERSIONS, 0, answer.frame)[1]
    rows = [
        (int(each.api_key), *_OLDER.get(each.api_key, (int(each.min_version), each.max_version)))
        for each in body.api_keys
        if each.api_key not in (_DESCRIBE_PRODUCERS, _CONSUMER_GROUPS)
    ]
    head = answer.frame[:4] + struct.pack(">hi", 0, len(rows))
    return Wire(framed(head + b"".join(struct.pack(">hhh", *row) for row in rows)))


async def test_a_kafka_that_lacks_some_apis(tmp_path: Path) -> None:
    kafka = KafkaServer(tmp_path / "kafka", listeners={"RELAYED": "PLAINTEXT"})
    port = int(kafka.listeners["RELAYED"].rpartition(":")[2])
    with Spoiler(port, Random(0)) as spoiler:
        spoiler.always[API_VERSIONS] = _older
        kafka.advertised["RELAYED"] = spoiler.bootstrap  # all of its connections
        with (
            kafka,
            in_front_of(kafka, tmp_path / "server", upstream=spoiler.bootstrap) as server,
        ):
            server.start()
            async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
                ours = await served(client)
            assert not {_DESCRIBE_PRODUCERS, _CONSUMER_GROUPS} & ours.keys()
            assert (ours[FETCH], ours[2]) == ((4, 8), (1, 3))
            for key, version in ((_DESCRIBE_PRODUCERS, 0), (_CONSUMER_GROUPS, 0), (FETCH, 9)):
                async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
                    client.send_frame(request(key, version))
                    assert await client.is_closed(), key
                assert f"API {key} version {version} from client 'old'" in server.log_text()
            topic = new_topic(server, 1)
            write(server, topic, 100)
            assert len(read(server.bootstrap, topic, 100)) == 100
            assert server.stop() == 0


async def test_what_is_no_request_disturbs_nobody(
    kafka: KafkaServer, server: PidleaseServer
) -> None:
    """A producer beside it, on the same server and in the middle of its work, gets on."""
    topic = new_topic(server, 1)
    pid = server.pid
    async with await WireClient.connect("127.0.0.1", server.kafka_port) as calm:
        leased = await calm.lease()
        for number in range(20):
            async with await WireClient.connect("127.0.0.1", server.kafka_port) as client:
                client.send_bytes(_NO_REQUESTS[number % len(_NO_REQUESTS)])
                answer = await calm.produce(topic, batch([b"%d" % number], leased, 0, number))
                assert (answer.code, answer.offset) == (0, number)
                assert await client.is_closed()
    stored = read(kafka.bootstrap, topic, 20)
    assert [each.value() for each in stored] == [b"%d" % number for number in range(20)]
    assert (server.pid, server.alive) == (pid, True)
