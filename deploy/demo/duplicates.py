"""Counts the duplicates that the server caught, over all its lives."""

import asyncio
import http.client
from contextlib import suppress
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from deploy.demo.proxy_process import Proxy

_EVERY_S: Final = 0.2
_METRIC: Final = "pidlease_batches_judged_total"


def counted(exposition: str, metric: str, **labels: str) -> int:
    """What a /metrics page says of a counter, over all its samples with these labels."""
    return int(
        sum(
            sample.value
            for family in text_string_to_metric_families(exposition)
            for sample in family.samples
            if sample.name == metric and labels.items() <= sample.labels.items()
        )
    )


def duplicates_in(exposition: str) -> int:
    """Batches that a /metrics page says were judged duplicates, of all policies together."""
    return counted(exposition, _METRIC, outcome="duplicate")


class DuplicateCounter:
    """A counter of the server begins at 0 in each life: keep the last figure of every one.

    What is caught between the last look and a kill is not counted, so the sum is a lower bound.
    """

    def __init__(self) -> None:
        self.by_life: dict[int, int] = {}

    @property
    def total(self) -> int:
        """Of all lives."""
        return sum(self.by_life.values())

    def note(self, life: int, value: int) -> None:
        """What the page said in that life."""
        self.by_life[life] = max(value, self.by_life.get(life, 0))

    async def look(self, proxy: Proxy) -> None:
        """Once; a server that is down tells nothing."""
        life = proxy.life
        with suppress(OSError, http.client.HTTPException):
            status, page = await proxy.get("/metrics")
            if status == http.HTTPStatus.OK and life == proxy.life:
                self.note(life, duplicates_in(page))

    async def watch(self, proxy: Proxy) -> None:
        """Until cancelled."""
        while True:
            await self.look(proxy)
            await asyncio.sleep(_EVERY_S)
