"""Parts in which processes are killed, and one is stopped, replaced, and wakes up: a zombie."""

from collections.abc import Callable, Iterator, Sequence
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

#: A process that makes no progress for so long hangs.
PROGRESS_S: Final = 300.0
#: Exit code of a process that another one has replaced.
FENCED: Final = 3
_APPENDED: Final = "pidlease_appended_records_total"


class Killable(Protocol):
    """A process, or several that are killed and stopped as one."""

    process: ServerProcess

    def kill9(self) -> None:
        """Kill -9."""

    def stopped(self) -> AbstractContextManager[None]:
        """Stop it (SIGSTOP) for the length of the block."""


P = TypeVar("P", bound=Killable)


class Lives(Generic[P]):
    """Processes of one kind, one after the other.

    Parameters:
        screen: shows what happens.
        start: starts the next one.
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
        """The process that was started last."""
        return self.all[-1]

    def begin(self) -> P:
        """Start another one."""
        self.all.append(self._start(len(self.all) + 1))
        return self.newest

    def kill(self) -> None:
        """Kill the newest one."""
        self.newest.kill9()
        self.kills += 1

    def progress(self, server: PidleaseServer, records: int) -> None:
        """Wait until the newest one has had so many more records appended by a server."""
        wanted = server.metric(_APPENDED) + records
        self.newest.process.wait_until(lambda: server.metric(_APPENDED) >= wanted, PROGRESS_S)

    def replace(self, line: str, succeed: Callable[[], object]) -> P:
        """Stop the newest one, let another one succeed it, and wake it up; return the stopped one.

        Parameters:
            line: shown when it is stopped.
            succeed: begins the successor, and waits until it has taken over.
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
    """The figures of such a part.

    Attributes:
        zombie: the last line of the process that was stopped.
        fenced: whether it ended because it was replaced.
    """

    zombie: str
    fenced: bool

    def tallies(self) -> dict[str, Tally]:
        """Return the count, by partition or topic."""
        raise NotImplementedError

    @property
    def total(self) -> Tally:
        """All of them together."""
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

    def table(self, title: str, name: str, sent: str, stored: str) -> Table:
        """Return the table of the count."""
        table = new_table(title, [name], [sent, stored, *_lost(Tally())])
        for each, tally in self.tallies().items():
            table.add_row(each, *map(str, (tally.sent, tally.stored, *_lost(tally).values())))
        return table


def _lost(tally: Tally) -> dict[str, int]:
    """A record that was never sent counts as a doubled one."""
    doubled = tally.doubled + tally.foreign
    return {"lost": tally.lost, "doubled": doubled, "out of order": tally.out_of_order}


@dataclass(frozen=True, kw_only=True)
class CopyVerdict(TakeoverVerdict):
    """A source against its copy.

    Attributes:
        sent: how many records the source has acknowledged.
        copy: the records of the destination, under the source's topics.
        kills: how often the copier was killed.
        server_kills: how often a server was.
        duplicates: records that were sent again, and caught.
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
    def tables(self) -> Sequence[Table]:
        return [self.table("The copy", "topic", "source", "copy")]

    @override
    def checks(self) -> Iterator[tuple[str, bool]]:
        source = self.total.sent
        yield f"{source} records at the source, {self.sent} were acknowledged", source != self.sent
        yield from super().checks()
        yield "nothing came twice: the kills proved nothing", not self.duplicates
