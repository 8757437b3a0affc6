"""What the server's answer to a batch means for its producer."""

import enum
import re
from typing import Final, NamedTuple

from pidlease.client.produce_messages import PartAnswer
from pidlease.client.record_accumulator import Span
from pidlease.kafka.error_codes import (
    DUPLICATE_SEQUENCE_NUMBER,
    INVALID_PRODUCER_EPOCH,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    RESEND,
    STALE_LEADER,
    UNKNOWN_PRODUCER_ID,
)

_EXPECTED: Final = re.compile(r"expected sequence (\d+)")
#: What the server says of a duplicate that it tells with its offset.
_SAID_DUPLICATE: Final = "duplicate"


@enum.unique
class Kind(enum.Enum):
    """What to do."""

    STORED = "stored"
    DUPLICATE = "it had been there before"
    AGAIN = "send it again"
    CUT = "a part of it is stored: cut that off, and send the rest"
    BEHIND = "one before it is still to come: send it again behind that"
    FENCED = "another producer goes on"
    ENDED = "the lease has ended"
    REFUSED = "it can never be stored"


class Meaning(NamedTuple):
    """What an answer means.

    Attributes:
        expected: the first number that is not stored, where a part of the batch is.
        moved: another server may have the partition.
    """

    kind: Kind
    expected: int = -1
    moved: bool = False


_STORED: Final = Meaning(Kind.STORED)


def meaning_of(answer: PartAnswer, span: Span, *, behind: bool) -> Meaning:
    """Read an answer.

    Parameters:
        answer: to a batch,
        span: with these numbers.
        behind: whether one before it has failed, and was not sent again since.
    """
    code = answer.code
    if code == 0:
        return _STORED if answer.message != _SAID_DUPLICATE else Meaning(Kind.DUPLICATE)
    if code == DUPLICATE_SEQUENCE_NUMBER:
        return Meaning(Kind.DUPLICATE)
    if code in RESEND:
        return Meaning(Kind.AGAIN, moved=code in STALE_LEADER)
    if code == OUT_OF_ORDER_SEQUENCE_NUMBER:
        return _out_of_order(answer, span, behind=behind)
    if code == INVALID_PRODUCER_EPOCH:
        return Meaning(Kind.FENCED)
    return Meaning(Kind.ENDED if code == UNKNOWN_PRODUCER_ID else Kind.REFUSED)


def _out_of_order(answer: PartAnswer, span: Span, *, behind: bool) -> Meaning:
    if behind:
        return Meaning(Kind.BEHIND)
    found = _EXPECTED.search(answer.message)
    expected = int(found[1]) if found is not None else -1
    if span.first < expected <= span.last:
        return Meaning(Kind.CUT, expected)
    return Meaning(Kind.REFUSED)
