"""The action that the response to a batch asks of the producer."""

import enum
import re
from typing import Final, NamedTuple

from pidlease.client.pending_batch import SequenceRange
from pidlease.kafka.codec.produce import PartitionResponse
from pidlease.kafka.error_codes import (
    DUPLICATE_SEQUENCE_NUMBER,
    INVALID_PRODUCER_EPOCH,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    RESEND,
    STALE_LEADER,
    UNKNOWN_PRODUCER_ID,
)

_EXPECTED: Final = re.compile(r"expected sequence (\d+)")
#: The server's text for a duplicate that it returns with its offset.
_DUPLICATE_TEXT: Final = "duplicate"


@enum.unique
class ResponseAction(enum.Enum):
    """What the producer does after a response."""

    STORED = "stored"
    DUPLICATE = "stored by an earlier request"
    RETRY = "send it again"
    CUT = "a part of it is stored: cut that off, and send the rest"
    RETRY_IN_ORDER = "a preceding batch is missing: send this one again after it"
    FENCED = "another producer continues"
    LEASE_ENDED = "the lease has ended"
    REFUSED = "it can never be stored"


class ResponseMeaning(NamedTuple):
    """What a response means.

    Attributes:
        expected: with CUT: the first sequence number that is not stored.
        moved: another server may lead the partition.
    """

    action: ResponseAction
    expected: int = -1
    moved: bool = False


_STORED: Final = ResponseMeaning(ResponseAction.STORED)


def meaning_of(
    result: PartitionResponse, span: SequenceRange, *, after_failed: bool
) -> ResponseMeaning:
    """Classify the result of a batch.

    Parameters:
        span: the batch's sequence numbers.
        after_failed: whether a preceding batch has failed, and was not sent again since.
    """
    code = result.code
    if code == 0:
        duplicate = result.message == _DUPLICATE_TEXT
        return ResponseMeaning(ResponseAction.DUPLICATE) if duplicate else _STORED
    if code == DUPLICATE_SEQUENCE_NUMBER:
        return ResponseMeaning(ResponseAction.DUPLICATE)
    if code in RESEND:
        return ResponseMeaning(ResponseAction.RETRY, moved=code in STALE_LEADER)
    if code == OUT_OF_ORDER_SEQUENCE_NUMBER:
        return _out_of_order(result, span, after_failed=after_failed)
    if code == INVALID_PRODUCER_EPOCH:
        return ResponseMeaning(ResponseAction.FENCED)
    ended = code == UNKNOWN_PRODUCER_ID
    return ResponseMeaning(ResponseAction.LEASE_ENDED if ended else ResponseAction.REFUSED)


def _out_of_order(
    result: PartitionResponse, span: SequenceRange, *, after_failed: bool
) -> ResponseMeaning:
    if after_failed:
        return ResponseMeaning(ResponseAction.RETRY_IN_ORDER)
    found = _EXPECTED.search(result.message)
    expected = int(found[1]) if found is not None else -1
    if span.first < expected <= span.last:
        return ResponseMeaning(ResponseAction.CUT, expected)
    return ResponseMeaning(ResponseAction.REFUSED)
