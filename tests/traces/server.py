"""The whole server in the event loop of a test, built as `pidlease serve` builds it."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pidlease.testing.loopback_ports import LOOPBACK, free_ports
from proxy.app import App
from proxy.configuration.settings import Settings
from tests.kafka_listener.client import WireClient
from tests.traces.tracer import Tracer


class Traced(NamedTuple):
    """A server whose threads are traced."""

    app: App
    tracer: Tracer
    kafka_port: int
    http_url: str

    async def connect(self) -> WireClient:
        return await WireClient.connect(LOOPBACK, self.kafka_port)


@asynccontextmanager
async def traced(folder: Path, **settings: Any) -> AsyncIterator[Traced]:
    """Serve on free ports, without signal handlers, which belong to the test run."""
    kafka_port, http_port = free_ports(2)
    kafka, http = f"{LOOPBACK}:{kafka_port}", f"{LOOPBACK}:{http_port}"
    wanted = Settings(data_dir=folder, kafka_listen=kafka, http_listen=http, **settings)
    with Tracer() as tracer:
        app = App(wanted, lambda: wanted)
        try:
            await app._start()
            yield Traced(app, tracer, kafka_port, f"http://{http}")
        finally:
            await app._stop(0.0)
            gc.unfreeze()
