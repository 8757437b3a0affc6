"""The HTTP door in this process, over a real engine and its Kafka door."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from fastapi import FastAPI

from pidlease.core.packed import fold_packed
from pidlease.core.rules import STRICT
from pidlease.core.state import Batch
from pidlease.engine.partition import Partition
from proxy.http.console_answers import ConsoleSources
from proxy.http.http_listener import add_http_api
from tests.http_api.openapi_check import openapi_hooks
from tests.kafka_listener.harness import Server, Wanted, serving


def append_state(partition: Partition, pid: int, batch: Batch, offset: int) -> None:
    """Have a producer of policy strict known on a partition, as if a batch stood in its log."""
    partition._leases.adopt(pid, partition)
    partition.producers[pid] = fold_packed(STRICT, None, batch, offset, partition._clock_ms())


class Http(NamedTuple):
    """The door, and what is behind it."""

    client: httpx.AsyncClient
    server: Server

    async def post(self, path: str, body: object) -> tuple[int, dict[str, Any]]:
        response = await self.client.post(path, json=body)
        return response.status_code, response.json()

    async def get(self, path: str, **query: object) -> tuple[int, dict[str, Any]]:
        response = await self.client.get(path, params=query)  # type: ignore[arg-type]
        return response.status_code, response.json()

    async def lease(
        self, topic: str = "t", partition: int = 0, pid: int = -1, **more: object
    ) -> dict[str, Any]:
        body = {"topic": topic, "partition": partition, "pid": pid, **more}
        status, answer = await self.post("/v1/leases", body)
        assert status == 200, answer
        return answer


@asynccontextmanager
async def http(
    folder: Path, wanted: Wanted | None = None, console: ConsoleSources | None = None
) -> AsyncIterator[Http]:
    async with serving(folder, wanted) as server:
        app = FastAPI()
        server.engine.ready = True
        add_http_api(app, lambda: server.engine, lambda: server.topics, console=console)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://pidlease", event_hooks=openapi_hooks()
        ) as client:
            yield Http(client, server)
