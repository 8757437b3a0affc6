"""What the third part has found."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.table import Table

from deploy.demo.readback import Stored
from deploy.demo.rows import PARTITIONS, TOPICS


@dataclass(frozen=True)
class Verdict:
    """The figures.

    Attributes:
        sent: how many records the source has acknowledged.
        source: what was read from it,
        copy: and from the destination, under the source's names.
        kills: how often anything was killed,
        copier_kills: and of these, a copier.
        duplicates: records that came again, and were there.
        zombie: how the copier that was stopped, and replaced, ended.
        fenced: whether that was as it should be.
        verified: whether `pidlease copy --verify` finds both sides equal.
    """

    sent: int
    source: Sequence[Stored]
    copy: Sequence[Stored]
    kills: int
    copier_kills: int
    duplicates: int
    zombie: str
    fenced: bool
    verified: bool

    def topics(self) -> Iterator[tuple[str, int, int, int, int, int]]:
        """For each topic: records of the source, and of the copy; lost, doubled, out of order."""
        for topic in TOPICS:
            sums = [0] * 5
            for partition in range(PARTITIONS):
                wanted = _rows(self.source, topic, partition)
                found = _rows(self.copy, topic, partition)
                for place, number in enumerate(_compared(wanted, found)):
                    sums[place] += number
            yield topic, sums[0], sums[1], sums[2], sums[3], sums[4]

    def totals(self) -> list[int]:
        """The same of all topics."""
        return [sum(row[place] for row in self.topics()) for place in range(1, 6)]  # type: ignore[misc]

    def problems(self) -> list[str]:
        """Why it is a failure; empty where it is none."""
        return [text for text, wrong in self._checks() if wrong]

    def _checks(self) -> Iterator[tuple[str, bool]]:
        source, _, lost, doubled, disordered = self.totals()
        yield f"{source} records at the source, {self.sent} were acknowledged", source != self.sent
        yield (
            f"{lost} lost, {doubled} doubled, {disordered} out of order",
            any((lost, doubled, disordered)),
        )
        yield "pidlease copy --verify finds a difference", not self.verified
        yield f"the zombie was not fenced: {self.zombie}", not self.fenced
        yield "nothing came twice: the kills proved nothing", not self.duplicates

    def table(self) -> Table:
        """For a person."""
        table = Table(title="The copy", title_justify="left")
        table.add_column("topic")
        for name in ("source", "copy", "lost", "doubled", "out of order"):
            table.add_column(name, justify="right")
        for row in self.topics():
            table.add_row(*map(str, row))
        return table

    def summary(self) -> str:
        """The figures in one line."""
        source, copy, lost, doubled, disordered = self.totals()
        return (
            f"demo, part three: source {source}, copy {copy}, kills {self.kills}"
            f" ({self.copier_kills} of the copier), duplicates caught {self.duplicates}, zombie"
            f" {'fenced' if self.fenced else 'NOT fenced'}, lost {lost}, doubled {doubled},"
            f" out of order {disordered}"
        )


_Row = tuple[bytes, bytes]


def _rows(stored: Sequence[Stored], topic: str, partition: int) -> list[_Row]:
    return [
        (each.key, each.value)
        for each in stored
        if (each.topic, each.partition) == (topic, partition)
    ]


def _compared(wanted: list[_Row], found: list[_Row]) -> tuple[int, int, int, int, int]:
    """How many of both; and lost, doubled or of nobody, out of order."""
    times = Counter(found)
    lost = sum(1 for row in wanted if not times[row])
    doubled = len(found) - sum(1 for row in wanted if times[row])
    place = {row: number for number, row in enumerate(wanted)}
    order = [place[row] for row in found if row in place]
    falls = sum(1 for one, other in pairwise(order) if other < one)
    return len(wanted), len(found), lost, doubled, falls
