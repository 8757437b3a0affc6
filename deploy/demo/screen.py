"""What the demo shows: bars on a terminal, a line now and then elsewhere, tables at the end."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from deploy.demo.audit import Tally
from deploy.demo.duplicates import DuplicateCounter
from deploy.demo.ledger import Ledger
from deploy.demo.outcome import Outcome
from deploy.demo.verdicts import sum_up

_LINE_EVERY_S: Final = 5.0
_FIGURES: Final = ("sent", "acknowledged", "stored", "lost", "doubled", "out of order")


class Screen:
    """The console.

    with Screen(console, {"librdkafka": 10_447, "aiokafka": 10_447}) as screen: ...

    Parameters:
        console: where.
        rows: how many records each client has to send.
    """

    def __init__(self, console: Console, rows: dict[str, int]) -> None:
        self._console = console
        self._began = time.monotonic()
        self._next_line = 0.0
        self._progress = Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {
            name: self._progress.add_task(name, total=count, note="")
            for name, count in rows.items()
        }

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def tell(self, text: str) -> None:
        """Something happened."""
        passed = time.monotonic() - self._began
        self._console.print(f"{passed:5.1f} s  {text}", markup=False, highlight=False)

    def show(self, ledgers: Sequence[Ledger], duplicates: int) -> None:
        """How far the clients are; on a terminal at once, elsewhere every few seconds."""
        for ledger in ledgers:
            waiting = len(ledger.unacknowledged)
            self._progress.update(
                self._tasks[ledger.client],
                completed=len(ledger.offsets),
                note=f"acknowledged, {waiting} waiting" if waiting else "acknowledged",
            )
        now = time.monotonic() - self._began
        if self._console.is_terminal or now < self._next_line:
            return
        self._next_line = now + _LINE_EVERY_S
        parts = [
            f"{ledger.client} {len(ledger.offsets)} acknowledged of {len(ledger.sent)} sent"
            for ledger in ledgers
        ]
        self.tell(f"{', '.join(parts)}; {duplicates} duplicates caught")

    def report(self, outcome: Outcome, duplicates: DuplicateCounter) -> int:
        """The tables, and what is wrong if something is, and the summary; the exit code."""
        self._console.print(_crash_table(outcome, duplicates))
        self._console.print(_count_table(outcome))
        return sum_up(self._console, outcome)


def _crash_table(outcome: Outcome, duplicates: DuplicateCounter) -> Table:
    table = Table(title="Crashes", title_justify="left")
    table.add_column("how")
    for name in (
        "batches in flight",
        "records unacknowledged",
        "down, s",
        "duplicates caught then",
    ):
        table.add_column(name, justify="right")
    for kill in outcome.kills:
        table.add_row(
            kill.crash.name,
            str(kill.batches),
            str(kill.records),
            f"{kill.down_s:.1f}",
            # Those of a life are known together; it goes on where Kafka was killed.
            "" if kill.crash.of_broker else str(duplicates.by_life.get(kill.life + 1, 0)),
        )
    return table


def _count_table(outcome: Outcome) -> Table:
    table = Table(title="Sent and read back", title_justify="left")
    table.add_column("client")
    table.add_column("topic")
    for name in (*_FIGURES[:3], "duplicates caught", *_FIGURES[3:]):
        table.add_column(name, justify="right")
    for (client, topic), tally in sorted(outcome.audit.tallies.items()):
        table.add_row(client, topic, *_figures(tally, ""))
    table.add_section()
    total = outcome.audit.total
    table.add_row("total", "", *_figures(total, str(outcome.duplicates)), style="bold")
    return table


def _figures(tally: Tally, duplicates: str) -> list[str]:
    return [
        *(f"{tally.sent}", f"{tally.acknowledged}", f"{tally.stored}", duplicates),
        *(f"{tally.lost}", f"{tally.doubled}", f"{tally.out_of_order}"),
    ]
