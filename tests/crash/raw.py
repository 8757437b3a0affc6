"""What no real client says: PIDs leased and not used, batches that do not start at 0; offsets."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import httpx

from pidlease.testing.loopback_ports import LOOPBACK
from tests.kafka_listener.admin_requests import (
    BROKER,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    SET,
    alteration,
    config_question,
)
from tests.kafka_listener.batches import batch
from tests.kafka_listener.client import INIT, WireClient, answers_of, creation, produced
from tests.kafka_listener.group_requests import (
    OFFSET_COMMIT,
    OFFSET_FETCH,
    codes_of,
    committing,
    fetched_offsets,
    fetching,
)
from tests.kafka_listener.messages import CREATE_TOPICS, INIT_PRODUCER_ID, PRODUCE
from tests.servers.pidlease import PidleaseServer

_GAP = 45
_EXISTS = 36
_LOADING = 14


def quietly(work: Coroutine[Any, Any, None]) -> None:
    """Do something with a server that may die meanwhile."""
    with suppress(OSError, EOFError, TimeoutError):
        asyncio.run(work)


def surely(work: Coroutine[Any, Any, None]) -> None:
    """Do something with a server that lives."""
    asyncio.run(work)


def connect(server: PidleaseServer) -> Coroutine[Any, Any, WireClient]:
    """A connection of our own."""
    return WireClient.connect(LOOPBACK, server.kafka_port)


async def lease(server: PidleaseServer, count: int, pids: list[int]) -> None:
    """Lease PIDs; each is in the list as soon as it was answered, and was never there before."""
    async with await connect(server) as client:
        for _ in range(count):
            pid = await lease_on(client)
            assert pid not in pids, f"PID {pid} was leased twice"
            pids.append(pid)


async def lease_on(client: WireClient) -> int:
    """One PID, by a connection that waits while the next block is being taken."""
    while True:
        body = await client.call(INIT_PRODUCER_ID, 4, **INIT)
        if body.error_code != _LOADING:
            assert (body.error_code, body.producer_epoch) == (0, 0), body
            return int(body.producer_id)
        await asyncio.sleep(0.005)


async def check_virgins(server: PidleaseServer, topic: str, parts: int, pids: list[int]) -> None:
    """PIDs that never wrote start at 0 on every partition: nothing else is let in."""
    async with await connect(server) as client:
        for pid in pids:
            data = batch([b"not/0/0 the first"], pid, 0, 4)
            values = produced([(topic, partition, data) for partition in range(parts)])
            answers = answers_of(await client.call(PRODUCE, 9, **values))
            codes = [answer.code for answer in answers]
            assert codes == [_GAP] * parts, f"PID {pid} never wrote, and began at 4: {answers}"


async def begin(server: PidleaseServer, topic: str, partition: int, pid: int, text: bytes) -> None:
    """A PID that never wrote writes, from 0."""
    async with await connect(server) as client:
        answer = await client.produce(topic, batch([text], pid, 0, 0), partition=partition)
        assert answer.code == 0, answer


async def make_topic(server: PidleaseServer, topic: str, partitions: int) -> None:
    """Make a topic, if it is not there."""
    async with await connect(server) as client:
        body = await client.call(CREATE_TOPICS, 5, **creation(topic, partitions))
        assert body.topics[0].error_code in (0, _EXISTS), body.topics[0]


#: What is set for all topics in turn: what the clients of these tests use is in all of them.
_POLICIES = ("none,kafka", "none,kafka,epoch", "none,kafka,monotonic", "none,strict,kafka")


async def set_defaults(server: PidleaseServer, number: int, told: list[int]) -> None:
    """Change what is set for all topics; it is in the list as soon as it was answered."""
    value = _POLICIES[number % len(_POLICIES)]
    async with await connect(server) as client:
        change = ("pidlease.policies", SET, value)
        values = alteration("", change, kind=BROKER)
        (result,) = (await client.call(INCREMENTAL_ALTER_CONFIGS, 1, **values)).responses
        assert result.error_code == 0, result
        told.append(number)


async def check_defaults(server: PidleaseServer, asked: int, told: list[int]) -> None:
    """What was answered is there, or what was asked for after it."""
    async with await connect(server) as client:
        values = config_question((BROKER, ""))
        (result,) = (await client.call(DESCRIBE_CONFIGS, 4, **values)).results
        found = [each.value for each in result.configs]
        may_be = range(told[-1] if told else 0, asked + 1)
        fitting = [number for number in may_be if [_POLICIES[number % len(_POLICIES)]] == found]
        assert fitting or (not told and not found), (found, asked, told)
        told += fitting[:1]  # and what was told is not to be older later either


async def grant(server: PidleaseServer, topic: str, told: list[tuple[int, int]]) -> None:
    """Lease by a name: always the same PID, and each generation once; in the list when answered."""
    async with httpx.AsyncClient(base_url=server.http_url) as client:
        body = {"topic": topic, "partition": 0, "name": "raw"}
        try:
            response = await client.post("/v1/leases", json=body)
        except httpx.TransportError as error:
            raise ConnectionError(str(error)) from error  # it died meanwhile
        assert response.status_code == 200, response.text
        lease = response.json()
        found = (lease["pid"], lease["generation"])
        assert not told or (found[0] == told[-1][0] and found[1] > told[-1][1]), (found, told[-1])
        told.append(found)


async def commit(server: PidleaseServer, topic: str, offset: int, told: list[int]) -> None:
    """Commit an offset of a group; it is in the list as soon as it was answered."""
    async with await connect(server) as client:
        body = await client.call(OFFSET_COMMIT, 9, **committing("raw", topic, {0: offset}))
        assert codes_of(body) == [0], body
        told.append(offset)


async def check_committed(server: PidleaseServer, topic: str, told: list[int]) -> None:
    """What was answered once is there, or what was committed after it."""
    async with await connect(server) as client:
        body = await client.call(OFFSET_FETCH, 9, **fetching("raw", {topic: [0]}))
        ((code, offset, _),) = fetched_offsets(body).values()
        assert code == 0
        assert offset >= (told or [-1])[-1], f"{offset} is committed, and {told[-1]} was"
        told.append(offset)  # and what was told is not to be older later either
