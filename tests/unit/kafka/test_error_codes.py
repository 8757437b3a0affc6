"""The table of error codes: Kafka's names, and the sets that each decision goes by."""

import pytest
from kio.schema.errors import ErrorCode

from pidlease.client.pending_batch import SequenceRange
from pidlease.client.response_action import ResponseAction, ResponseMeaning, meaning_of
from pidlease.kafka import error_codes as table
from pidlease.kafka.codec.produce import PartitionResponse

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


def test_the_codes_are_kafka_s() -> None:
    codes = {name: code for name, code in vars(table).items() if isinstance(code, int)}
    assert set(codes.values()) >= table.CLASSES.keys()
    for name, code in codes.items():
        assert ErrorCode(code).name.upper() == name


@pytest.mark.parametrize("which", table.ErrorClass, ids=lambda which: which.name)
def test_the_codes_of_a_class(which: table.ErrorClass) -> None:
    assert getattr(table, str(which.name)) == _SETS[which]


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (table.UNSUPPORTED_COMPRESSION_TYPE, ResponseMeaning(ResponseAction.REFUSED)),
        (table.UNKNOWN_TOPIC_ID, ResponseMeaning(ResponseAction.RETRY, moved=True)),
    ],
)
def test_the_client_refreshes_metadata_where_java_s_does(
    code: int, meaning: ResponseMeaning
) -> None:
    """UnknownTopicIdException is an InvalidMetadataException there; a codec's error is final."""
    answer = PartitionResponse(code)
    assert meaning_of(answer, SequenceRange(1, 0, 0, 9, 0), after_failed=False) == meaning
