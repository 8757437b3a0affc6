"""Shows the demo's progress: bars on a terminal, otherwise a line every few seconds."""

import time
from collections.abc import Sequence
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from deploy.demo.ledger import Ledger

_LINE_EVERY_S: Final = 5.0


class Screen:
    """The console; `rows`: the number of records that each client has to send."""

    def __init__(self, console: Console, rows: dict[str, int]) -> None:
        self._console = console
        self._began = time.monotonic()
        self._next_line = 0.0
        self._progress = Progress(
            TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console, disable=not console.is_terminal, transient=True,
        )  # fmt: skip
        add = self._progress.add_task
        self._tasks = {name: add(name, total=count, note="") for name, count in rows.items()}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def log(self, text: str) -> None:
        """Show a line with the time since the start."""
        passed = time.monotonic() - self._began
        self._console.print(f"{passed:5.1f} s  {text}", markup=False, highlight=False)

    def show(self, ledgers: Sequence[Ledger], duplicates: float) -> None:
        """Show the clients' progress: on a terminal at once, otherwise every few seconds."""
        for ledger in ledgers:
            waiting = len(ledger.unacknowledged)
            self._progress.update(
                self._tasks[ledger.name],
                completed=ledger.acknowledged_count,
                note=f"acknowledged, {waiting} waiting" if waiting else "acknowledged",
            )
        now = time.monotonic() - self._began
        if self._console.is_terminal or now < self._next_line:
            return
        self._next_line = now + _LINE_EVERY_S
        parts = [
            f"{ledger.name} {ledger.acknowledged_count} acknowledged of {ledger.given_count} sent"
            for ledger in ledgers
        ]
        self.log(f"{', '.join(parts)}; {duplicates:.0f} duplicates caught")
