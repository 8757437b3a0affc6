"""Batches of aborted transactions among those that a broker returns, by Kafka's consumer."""

from pidlease.kafka.records.aborted_batches import without_aborted
from pidlease.kafka.records.batch_records import batches_in, records_in
from pidlease.kafka.records.record_batch import check_intact
from tests.kafka_listener.batches import changed
from tests.sim.batches import make_batch

MARKER = 0x30


def at(offset: int, value: bytes, pid: int = -1, *, in_transaction: bool = True) -> bytes:
    """A batch of two records."""
    data = make_batch([value] * 2, pid=pid, epoch=0, first=0, in_transaction=in_transaction)
    data[:8] = offset.to_bytes(8, "big")
    return bytes(data)


def marker(offset: int, pid: int) -> bytes:
    data = make_batch([b"marker"], pid=pid, epoch=0)
    return changed(bytes(data), base_offset=offset, attributes=MARKER)


def values_in(data: bytes) -> list[tuple[int, bytes]]:
    """The records, each with its offset; every batch must be intact."""
    found = []
    for header, batch in batches_in(data):
        check_intact(header, batch)
        found += [(each.offset, each.value) for each in records_in(header, batch)]
    return found


def offsets_in(data: bytes) -> list[tuple[int, int]]:
    return [(header.base_offset, header.last_offset) for header, _ in batches_in(data)]


def test_records_are_left_out_from_the_first_offset_to_the_marker() -> None:
    log = b"".join((
        at(0, b"committed", 1), marker(2, 1),
        at(3, b"aborted", 1), at(5, b"another", 2), at(7, b"plain", 1, in_transaction=False),
        marker(9, 1), at(10, b"again", 1), at(12, b"cut off", 1)[:-3],
    ))  # fmt: skip
    found = without_aborted(log, [(1, 3)])
    assert [value for _, value in values_in(found)] == [
        b"committed", b"committed", b"another", b"another", b"plain", b"plain", b"again", b"again",
    ]  # fmt: skip
    assert offsets_in(found) == offsets_in(log)
    assert found.endswith(at(12, b"cut off", 1)[:-3])


def test_two_transactions_of_a_producer_and_a_fetch_that_begins_within_one() -> None:
    log = b"".join((at(4, b"a", 1), marker(6, 1), at(7, b"b", 1), marker(9, 1), at(10, b"c", 1)))
    found = without_aborted(log, [(1, 7), (1, 2)])  # in any order
    assert values_in(found) == [(10, b"c"), (11, b"c")]
    assert values_in(without_aborted(log, [])) == values_in(log)
