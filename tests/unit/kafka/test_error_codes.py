"""The table of error codes: Kafka's names, and the sets that each decision goes by."""

import pytest
from kio.schema.errors import ErrorCode

from pidlease.client import response_meaning
from pidlease.copier import cluster_reader, group_membership
from pidlease.kafka import error_codes as table
from pidlease.kafka import produce_errors
from pidlease.kafka.client import cluster, transactions
from pidlease.log.kafka import kafka_writers
from proxy.kafka import errors

#: Written by hand, not by the table.
_SETS = {
    table.ErrorClass.CONTENT: {2, 10, 18, 32, 76, 87},
    table.ErrorClass.FENCED: {47, 90},
    table.ErrorClass.STALE_LEADER: {3, 5, 6, 9, 56, 72, 74, 75, 100},
    table.ErrorClass.RESEND: {
        -1, 2, 3, 5, 6, 7, 8, 9, 13, 14, 15, 16, 19, 20, 41, 56, 72, 74, 75, 78, 89, 100,
    },
    table.ErrorClass.REREAD: {-1, 3, 5, 6, 7, 8, 9, 13, 56, 72, 74, 75, 78, 100},
    table.ErrorClass.HELD_BACK: {-1, 5, 6, 8, 9, 56, 75, 78},
    table.ErrorClass.TOPIC_ABSENT: {3, 17, 29},
    table.ErrorClass.COORDINATOR_MOVED: {15, 16},
    table.ErrorClass.GROUP_BUSY: {-1, 7, 14, 27},
    table.ErrorClass.MEMBERSHIP_LOST: {22, 25, 82},
    table.ErrorClass.TRANSACTION_BUSY: {3, 14, 51, 55},
    table.ErrorClass.NO_RIGHT: {29, 53},
}  # fmt: skip
#: The sets before there was a table.
_BEFORE = {
    table.ErrorClass.CONTENT: produce_errors.CONTENT,
    table.ErrorClass.FENCED: produce_errors.FENCED,
    table.ErrorClass.STALE_LEADER: produce_errors.STALE_LEADER,
    table.ErrorClass.RESEND: response_meaning._RETRIABLE,
    table.ErrorClass.REREAD: cluster_reader.RETRIABLE,
    table.ErrorClass.HELD_BACK: errors.HELD_BACK,
    table.ErrorClass.TOPIC_ABSENT: cluster._ABSENT,
    table.ErrorClass.COORDINATOR_MOVED: group_membership._COORDINATOR_MOVED,
    table.ErrorClass.GROUP_BUSY: group_membership._LATER,
    table.ErrorClass.MEMBERSHIP_LOST: group_membership._REPLACED,
    table.ErrorClass.TRANSACTION_BUSY: {code.value for code in transactions._BUSY},
    table.ErrorClass.NO_RIGHT: kafka_writers._RIGHTS,
}


def test_the_codes_are_kafka_s() -> None:
    codes = {name: code for name, code in vars(table).items() if isinstance(code, int)}
    assert set(codes.values()) >= table.CLASSES.keys()
    for name, code in codes.items():
        assert ErrorCode(code).name.upper() == name


@pytest.mark.parametrize("which", table.ErrorClass, ids=lambda which: which.name)
def test_the_codes_of_a_class(which: table.ErrorClass) -> None:
    assert getattr(table, str(which.name)) == _SETS[which] == _BEFORE[which]


def test_the_coordinator_of_transactions_moves_like_that_of_groups() -> None:
    assert {code.value for code in transactions._MOVED} == table.COORDINATOR_MOVED
