"""Kills processes, and stops one that is replaced and wakes up (a zombie); counts the outcome."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from rich.table import Table
from typing_extensions import override

from deploy.demo.audit import Tally, compare, rows_by_partition, total
from deploy.demo.outcome import Verdict, new_table
from deploy.demo.rows import PARTITIONS, TOPICS
from deploy.demo.screen import Screen
from tests.crash.readback import Stored
from tests.servers.pidlease import PidleaseServer
from tests.servers.process import ServerProcess

#: A process without progress for this time is taken to hang.
PROGRESS_S: Final = 300.0
#: Exit code of a process that another one has replaced.
FENCED: Final = 3
_APPENDED: Final = "pidlease_appended_records_total"


class Killable(Protocol):
    """A process, or several processes that are killed and stopped together."""

    process: ServerProcess

    def kill9(self) -> None:
        """Send SIGKILL."""

    def stopped(self) -> AbstractContextManager[None]:
        """Stop it (SIGSTOP) for the length of the block."""


P = TypeVar("P", bound=Killable)


class Lives(Generic[P]):
    """Processes of one kind, one after the other.

    Parameters:
        start: starts the next process; gets its number, from 1.
    """

    def __init__(self, screen: Screen, start: Callable[[int], P]) -> None:
        self.all: list[P] = []
        self.kills = 0
        self._screen = screen
        self._start = start

    def __enter__(self) -> "Lives[P]":
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.all:
            if each.process.alive:
                each.kill9()

    @property
    def newest(self) -> P:
        """The last started process."""
        return self.all[-1]

    def begin(self) -> P:
        """Start the next process."""
        self.all.append(self._start(len(self.all) + 1))
        return self.newest

    def kill(self) -> None:
        """Kill the newest process."""
        self.newest.kill9()
        self.kills += 1

    def progress(self, server: PidleaseServer, records: int) -> None:
        """Wait until a server has appended this many more records of the newest process."""
        wanted = server.metric(_APPENDED) + records
        self.newest.process.wait_until(lambda: server.metric(_APPENDED) >= wanted, PROGRESS_S)

    def replace(self, line: str, succeed: Callable[[], object]) -> P:
        """Stop the newest process, let a successor take over, and wake it up; return it.

        Parameters:
            line: shown when it is stopped.
            succeed: starts the successor, and waits until it has taken over.
        """
        zombie = self.newest
        with zombie.stopped():
            self._screen.log(line)
            succeed()
        zombie.process.wait_exit(PROGRESS_S)
        self._screen.log(f"the zombie woke up: {last_line(zombie)}")
        return zombie


def last_line(life: Killable) -> str:
    """Return the last line of a process's log."""
    return ["", *life.process.log_path.read_text().splitlines()][-1] or "it said nothing"


@dataclass(frozen=True, kw_only=True)
class TakeoverVerdict(Verdict):
    """The result of such a part.

    Attributes:
        zombie: the last line that the stopped process logged.
        fenced: whether that process ended because it was replaced.
    """

    zombie: str
    fenced: bool

    def tallies(self) -> dict[str, Tally]:
        """Return the tallies, by partition or topic."""
        raise NotImplementedError

    @property
    def total(self) -> Tally:
        """The sum of the tallies."""
        return total(self.tallies().values())

    @override
    def checks(self) -> Iterator[tuple[str, bool]]:
        figures = _lost(self.total)
        text = ", ".join(f"{figure} {name}" for name, figure in figures.items())
        yield text, any(figures.values())
        yield f"the zombie was not fenced: {self.zombie}", not self.fenced

    def ending(self) -> str:
        """Return the end of the summary."""
        figures = ", ".join(f"{name} {figure}" for name, figure in _lost(self.total).items())
        return f"zombie {'fenced' if self.fenced else 'NOT fenced'}, {figures}"

    def table(self, name: str, sent: str, stored: str) -> Table:
        """Return the tallies as a table."""
        table = new_table([name], [sent, stored, *_lost(Tally())])
        for each, tally in self.tallies().items():
            table.add_row(each, *map(str, (tally.sent, tally.stored, *_lost(tally).values())))
        return table


def _lost(tally: Tally) -> dict[str, int]:
    """Return the failures; a record that was never sent counts as a doubled one."""
    doubled = tally.doubled + tally.foreign
    return {"lost": tally.lost, "doubled": doubled, "out of order": tally.out_of_order}


@dataclass(frozen=True, kw_only=True)
class CopyVerdict(TakeoverVerdict):
    """The comparison of a source with its copy.

    Attributes:
        sent: the number of records that the source has acknowledged.
        copy: the records of the destination, with the source's topic names.
        kills: the number of kills of the copier.
        server_kills: the number of kills of servers.
        duplicates: the number of records that were sent again and caught.
    """

    sent: int
    source: Sequence[Stored]
    copy: Sequence[Stored]
    kills: int
    server_kills: int
    duplicates: int

    @override
    def tallies(self) -> dict[str, Tally]:
        wanted, found = rows_by_partition(self.source), rows_by_partition(self.copy)
        return {
            topic: total(compare(wanted[topic, n], found[topic, n]) for n in range(PARTITIONS))
            for topic in TOPICS
        }

    @override
    def tables(self) -> Mapping[str, Table]:
        line = "The source's records, and what the copy has of them"
        return {line: self.table("topic", "source", "copy")}

    @override
    def checks(self) -> Iterator[tuple[str, bool]]:
        source = self.total.sent
        yield f"{source} records at the source, {self.sent} were acknowledged", source != self.sent
        yield from super().checks()
        yield "nothing came twice: the kills proved nothing", not self.duplicates
