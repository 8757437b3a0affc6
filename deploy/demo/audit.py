"""The count: what was sent against what stands in the log, record by record. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from deploy.demo.ledger import Ledger
from deploy.demo.readback import Stored
from deploy.demo.rows import Record


@dataclass
class Tally:
    """The figures of one client in one topic.

    Attributes:
        sent: records that the client was given.
        acknowledged: of these, reported as delivered.
        stored: records of this client in the log, doubled ones included.
        lost: sent, and not in the log as they were sent.
        doubled: in the log once more.
        out_of_order: behind one that the client was given later, in the same partition.
    """

    sent: int = 0
    acknowledged: int = 0
    stored: int = 0
    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0

    def __iadd__(self, other: "Tally") -> "Tally":
        self.sent += other.sent
        self.acknowledged += other.acknowledged
        self.stored += other.stored
        self.lost += other.lost
        self.doubled += other.doubled
        self.out_of_order += other.out_of_order
        return self


@dataclass
class Audit:
    """What the count has shown.

    Attributes:
        tallies: by client and topic.
        foreign: records in the log that nobody sent like this: other content, other place.
        misplaced: records that stand at another offset than the client was told.
    """

    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    foreign: int = 0
    misplaced: int = 0

    @property
    def total(self) -> Tally:
        """Of all clients and topics."""
        total = Tally(stored=self.foreign)
        for tally in self.tallies.values():
            total += tally
        return total

    def of(self, record: Record) -> Tally:
        """Where a record is counted."""
        return self.tallies.setdefault((record.client, record.topic), Tally())


def audit(ledgers: Sequence[Ledger], stored: Iterable[Stored]) -> Audit:
    """Compare.

    Parameters:
        ledgers: what the clients were given, and what they said.
        stored: what was read back.
    """
    result = Audit()
    expected = {record.key: record for ledger in ledgers for record in ledger.sent}
    told = {key: offset for ledger in ledgers for key, offset in ledger.offsets.items()}
    for record in expected.values():
        tally = result.of(record)
        tally.sent += 1
        tally.acknowledged += record.key in told
    found = _count_stored(result, expected, told, stored)
    for key, record in expected.items():
        result.of(record).lost += key not in found
    return result


def _count_stored(
    result: Audit, expected: dict[bytes, Record], told: dict[bytes, int], stored: Iterable[Stored]
) -> set[bytes]:
    """Count what is in the log; the keys of the records that are there as they were sent."""
    found: set[bytes] = set()
    newest: dict[tuple[str, str, int], int] = {}
    for each in sorted(stored, key=lambda each: (each.topic, each.partition, each.offset)):
        record = expected.get(each.key)
        if record is None or not _same(record, each):
            result.foreign += 1
            continue
        tally = result.of(record)
        tally.stored += 1
        if each.key in found:
            tally.doubled += 1
            continue
        found.add(each.key)
        # A duplicate is acknowledged with -1 where the server no longer knows its offset.
        result.misplaced += told.get(each.key, -1) not in (-1, each.offset)
        stream = (record.client, record.topic, record.partition)
        tally.out_of_order += record.number < newest.get(stream, -1)
        newest[stream] = max(record.number, newest.get(stream, -1))
    return found


def _same(record: Record, stored: Stored) -> bool:
    place = (stored.topic, stored.partition)
    return place == (record.topic, record.partition) and stored.value == record.value
