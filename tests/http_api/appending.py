"""What the tests of records share: a door with a topic, and requests for it."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from pidlease.engine.partition import Partition
from pidlease.http_api.record_messages import RecordsAnswer
from pidlease.storage.topics.topic_store import Topic
from pidlease.testing.loopback_ports import LOOPBACK
from proxy.http.connection_limit import ConnectionLimit
from proxy.http.http_listener import add_http_api
from proxy.http.http_protocol import http_config
from proxy.http.http_server import HttpServer
from proxy.http.immediate_appends import ImmediateAppends
from proxy.http.record_routes import RecordLimits
from tests.client.harness import until
from tests.http_api.openapi_check import openapi_hooks
from tests.kafka_listener.harness import Server, Wanted, serving

RAW: Final = {"content-type": "application/octet-stream"}
JSON: Final = {"content-type": "application/json"}
#: The first request of Java's client, which offers HTTP/2.
OFFERS: Final = (
    b"GET /v1/topics HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\n"
    b"upgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAAAAMAAAAAAAQBAAAAAAUAAEAAAAYABgAA\r\n\r\n"
)
Answer = tuple[int, dict[str, Any]]


def path_of(topic: str = "t", partition: object = 0) -> str:
    return f"/v1/topics/{topic}/partitions/{partition}/records"


def post(content: bytes, *headers: str, partition: int = 0) -> bytes:
    """An append of one value, as it is on the wire."""
    lines = [f"POST {path_of(partition=partition)} HTTP/1.1", "host: x"]
    lines += [f"content-type: {RAW['content-type']}", f"content-length: {len(content)}", *headers]
    return "\r\n".join((*lines, "", "")).encode() + content


def producer(name: str | bytes, epoch: object, seq: object) -> dict[str, str | bytes]:
    """The headers of a producer of policy epoch."""
    return {"producer-id": name, "producer-epoch": str(epoch), "producer-seq": str(seq)}


def values(*content: str) -> dict[str, Any]:
    return {"records": [{"value": each} for each in content]}


class Door(NamedTuple):
    """A door with a topic of two partitions, `t`."""

    app: FastAPI
    client: httpx.AsyncClient
    server: Server
    close: Callable[[], None]

    @property
    def partition(self) -> Partition:
        found = self.server.engine.partition("t", 0)
        assert found is not None
        return found

    async def append(
        self,
        body: object,
        headers: Mapping[str, str | bytes] | None = None,
        *,
        topic: str = "t",
        partition: object = 0,
    ) -> Answer:
        pairs = _headers({**JSON, **(headers or {})})
        content = json.dumps(body).encode()
        response = await self.client.post(path_of(topic, partition), content=content, headers=pairs)
        return response.status_code, response.json()

    async def raw(
        self,
        content: bytes,
        headers: Mapping[str, str | bytes] | Sequence[tuple[str, str | bytes]] | None = None,
    ) -> Answer:
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        if not any(name == "content-type" for name, _ in pairs):
            pairs += RAW.items()
        response = await self.client.post(path_of(), content=content, headers=_headers(pairs))
        return response.status_code, response.json()

    async def read(self, partition: object = 0, topic: str = "t", **query: Any) -> Answer:
        response = await self.client.get(path_of(topic, partition), params=query)
        return response.status_code, response.json()

    async def records(self, partition: int = 0, **query: int) -> RecordsAnswer:
        response = await self.client.get(path_of("t", partition), params=query)
        assert response.status_code == 200, response.text
        return RecordsAnswer.model_validate_json(response.content)

    async def lease(self) -> dict[str, Any]:
        """What a request says of a fresh PID, but for the sequence."""
        response = await self.client.post("/v1/leases", json={"topic": "t", "partition": 0})
        assert response.status_code == 200, response.text
        lease = response.json()
        return {"pid": lease["pid"], "generation": lease["generation"]}


def _headers(given: Any) -> list[tuple[bytes, bytes]]:
    pairs = given.items() if isinstance(given, Mapping) else given or ()
    return [
        (name.encode(), value.encode() if isinstance(value, str) else value)
        for name, value in pairs
    ]


@asynccontextmanager
async def door(
    folder: Path,
    wanted: Wanted | None = None,
    limits: RecordLimits | None = None,
    overrides: Mapping[str, str] | None = None,
) -> AsyncIterator[Door]:
    """A door in this process, asked without a network between."""
    async with serving(folder, wanted) as server:
        app = FastAPI()
        server.engine.ready = True
        api = add_http_api(app, lambda: server.engine, lambda: server.topics, limits)
        app.state.immediate = ImmediateAppends(api, lambda *_: None)
        if "t" not in server.engine.topics:
            await server.engine.create_topic(Topic.new("t", 2, dict(overrides or {})))
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://pidlease", event_hooks=openapi_hooks()
        ) as client:
            yield Door(app, client, server, api.close)


@asynccontextmanager
async def listening(
    app: Starlette,
    limit: ConnectionLimit | None = None,
    tls: ssl.SSLContext | None = None,
    stop_seconds: int | None = None,
) -> AsyncIterator[int]:
    """The port of a real HTTP server in front of a door; it serves small appends at once.

    Parameters:
        stop_seconds: how long its stop waits for requests; None: until they are done.
    """
    # With its protocol said, or asyncio does not know it for TCP, and waits to fill packets.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # What a client does not take is to stay with us, not in a buffer that the system makes large.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
    listener.bind((LOOPBACK, 0))
    immediate = getattr(app.state, "immediate", None)
    config = http_config(app, stop_seconds, immediate, limit)
    config.load()
    config.ssl = tls
    running = HttpServer(config, [listener])
    task = asyncio.create_task(running._serve())
    await until(lambda: getattr(running, "servers", ()))  # it listens
    try:
        yield listener.getsockname()[1]
    finally:
        running.should_exit = True
        await task


def noted_submits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each request that is tried from now on, whether it was submitted in the protocol."""
    tried: list[bool] = []
    submit = ImmediateAppends.submit

    def noted(self: ImmediateAppends, *given: Any) -> bool:
        tried.append(submit(self, *given))
        return tried[-1]

    monkeypatch.setattr(ImmediateAppends, "submit", noted)
    return tried
