"""Many producers that lease a PID and append one record each, through several servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from confluent_kafka.admin import AdminClient

from pidlease.kafka.records.identity_header import Identity
from tests.benchmarks.scale.leases import lease_all
from tests.kafka_listener.batches import identified
from tests.kafka_listener.client import WireClient
from tests.kafka_listener.messages import PRODUCE
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S

#: Batches in a request, each of another producer and for another partition.
_BATCHES_MAX = 100
_IN_FLIGHT = 4

#: A partition, and a batch for it.
_Batch = tuple[int, bytes]


def fill(servers: Sequence[PidleaseServer], topic: str, partitions: int, producers: int) -> None:
    """Let producers append one record each, evenly to all partitions.

    Parameters:
        servers: each gets the batches for its own partitions.

    Raises:
        RuntimeError: a batch was refused.
    """
    asyncio.run(_fill(servers, topic, partitions, producers))


async def _fill(
    servers: Sequence[PidleaseServer], topic: str, partitions: int, producers: int
) -> None:
    leases = await lease_all(servers[0].http_port, topic, producers)
    owned = await asyncio.to_thread(_owned, servers, topic)
    batches: dict[int, list[_Batch]] = {port: [] for port in owned.values()}
    for number, lease in enumerate(leases):
        partition = number % partitions
        identity = Identity(lease["pid"], "", lease["generation"], 0, 0)
        value = b"filled/%d/%d " % (partition, number // partitions)
        batches[owned[partition]].append((partition, identified([value], identity)))
    await asyncio.gather(*(_append_all(port, topic, each) for port, each in batches.items()))


def _owned(servers: Sequence[PidleaseServer], topic: str) -> Mapping[int, int]:
    """The port of each partition's owner."""
    admin = AdminClient({"bootstrap.servers": servers[0].bootstrap})
    found = admin.list_topics(topic, WAIT_S)
    ports = {number: each.port for number, each in found.brokers.items()}
    return {number: ports[each.leader] for number, each in found.topics[topic].partitions.items()}


def _requests(batches: Sequence[_Batch]) -> Iterator[list[_Batch]]:
    for start in range(0, len(batches), _BATCHES_MAX):
        # A request has one batch for a partition.
        waiting = batches[start : start + _BATCHES_MAX]
        while waiting:
            request = dict(reversed(waiting))
            yield list(request.items())
            waiting = [each for each in waiting if request[each[0]] is not each[1]]


async def _append_all(port: int, topic: str, batches: Sequence[_Batch]) -> None:
    async with await WireClient.connect("127.0.0.1", port) as client:
        client.timeout_s = 10 * WAIT_S
        in_flight = 0
        for request in _requests(batches):
            parts = [{"index": partition, "records": data} for partition, data in request]
            client.send(PRODUCE, 9, transactional_id=None, acks=-1,
                        timeout=timedelta(seconds=WAIT_S),
                        topic_data=[{"name": topic, "partition_data": parts}])  # fmt: skip
            in_flight += 1
            if in_flight == _IN_FLIGHT:
                await _received(client)
                in_flight -= 1
        for _ in range(in_flight):
            await _received(client)


async def _received(client: WireClient) -> None:
    body = await client.receive()
    refused = {each.error_code for one in body.responses for each in one.partition_responses} - {0}
    if refused:
        raise RuntimeError(f"batches were refused with {refused}")
