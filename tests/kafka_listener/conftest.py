"""The door runs on uvloop here, as it does when it serves."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from tests.kafka_listener.client import WireClient
from tests.kafka_listener.harness import Server, serving


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path / "data") as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[WireClient]:
    async with await server.connect() as connected:
        yield connected
