"""Metrics of a server whose surroundings do not answer."""

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from pidlease.observability.histogram import Histogram
from proxy import metrics_registry as measuring
from proxy.http.connection_limit import ConnectionLimit
from proxy.metrics_registry import MetricsRegistry, Parts


def _told(found: MetricsRegistry) -> float | None:
    return found.registry.get_sample_value("pidlease_disk_free_bytes")


async def test_a_disk_that_hangs_is_looked_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measuring, "_DISK_SECONDS", 0.05)
    found = MetricsRegistry(
        "embedded", tmp_path, Histogram(), lambda: Parts(None, None, None), ConnectionLimit(1)
    )
    await found.measure_disk()
    before = _told(found)
    assert before is not None
    looks, go_on = [], threading.Event()
    real = shutil.disk_usage

    def hangs(path: Path) -> Any:
        looks.append(path)
        assert go_on.wait(20)
        return real(path)

    monkeypatch.setattr(shutil, "disk_usage", hangs)
    async with asyncio.timeout(60):
        for _ in range(5):
            await found.measure_disk()
    assert len(looks) == 1
    assert _told(found) == before
    go_on.set()
    async with asyncio.timeout(60):
        while len(looks) == 1:
            await found.measure_disk()
