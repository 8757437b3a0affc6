"""Shows a copy's progress: a table on a terminal, otherwise a line every few seconds."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.live import Live
from rich.table import Table

from pidlease.copier import Copier
from proxy.cli.console import plain_table, stderr

_SCREEN_SECONDS: Final = 1.0
_LINE_SECONDS: Final = 5.0
#: The most partitions to show, those with the largest lag first.
_ROWS_MAX: Final = 20


class _Rates:
    """Records and bytes per second since the last call."""

    def __init__(self, copier: Copier) -> None:
        self._copier: Final = copier
        self._before = (time.monotonic(), 0, 0)

    def text(self) -> str:
        """Return the totals and rates in one line."""
        numbers = self._copier.metrics
        then, records, size = self._before
        now = time.monotonic()
        seconds = max(now - then, 1e-3)
        self._before = now, numbers.records, numbers.bytes
        return (
            f"{numbers.records:,} records copied, {(numbers.records - records) / seconds:,.0f}/s,"
            f" {(numbers.bytes - size) / seconds / 1e6:,.1f} MB/s;"
            f" {numbers.duplicates:,} duplicates suppressed; lag {numbers.lag:,}"
        )


@contextmanager
def show_progress(copier: Copier) -> Iterator[None]:
    """Show progress until the end of the block."""
    task = asyncio.get_running_loop().create_task(_show(copier))
    try:
        yield
    finally:
        task.cancel()


async def _show(copier: Copier) -> None:
    console = stderr()
    rates = _Rates(copier)
    if not console.is_terminal:
        while True:
            await asyncio.sleep(_LINE_SECONDS)
            console.print(rates.text(), markup=False)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            await asyncio.sleep(_SCREEN_SECONDS)
            live.update(_table(copier, rates.text()), refresh=True)


def _table(copier: Copier, title: str) -> Table:
    table = plain_table(title, "topic", "partition", "offset", "lag")
    rows = sorted(copier.metrics.partitions, key=lambda each: -each.lag)
    for each in rows[:_ROWS_MAX]:
        table.add_row(each.topic, str(each.partition), f"{each.offset:,}", f"{each.lag:,}")
    if len(rows) > _ROWS_MAX:
        table.add_row(f"and {len(rows) - _ROWS_MAX} more", "", "", "")
    return table
