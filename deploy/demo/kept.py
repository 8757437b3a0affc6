"""What is left to look at when the demo is over: its metrics, or the server itself."""

import asyncio
from pathlib import Path
from typing import Final

from rich.console import Console

from deploy.demo.proxy_process import Proxy

#: Where the metrics of a run are, in its directory.
METRICS: Final = "metrics.prom"


async def save_metrics(proxy: Proxy, directory: Path) -> None:
    """Save what the last life of a server told Prometheus."""
    _, page = await proxy.get("/metrics")
    await asyncio.to_thread((directory / METRICS).write_text, page)


def name_metrics(console: Console, directory: Path) -> None:
    """Say where the metrics are."""
    console.print(
        f"metrics: a running server has them at /metrics of its HTTP port; those of part one are in"
        f" {directory / METRICS}; `make demo KEEP=1` leaves the server up",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip


async def keep_up(console: Console, directory: Path) -> None:
    """Start the server of part one again on its data, and leave it up until it is interrupted."""
    proxy = Proxy(directory)
    try:
        await proxy.start()
        console.print(
            f"the server is up until Ctrl-C: metrics {proxy.http_url}/metrics, status"
            f" {proxy.http_url}/v1/status, Kafka clients {proxy.bootstrap}",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
        await proxy.ended()
    except asyncio.CancelledError:
        await proxy.stop()
    finally:
        await proxy.destroy()
