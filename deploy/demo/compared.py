"""A source and its copy, held against each other."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.table import Table

from deploy.demo.readback import Stored
from deploy.demo.rows import PARTITIONS, TOPICS


@dataclass(frozen=True)
class Compared:
    """Both sides.

    Attributes:
        sent: how many records the source has acknowledged.
        source: what was read from it,
        copy: and from the destination, under the source's names.
    """

    sent: int
    source: Sequence[Stored]
    copy: Sequence[Stored]

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

    def wrong(self) -> Iterator[tuple[str, bool]]:
        """What may be wrong with both, and whether it is."""
        source, _, lost, doubled, disordered = self.totals()
        yield f"{source} records at the source, {self.sent} were acknowledged", source != self.sent
        yield (
            f"{lost} lost, {doubled} doubled, {disordered} out of order",
            any((lost, doubled, disordered)),
        )

    def table(self) -> Table:
        """For a person."""
        table = Table(title="The copy", title_justify="left")
        table.add_column("topic")
        for name in ("source", "copy", "lost", "doubled", "out of order"):
            table.add_column(name, justify="right")
        for row in self.topics():
            table.add_row(*map(str, row))
        return table


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
