"""The demo's count finds what it is there to find."""

from dataclasses import replace

import pytest

from deploy.demo.audit import Audit, audit
from deploy.demo.crashes import AFTER_FSYNC, AFTER_WRITE, BROKER, KILL, Kill
from deploy.demo.ledger import Ledger
from deploy.demo.outcome import Outcome
from deploy.demo.rows import Record
from tests.crash.readback import Stored

_COUNT = 6


def _records(client: str) -> list[Record]:
    return [Record(client, "airports", n % 2, n, b'{"row":%d}' % n) for n in range(_COUNT)]


def _ledger(client: str = "librdkafka") -> Ledger:
    ledger = Ledger(client)
    for record in _records(client):
        ledger.give(record)
    return ledger


def _log(*ledgers: Ledger) -> list[Stored]:
    """What a perfect server would have, and told the clients."""
    ends = {0: 0, 1: 0}
    stored = []
    for ledger in ledgers:
        for record in ledger.sent:
            offset = ends[record.partition]
            ends[record.partition] += 1
            ledger.delivered(record.key, offset)
            stored.append(Stored(record.topic, record.partition, offset, record.value, record.key))
    return stored


def _in_partition(stored: list[Stored], partition: int) -> list[int]:
    return [place for place, each in enumerate(stored) if each.partition == partition]


def test_nothing_is_wrong_with_two_clients_in_the_same_partitions() -> None:
    ledgers = [_ledger("librdkafka"), _ledger("aiokafka")]

    result = audit(ledgers, _log(*ledgers))

    total = result.total
    assert (total.sent, total.acknowledged, total.stored) == (12, 12, 12)
    assert (total.lost, total.doubled, total.out_of_order) == (0, 0, 0)
    assert (result.foreign, result.misplaced) == (0, 0)
    assert set(result.tallies) == {("librdkafka", "airports"), ("aiokafka", "airports")}
    assert not ledgers[0].unacknowledged


def test_a_lost_record_counts_although_it_was_acknowledged() -> None:
    ledger = _ledger()
    stored = _log(ledger)
    del stored[-1]

    total = audit([ledger], stored).total

    assert (total.acknowledged, total.stored, total.lost) == (_COUNT, _COUNT - 1, 1)
    assert (total.doubled, total.out_of_order) == (0, 0)


def test_a_doubled_record_counts_once_and_is_not_called_out_of_order() -> None:
    ledger = _ledger()
    stored = _log(ledger)
    stored.append(replace(stored[0], offset=99))

    total = audit([ledger], stored).total

    assert (total.stored, total.doubled, total.lost, total.out_of_order) == (_COUNT + 1, 1, 0, 0)


def test_order_is_checked_within_a_partition() -> None:
    ledger = _ledger()
    stored = _log(ledger)
    first, second, _ = _in_partition(stored, 0)
    swapped = [stored[first].offset, stored[second].offset]
    stored[first] = replace(stored[first], offset=swapped[1])
    stored[second] = replace(stored[second], offset=swapped[0])

    result = audit([ledger], stored)

    assert (result.total.out_of_order, result.total.lost, result.total.doubled) == (1, 0, 0)
    assert result.misplaced == 2


@pytest.mark.parametrize(
    "change", [{"value": b"{}"}, {"partition": 1}, {"topic": "sf-temps"}, {"key": b"stranger"}]
)
def test_a_record_that_is_not_as_it_was_sent_is_foreign_and_lost(change: dict[str, bytes]) -> None:
    ledger = _ledger()
    stored = _log(ledger)
    stored[0] = replace(stored[0], **change)  # type: ignore[arg-type]

    result = audit([ledger], stored)

    assert (result.foreign, result.total.lost, result.total.stored) == (1, 1, _COUNT)


def test_an_offset_that_the_server_no_longer_knew_is_not_misplaced() -> None:
    ledger = _ledger()
    stored = _log(ledger)
    ledger.delivered(ledger.sent[0].key, -1)
    assert audit([ledger], stored).misplaced == 0

    ledger.delivered(ledger.sent[0].key, 5)
    assert audit([ledger], stored).misplaced == 1


_KILLS = [Kill(crash, life, 3, 9, 1.0) for life, crash in enumerate([KILL] * 4)]
_KILLS += [Kill(AFTER_WRITE, 5, 1, 9, 1.0), Kill(AFTER_FSYNC, 6, 2, 9, 1.0)]


def _good() -> Outcome:
    ledger = _ledger()
    return Outcome(audit([ledger], _log(ledger)), _KILLS, 9, [], rows=_COUNT)


def test_a_good_run_has_no_problems_and_one_line() -> None:
    assert _good().problems() == []
    assert _good().summary() == (
        "demo: sent 6, stored 6, kills 6 (2 between append and answer), duplicates caught 9,"
        " lost 0, doubled 0, out of order 0"
    )


def test_in_front_of_kafka_kafka_is_to_be_killed_as_well() -> None:
    few = replace(_good(), broker_kills_min=2)
    assert few.problems() == ["only 0 kills of Kafka"]
    kills = [Kill(crash, life, 3, 9, 1.0) for life, crash in enumerate([KILL, BROKER] * 3)]
    assert not replace(few, kills=kills).problems()
    assert "kills 6 (3 of Kafka)" in replace(few, kills=kills).summary()


def _bad_audit(change: str) -> Audit:
    ledger = _ledger()
    stored = _log(ledger)
    if change == "lost":
        del stored[0]
    if change == "doubled":
        stored.append(replace(stored[0], offset=99))
    if change == "order":
        stored[0] = replace(stored[0], offset=99)
        ledger.delivered(ledger.sent[0].key, 99)
    if change == "foreign":
        stored.append(Stored("airports", 0, 99, b"", b"stranger"))
    if change == "misplaced":
        ledger.delivered(ledger.sent[0].key, 99)
    if change == "unacknowledged":
        del ledger.offsets[ledger.sent[0].key]
    return audit([ledger], stored)


@pytest.mark.parametrize(
    "change", ["lost", "doubled", "order", "foreign", "misplaced", "unacknowledged"]
)
def test_anything_wrong_in_the_log_fails_the_demo(change: str) -> None:
    assert replace(_good(), audit=_bad_audit(change)).problems()


@pytest.mark.parametrize(
    "bad",
    [
        replace(_good(), duplicates=0),
        replace(_good(), failures=["aiokafka: aiokafka-00001: timed out"]),
        replace(_good(), rows=_COUNT + 1),
        replace(_good(), kills=[*_KILLS[:2], *_KILLS[4:]]),
        replace(_good(), kills=_KILLS[:5]),
        replace(_good(), kills=[*_KILLS, Kill(KILL, 7, 0, 9, 1.0)]),
        replace(_good(), kills=[*_KILLS, Kill(KILL, 7, 3, 0, 1.0)]),
        replace(_good(), kills=[*_KILLS, Kill(AFTER_WRITE, 7, 3, 0, 1.0)]),
    ],
    ids=["no duplicates", "failure", "rows", "kills", "faults", "idle", "answered", "idle fault"],
)
def test_a_run_that_proved_nothing_fails_the_demo(bad: Outcome) -> None:
    assert len(bad.problems()) == 1
