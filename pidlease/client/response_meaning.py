"""What the server's answer to a batch means for its producer."""

import enum
import re
from typing import Final, NamedTuple

from pidlease.client.produce_messages import PartAnswer
from pidlease.client.record_accumulator import Span
from pidlease.kafka.produce_errors import OUT_OF_ORDER_SEQUENCE_NUMBER, STALE_LEADER

_DUPLICATE: Final = 46
_FENCED: Final = 47
_UNKNOWN_PID: Final = 59
#: Not stored, or not known to be: the same batch comes again. Kafka's RetriableException, and -1,
#: after which it is not known either.
_RETRIABLE: Final = frozenset(
    (-1, 2, 3, 5, 6, 7, 8, 9, 13, 14, 15, 16, 19, 20, 41, 56, 72, 74, 75, 78, 89, 100)
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
    if code == _DUPLICATE:
        return Meaning(Kind.DUPLICATE)
    if code in _RETRIABLE:
        return Meaning(Kind.AGAIN, moved=code in STALE_LEADER)
    if code == OUT_OF_ORDER_SEQUENCE_NUMBER:
        return _out_of_order(answer, span, behind=behind)
    if code == _FENCED:
        return Meaning(Kind.FENCED)
    return Meaning(Kind.ENDED if code == _UNKNOWN_PID else Kind.REFUSED)


def _out_of_order(answer: PartAnswer, span: Span, *, behind: bool) -> Meaning:
    if behind:
        return Meaning(Kind.BEHIND)
    found = _EXPECTED.search(answer.message)
    expected = int(found[1]) if found is not None else -1
    if span.first < expected <= span.last:
        return Meaning(Kind.CUT, expected)
    return Meaning(Kind.REFUSED)
