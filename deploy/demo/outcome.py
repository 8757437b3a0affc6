"""The result of a part of the demo: its figures, and the checks that decide its success."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table
from typing_extensions import override

from deploy.demo.audit import Audit, Tally
from deploy.demo.crashes import Kill
from deploy.demo.rows import ROWS

_KILLS_MIN: Final = 5
_FAULT_KILLS_MIN: Final = 2


class Verdict:
    """The result of a part."""

    def checks(self) -> Iterator[tuple[str, bool]]:
        """Yield possible problems, each with whether it has occurred."""
        raise NotImplementedError

    def tables(self) -> Mapping[str, Table]:
        """Return the figures as tables, each with a line that says what it shows."""
        raise NotImplementedError

    def summary(self) -> str:
        """Return the figures in one line."""
        raise NotImplementedError

    def problems(self) -> list[str]:
        """Return the problems; none means success."""
        return [text for text, wrong in self.checks() if wrong]

    def conclude(self, console: Console) -> int:
        """Show the figures, the problems, and the summary last; return the exit code."""
        for line, table in self.tables().items():
            console.print(line, markup=False, highlight=False)
            console.print(table)
        for problem in self.problems():
            console.print(f"failed: {problem}", style="red", markup=False, highlight=False)
        console.print(self.summary(), markup=False, highlight=False, soft_wrap=True)
        return 1 if self.problems() else 0


def new_table(names: Sequence[str], figures: Sequence[str]) -> Table:
    """Return an empty table; columns of figures are aligned to the right."""
    table = Table()
    for name in names:
        table.add_column(name)
    for name in figures:
        table.add_column(name, justify="right")
    return table


@dataclass(frozen=True)
class Outcome(Verdict):
    """The result of the first part.

    Attributes:
        kills: the crashes with batches in flight.
        duplicates: caught by all processes of the server.
        failures: failed deliveries of the clients.
        rows: the number of records to send.
        broker_kills_min: the number of kills of Kafka that are needed, instead of crashes at fault
            points; 0: Kafka is not the log.
        by_life: duplicates caught by each process of the server.
    """

    audit: Audit
    kills: Sequence[Kill]
    duplicates: int
    failures: Sequence[str]
    rows: int = ROWS
    broker_kills_min: int = 0
    by_life: Sequence[float] = ()

    @override
    def checks(self) -> Iterator[tuple[str, bool]]:
        total = self.audit.total
        yield f"{total.lost} records lost", total.lost > 0
        yield f"{total.doubled} records doubled", total.doubled > 0
        yield f"{total.out_of_order} records out of order", total.out_of_order > 0
        yield f"{self.audit.foreign} records stored that no client sent", self.audit.foreign > 0
        yield f"{self.audit.misplaced} not at the acknowledged offset", self.audit.misplaced > 0
        yield "no duplicate was caught: the kills proved nothing", self.duplicates == 0
        yield f"sent {total.sent} of {self.rows} rows", total.sent != self.rows
        missing = total.sent - total.acknowledged
        yield f"{missing} records never acknowledged", missing > 0
        yield f"failed deliveries: {'; '.join(self.failures[:5])}", bool(self.failures)
        yield f"only {len(self.kills)} kills hit batches in flight", len(self.kills) < _KILLS_MIN
        idle = sum(not kill.in_flight for kill in self.kills)
        yield f"{idle} kills with nothing in flight", idle > 0
        if self.broker_kills_min:
            few = self._broker_kills < self.broker_kills_min
            yield f"only {self._broker_kills} kills of Kafka", few
        else:
            few = self._fault_kills < _FAULT_KILLS_MIN
            yield f"only {self._fault_kills} crashes between append and answer", few

    @override
    def tables(self) -> Mapping[str, Table]:
        figures = "batches in flight", "records unacknowledged", "down, s", "duplicates caught then"
        crashes = new_table(["how"], figures)
        for kill in self.kills:
            # The server's next process catches a crash's duplicates; a kill of Kafka starts none.
            then = self.by_life[kill.life : kill.life + 1] or [0]
            caught = "" if kill.crash.of_broker else f"{then[0]:.0f}"
            crashes.add_row(
                kill.crash.name, f"{kill.batches}", f"{kill.records}", f"{kill.down_s:.1f}", caught
            )
        names = "sent", "acknowledged", "stored", "duplicates caught", "lost", "doubled"
        count = new_table(["client", "topic"], [*names, "out of order"])
        for (client, topic), tally in sorted(self.audit.tallies.items()):
            count.add_row(client, topic, *_figures(tally, ""))
        count.add_section()
        count.add_row("total", "", *_figures(self.audit.total, f"{self.duplicates}"), style="bold")
        return {
            "Crashes: what was unanswered, and the retries that were caught as duplicates": crashes,
            "The log, read back and compared with the clients' records": count,
        }

    @override
    def summary(self) -> str:
        total = self.audit.total
        of_them = f"{self._fault_kills} between append and answer"
        if self.broker_kills_min:
            of_them = f"{self._broker_kills} of Kafka"
        return (
            f"demo: sent {total.sent}, stored {total.stored}, kills {len(self.kills)}"
            f" ({of_them}), duplicates caught {self.duplicates}, lost {total.lost},"
            f" doubled {total.doubled}, out of order {total.out_of_order}"
        )

    @property
    def _broker_kills(self) -> int:
        return sum(kill.crash.of_broker for kill in self.kills)

    @property
    def _fault_kills(self) -> int:
        return sum(bool(kill.crash.fault) for kill in self.kills)


def _figures(tally: Tally, duplicates: str) -> list[str]:
    return [
        *(f"{tally.sent}", f"{tally.acknowledged}", f"{tally.stored}", duplicates),
        *(f"{tally.lost}", f"{tally.doubled}", f"{tally.out_of_order}"),
    ]
