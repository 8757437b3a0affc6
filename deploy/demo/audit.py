"""Compares the records sent with the records stored, one by one. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from deploy.demo.ledger import Ledger
from tests.crash.readback import Stored

#: Key and value.
Row = tuple[bytes, bytes]


@dataclass
class Tally:
    """Numbers of records.

    Attributes:
        stored: in the log, doubled and foreign ones included.
        lost: sent, and not in the log with the same content.
        out_of_order: stored after one that was sent later to the same partition.
        foreign: in the log, and not sent with this content.
    """

    sent: int = 0
    acknowledged: int = 0
    stored: int = 0
    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0
    foreign: int = 0

    def __iadd__(self, other: "Tally") -> "Tally":
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        return self


def total(tallies: Iterable[Tally]) -> Tally:
    """Add up tallies."""
    result = Tally()
    for tally in tallies:
        result += tally
    return result


def compare(wanted: Sequence[Row], found: Sequence[Row]) -> Tally:
    """Compare the records of one partition, sent and stored, each in their order."""
    order = {row: number for number, row in enumerate(wanted)}
    tally = Tally(sent=len(wanted), stored=len(found))
    seen: set[Row] = set()
    newest = -1
    for row in found:
        number = order.get(row)
        if number is None:
            tally.foreign += 1
        elif row in seen:
            tally.doubled += 1
        else:
            seen.add(row)
            tally.out_of_order += number < newest
            newest = max(newest, number)
    tally.lost = len(wanted) - len(seen)
    return tally


def rows_by_partition(stored: Iterable[Stored]) -> defaultdict[tuple[str, int], list[Row]]:
    """Return the rows of each topic and partition, by offset."""
    rows: defaultdict[tuple[str, int], list[Row]] = defaultdict(list)
    for each in sorted(stored, key=lambda each: each.offset):
        rows[each.topic, each.partition].append((each.key, each.value))
    return rows


@dataclass
class Audit:
    """The result of the first part.

    Attributes:
        tallies: by client and topic.
        foreign: records in the log that no client sent with this content to this partition.
        misplaced: records at another offset than the acknowledged one.
    """

    tallies: dict[tuple[str, str], Tally]
    foreign: int
    misplaced: int

    @property
    def total(self) -> Tally:
        """All clients and topics together."""
        return total([*self.tallies.values(), Tally(stored=self.foreign)])


def audit(ledgers: Sequence[Ledger], stored: Sequence[Stored]) -> Audit:
    """Compare the ledgers of the clients with the records that were read back."""
    offsets = {key: offset for ledger in ledgers for key, offset in ledger.offsets.items()}
    wanted: defaultdict[tuple[str, str, int], list[Row]] = defaultdict(list)
    for each in (record for ledger in ledgers for record in ledger.sent):
        wanted[each.client, each.topic, each.partition].append((each.key, each.value))
    found = rows_by_partition(stored)
    tallies: defaultdict[tuple[str, str], Tally] = defaultdict(Tally)
    for (client, topic, partition), rows in wanted.items():
        mine = set(rows)
        tally = compare(rows, [row for row in found[topic, partition] if row in mine])
        tally.acknowledged = sum(key in offsets for key, _ in rows)
        tallies[client, topic] += tally
    places: dict[bytes, int] = {}
    for record in sorted(stored, key=lambda record: record.offset):
        places.setdefault(record.key, record.offset)
    return Audit(
        tallies,
        foreign=len(stored) - total(tallies.values()).stored,
        # A duplicate is acknowledged with -1 if the server no longer knows its offset.
        misplaced=sum(at not in (-1, places.get(key, at)) for key, at in offsets.items()),
    )
