"""Batches between validation and acknowledgement."""

from collections import deque
from typing import Final

import structlog

from pidlease.core.state import Batch
from pidlease.engine.append_outcome import UNKNOWN_OUTCOME, Done, Outcome, Status
from pidlease.log.ports import Forwarded, NewBatch

#: The largest append; it bounds what a crash can tear, and how long a response waits.
GROUP_BYTES_MAX: Final = 8 << 20
GROUP_BATCHES_MAX: Final = 1000

_log = structlog.get_logger(__name__)


class Pending:
    """A batch to append, and the callbacks that wait for its outcome."""

    __slots__ = ("batch", "done", "new", "pid", "retries")

    def __init__(self, pid: int, batch: Batch, new: NewBatch, done: Done) -> None:
        self.pid = pid
        self.batch = batch
        self.new = new
        self.done = done
        self.retries: list[tuple[Batch, Done]] = []

    @property
    def sent(self) -> tuple[Batch, NewBatch, Done]:
        """The batch without its producer."""
        return self.batch, self.new, self.done


def next_group(queue: deque[Pending]) -> list[Pending]:
    """Take the batches of the next append."""
    group: list[Pending] = []
    size = 0
    while queue and len(group) < GROUP_BATCHES_MAX:
        size += len(queue[0].new.data)
        if group and size > GROUP_BYTES_MAX:
            break
        group.append(queue.popleft())
    return group


def original(in_flight: deque[Pending], batch: Batch) -> Pending:
    """Return the batch in flight that a retry repeats; the last one where it overlaps several."""
    for pending in in_flight:
        if pending.batch[:3] == batch[:3]:  # generation, first, last
            return pending
    return in_flight[-1]


def complete(done: Done, outcome: Outcome) -> None:
    """Complete one of many batches; its failure must not keep the others waiting."""
    try:
        done(outcome)
    except Exception:  # noqa: BLE001 - a listener's bug
        _log.exception("an outcome could not be delivered", outcome=outcome)


def not_taken(answer: Forwarded) -> Outcome:
    """Return the outcome of a batch that Kafka did not append, or perhaps did."""
    if answer.definite and answer.code:
        return Outcome(Status.REFUSED, reason=answer.reason, code=answer.code)
    code = 0 if answer.definite else UNKNOWN_OUTCOME
    return Outcome(Status.FAILED, reason=answer.reason, code=code)


def after_failed(expected: int) -> Outcome:
    """Return the outcome of a batch after one that failed."""
    reason = f"sequence {expected} failed and comes first again"
    return Outcome(Status.FAILED, expected=expected, reason=reason)
