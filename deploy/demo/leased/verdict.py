"""What the second part has found."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.table import Table

from deploy.demo.readback import Stored


@dataclass(frozen=True)
class Verdict:
    """The figures.

    Attributes:
        source: where the PIDs came from.
        counts: how many records each partition was to get.
        stored: all that was read back.
        lives: how many processes the producer had.
        producer_kills: how often it was killed,
        proxy_kills: and how often the proxy was.
        pids: the PIDs that it had, one if its name brought it back each time.
        resumed: where its lives went on, beyond the first.
        zombie: how the one that was stopped and woke up again ended.
        fenced: whether that was as it should be.
    """

    source: str
    counts: Sequence[int]
    stored: Sequence[Stored]
    lives: int
    producer_kills: int
    proxy_kills: int
    pids: frozenset[int]
    resumed: Sequence[int]
    zombie: str
    fenced: bool

    def partitions(self) -> Iterator[tuple[int, int, int, int, int]]:
        """For each partition: how many were stored, lost, doubled, out of order."""
        for partition, count in enumerate(self.counts):
            found = [each.value for each in self.stored if each.partition == partition]
            wanted = [b"%d/%d" % (partition, number) for number in range(count)]
            times = Counter(found)
            lost = sum(1 for value in wanted if not times[value])
            doubled = len(found) - len(times)
            order = [int(value.partition(b"/")[2]) for value in found]
            falls = sum(1 for one, other in pairwise(order) if other <= one)
            yield partition, len(found), lost, doubled, falls

    def problems(self) -> list[str]:
        """Why it is a failure; empty where it is none."""
        found = []
        for partition, _, lost, doubled, falls in self.partitions():
            if lost or doubled or falls:
                found.append(
                    f"partition {partition}: {lost} lost, {doubled} doubled, {falls} out of order"
                )
        if not self.fenced:
            found.append(f"the zombie was not fenced: {self.zombie}")
        if len(self.pids) != 1:
            found.append(f"the name brought {len(self.pids)} PIDs")
        if not any(self.resumed):
            found.append("no life went on where the one before was: the kills proved nothing")
        return found

    def table(self) -> Table:
        """For a person."""
        table = Table(title="The leasing producer", title_justify="left")
        for name in ("partition", "sent", "stored", "lost", "doubled", "out of order"):
            table.add_column(name, justify="right")
        for partition, stored, lost, doubled, falls in self.partitions():
            numbers = (partition, self.counts[partition], stored, lost, doubled, falls)
            table.add_row(*map(str, numbers))
        return table

    def summary(self) -> str:
        """The figures in one line."""
        stored, lost, doubled, falls = (
            sum(row[place] for row in self.partitions()) for place in range(1, 5)
        )
        return (
            f"demo, part two: PIDs from {self.source}, sent {sum(self.counts)}, stored {stored},"
            f" producer killed {self.producer_kills} times, resumed by name {self.lives - 1} times,"
            f" proxy killed {self.proxy_kills} times, zombie"
            f" {'fenced' if self.fenced else 'NOT fenced'}, lost {lost}, doubled {doubled},"
            f" out of order {falls}"
        )
