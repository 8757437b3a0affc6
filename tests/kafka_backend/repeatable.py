"""Appends that may be sent again: of producers, under idempotency keys and under names."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from pidlease.client import LeasedProducer
from tests.http_api.appending import RAW, path_of, producer
from tests.http_api.lives import ask
from tests.servers.pidlease import PidleaseServer
from tests.servers.waiting import WAIT_S


def append_until_taken(
    server: PidleaseServer, topic: str, partition: int, content: bytes, headers: dict[str, Any]
) -> dict[str, Any]:
    """Append a record, again while the error is one that may be retried."""
    deadline = time.monotonic() + WAIT_S
    while True:
        status, answer = ask(server, "POST", path_of(topic, partition), content,
                             {**RAW, **headers}, timeout_s=WAIT_S)  # fmt: skip
        if status == 200:
            return answer
        assert status in (404, 503), (status, answer)
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)


def repeatable(prefix: str, count: int) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Requests that may be sent again: of a producer, and under idempotency keys."""
    for number in range(count):
        yield b"%s-seq%d" % (prefix.encode(), number), producer(prefix, 0, number)
        key = {"idempotency-key": f'"{prefix}{number}"'}
        yield b"%s-key%d" % (prefix.encode(), number), key


async def resume_at(server: PidleaseServer, topic: str, name: str, partition: int) -> int:
    """Return where a name continues, by a lease that is asked for once more."""
    deadline = time.monotonic() + WAIT_S
    body = b'{"topic": "%s", "partition": %d, "name": "%s", "policy": "strict"}' % (
        topic.encode(), partition, name.encode(),
    )  # fmt: skip
    while True:
        status, answer = await asyncio.to_thread(
            ask, server, "POST", "/v1/leases", body, {"content-type": "application/json"}, WAIT_S
        )
        if status == 200:
            return int(answer["resume_at"])
        assert status in (404, 503), answer
        assert time.monotonic() < deadline, answer
        await asyncio.sleep(0.05)


async def send_named(
    server: PidleaseServer, topic: str, name: str, partition: int, count: int
) -> None:
    where = {"bootstrap_servers": server.bootstrap, "leases": server.http_url}
    async with LeasedProducer(**where, name=name) as leased:  # type: ignore[arg-type]
        for number in range(count):
            await leased.send_and_wait(topic, b"named%d" % number, partition=partition)
