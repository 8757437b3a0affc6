"""The history of a log whose beginning retention has removed."""

import pytest

from pidlease.core.producer_names import ProducerNames
from pidlease.kafka.records.identity_header import Identity
from pidlease.kafka.records.record_batch import read_header
from pidlease.kafka.records.writer_batch import LoggedBatch
from pidlease.verify.sequence_history import History
from pidlease.verify.verify_report import Kind
from tests.unit.cli.datadir import batch


def logged(sequence: int) -> LoggedBatch:
    """A record of a producer with a producer id, as `Producer-Id` makes it."""
    header = read_header(batch(-1, pid=-1, generation=-1, records=1))
    return LoggedBatch(header, Identity(-1, "web/1", 3, sequence, sequence))


@pytest.mark.parametrize("start", [0, 5])
def test_a_producer_id_may_begin_in_the_middle_only_after_retention(start: int) -> None:
    """Once a false gap: such producers have no lease, so their age is not looked at."""
    history = History(start, ProducerNames())
    found = history.apply(logged(5))
    if start:
        assert found is None
    else:
        assert found is not None
        assert found[0] is Kind.GAP
    assert history.apply(logged(6)) is None
    later = history.apply(logged(8))
    assert later is not None
    assert later[0] is Kind.GAP


def test_with_a_snapshot_a_new_producer_id_begins_at_0() -> None:
    history = History(5, ProducerNames())
    history.begin_with({})
    found = history.apply(logged(5))
    assert found is not None
    assert "begins in the middle" in found[1]
