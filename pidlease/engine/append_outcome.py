"""Outcomes of batches, for every listener to translate."""

import enum
from collections.abc import Callable
from typing import Final, NamedTuple

from pidlease.coordination.name_bindings import RELEASED
from pidlease.core.judge import Kind, Verdict
from pidlease.kafka.codec.produce import RecordError
from pidlease.kafka.error_codes import REQUEST_TIMED_OUT

#: The batch may be in the log. Clients send it again, and expect it to be deduplicated.
UNKNOWN_OUTCOME: Final = REQUEST_TIMED_OUT
#: Fences every generation that a batch can have.
FENCED_FOR_EVER: Final = RELEASED


@enum.unique
class Status(enum.Enum):
    """How a batch ended.

    The first seven are verdicts of the validation. FAILED: not in the log, nor is any later batch
    of this producer; try again. STOPPED: the partition accepts no appends. NO_LEASE: the lease
    table is full; try again later. FORBIDDEN: the topic does not allow batches of this policy.
    SESSION_ENDED: the producer had an error on this connection, so none of its later batches is
    validated there. REFUSED: Kafka did not append it, for a reason of its own. NOT_OWNER: another
    server writes to this partition now. KEY_REUSED: another request with its idempotency key is in
    the log.
    """

    APPENDED = "appended"
    DUPLICATE = "duplicate"
    GAP = "gap"
    OVERLAP = "overlap"
    FENCED = "fenced"
    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    FAILED = "failed"
    STOPPED = "stopped"
    NO_LEASE = "no lease"
    FORBIDDEN = "forbidden"
    SESSION_ENDED = "session ended"
    REFUSED = "refused"
    NOT_OWNER = "not owner"
    KEY_REUSED = "key reused"

    #: By identity, as members are compared: `Enum.__hash__` calls Python, for each batch's counts.
    __hash__ = object.__hash__


class Outcome(NamedTuple):
    """How a batch ended, with details for the client.

    Attributes:
        status: how it ended.
        offset: of its first record; -1: the batch is not in the log, or its offset is forgotten.
        expected: for a gap or an overlap, the sequence number that would be admitted; otherwise -1.
        generation: for fenced and malformed batches, the stored generation; otherwise -1.
        reason: the error in words.
        code: Kafka's error code, if it is not the status's usual one.
        record_errors: the records that caused the error, as Kafka says; its other ones are valid.
    """

    status: Status
    offset: int = -1
    expected: int = -1
    generation: int = -1
    reason: str = ""
    code: int = 0
    record_errors: tuple[RecordError, ...] = ()


#: Called once on the event loop, possibly before `produce` returns.
Done = Callable[[Outcome], None]


class GapWait:
    """Gets a batch's outcome, as a `Done`, and may let the batch wait at a sequence gap."""

    __slots__ = ()

    def __call__(self, outcome: Outcome) -> None:
        """Take the outcome."""
        raise NotImplementedError

    def waits(self, expected: int, refuse: Callable[[], None]) -> bool:
        """Return whether a batch waits for the one that is missing.

        Parameters:
            expected: the sequence number that would be admitted.
            refuse: ends the wait: it refuses the batch for the gap.
        """
        raise NotImplementedError


STATUS_OF: Final = {
    Kind.DUPLICATE: Status.DUPLICATE,
    Kind.GAP: Status.GAP,
    Kind.OVERLAP: Status.OVERLAP,
    Kind.FENCED: Status.FENCED,
    Kind.MALFORMED: Status.MALFORMED,
    Kind.UNKNOWN: Status.UNKNOWN,
}

_KEY_REUSED: Final = Outcome(
    Status.KEY_REUSED,
    reason="the key was used for a request with another body; use a new key for each request",
)


def refusal_of_key(verdict: Verdict) -> Outcome:
    """Return the outcome of a batch with an idempotency key that is not admitted."""
    kind = verdict.kind
    # The same request is always a duplicate with the offset of the original (`idempotency_keys`).
    if kind is Kind.OVERLAP or (kind is Kind.DUPLICATE and verdict.offset < 0):
        return _KEY_REUSED
    return refusal_of(verdict)


def refusal_of(verdict: Verdict) -> Outcome:
    """Return the outcome of a batch that is not admitted, with what to do about it."""
    kind, offset, expected, generation, _, reason = verdict
    if kind is Kind.FENCED and generation >= FENCED_FOR_EVER:
        reason = "fenced: its name has another PID now, or none; lease by the name"
        return Outcome(Status.FENCED, reason=reason)
    if kind is Kind.UNKNOWN:
        reason = (
            "this PID was never leased, or its lease has ended, or the topic was created again, or"
            " lost records, since; lease again"
        )
    return Outcome(STATUS_OF[kind], offset, expected, generation, reason)
