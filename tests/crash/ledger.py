"""What one producer handed over and what it was told; held against what the log holds."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from tests.crash.readback import Stored


@dataclass
class Ledger:
    """A producer's books. Only its own thread writes to them.

    Attributes:
        name: of the producer, in every record.
        given: for each partition, how many records were handed over; they are numbered.
        acknowledged: for each partition, number -> offset (-1: duplicate, offset not told).
        failures: deliveries that failed, and fatal errors: there must be none.
    """

    name: str
    given: dict[int, int] = field(default_factory=dict)
    acknowledged: dict[int, dict[int, int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    acknowledged_count: int = 0

    @property
    def given_count(self) -> int:
        """Records that were handed over, on all partitions."""
        return sum(self.given.values())

    def next(self, partition: int, random: Random) -> bytes:
        """The next record for a partition."""
        number = self.given.get(partition, 0)
        self.given[partition] = number + 1
        return b"%s/%d/%d " % (self.name.encode(), partition, number) + b"." * random.randrange(300)

    def delivered(self, value: bytes, offset: int) -> None:
        """A record was acknowledged."""
        name, partition, number = identity(value)
        assert name == self.name
        told = self.acknowledged.setdefault(partition, {})
        if number in told:
            self.failures.append(f"{value[:40]!r} was reported twice")
        told[number] = offset
        self.acknowledged_count += 1

    def failed(self, value: bytes, reason: str) -> None:
        """A record was not delivered."""
        self.failures.append(f"{value[:40]!r}: {reason}")

    def check(self, stored: list[Stored]) -> None:
        """Every acknowledged record once and in order; what was not, at most once and in order."""
        mine = [each for each in stored if identity(each.value)[0] == self.name]
        assert not self.failures, f"{self.name}: {self.failures[:5]}"
        for partition, given in self.given.items():
            told = self.acknowledged.get(partition, {})
            numbers, places = self._stored(partition, mine)
            what = f"{self.name}, partition {partition}"
            lost = sorted(told.keys() - places.keys())
            assert not lost, f"{what}: acknowledged and lost: {lost[:10]} ({len(lost)})"
            doubled = [number for number, count in Counter(numbers).items() if count > 1]
            assert not doubled, f"{what}: stored twice: {doubled[:10]} ({len(doubled)})"
            assert numbers == sorted(numbers), f"{what}: out of order"
            assert numbers == list(range(len(numbers))), f"{what}: one skipped, later ones stored"
            assert len(numbers) <= given
            wrong = {n: at for n, at in told.items() if at not in (-1, places[n])}
            assert not wrong, f"{what}: told other offsets than those where they stand: {wrong}"

    def _stored(self, partition: int, mine: list[Stored]) -> tuple[list[int], dict[int, int]]:
        """The numbers as they stand on a partition, and the offset of each."""
        numbers, places = [], {}
        for each in mine:
            if each.partition == partition:
                _, meant, number = identity(each.value)
                assert meant == partition, f"{each} stands on the wrong partition"
                numbers.append(number)
                places[number] = each.offset
        return numbers, places


def identity(value: bytes) -> tuple[str, int, int]:
    """Producer, partition and number of a record."""
    name, partition, number = value.split(b" ", 1)[0].split(b"/")
    return name.decode(), int(partition), int(number)
